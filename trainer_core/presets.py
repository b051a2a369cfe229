"""Presets: YAML files in `presets/`, one a preset, with single inheritance through `extends`. `models.yaml` is no
preset: see `base_model.catalogue`.

    title: {en: …, zh: …}      shown in lists
    summary: {en: …, zh: …}    what it is for
    fits: {en: …, zh: …}       the hardware it fits
    origin: …                  where its values come from
    extends: cpu               optional: start from another preset's knobs
    knobs: {batch_size: 4, …}  names and values of `config.Config`

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trainer_core.config import (
    Config,
    ConfigLayer,
    check_value,
    expand_auto_batch,
    merge,
    nearest,
    resolve,
    unknown_key_error,
)
from trainer_core.messages import Language, TraindeckError
from trainer_core.system import program_files, yaml_files

FOLDER: Final = program_files.ROOT / "presets"
MODELS_FILE: Final = "models.yaml"
_RENAMED: Final = {"ranks": "nproc_per_node"}  # settings in files of earlier versions
_KEYS: Final = {"title", "summary", "fits", "origin", "extends", "for_gpu", "knobs"}


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset with its inherited knobs resolved."""

    name: str
    title: dict[str, str]
    summary: dict[str, str]
    fits: dict[str, str]
    origin: str
    for_gpu: bool  # too slow on a CPU
    knobs: dict[str, Any]

    def localized(self, which: dict[str, str], language: Language) -> str:
        return which.get(language) or which.get("en", "")

    def layer(self) -> ConfigLayer:
        return ConfigLayer(f"presets/{self.name}.yaml", {**self.knobs, "preset": self.name})

    def config(self) -> Config:
        return resolve([self.layer()])


def names(folder: Path = FOLDER) -> list[str]:
    """All preset names: quick starts, others alphabetically, those to fine-tune by memory."""
    return sorted((path.stem for path in folder.glob("*.yaml") if path.name != MODELS_FILE), key=_list_order)


def group(name: str) -> Literal[0, 1, 2]:
    """Group in lists: quick starts, presets for a new model, presets to fine-tune."""
    return 0 if name.startswith("quickstart") else 2 if name.startswith("finetune_") else 1


def _list_order(name: str) -> tuple[int, int, str]:
    size = {0: len(name), 1: 0, 2: int("".join(filter(str.isdigit, name)) or 0)}
    return group(name), size[group(name)], name


def load(name: str, folder: Path = FOLDER, descendants: tuple[str, ...] = ()) -> Preset:
    """Load a preset by name. Raises `config.unknown_preset`, `config.unreadable`, `config.preset_loop`,
    `config.unknown_key` or `config.bad_value`.
    """
    if name in descendants:
        raise TraindeckError("config.preset_loop", name=name, chain=" → ".join([*descendants, name]))
    if name not in names(folder):
        known = names(folder)
        near = nearest(name, known)
        code = "config.unknown_preset" if near else "config.no_such_preset"
        raise TraindeckError(code, name=name, **({"nearest": near} if near else {"known": ", ".join(known)}))
    content = read_mapping(folder / f"{name}.yaml")
    where = f"presets/{name}.yaml"
    for key in content:
        if key not in _KEYS:
            raise unknown_key_error(where, str(key), _KEYS)
    own = expand_auto_batch(_part(content, "knobs", where))
    values = {key: check_value(key, value, where) for key, value in own.items()}
    parent = content.get("extends")
    base = load(str(parent), folder, (*descendants, name)) if parent else None
    return Preset(
        name=name,
        title=_part(content, "title", where) or {"en": name},
        summary=_part(content, "summary", where),
        fits=_part(content, "fits", where),
        origin=str(content.get("origin") or ""),
        for_gpu=bool(content.get("for_gpu", base is not None and base.for_gpu)),
        knobs=merge(base.knobs if base is not None else {}, values),
    )


def _part(content: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """A mapping inside a preset. A plain text stands for its English version."""
    part = content.get(key) or {}
    if isinstance(part, str) and key != "knobs":
        return {"en": part}
    if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
        raise TraindeckError("config.unreadable", detail=f"`{key}` is not a mapping", path=where)
    return part


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that must be a mapping; raises `config.unreadable`."""
    try:
        loaded = yaml_files.read(path)
    except (OSError, yaml_files.UnreadableError) as error:
        raise TraindeckError("config.unreadable", detail=str(error), path=str(path)) from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise TraindeckError("config.unreadable", detail="it is not a mapping", path=str(path))
    return {_RENAMED.get(str(name), str(name)): value for name, value in loaded.items()}
