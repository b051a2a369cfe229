"""`torch.compile` for forward pass and loss as one function of static shape.

A child process (`python -m trainer_core.train.engine.compilation`) fills inductor's cache on disk while the run trains
eagerly; then this process compiles from the cache. A compiler that crashes or hangs cannot end the run, and Stop never
waits for it. If the child process runs out of memory, only this process compiles.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from trainer_core.data.batch import IGNORE_INDEX, Batch, with_segments
from trainer_core.models.adapters import set_up_tuning
from trainer_core.models.attention import BACKENDS, UnavailableReason, document_mask
from trainer_core.models.decoder import build_decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig
from trainer_core.progress import Reporter
from trainer_core.protocol import FastPath
from trainer_core.runs import run_dir
from trainer_core.system import child_process, files
from trainer_core.train.activation_checkpointing import Mode, checkpoint_activations
from trainer_core.train.device import Precision
from trainer_core.train.engine import measuring
from trainer_core.train.loss import linear_token_loss, token_loss

TIMEOUT_S: Final = 600.0  # limit of the compiler
_POLL_S: Final = 0.1
_MIN_LENGTH: Final = 16  # tokens: minimum length of a batch in a dynamic graph
_MAX_REASON: Final = 200  # characters of a failure message

CompiledLoss = Callable[..., Tensor]
"""Summed loss from input ids, labels, segments, positions and `grad_scale` (a tensor in fp16, else None)."""


class CompileFailed(Exception):  # noqa: N818 - it is an outcome, and never leaves the engine
    """Compilation failed; the text says why."""


@dataclass(frozen=True, slots=True)
class CompileKey:
    """Everything that a compiled graph depends on, as plain values."""

    shape: dict[str, Any]  # of `ModelConfig`
    rows: int
    length: int
    segments: bool  # sequences are divided into documents
    varying: bool  # batches differ in width
    device: str
    precision: str
    attention: str
    chunk: int
    tuning: dict[str, Any] = field(default_factory=lambda: {"method": "full", "freeze": []})  # `tuning_of`
    checkpointing: tuple[Mode, int] = ("off", 0)
    memory_budget: float = 1.0
    graphs: bool = False  # use CUDA graphs
    threads: int = 1
    tf32: bool = False
    deterministic: bool = False  # torch's global flag, part of inductor's key on a GPU

    def adapt(self, batch: Batch) -> Batch | None:
        """The batch as the graph takes it; None: it does not fit. Depends on the shape only, never on earlier
        batches.
        """
        rows, length = batch.input_ids.shape
        fits = _MIN_LENGTH <= length <= self.length if self.varying else length == self.length
        if rows != self.rows or not fits or (batch.segments is not None and not self.segments):
            return None
        return with_segments(batch) if self.segments else batch


# --- availability and cache ---------------------------------------------------------------------------------


def unavailable_reason(device: torch.device) -> UnavailableReason | None:
    """Why compilation is unavailable for this device, without starting anything; None: it may work."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "path.no_triton", {}
        major, minor = torch.cuda.get_device_capability(device)
        return None if major >= 7 else ("path.unsupported", {"what": f"compute capability {major}.{minor}"})
    default = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return None if shutil.which(os.environ.get("CXX") or default) else ("path.no_compiler", {})


def cache_folder() -> Path:
    """Cache of compiled code: in Traindeck's cache, or in a path without spaces, because inductor passes it to the
    compiler unquoted.
    """
    if chosen := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(chosen)
    default = run_dir.home() / "cache" / "compiled"
    candidates = (default, _short_name(default), Path.home() / ".cache" / "traindeck" / "compiled")
    return next((folder for folder in candidates if " " not in str(folder)), default)


def _short_name(folder: Path) -> Path:
    """The folder's 8.3 name on Windows."""
    if sys.platform == "win32":
        import ctypes

        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        buffer = ctypes.create_unicode_buffer(1024)
        if 0 < ctypes.windll.kernel32.GetShortPathNameW(str(folder), buffer, len(buffer)) < len(buffer):
            return Path(buffer.value)
    return folder


def _record_file(key: CompileKey) -> Path:
    """Exists if the graph is cached, and holds the decision. Next to the compiled code, to be removed with it."""
    text = json.dumps([asdict(key), measuring.machine_key(torch.device(key.device))], sort_keys=True)
    return cache_folder() / "traindeck" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def is_cached(key: CompileKey) -> bool:
    """Whether the graph was compiled before on this machine, so that compiling takes seconds."""
    return _record_file(key).is_file()


def read_decision(key: CompileKey) -> FastPath | None:
    """Whether the compiled graph is worth using, as measured earlier on this machine."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_record_file(key).read_bytes(), type=FastPath)
    return None


def store_decision(key: CompileKey, path: FastPath | None) -> None:
    """Mark the graph as cached, and store the decision, if there is one."""
    with contextlib.suppress(OSError):
        _record_file(key).parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(_record_file(key), msgspec.json.encode(path))


def forget(key: CompileKey) -> None:
    """Compile in a child process again, and decide again."""
    with contextlib.suppress(OSError):
        _record_file(key).unlink(missing_ok=True)


# --- compiling ----------------------------------------------------------------------------------------------


def full_loss(
    model: LanguageModel, key: CompileKey, compile_hidden: Callable[[Any], Any] | None = None
) -> CompiledLoss:
    """Forward pass and loss as one function of tensors, equivalent to `loss.batch_loss`.

    With dynamic width, a chunk of the loss is a whole number of sequences, so that the number of chunks is static.
    `compile_hidden` compiles the part up to the head.
    """
    sequences = max(1, key.chunk // key.length) if key.varying else 0

    def hidden(ids_BT: Tensor, segments_BT: Tensor | None, positions_BT: Tensor | None) -> Tensor:
        mask = None if segments_BT is None else document_mask(segments_BT)
        return model.forward_hidden(ids_BT, positions_BT=positions_BT, mask_B1TS=mask)

    forward = compile_hidden(hidden) if compile_hidden is not None else hidden

    def loss(
        ids_BT: Tensor,
        labels_BT: Tensor,
        segments_BT: Tensor | None,
        positions_BT: Tensor | None,
        grad_scale: Tensor | None = None,
    ) -> Tensor:
        hidden_BTD = forward(ids_BT, segments_BT, positions_BT)
        if key.chunk:
            rows = sequences * ids_BT.shape[1] or key.chunk
            return linear_token_loss(hidden_BTD, model.head.weight, labels_BT, rows, grad_scale=grad_scale)
        return token_loss(model.logits(hidden_BTD), labels_BT)

    return loss


def fix_extensions() -> None:
    """Work around two problems of torch 2.13: inductor does not quote torch's own library path, which may contain a
    space, and importing this module warns about a CUDA toolkit without a driver.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    if os.name != "nt":
        cpp_extension.TORCH_LIB_PATH = shlex.quote(cpp_extension.TORCH_LIB_PATH.strip("'"))


RANDOM_AS_EAGER: Final[dict[str, Any]] = {"fallback_random": True}
"""Options of inductor: dropout is the same as in eager mode, and resume exact."""


def prepare_inductor() -> None:
    """To be called before the first compilation."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder())
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # no idle worker processes: the cache makes them unnecessary
    fix_extensions()


def compile_whole(model: LanguageModel, key: CompileKey) -> CompiledLoss:
    """The compiled function; compilation happens at its first call. One at a time per process."""
    prepare_inductor()
    import torch._functorch.config

    torch.compiler.reset()  # earlier engines count towards the limit of graphs
    torch._functorch.config.activation_memory_budget = key.memory_budget
    options: dict[str, Any] = dict(RANDOM_AS_EAGER)
    if key.graphs:
        options["triton.cudagraphs"] = True
    compile_ = partial(torch.compile, fullgraph=True, dynamic=None if key.varying else False, options=options)
    on_cpu = key.chunk > 0 and key.device == "cpu"  # an eager chunked loss is faster there than inductor's code
    compiled: CompiledLoss = full_loss(model, key, compile_) if on_cpu else compile_(full_loss(model, key))
    return _prepare_calls(compiled, key) if key.varying or key.graphs else compiled


def _prepare_calls(compiled: CompiledLoss, key: CompileKey) -> CompiledLoss:
    """Mark widths as dynamic from the first call on, so that no graph is specialized to one width; mark each call of a
    CUDA graph as a step, because it overwrites its previous result.
    """
    import torch._dynamo

    def loss(*inputs: Tensor | None) -> Tensor:
        if key.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        for tensor in inputs if key.varying else ():
            if tensor is not None and tensor.dim() > 1:
                torch._dynamo.mark_dynamic(tensor, 1, min=_MIN_LENGTH, max=key.length)
        return compiled(*inputs)

    return loss


def reset_graphs() -> None:
    """Drop all compiled functions of this process, and the CUDA graphs, each with the memory of a micro-batch."""
    torch.compiler.reset()  # dynamo's cache keeps functions alive that were compiled with graphs
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None and hasattr(trees, "reset_cudagraph_trees"):  # private
        trees.reset_cudagraph_trees()


class BackgroundCompiler:
    """Compiles in a child process, which fills inductor's cache on disk."""

    def __init__(self, key: CompileKey) -> None:
        self._key, self._since = key, time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        if is_cached(key):
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process; a pipe could fill up
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer_core.train.engine.compilation"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=child_process.environment(
                PYTHONIOENCODING="utf-8", TORCHINDUCTOR_CACHE_DIR=str(cache_folder()), OMP_WAIT_POLICY="PASSIVE"
            ),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin, contextlib.suppress(OSError):
            stdin.write(json.dumps(asdict(key)).encode("ascii"))

    def wait(self, reporter: Reporter) -> None:
        """Wait for the compiler and poll meanwhile. Raises `CompileFailed`; `StopRequested` kills the process."""
        if self._process is None:
            return
        try:
            while self._process.poll() is None:
                reporter.poll()
                if time.monotonic() - self._since > TIMEOUT_S:
                    raise CompileFailed(f"the compiler took more than {TIMEOUT_S:.0f} s")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
            if self._process.returncode:
                self._errors.seek(0)
                lines = self._errors.read().decode("utf-8", "replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "").strip().rstrip(".")
                raise CompileFailed(last[:_MAX_REASON] or f"exit code {self._process.returncode & 0xFFFFFFFF:#x}")
        finally:
            self.close()
        store_decision(self._key, None)

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None:
            child_process.kill_child(self._process)
            self._errors.close()


def error_summary(error: BaseException) -> str:
    """Summarize a failure in one line: the compiler's own message if present, since inductor adds many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    message = next((line for line in lines if "error: " in line or "error C" in line), lines[0])
    return f"{type(error).__name__}: {message}".rstrip(": .")[:_MAX_REASON]


# --- the child process -----------------------------------------------------------------------------------


def _compile_for(key: CompileKey) -> None:
    """Compile for a model and batch like the run's: one forward and backward pass."""
    device = torch.device(key.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high" if key.tf32 else "highest")
        torch.use_deterministic_algorithms(key.deterministic)
    else:
        torch.set_num_threads(key.threads)
    precision = Precision.from_name(key.precision, device)
    shape, dtype = msgspec.convert(key.shape, ModelConfig), precision.base_dtype(key.tuning)
    model = build_decoder(device, shape, dtype=dtype)
    set_up_tuning(model, key.tuning)
    model.set_attention(BACKENDS[key.attention].attend)
    checkpoint_activations(model, *key.checkpointing)
    batch = example_batch(key)
    compiled = compile_whole(model, key)
    grad_scale = torch.ones((), device=device) if precision.needs_scaler else None
    with precision.autocast():
        loss = compiled(batch.input_ids, batch.labels, batch.segments, batch.positions, grad_scale)
    torch.autograd.backward(loss)


def example_batch(key: CompileKey) -> Batch:
    return build_example(key.rows, key.length, key.segments, key.shape["vocab_size"], torch.device(key.device))


def build_example(rows: int, length: int, segments: bool, vocab_size: int, device: torch.device) -> Batch:
    """A batch of consecutive tokens; with `segments`, each sequence holds two documents."""
    columns = torch.arange(length, device=device)
    ids = (columns + torch.arange(rows, device=device).unsqueeze(1)) % vocab_size
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORE_INDEX
    batch = Batch(ids, labels, loss_tokens=rows * (length - 1), samples=rows)
    if not segments:
        return batch
    second = (columns >= length // 2).to(torch.int32)
    positions = columns - second * (length // 2)
    documents = ((length // 2, length - length // 2),) * rows
    return replace(batch, segments=second.repeat(rows, 1), positions=positions.repeat(rows, 1), row_documents=documents)


def main() -> int:
    """Read a `CompileKey` from stdin and compile. The last line of stderr names a failure."""
    child_process.lower_priority()  # compilers use all processors
    key = CompileKey(**json.loads(sys.stdin.buffer.read()))
    try:
        _compile_for(key)
    except Exception as error:  # noqa: BLE001 - a compiler can fail in any way
        sys.stderr.write(f"{error_summary(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
