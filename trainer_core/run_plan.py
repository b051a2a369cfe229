"""Run plan from flags: configuration, run directory, new or resumed.

No torch, no Qt, so that mistakes are reported before anything heavy is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainer_core import presets, rank_info, texts
from trainer_core.config import Config, ConfigLayer, knobs, resolve
from trainer_core.messages import TraindeckError, terminal_language
from trainer_core.rewards.setting import with_absolute_files
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A new or resumed run."""

    config: Config
    run: RunDir
    resume: bool = False
    checkpoint: Path | None = None  # the one to continue from; None: the newest valid one


def command_line_label() -> str:
    """Return the name of the command line in error messages."""
    return texts.get("console.command_line", terminal_language())


def build_config(flags: Mapping[str, Any], base: Sequence[ConfigLayer] = ()) -> Config:
    """Defaults < preset < file < flags; paths become absolute, so that the run can be repeated from anywhere."""
    layers = list(base)
    if flags["preset"]:
        layers.append(presets.load(flags["preset"]).layer())
    if flags["config_file"]:
        layers.append(ConfigLayer(str(flags["config_file"]), presets.read_mapping(flags["config_file"])))
    given = {name: flags[name] for name in knobs() if name != "preset" and flags.get(name) not in (None, ())}
    given = {name: _list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    layers.append(ConfigLayer(command_line_label(), given))
    config = resolve(layers)
    if config.uses_rewards:
        from trainer_core.rewards.rewards import load_rewards  # imports numpy, which other commands need not

        load_rewards(config.rewards)  # refuse before anything is loaded
        config = msgspec.structs.replace(config, rewards=with_absolute_files(config.rewards))
    return msgspec.structs.replace(
        config,
        data=[_absolute(path) for path in config.data],
        validation_data=[_absolute(path) for path in config.validation_data],
        tokenizer=_absolute(config.tokenizer),
        cache_dir=_absolute(config.cache_dir),
        deepspeed_config=_absolute(config.deepspeed_config),
    )


def _list(values: tuple[str, ...]) -> list[str]:
    """The values of a flag. One empty text replaces a preset's list by an empty one."""
    return [] if values == ("",) else list(values)


def _absolute(path: str) -> str:
    """Path relative to the current folder; names of built-in data stay."""
    if not path or path.startswith("builtin:"):
        return path
    return os.path.abspath(path)  # noqa: PTH100  without `..`, but with links


def plan_run(flags: Mapping[str, Any]) -> RunPlan:
    """Plan a new run, a resumed run, or a new run from an older checkpoint.

    Raises `run.exists` for a folder that holds another run, data errors and `checkpoint.of_no_run`.
    """
    info = rank_info.from_environment()
    wanted: Path | None = flags["run_dir"]
    if info is not None:  # the launcher decides
        flags = {**flags, "nproc_per_node": info.local_world_size}
    if rank_info.is_elastic() and flags["resume"] is None and wanted is not None and RunDir(wanted).exists():
        flags = {**flags, "resume": str(wanted)}  # started again by the elastic agent
    if flags["resume"] is None:
        config = build_config(flags)
        _require_data(config)
        return RunPlan(config, _new_run(wanted, run_dir.runs_root(), config))
    source = Path(flags["resume"]).resolve()
    is_checkpoint = (source / checkpoint_dir.MANIFEST).is_file()
    if is_checkpoint:
        run = RunDir(source.parent.parent)
        if not run.config.is_file():
            raise TraindeckError("checkpoint.of_no_run", path=str(source), config=str(run.config))
    else:
        latest = flags["resume"] == "latest" and wanted is not None
        run = run_dir.find_run(str(wanted) if latest else flags["resume"], run_dir.runs_root())
    config = build_config(flags, [ConfigLayer(str(run.config), presets.read_mapping(run.config))])
    newest = checkpoint_dir.list_checkpoints(run.checkpoints)[-1:]
    if is_checkpoint and (wanted is not None or [source] != newest):
        # going back: later checkpoints are never overwritten, so the new branch gets its own folder
        return RunPlan(config, _new_run(wanted, run.path.parent, config), resume=True, checkpoint=source)
    return RunPlan(config, run, resume=True, checkpoint=source if is_checkpoint else None)


def _require_data(config: Config) -> None:
    """Refuse unusable data before a folder is created.

    Raises `data.none_given`, `data.not_found`, and without a token cache `data.needs_cache` and errors of the scan.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    for path in (*config.data, *config.validation_data):
        if not path.startswith("builtin:") and not Path(path).exists():
            raise TraindeckError("data.not_found", path=path)
    if not config.token_cache:
        from trainer_core.data import sources, uncached  # 0.2 s that other commands need not wait

        uncached.require_parquet([sources.scan_path(path, config) for path in config.data])


def _new_run(wanted: Path | None, root: Path, config: Config) -> RunDir:
    """Folder of a new run: the requested one if it holds no run, or a new one below `root`."""
    run = RunDir(wanted.absolute() if wanted else run_dir.new_run_path(root, config.preset))
    if run.exists():
        raise TraindeckError("run.exists", path=str(run.path))
    return run
