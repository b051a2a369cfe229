"""Thin Qt adapters to what lies outside the window: the trainer's process, the machine, the desktop."""
