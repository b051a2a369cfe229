"""`python -m trainer_core`: see cli.py."""

import io
import os
import sys

for _stream in (sys.stdout, sys.stderr, sys.stdin):  # a Chinese or western Windows code page cannot say everything
    if isinstance(_stream, io.TextIOWrapper):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace")

# Threads of CPU arithmetic that wait should sleep, not spin: with another program on one of two cores,
# spinning makes a step three times as slow. Read when torch is loaded, so set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if __name__ == "__main__":  # the processes that encode or load are started with this file too, and need no command line
    from trainer_core.cli import main

    main()
