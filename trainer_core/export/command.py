"""Command `export`: a checkpoint as files for other programs, written completely or not at all."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from trainer_core.export.job import Exported, ExportRequest, Format, Quantization
from trainer_core.export.target_folder import require_replaceable, resolve_target, temporary_folder
from trainer_core.export.verification.verify import verify
from trainer_core.messages import Language, TraindeckError
from trainer_core.progress import Reporter


def export(
    checkpoint: Path,
    folder: Path,
    reporter: Reporter,
    language: Language = "en",
    form: Format = "hf",
    quantization: Quantization | None = None,
    verifies: bool = False,
) -> Exported:
    """Write the model of `checkpoint` into `folder`, which is new or empty. `quantization`: None for the default.

    `verifies`: another program reads the model before the folder gets its name; `verification.json` has the result.
    Raises `export.*`, `checkpoint.damaged`, `data.bad_tokenizer` or `disk.not_writable`.
    """
    target = resolve_target(folder)
    require_replaceable(target)
    with temporary_folder(target) as working:
        job = ExportRequest(checkpoint, working, target.name, quantization or _default(form), language, reporter)
        _write(form, job)
        if verifies:
            verify(job, form)
        names = sorted(path.name for path in working.iterdir())
    return Exported(target, form, job.quantization, tuple(target / name for name in names))


def _default(form: Format) -> Quantization | None:
    defaults: dict[Format, Quantization] = {"gguf": "q8_0", "gguf-adapter": "f32"}
    return defaults.get(form)


def _write(form: Format, job: ExportRequest) -> None:
    if form.startswith("gguf"):
        _require_packages(job.quantization)
    match form:
        case "hf":
            from trainer_core.export import hugging_face

            hugging_face.write(job)
        case "peft":
            from trainer_core.export import peft_folder

            peft_folder.write(job)
        case "gguf":
            from trainer_core.export import gguf_model

            gguf_model.write(job)
        case "gguf-adapter":
            from trainer_core.export import gguf_adapter

            gguf_adapter.write(job)


def _require_packages(quantization: Quantization | None) -> None:
    """Raises `export.missing_package`."""
    needed = ["gguf", *(["libgguf"] if quantization in ("q4_k_m", "q5_k_m", "q6_k") else [])]
    for package in needed:
        if not _is_installed(package):
            raise TraindeckError("export.missing_package", package=package, python=sys.executable)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # its module is set to None
        return False
