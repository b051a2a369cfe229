"""A simulated run for tests of advice. All values are healthy unless a test changes them."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.events import rollouts
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.train.advice.advisor import Advisor

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
    throttle=["power"],  # as on any busy GPU
)


def config_with(**knobs: Any) -> Config:
    return msgspec.structs.replace(CONFIG, **knobs)


class SimulatedRun:
    """Sends the events of a run to an advisor, 2 s apart, and collects the advice."""

    def __init__(self, config: Config = CONFIG, *, cpu: bool = False, **options: Any) -> None:
        self.advisor = Advisor(config, **{"cores": 8, "can_spill": True, **options})
        self.advice: list[protocol.Advice] = []
        self.now, self.last_step, self.cpu = START, 0, cpu
        self.emit(protocol.Hello(pid=1, run_dir="runs/a", traindeck="1", python="3", torch="2", precision="bf16"))

    def emit(self, event: protocol.AnyEvent) -> None:
        self.now += 2.0
        event.t = self.now
        self.advice += self.advisor.process(event)

    def start_training(self, ready: protocol.Ready = READY) -> SimulatedRun:
        """Emit 30 steps, which is past the warm-up of all rules."""
        self.emit(ready)
        self.emit(protocol.Phase(phase="training"))
        return self.steps(30).hardware(3)

    def step(self, loss: float | None = 2.0, **changed: Any) -> None:
        self.last_step += 10
        default_ms = {
            "data": 1.0,
            "transfer": 0.5,
            "forward": 30.0,
            "backward": 60.0,
            "sync": 0.0,
            "optimizer": 5.0,
            "other": 3.0,
        }
        time_ms = protocol.StepTime(**{name: changed.pop(name, default) for name, default in default_ms.items()})
        defaults = {"learning_rate": 3e-4, "grad_norm": 0.7, "tokens_per_s": 8e4, "samples_per_s": 300.0}
        counts = {"epoch": 0.1, "tokens": self.last_step * 8192, "samples": self.last_step * 32}
        self.emit(
            protocol.Step(step=self.last_step, loss=loss, time_ms=time_ms, **{**counts, **defaults, **changed})  # type: ignore[arg-type]
        )

    def steps(self, count: int, loss: float | None = 2.0, **changed: Any) -> SimulatedRun:
        for number in range(count):
            variation = 0.02 * ((number * 7) % 5 - 2)  # losses are never constant
            self.step(None if loss is None else loss + variation, **changed)
        return self

    def losses(self, *losses: float) -> SimulatedRun:
        for loss in losses:
            self.step(loss)
        return self

    def hardware(self, count: int, *, host: dict[str, Any] | None = None, **gpu: Any) -> SimulatedRun:
        for _ in range(count):
            gpus = [] if self.cpu else [msgspec.structs.replace(GPU, **gpu)]
            self.emit(protocol.Hardware(gpus=gpus, host=msgspec.structs.replace(HOST, **(host or {}))))
        return self

    def performance(self, count: int = 1, **changed: Any) -> SimulatedRun:
        defaults: dict[str, Any] = {
            "data_ratio": 0.01,
            "compute_ratio": 0.95,
            "flops_per_token": 1e8,
            "memory_peak": 8 * GIB,
        }
        for _ in range(count):
            self.emit(protocol.Performance(step=self.last_step, **{**defaults, **changed}))
        return self

    def evals(self, *losses: float) -> SimulatedRun:
        for loss in losses:
            self.emit(protocol.Eval(step=self.last_step, loss=loss, perplexity=None, tokens=1000, seconds=1.0))
        return self

    def bad_steps(self, count: int, kind: Any = "not_finite") -> SimulatedRun:
        for _ in range(count):
            self.last_step += 1
            self.emit(protocol.BadStep(step=self.last_step, kind=kind, action="skipped"))
        return self

    @property
    def codes(self) -> list[str]:
        """Codes of the advice in order of emission, without "advice.". A leading minus means resolved."""
        return [("-" if advice.resolved else "") + advice.code.removeprefix("advice.") for advice in self.advice]


REWARDED_CONFIG = config_with(
    objective="grpo", rewards=["exact"], group_size=8, rollout_max_new_tokens=100, max_seq_len=256
)


class RewardedRun(SimulatedRun):
    """A healthy run: half of the prompts have a signal."""

    def __init__(self, **knobs: Any) -> None:
        super().__init__(msgspec.structs.replace(REWARDED_CONFIG, **knobs))
        self.start_training()

    def rollouts(self, count: int = 3, entropy: float = 0.8, kl: float = 0.01, **values: Any) -> RewardedRun:
        healthy = {"answers": 128, "answer_tokens": 30.0, "truncated_ratio": 0.01}
        for _ in range(count):
            self.emit(rollouts(self.last_step + 1, **{**healthy, **values}))
            self.step(0.001, entropy=entropy, kl=kl)
        return self
