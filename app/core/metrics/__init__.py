"""Measurements of a run as series to plot. No Qt.

numpy is imported here with one BLAS thread: starting its threads takes 0.04 s of processor time and memory for each
core, and no linear algebra is used.
"""

import os

_THREADS = "OPENBLAS_NUM_THREADS"
_chosen = os.environ.get(_THREADS)
os.environ[_THREADS] = _chosen or "1"
import numpy  # noqa: E402, F401 - reads the variable at import

if _chosen is None:
    del os.environ[_THREADS]  # child processes choose for themselves
