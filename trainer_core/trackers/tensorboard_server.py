"""TensorBoard for this computer: `python -m trainer_core.trackers.tensorboard_server FOLDER`.

Prints its address once it answers. Ends when its stdin is closed, and so with the window that started it.
"""

from __future__ import annotations

import sys

from tensorboard import default, program


def main(folder: str) -> None:
    server = program.TensorBoard(default.get_plugins())
    server.configure(argv=[None, "--logdir", folder, "--host", "127.0.0.1", "--port", "0"])
    sys.stdout.write(server.launch() + "\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(sys.argv[1])
