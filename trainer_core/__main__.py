"""`python -m trainer_core`: see cli.py."""

import io
import os
import sys

# `-m` looks for modules in the current folder first: data in it that is called json.py or torch.py would be run. Only
# what Python has loaded by now may stand above this. The second is for the Pythons that this one starts.
if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - no pathlib yet
    os.environ["PYTHONSAFEPATH"] = "1"

for _stream in (sys.stdout, sys.stderr, sys.stdin):  # a Chinese or western Windows code page cannot say everything
    if isinstance(_stream, io.TextIOWrapper):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace")

# Threads of CPU arithmetic that wait for the next piece of work look for it some microseconds, then sleep. Those that
# only sleep make a small model's step a third slower; those that look on and on (the default) make it many times as
# slow as soon as another program wants a core. Figures in docs/performance.md. Read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # GNU's; others sleep at once

# When a GPU's memory ends, torch's allocator says so on stderr each time. A run goes on in smaller parts then, and says
# that in its own words; what it cannot recover from ends in one sentence. Read when torch is loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

if __name__ == "__main__":  # the processes that encode or load are started with this file too, and need no command line
    from trainer_core.cli import main

    main()
