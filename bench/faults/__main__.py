"""`python -m bench.faults NAME`: see each module."""

import sys

from bench.faults import disk, kills

COMMANDS = {
    "kills": (kills.main, "SIGKILL at random instants of a run until it has finished"),
    "disk": (disk.main, "a full disk from every operation of a run on"),
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        sys.exit(COMMANDS[sys.argv[1]][0](sys.argv[2:]))
    lines = [f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items()]
    print("python -m bench.faults NAME", *lines, sep="\n")
    sys.exit(2)
