"""The check before Start: real steps of a configuration in a process of its own, and what they say of a run."""
