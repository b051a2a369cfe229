"""For all tests: how this process was started does not decide what they find."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell, in the background; children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
