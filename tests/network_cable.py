"""A cable between two network namespaces, with delay and loss: `python -m tests.network_cable HOST HOST`.

Each end is a TUN device named `cable`; this process carries the packets. It reads lines `DELAY_S LOSS` from stdin, and
prints one when the cable is there. Linux, as root. The kernel's own `netem` is missing on some machines.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time
from pathlib import Path
from typing import Final

DEVICE: Final = "cable"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_PACKET_BYTES: Final = 65_536


def open_end(host: str) -> int:
    """Create the device in a network namespace. Returns its file descriptor."""
    with Path(f"/run/netns/{host}").open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {host}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN_NO_PI))
    return end


def carry(ends: tuple[int, int]) -> None:
    """Carry packets until stdin ends."""
    delay, loss, rng, numbers = 0.0, 0.0, random.Random(1), itertools.count()
    under_way: list[tuple[float, int, int, bytes]] = []  # time of arrival, number, receiving end, packet
    other = dict(zip(ends, reversed(ends), strict=True))
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for ready in select.select([*ends, 0], [], [], wait)[0]:
            if ready == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                delay, loss = map(float, line.split())
            elif (packet := os.read(ready, _PACKET_BYTES)) and rng.random() >= loss:
                heapq.heappush(under_way, (time.monotonic() + delay, next(numbers), other[ready], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # the other end is down, or full: the packet is lost
                os.write(end, packet)


if __name__ == "__main__":
    both = open_end(sys.argv[1]), open_end(sys.argv[2])
    print("ready", flush=True)  # noqa: T201
    carry(both)
