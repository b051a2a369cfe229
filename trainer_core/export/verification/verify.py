"""Verifies an exported folder and writes the result into it: `verification.json`, and a table in README.md.

Torch is imported only for the reference, which is freed before the program starts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from trainer_core import protocol
from trainer_core.export.checkpoint_files import read_json
from trainer_core.export.job import ExportRequest, Format
from trainer_core.export.model_card import MODEL_CARD_FILE
from trainer_core.export.verification.answers import ANSWERS_FILE, REQUEST_FILE, ProgramAnswers, Request
from trainer_core.export.verification.compare import Bounds, compare
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.run_context import RunContext
from trainer_core.system import child_process, files
from trainer_core.system.memory import system_memory
from trainer_core.verification_texts import format_markdown

RESULT_FILE: Final = "verification.json"
_EXACT: Final = Bounds(gap=1e-3, logprob=1e-3)
_GGUF_BOUNDS: Final = {  # llama.cpp rounds activations, too: up to 0.02 (f16) and 0.19 (bf16) with random weights
    "f32": _EXACT,
    "f16": Bounds(gap=0.02, logprob=0.05),
    "bf16": Bounds(gap=0.1, logprob=0.5),
    "q8_0": Bounds(perplexity=0.02),
    "q6_k": Bounds(perplexity=0.05),
    "q5_k_m": Bounds(perplexity=0.1),
    "q4_k_m": Bounds(perplexity=0.2),
}
_PACKAGES: Final = {"hf": ["transformers"], "peft": ["transformers", "peft"], "gguf": ["xllamacpp"]}  # import names
_MODULES: Final = {"transformers": "transformers_program", "llama.cpp": "llama_program"}
_DTYPES: Final = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_NAMES_OF_DTYPES: Final = {name: short for short, name in _DTYPES.items()}
_TIME_LIMIT_S: Final = 1800.0  # of the program
_POLL_S: Final = 0.05
_FAILED: Final = "export.program_failed"
_MAX_DETAIL: Final = 4000  # characters


class _NotVerifiedError(TraindeckError):
    """The reason why an export cannot be verified."""


def verify(job: ExportRequest, form: Format) -> protocol.Verification:
    """Compare what `job` has written with its checkpoint; write the result into the folder.

    A difference is a result, and so is a program that is not installed or fails. Raises `StopRequested`, and as
    `compute_reference`.
    """
    dtype, reporter = _dtype(job, form), job.reporter
    result = protocol.Verification(folder=job.name, format=form, dtype=dtype, program="", passed=None)
    with reporter.phase("verifying"):
        try:
            _compare_with_checkpoint(job, result)
        except _NotVerifiedError as reason:
            result.reason, result.params = reason.code, reason.params
            result.passed = False if reason.code == _FAILED else None
    files.write_atomic(job.folder / RESULT_FILE, msgspec.json.format(protocol.encode(result), indent=1))
    card = job.folder / MODEL_CARD_FILE
    text = card.read_text(encoding="utf-8") + format_markdown(result, job.language)
    files.write_atomic(card, text.encode("utf-8"))
    return result


def emit_result(folder: Path, context: RunContext) -> None:
    """Emit the result in an exported folder. Raises `export.different`."""
    result = protocol.decode_event((folder / RESULT_FILE).read_bytes())
    assert isinstance(result, protocol.Verification)
    context.emit(result)
    if result.passed is False:
        raise TraindeckError("export.different", path=str(folder))


def _dtype(job: ExportRequest, form: Format) -> str:
    """Of the weights in memory: an adapter is computed in float32."""
    if job.quantization is not None:
        return job.quantization
    return _NAMES_OF_DTYPES[read_json(job.folder / "config.json")["torch_dtype"]] if form == "hf" else "f32"


def _compare_with_checkpoint(job: ExportRequest, result: protocol.Verification) -> None:
    """Fill in `result`. Raises `_NotVerifiedError`."""
    if result.format not in _PACKAGES:
        raise _NotVerifiedError("export.not_verifiable", format=result.format)
    for package in _PACKAGES[result.format]:
        if find_spec(package) is None:
            raise _NotVerifiedError("export.no_program", package=package, python=sys.executable)
    import torch

    from trainer_core.export.verification import reference

    needed, available = reference.required_bytes(job.checkpoint), system_memory().available
    if needed > available:
        raise _NotVerifiedError("export.no_memory_to_verify", needed_mib=needed >> 20, available_mib=available >> 20)
    dtype = getattr(torch, _DTYPES.get(result.dtype, "float32"))
    is_gguf = result.format == "gguf"
    bounds = _GGUF_BOUNDS[result.dtype] if is_gguf else _EXACT
    request, expected, limitations = reference.compute_reference(
        job.checkpoint,
        job.folder,
        dtype,
        job.reporter,
        rounds_vectors=not is_gguf,
        scores_held_out=bounds.perplexity is not None,
    )
    gc.collect()  # the model's memory is free before the program starts
    found = _ask(request, "llama.cpp" if is_gguf else "transformers", job.reporter)
    result.program = found.program
    result.checks = compare(request, expected, found, bounds)
    result.passed = all(check.passed for check in result.checks)
    result.limitations = limitations + ["non_nfc"] * (expected.decomposed_ids != found.decomposed_ids)
    prompts = ((one, other) for one, other in zip(expected.rendered, found.rendered, strict=True) if one is not None)
    pairs = sorted(prompts, key=lambda pair: pair[0] == pair[1])  # stable: a differing prompt, or else the first one
    if pairs:
        result.expected_prompt, result.found_prompt = pairs[0][0], pairs[0][1] or ""


def _ask(request: Request, program: str, reporter: Reporter) -> ProgramAnswers:
    """The answers of a program in a child process. Raises `_NotVerifiedError` if it fails, and `StopRequested`."""
    with tempfile.TemporaryDirectory(prefix="traindeck-verify-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / REQUEST_FILE).write_bytes(msgspec.json.encode(request))
        output, errors = folder / "stdout.txt", folder / "stderr.txt"
        with (
            output.open("wb") as stdout,
            errors.open("wb") as stderr,
            subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.{_MODULES[program]}", str(folder)],
                stdin=subprocess.PIPE,  # the process ends when it closes
                stdout=stdout,
                stderr=stderr,
                env=child_process.environment(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"),
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            ) as process,
        ):
            try:
                _wait(process, output, len(request.prompts), reporter)
            finally:
                child_process.kill_child(process)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((folder / ANSWERS_FILE).read_bytes(), type=ProgramAnswers)
        detail = errors.read_text("utf-8", "replace").strip()[-_MAX_DETAIL:]
    sys.stderr.write(f"{detail}\n")
    reason = detail.splitlines()[-1] if detail else f"exit code {process.returncode & 0xFFFFFFFF:#x}"
    raise _NotVerifiedError(_FAILED, program=program, reason=reason)


def _wait(process: subprocess.Popen[bytes], output: Path, prompts: int, reporter: Reporter) -> None:
    """Wait for the end of the program, which prints a line for each prompt. Raises `_NotVerifiedError`."""
    until = time.monotonic() + _TIME_LIMIT_S
    while process.poll() is None:
        reporter.poll()
        done = output.stat().st_size // len(os.linesep)
        reporter.progress("verifying", prompts + done, 2 * prompts, "prompts")
        if time.monotonic() > until:
            raise _NotVerifiedError("export.verification_timeout", minutes=round(_TIME_LIMIT_S / 60))
        time.sleep(_POLL_S)
