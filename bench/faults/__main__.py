"""`python -m bench.faults NAME`: see each module."""

from __future__ import annotations

import importlib
import sys
from typing import Final

COMMANDS: Final = {
    "kills": "SIGKILL at random instants of a run until it has finished",
    "disk": "a full disk from every operation of a run on",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print("python -m bench.faults NAME", *(f"  {name:<12}{what}" for name, what in COMMANDS.items()), sep="\n")
        return 2
    return int(importlib.import_module(f"bench.faults.{sys.argv[1]}").main(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
