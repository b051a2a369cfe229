"""What an export writes, how large it is, and the programs that can use it. No Qt."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.system import files

FORMATS: Final[dict[str, tuple[str, ...]]] = {
    "gguf": ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "bf16", "f16", "f32"),
    "hf": ("", "bf16", "f16", "f32"),
    "peft": ("",),
}
"""Quantizations by format, the default first; empty: as in the checkpoint."""
_BITS: Final = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6, "q5_k_m": 5.7, "q4_k_m": 4.9}
"""Bits per weight, with scales, of the K-quants on average over the layers of a model."""
_LM_STUDIO_FOLDERS: Final = (".lmstudio/models", ".cache/lm-studio/models")  # in the home folder; the first is newer
_PUBLISHER: Final = "traindeck"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """`quantization`: empty: as in the checkpoint."""

    format: str = "gguf"
    quantization: str = "q8_0"

    def arguments(self) -> list[str]:
        """Flags of the command `export`."""
        return ["--format", self.format, *(["--quantization", self.quantization] if self.quantization else [])]

    def estimate_bytes(self, parameters: int) -> int | None:
        """Size of a model with this many weights; None if it is that of the checkpoint's files."""
        return round(parameters * _BITS[self.quantization] / 8) if self.quantization else None


def find_gguf(folder: Path) -> Path | None:
    """The GGUF file of an exported folder."""
    return next(iter(sorted(folder.glob("*.gguf"))), None)


def find_lm_studio(home: Path) -> Path | None:
    """LM Studio's folder of models; None if it is not installed or has not been started."""
    return next((folder for name in _LM_STUDIO_FOLDERS if (folder := home / name).is_dir()), None)


def add_to_lm_studio(file: Path, models: Path) -> Path:
    """Link a GGUF file into LM Studio's folder, or copy it to another disk. Returns the new file. Raises `OSError`."""
    folder = models / _PUBLISHER / file.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    target, working = folder / file.name, folder / f".{file.name}.copying"
    working.unlink(missing_ok=True)
    try:
        try:
            os.link(file, working)
        except OSError:  # another disk, or a file system without hard links
            shutil.copyfile(file, working)
        files.replace(working, target)
    finally:
        working.unlink(missing_ok=True)  # after a failure, or where `target` is a link to the same file already
    return target


def ollama_program() -> str | None:
    """Path of the program `ollama`; None if it is not installed."""
    return shutil.which("ollama")
