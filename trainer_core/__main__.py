"""`python -m trainer_core`: see cli.py."""

import io
import os
import sys

# `-m` searches the current folder first: data files called json.py or torch.py would be run. Only modules that Python
# has already loaded may be imported above. The second line is for child processes.
if __name__ == "__main__" and not sys.flags.safe_path:
    _packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - no pathlib yet
    sys.path[:1] = [] if _packages in sys.path[1:] else [_packages]
    os.environ["PYTHONSAFEPATH"] = "1"

for _stream in (sys.stdout, sys.stderr, sys.stdin):  # Windows code pages cannot encode everything
    if isinstance(_stream, io.TextIOWrapper):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace")

# OpenMP threads spin for some microseconds before they sleep. Without spinning, a small model's step takes a third
# longer; with endless spinning (the default) it takes many times as long when another program uses a core. Figures in
# docs/performance.md. Read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # GNU OpenMP; others sleep at once

# OpenBLAS starts threads when numpy is loaded, and they spin before they sleep: 0.1 s of processor time per process on
# two cores. They spin for 2^4 cycles instead. Read when numpy is loaded.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# oneDNN, which multiplies matrices on a CPU, and torch's interface to it keep code and buffers for 1,024 shapes each.
# Batches without padding have ever new shapes: 32 steps of a LoRA run (31 million weights) took 3.4 GB, and take 1.6 GB
# at the same speed. Read when torch is loaded.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "16")

# Torch's allocator would log every CUDA out of memory to stderr. OOM recovery reports it itself. Read when torch is
# loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def main() -> None:
    """Entry point of the command `traindeck`."""
    from trainer_core.cli import main as run

    run()


if __name__ == "__main__":  # spawned worker processes run this file too, and need no command line
    main()
