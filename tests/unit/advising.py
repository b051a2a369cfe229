"""Runs as series of events, for the tests of advice: healthy unless something is changed."""

from __future__ import annotations

from typing import Any

import msgspec

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.train.advice import Advisor

GIB = 1024**3
START = 1_700_000_000.0
CONFIG = Config(
    batch_size=8, gradient_accumulation_steps=4, learning_rate=3e-4, warmup_steps=50, log_steps=10, max_seq_len=256
)
READY = protocol.Ready(
    task="pretrain",
    train_documents=1000,
    train_tokens=1_000_000,
    validation_documents=50,
    validation_tokens=50_000,
    vocab_size=8192,
    parameters=10_000_000,
    steps_per_epoch=1000,
    total_steps=5000,
    loader_workers=2,
    loader_reason="gpu",
)
HOST = protocol.Host(ram_used=8 * GIB, ram_total=32 * GIB, rss=3 * GIB, cpu=0.3, disk_free=500 * GIB)
GPU = protocol.Gpu(
    index=0,
    name="GPU",
    utilization=0.95,
    vram_used=9 * GIB,
    vram_total=12 * GIB,
    torch_allocated=7 * GIB,
    torch_reserved=8 * GIB,
    temperature_c=66.0,
    clock_mhz=2500,
    power_limit_w=250.0,
    throttle=["power"],  # as any busy card says
)


class Series:
    """A run that is told to an adviser. Each method tells one event or more, 2 s apart, with what is changed."""

    def __init__(self, config: Config = CONFIG, *, cpu: bool = False, **about: Any) -> None:
        self.adviser = Advisor(config, **{"cores": 8, "spills": True, **about})
        self.said: list[protocol.Advice] = []
        self.now, self.newest, self.cpu = START, 0, cpu
        self.tell(protocol.Hello(pid=1, run_dir="runs/a", traindeck="1", python="3", torch="2", precision="bf16"))

    def tell(self, event: protocol.AnyEvent) -> None:
        self.now += 2.0
        event.t = self.now
        self.said += self.adviser.process(event)

    def train(self, ready: protocol.Ready = READY) -> Series:
        """Past all warm-up, with everything as it should be."""
        self.tell(ready)
        self.tell(protocol.Phase(phase="training"))
        return self.steps(30).looks(3)

    def step(self, loss: float | None = 2.0, **changed: Any) -> None:
        self.newest += 10
        times = {
            "data": 1.0,
            "transfer": 0.5,
            "forward": 30.0,
            "backward": 60.0,
            "sync": 0.0,
            "optimizer": 5.0,
            "other": 3.0,
        }
        time_ms = protocol.StepTime(**{name: changed.pop(name, usual) for name, usual in times.items()})
        usual = {"learning_rate": 3e-4, "grad_norm": 0.7, "tokens_per_s": 8e4, "samples_per_s": 300.0}
        counts = {"epoch": 0.1, "tokens": self.newest * 8192, "samples": self.newest * 32}
        self.tell(
            protocol.Step(step=self.newest, loss=loss, time_ms=time_ms, **{**counts, **usual, **changed})  # type: ignore[arg-type]
        )

    def steps(self, count: int, loss: float | None = 2.0, **changed: Any) -> Series:
        for number in range(count):
            wave = 0.02 * ((number * 7) % 5 - 2)  # losses are never quite the same
            self.step(None if loss is None else loss + wave, **changed)
        return self

    def losses(self, *losses: float) -> Series:
        for loss in losses:
            self.step(loss)
        return self

    def looks(self, count: int, *, host: dict[str, Any] | None = None, **gpu: Any) -> Series:
        for _ in range(count):
            gpus = [] if self.cpu else [msgspec.structs.replace(GPU, **gpu)]
            self.tell(protocol.Hardware(gpus=gpus, host=msgspec.structs.replace(HOST, **(host or {}))))
        return self

    def performance(self, count: int = 1, **changed: Any) -> Series:
        usual: dict[str, Any] = {
            "data_ratio": 0.01,
            "compute_ratio": 0.95,
            "flops_per_token": 1e8,
            "memory_peak": 8 * GIB,
        }
        for _ in range(count):
            self.tell(protocol.Performance(step=self.newest, **{**usual, **changed}))
        return self

    def evaluations(self, *losses: float) -> Series:
        for loss in losses:
            self.tell(protocol.Eval(step=self.newest, loss=loss, perplexity=None, tokens=1000, seconds=1.0))
        return self

    def bad(self, count: int, kind: Any = "not_finite") -> Series:
        for _ in range(count):
            self.newest += 1
            self.tell(protocol.BadStep(step=self.newest, kind=kind, action="skipped"))
        return self

    @property
    def codes(self) -> list[str]:
        """What was said, in order; with a minus where it was over."""
        return [("-" if advice.resolved else "") + advice.code.removeprefix("advice.") for advice in self.said]
