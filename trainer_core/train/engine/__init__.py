"""Selection of fast paths: by rules, verified against the reference, measured by `doctor --fast-paths`."""
