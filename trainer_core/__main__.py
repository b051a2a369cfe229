"""`python -m trainer_core`: see cli.py."""

import io
import sys

for _stream in (sys.stdout, sys.stderr, sys.stdin):  # a Chinese or western Windows code page cannot say everything
    if isinstance(_stream, io.TextIOWrapper):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace")

from trainer_core.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
