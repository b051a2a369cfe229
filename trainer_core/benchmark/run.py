"""The `bench` command: ceilings, training runs taking turns, fast paths; within a time, and told at the end.

What is said while it goes is words on stderr, so that stdout holds the result alone. Ctrl+C ends it: nothing is left
behind but results that were saved before.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from trainer_core import files
from trainer_core.benchmark import ceilings, data, picture, recipes, result, words
from trainer_core.benchmark.ceilings import Ceiling
from trainer_core.benchmark.recipes import Recipe
from trainer_core.config import Config
from trainer_core.console.engine import Trying
from trainer_core.messages import Language, TraindeckError
from trainer_core.model.decoder import Decoder, ModelConfig
from trainer_core.report import Quiet
from trainer_core.runs import run_dir
from trainer_core.train.device import choose_device, choose_precision
from trainer_core.train.engine import fast_paths
from trainer_core.train.flops import flops_per_token
from trainer_core.train.oom import give_back

DEFAULT_SECONDS: Final = {"cpu": 120.0, "cuda": 300.0}
_SHARE: Final = 0.4  # of the ceiling of matrix products that training is expected to reach, for the time of a step
_STEP_S: Final = 1.0  # a step may take so long; accumulation is lowered for it
_TOO_LONG_S: Final = 8.0  # a micro-batch
_MOST_ROUNDS: Final = 5
_PATHS_S: Final = 60.0  # that measuring the fast paths takes, at most half of the time
_BYTES: Final = 16  # of a weight with its gradient and moments

Say = Callable[[str], None]


@dataclass(slots=True)
class Bench:
    """One benchmark, from its configuration to its document."""

    config: Config
    language: Language
    say: Say
    seconds: float | None = None
    given: Collection[str] = ()  # knobs that were set by name: nothing tunes them
    notes: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Measure everything. Raises `TraindeckError` where not even one recipe could be measured."""
        begun = time.monotonic()
        device = choose_device(self.config.device)
        seconds = self.seconds or DEFAULT_SECONDS[device.type]
        end = begun + seconds
        machine = result.machine(device)
        if machine["busy"] > words.NOISY:
            self._note("others", share=machine["busy"])
        enough_s = min(0.4, seconds / 200)  # for each of the ceilings
        limits = ceilings.measure(device, enough_s, self._say_ceiling)
        with _folder() as folder:
            ways = self._recipes(device, limits)
            self._say("doing_data")
            prepared = data.ready(self.config, folder, Quiet())
            for one in ways:
                one.use(prepared)
            paths = self._paths(device, seconds)
            give_back(device)  # what was tried here is to be free for the processes that are measured
            self._rounds(ways, folder, end, seconds / 40)
        return self._document(machine, limits, ways, paths, time.monotonic() - begun)

    def _recipes(self, device: torch.device, limits: list[Ceiling]) -> list[Recipe]:
        """What is compared; refuses a model that the machine cannot train in the time: `bench.too_large`."""
        config, accumulation = self.config, self.config.gradient_accumulation_steps
        micro_s = self._micro_batch_seconds(device, limits)
        if micro_s > _TOO_LONG_S:
            preset, seconds = config.preset or "–", round(micro_s)
            raise TraindeckError("bench.too_large", preset=preset, seconds=seconds, device=str(device))
        fitting = max(1, min(accumulation, int(_STEP_S / micro_s)))
        if fitting < accumulation:
            self._note("accumulation", now=fitting, own=accumulation)
        ways = recipes.recipes(config, device.type == "cuda", fitting, self.given)
        if ways[1].config == ways[2].config:
            self._note("same")
            return [ways[0], ways[2]]
        return ways

    def _micro_batch_seconds(self, device: torch.device, limits: list[Ceiling]) -> float:
        """About how long the preset's micro-batch takes; infinite where its weights do not fit."""
        with torch.device("meta"):
            model = Decoder(ModelConfig.of(self.config, self.config.vocab_size))
        if device.type == "cuda":
            room: int = torch.cuda.get_device_properties(device).total_memory
        else:
            room = result.machine_memory()
        if model.count_parameters() * _BYTES > room:
            raise TraindeckError("memory.out", device=str(device), step=0)
        best = max(one.median for one in limits if one.name.startswith("matmul"))
        if device.type == "cpu":
            best = next(one.median for one in limits if one.name == "matmul fp32")
        tokens = self.config.batch_size * self.config.max_seq_len
        return flops_per_token(model, self.config.max_seq_len) * tokens / best / _SHARE

    def _rounds(self, ways: list[Recipe], folder: Path, end: float, measuring: float) -> None:
        """All recipes in turn, as often as there is time. One that fails is told, and left out from then on."""
        longest = 0.0
        for number in range(_MOST_ROUNDS):
            since = time.monotonic()
            if number and since + longest > end:
                break
            for one in ways:
                if one.error is None:
                    self._say("doing_round", round=number + 1, name=words.text(one.name, self.language))
                    self._train(one, number, folder, min(10.0, max(0.3, measuring)))
            took = time.monotonic() - since
            longest = max(longest, took) if number else took / 2  # the first one compiled
        if all(not one.runs for one in ways):
            code, params = next(one.error for one in ways if one.error)
            raise TraindeckError(code, **params)
        if all(len(one.runs) < 2 for one in ways):
            self._note("once")
        self._judge(ways)

    def _train(self, one: Recipe, number: int, folder: Path, seconds: float) -> None:
        try:
            recipes.train(one, number, folder, seconds)
        except TraindeckError as error:
            one.error = (error.code, error.params)

    def _judge(self, ways: list[Recipe]) -> None:
        """Say how far the runs of a recipe are apart."""
        apart = [max(one.speeds) / min(one.speeds) - 1 for one in ways if one.speeds]
        if max(apart) > words.NOISY:
            self._note("uneven", share=max(apart))

    def _paths(self, device: torch.device, seconds: float) -> list[dict[str, Any]]:
        """Each fast path against the reference: measured now, or as this machine remembers it."""
        precision = choose_precision("auto", device, Quiet()).name
        found = fast_paths.known(device, precision)
        if fast_paths.is_measured(device, precision):
            self._note("remembered")
        elif seconds < 2 * _PATHS_S:
            self._note("partly" if any(one.gain is not None for one in found) else "late")
        else:
            found = fast_paths.measure(device, Trying(self.say, self.language))
        return [result.path(one) for one in found]

    def _document(
        self,
        machine: dict[str, Any],
        limits: list[Ceiling],
        ways: list[Recipe],
        paths: list[dict[str, Any]],
        seconds: float,
    ) -> dict[str, Any]:
        tuned, untuned = ways[-1], ways[0]
        return {
            "machine": machine,
            "preset": self.config.preset,
            "seconds": seconds,
            "ceilings": [result.ceiling(one) for one in limits],
            "recipes": [result.recipe(one) for one in ways],
            "times_as_fast": result.times_as_fast(tuned, untuned),
            "fast_paths": paths,
            "notes": self.notes,
        }

    def _say_ceiling(self, name: str) -> None:
        self._say("doing_ceiling", name=words.ceiling_name(name, self.language))

    def _note(self, key: str, **values: Any) -> None:
        self.notes.append({"key": key, "values": values})

    def _say(self, key: str, **values: Any) -> None:
        self.say(words.text(key, self.language, **values))


def results() -> Path:
    """Where results are kept: in Traindeck's own folder, beside those of the comparisons with peers."""
    return run_dir.home() / "bench" / "results"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for what is needed while measuring; gone at the end."""
    root = results()
    with files.said_plainly(root):
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="work-", dir=root))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def save(document: dict[str, Any], language: Language) -> list[Path]:
    """Write the document and its picture in `results()`; where they are. Raises `disk.…`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{run_dir.safe_name(document['preset']) or 'bench'}-{stamp}"
    root = results()
    contents = {".json": json.dumps(document, indent=1, ensure_ascii=False), ".svg": picture.draw(document, language)}
    written = []
    for ending, content in contents.items():
        path = root / f"{name}{ending}"
        with files.said_plainly(root):
            files.write_atomic(path, content.encode("utf-8"))
        written.append(path)
    return written
