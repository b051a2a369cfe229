"""From flags to a plan: which configuration, in which folder, new or going on.

No torch, no Qt: a mistake is told before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainer_core import place, presets
from trainer_core.config import Config, Layer, knobs, resolve
from trainer_core.messages import TraindeckError, terminal_language
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train and where: a new run, or one that goes on."""

    config: Config
    run: RunDir
    resume: bool = False
    checkpoint: Path | None = None  # a particular one to go on from; None: the newest that verifies


def where() -> str:
    """What errors call the command line."""
    return "命令行" if terminal_language() == "zh" else "The command line"


def configuration(flags: Mapping[str, Any], base: Sequence[Layer] = ()) -> Config:
    """Defaults < preset < file < flags; paths made absolute so that the run can be repeated from anywhere."""
    layers = list(base)
    if flags["preset"]:
        layers.append(presets.load(flags["preset"]).layer())
    if flags["config_file"]:
        layers.append(Layer(str(flags["config_file"]), presets.read_mapping(flags["config_file"])))
    given = {name: flags[name] for name in knobs() if name != "preset" and flags.get(name) not in (None, ())}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    layers.append(Layer(where(), given))
    config = resolve(layers)
    return msgspec.structs.replace(
        config,
        data=[_absolute(path) for path in config.data],
        validation_data=[_absolute(path) for path in config.validation_data],
        tokenizer=_absolute(config.tokenizer),
        cache_dir=_absolute(config.cache_dir),
    )


def _absolute(path: str) -> str:
    """A path as it is meant from the current folder; the names of built-in data stay."""
    return path if not path or path.startswith("builtin:") else str(Path(path).absolute())


def plan(flags: Mapping[str, Any]) -> Plan:
    """A new run, a run that goes on in its own folder, or a new run from an older checkpoint.

    Raises `run.exists` rather than train into a folder that holds another run, and for data that is not there;
    `checkpoint.of_no_run`, and `ranks.one_machine`.
    """
    given = place.given()
    if given is not None:  # who started so many processes wants so many ranks
        flags = {**flags, "ranks": given.size}
    wanted: Path | None = flags["run_dir"]
    if flags["resume"] is None:
        config = configuration(flags)
        _require_data(config)
        return Plan(config, _free_run(wanted, run_dir.runs_root(), config))
    source = Path(flags["resume"]).resolve()
    is_checkpoint = (source / checkpoint_dir.MANIFEST).is_file()
    if is_checkpoint:
        run = RunDir(source.parent.parent)
        if not run.config.is_file():
            raise TraindeckError("checkpoint.of_no_run", path=str(source), config=str(run.config))
    else:
        latest = flags["resume"] == "latest" and wanted is not None
        run = run_dir.find_run(str(wanted) if latest else flags["resume"], run_dir.runs_root())
    config = configuration(flags, [Layer(str(run.config), presets.read_mapping(run.config))])
    newest = checkpoint_dir.list_checkpoints(run.checkpoints)[-1:]
    if is_checkpoint and (wanted is not None or [source] != newest):
        # going back: later checkpoints are never overwritten, so the new branch gets its own folder
        return Plan(config, _free_run(wanted, run.path.parent, config), resume=True, checkpoint=source)
    return Plan(config, run, resume=True, checkpoint=source if is_checkpoint else None)


def _require_data(config: Config) -> None:
    """Refuse what cannot be trained on before a folder is made for it.

    Raises `data.none_given`, `data.not_found`, and without a token cache `data.needs_cache` and what `look` raises.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    for path in (*config.data, *config.validation_data):
        if not path.startswith("builtin:") and not Path(path).exists():
            raise TraindeckError("data.not_found", path=path)
    if not config.token_cache:
        from trainer_core.data import direct, sources  # 0.2 s, that others need not wait for

        direct.check([sources.look(path, config) for path in config.data])


def _free_run(wanted: Path | None, root: Path, config: Config) -> RunDir:
    """The folder of a new run: the one that is wanted, if it holds no run, or a new one below `root`."""
    run = RunDir(wanted.absolute() if wanted else run_dir.new_run_path(root, config.preset))
    if run.exists():
        raise TraindeckError("run.exists", path=str(run.path))
    return run
