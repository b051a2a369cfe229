"""Emits the events of a simulated run like a trainer.

python -m bench.window_events STEPS RATE        RATE events per second, three for each step
"""

import sys
import time

from tests.gui import demo_run
from trainer_core import protocol
from trainer_core.config import Config

if __name__ == "__main__":
    steps, rate = int(sys.argv[1]), float(sys.argv[2])
    started_at = time.time()
    simulated = demo_run.events(Config(), steps=steps, every=1, gpu=True, done=True, started_at=started_at)
    for seq, event in enumerate(simulated, 1):
        if seq % 10 == 0:
            sys.stdout.buffer.flush()
            time.sleep(max(0.0, started_at + seq / rate - time.time()))
        event.t, event.seq = time.time(), seq
        sys.stdout.buffer.write(protocol.encode(event))
    sys.stdout.buffer.flush()
