"""The process that talks to Weights & Biases: events come in on stdin, one JSON object per line.

The first line says which run it is (wandb_log.py writes it). Problems go to stdout as
`{"problem": "…"}`. At the end of input the run is finished; an upload that takes too long is given up,
and what could not be sent stays in the run's folder for `wandb sync`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
from typing import Any, BinaryIO, Final

import msgspec

from trainer_core import protocol

_INIT_SECONDS: Final = 30
_GIVE_UP_SECONDS: Final = 300.0
_LEFT_OUT: Final = ("type", "t", "seq", "step")


def main(lines: BinaryIO, say: BinaryIO) -> int:
    """Read to the end of `lines`. Returns the exit code; what is wrong was said before."""
    about = json.loads(lines.readline())
    try:
        wandb: Any = importlib.import_module("wandb")
        run = start(wandb, about, say)
    except Exception as error:  # noqa: BLE001 - wandb raises many kinds, and training goes on without it
        complain(say, error)
        return 0
    for line in lines:
        try:
            log(wandb, run, protocol.decode_event(line))
        except Exception as error:  # noqa: BLE001 - as above
            complain(say, error)
    watchdog = threading.Timer(_GIVE_UP_SECONDS, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    run.finish()
    return 0


def start(wandb: Any, about: dict[str, Any], say: BinaryIO) -> Any:
    """A run there; where the service does not answer, one on disk that can be sent later."""
    given = {
        "project": about["project"],
        "id": about["id"],
        "name": about["name"],
        "dir": about["folder"],
        "config": about["config"],
        "resume": "allow",
    }
    try:
        run = wandb.init(**given, settings=wandb.Settings(init_timeout=_INIT_SECONDS))
    except wandb.errors.CommError as error:
        complain(say, error)
        run = wandb.init(**given, mode="offline")
    run.define_metric("*", step_metric="step")
    return run


def complain(say: BinaryIO, error: Exception) -> None:
    """Tell the trainer, if it is still there."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    with contextlib.suppress(OSError):
        say.write(json.dumps({"problem": said[0]}).encode("ascii") + b"\n")
        say.flush()


def log(wandb: Any, run: Any, event: protocol.AnyEvent) -> None:
    """One event in wandb's terms."""
    match event:
        case protocol.Step():
            run.log({"step": event.step, **flat("train", event)})
        case protocol.Eval():
            run.log({"step": event.step, **flat("eval", event)})
        case protocol.Hardware():
            values = flat("host", event.host)
            for gpu in event.gpus:
                values |= flat(f"gpu/{gpu.index}", gpu)
            run.log(values)
        case protocol.Sample():
            columns = ["step", "prompt", "text", "expected"]
            row = [event.step, event.prompt, event.text, event.expected]
            run.log({"step": event.step, "sample": wandb.Table(columns=columns, data=[row])})
        case protocol.Done():
            run.summary.update(flat("done", event))


def flat(prefix: str, part: msgspec.Struct) -> dict[str, float]:
    """The numbers of a struct by path: `train/loss`, `train/time_ms/data`. What is None is left out."""
    found: dict[str, float] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, msgspec.Struct):
            found |= flat(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and name not in _LEFT_OUT:
            found[f"{prefix}/{name}"] = value
    return found


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print of a library must not be taken for an answer
    sys.exit(main(sys.stdin.buffer, private))
