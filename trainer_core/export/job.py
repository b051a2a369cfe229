"""An export to do: what to write, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trainer_core.messages import Language
from trainer_core.progress import Reporter

Format = Literal["hf", "peft", "gguf", "gguf-adapter"]
Quantization = Literal["f32", "f16", "bf16", "q8_0", "q4_k_m", "q5_k_m", "q6_k"]

UNQUANTIZED: Final = ("f32", "f16", "bf16")
MODELFILE: Final = "Modelfile"  # of Ollama, beside a GGUF file
OVERHEAD_BYTES: Final = 1024 * 1024  # new files and the file system


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """`quantization`: None for the dtype of the checkpoint or of its base model."""

    checkpoint: Path
    folder: Path  # to write into
    name: str  # of the exported model
    quantization: Quantization | None
    language: Language  # of the model card
    reporter: Reporter


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written. `quantization`: None for the dtype of the checkpoint or of its base model."""

    folder: Path  # absolute
    format: Format
    quantization: Quantization | None
    files: tuple[Path, ...]  # sorted by name

    @property
    def gguf_file(self) -> Path:
        """The model, or the adapter, of a GGUF export."""
        return next(path for path in self.files if path.suffix == ".gguf")
