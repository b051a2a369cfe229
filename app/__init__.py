"""Traindeck's window: `python -m app`. Never imports torch; talks to the trainer through a process."""
