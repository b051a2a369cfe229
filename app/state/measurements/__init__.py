"""What a run measured, as series to plot: taken in, kept, thinned, smoothed. No Qt.

All of it needs numpy, none of it numpy's linear algebra, whose threads would look for work for a while as they are
made: 0.04 s of processor time at each start, and memory for each core. So numpy is imported here, told to have one.
"""

import os

_THREADS = "OPENBLAS_NUM_THREADS"
_chosen = os.environ.get(_THREADS)
os.environ[_THREADS] = _chosen or "1"
import numpy  # noqa: E402, F401 - it looks when it is imported

if _chosen is None:
    del os.environ[_THREADS]  # what a trainer is started with is its own
