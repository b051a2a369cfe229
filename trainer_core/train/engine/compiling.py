"""`torch.compile` for the forward pass with its loss, one function of one shape.

The work is done twice: first in a process of its own (`python -m trainer_core.train.engine.compiling`), which fills
inductor's cache on disk, then here, from that cache. So a compiler that crashes, hangs or takes minutes never holds
up a run that is to stop, and never ends it; where memory ends in that process, beside the run, it is done only here.
A second start needs only the second part.
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
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from trainer_core import children
from trainer_core.data.batches import IGNORED, Batch
from trainer_core.model.attention import BACKENDS, Missing, document_mask
from trainer_core.model.decoder import Decoder, ModelConfig, decoder_on
from trainer_core.report import Reporter
from trainer_core.runs import run_dir
from trainer_core.train.device import Precision
from trainer_core.train.loss import linear_token_loss, token_loss
from trainer_core.train.memory import checkpoint_activations

LIMIT_S: Final = 600.0  # a compiler that takes longer is given up
_POLL_S: Final = 0.1
_SHORTEST: Final = 16  # tokens: the narrowest batch that a graph of varying width takes
_REASON: Final = 200  # characters of a failure that are told

Whole = Callable[..., Tensor]
"""Summed loss from input ids, labels, segments, positions and `grad_scale` (a tensor in fp16, else None)."""


class CompileFailed(Exception):  # noqa: N818 - it is an outcome, and never leaves the engine
    """The compiler did not do it; the text says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a compiled graph depends on, as plain values."""

    shape: dict[str, Any]  # of `ModelConfig`
    rows: int
    length: int
    segments: bool  # batches divide their sequences
    varying: bool  # batches differ in width
    device: str
    precision: str
    attention: str
    chunk: int
    checkpointing: Literal["off", "selective", "full"] = "off"
    memory_budget: float = 1.0
    graphs: bool = False  # CUDA graphs
    threads: int = 1
    tf32: bool = False
    deterministic: bool = False  # torch's global flag, which is a part of inductor's key on a GPU

    def fits(self, batch: Batch) -> bool:
        """Whether the graph is for batches like this one. Decided by shape alone, never by what came before."""
        rows, length = batch.input_ids.shape
        if rows != self.rows or (batch.segments is not None) != self.segments:
            return False
        return _SHORTEST <= length <= self.length if self.varying else length == self.length

    @property
    def name(self) -> str:
        """A short name for the same graph on the same torch."""
        said = json.dumps([asdict(self), torch.__version__], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:24]


# --- is there a compiler? ---------------------------------------------------------------------------------


def missing(device: torch.device) -> Missing | None:
    """Why nothing can be compiled for this device, found without starting anything; None: it may work."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "path.no_triton", {}
        major, minor = torch.cuda.get_device_capability(device)
        return None if major >= 7 else ("path.unsupported", {"what": f"compute capability {major}.{minor}"})
    return None if shutil.which(compiler_name()) else ("path.no_compiler", {})


def compiler_name() -> str:
    """The C++ compiler that inductor starts."""
    usual = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return os.environ.get("CXX") or usual


def cache_folder() -> Path:
    """Where compiled code is kept from run to run: in Traindeck's cache, or where no space is in the path, which
    inductor hands to the compiler without quotes."""
    if chosen := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(chosen)
    usual = run_dir.home() / "cache" / "compiled"
    places = (usual, _short(usual), Path.home() / ".cache" / "traindeck" / "compiled")
    return next((place for place in places if " " not in str(place)), usual)


def _short(folder: Path) -> Path:
    """The folder by its 8.3 name, where Windows has one."""
    if sys.platform == "win32":
        import ctypes

        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        room = ctypes.create_unicode_buffer(1024)
        if 0 < ctypes.windll.kernel32.GetShortPathNameW(str(folder), room, len(room)) < len(room):
            return Path(room.value)
    return folder


def _marker(recipe: Recipe) -> Path:
    """A file beside the compiled code that says that this graph is in it; it goes away with the code."""
    return cache_folder() / "traindeck" / f"{recipe.name}.json"


def is_kept(recipe: Recipe) -> bool:
    """Whether the graph was compiled before, so that it takes seconds."""
    return _marker(recipe).is_file()


# --- compiling ----------------------------------------------------------------------------------------------


def whole(model: Decoder, recipe: Recipe) -> Whole:
    """The forward pass with its loss as one function of tensors: `loss.batch_loss` without what is not a tensor.

    The loss in parts must have as many of them at every width, so there each part is some whole sequences.
    """
    sequences = max(1, recipe.chunk // recipe.length) if recipe.varying else 0

    def loss(
        ids_BT: Tensor,
        labels_BT: Tensor,
        segments_BT: Tensor | None,
        positions_BT: Tensor | None,
        grad_scale: Tensor | None = None,
    ) -> Tensor:
        hidden = hidden_of(model)(ids_BT, segments_BT, positions_BT)
        if recipe.chunk:
            rows = sequences * ids_BT.shape[1] or recipe.chunk
            return linear_token_loss(hidden, model.lm_head.weight, labels_BT, rows, grad_scale=grad_scale)
        return token_loss(model.lm_head(hidden), labels_BT)

    return loss


def hidden_of(model: Decoder) -> Callable[[Tensor, Tensor | None, Tensor | None], Tensor]:
    """The forward pass up to the head as a function of input ids, segments and positions."""

    def hidden(ids_BT: Tensor, segments_BT: Tensor | None, positions_BT: Tensor | None) -> Tensor:
        mask = None if segments_BT is None else document_mask(segments_BT)
        return model.hidden(ids_BT, positions_BT=positions_BT, mask_B1TS=mask)

    return hidden


def fix_extensions() -> None:
    """Torch may be installed in a folder with a space in its name; inductor (2.13) quotes all paths but this one.
    And on being imported, this warns of a CUDA toolkit without a driver, which a CPU does not need."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    if os.name != "nt":
        cpp_extension.TORCH_LIB_PATH = shlex.quote(cpp_extension.TORCH_LIB_PATH.strip("'"))


def _parts_apart(model: Decoder, hidden: Callable[..., Tensor], chunk: int) -> Whole:
    """On a CPU the loss stays eager: there its parts are quicker than what inductor makes of it."""

    def loss(
        ids_BT: Tensor,
        labels_BT: Tensor,
        segments_BT: Tensor | None,
        positions_BT: Tensor | None,
        grad_scale: Tensor | None = None,
    ) -> Tensor:
        hidden_BTD = hidden(ids_BT, segments_BT, positions_BT)
        return linear_token_loss(hidden_BTD, model.lm_head.weight, labels_BT, chunk, grad_scale=grad_scale)

    return loss


def compile_whole(model: Decoder, recipe: Recipe) -> Whole:
    """The compiled function; the compiler works when it is called first. One at a time in a process."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder())
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # no processes that wait for work which the cache has done
    import torch._functorch.config

    fix_extensions()
    torch.compiler.reset()  # an engine before this one would use up its limit of graphs
    torch._functorch.config.activation_memory_budget = recipe.memory_budget
    # Random numbers as eager draws them: a compiled run drops the same activations, and resumes exactly.
    options: dict[str, Any] = {"fallback_random": True}
    if recipe.graphs:
        options["triton.cudagraphs"] = True
    dynamic = None if recipe.varying else False
    compile_ = partial(torch.compile, fullgraph=True, dynamic=dynamic, options=options)
    compiled: Whole
    if recipe.chunk and recipe.device == "cpu":
        compiled = _parts_apart(model, compile_(hidden_of(model)), recipe.chunk)
    else:
        compiled = compile_(whole(model, recipe))
    if recipe.varying:
        return _marked(compiled, recipe.length)
    return _stepwise(compiled) if recipe.graphs else compiled


def _marked(compiled: Whole, longest: int) -> Whole:
    """Widths differ from the first call on, so that no graph is made for one of them."""
    import torch._dynamo

    def loss(*inputs: Tensor | None) -> Tensor:
        for tensor in inputs:
            if tensor is not None and tensor.dim() > 1:
                torch._dynamo.mark_dynamic(tensor, 1, min=_SHORTEST, max=longest)
        return compiled(*inputs)

    return loss


def _stepwise(compiled: Whole) -> Whole:
    """With CUDA graphs, what a call returns is overwritten by the next one: each is a step of its own."""

    def loss(*inputs: Tensor | None) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*inputs)

    return loss


def forget_graphs() -> None:
    """Drop all compiled functions of this process, and with them the memory of CUDA graphs."""
    torch.compiler.reset()
    forget_tried_graphs()


def forget_tried_graphs() -> None:
    """Free CUDA graphs that were tried in vain, with the memory of a whole micro-batch each; what was compiled without
    graphs stays. (What was compiled with them stays in dynamo's cache, and would keep them.)"""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None and hasattr(trees, "reset_cudagraph_trees"):  # private
        trees.reset_cudagraph_trees()


def fill_cache(recipe: Recipe, reporter: Reporter) -> None:
    """Compile in a process of its own. Polls meanwhile; raises `CompileFailed`, and `StopRequested` with the
    process ended."""
    if is_kept(recipe):
        return
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.train.engine.compiling"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(),
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    try:
        said = _wait(process, json.dumps(asdict(recipe)).encode("ascii"), reporter)
    finally:
        if process.poll() is None:
            children.end(process)
            process.communicate()
    if process.returncode:
        raise CompileFailed(_last_line(said) or f"exit code {process.returncode & 0xFFFFFFFF:#x}")
    with contextlib.suppress(OSError):
        _marker(recipe).parent.mkdir(parents=True, exist_ok=True)
        _marker(recipe).write_text(json.dumps(asdict(recipe)), encoding="utf-8")


def _environment() -> dict[str, str]:
    changes = {
        "PYTHONIOENCODING": "utf-8",
        "TORCHINDUCTOR_CACHE_DIR": str(cache_folder()),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return children.environment(**changes)


def _wait(process: subprocess.Popen[bytes], recipe: bytes, reporter: Reporter) -> str:
    given: bytes | None = recipe
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            _, said = process.communicate(given, timeout=_POLL_S)
            return said.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            given = None  # what was begun to be sent is gone on with
        reporter.poll()
        if time.monotonic() > end:
            raise CompileFailed(f"the compiler took more than {LIMIT_S:.0f} s")


def plainly(error: BaseException) -> str:
    """A failure in one line: the compiler's own, where it said one; inductor says a lot around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    told = next((line for line in lines if "error: " in line or "error C" in line), lines[0])
    return f"{type(error).__name__}: {told}".rstrip(": .")[:_REASON]


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip(".")[:_REASON] if lines else ""


# --- the process of its own -----------------------------------------------------------------------------------


def _compile_for(recipe: Recipe) -> None:
    """A model and a batch like those of the run, once forward and backward."""
    device = torch.device(recipe.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high" if recipe.tf32 else "highest")
        torch.use_deterministic_algorithms(recipe.deterministic)
    else:
        torch.set_num_threads(recipe.threads)
    model = decoder_on(device, ModelConfig(**recipe.shape))
    model.set_attention(BACKENDS[recipe.attention].attend)
    checkpoint_activations(model, recipe.checkpointing)
    batch = example(recipe)
    compiled = compile_whole(model, recipe)
    precision = Precision.named(recipe.precision, device)
    grad_scale = torch.ones((), device=device) if precision.needs_scaler else None
    with precision.autocast():
        loss = compiled(batch.input_ids, batch.labels, batch.segments, batch.positions, grad_scale)
    torch.autograd.backward(loss)


def example(recipe: Recipe) -> Batch:
    """A batch of the recipe's shape: tokens one after the other, in two documents where it is divided."""
    columns = torch.arange(recipe.length, device=recipe.device)
    ids = (columns + torch.arange(recipe.rows, device=recipe.device).unsqueeze(1)) % recipe.shape["vocab_size"]
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORED
    segments = positions = None
    if recipe.segments:
        half = recipe.length // 2
        segments = (columns >= half).to(torch.int32).repeat(recipe.rows, 1)
        positions = torch.where(columns >= half, columns - half, columns).repeat(recipe.rows, 1)
    tokens = recipe.rows * (recipe.length - 1)
    return Batch(ids, labels, tokens=tokens, samples=recipe.rows, segments=segments, positions=positions)


def main() -> int:
    """Read a recipe from stdin, compile; the last line of stderr says what went wrong."""
    children.step_back()  # its compilers take all processors, and training waits anyway
    recipe = Recipe(**json.loads(sys.stdin.buffer.read()))
    try:
        _compile_for(recipe)
    except Exception as error:  # noqa: BLE001 - a compiler can fail in any way
        sys.stderr.write(f"{plainly(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
