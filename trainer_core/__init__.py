"""Traindeck's headless trainer: `python -m trainer_core`. Imports nothing of the window, never Qt."""

import time

__version__ = "0.1.0"
STARTED_AT = time.monotonic()  # some hundredths of a second after the start of the process
