"""What is set before Start: preset, data, name, knobs."""
