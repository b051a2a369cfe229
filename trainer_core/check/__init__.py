"""The check before a run, and the measurement shared with the automatic batch size and `bench`."""
