"""Traindeck's headless trainer: `python -m trainer_core`. Imports nothing of the window, never Qt."""

__version__ = "0.1.0"
