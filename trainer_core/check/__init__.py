"""The check before Start, and the measurement that it shares with the automatic batch size and `bench`."""
