"""Fast paths without a compiler have the results of the reference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.core.engines import CPU, FP32, LENGTH, VOCABULARY, batch, decoder, settings
from trainer_core.config import Config
from trainer_core.data.loader import IGNORE_INDEX, Batch, BatchLoader
from trainer_core.data.prepare import prepare
from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter
from trainer_core.train.device import Precision, native_bf16
from trainer_core.train.device_transfer import WindowLoader
from trainer_core.train.engine import measuring
from trainer_core.train.engine.engine import Engine
from trainer_core.train.loss import batch_loss
from trainer_core.train.optimizers import build_optimizer

CUDA = torch.device("cuda", 0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

SUMS = 1e-5  # relative: fp32 sums in another order; below 1e-6 was seen
BATCHES = [batch(), batch(packed=True)]
KINDS = ["one document", "several documents"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine, several threads would wait for each other at every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- threads of the CPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 100], ids=["whole", "chunked"])
def test_two_threads_compute_the_same_as_one(chunk: int) -> None:
    model = decoder(settings(hidden_dim=128, mlp_dim=256, max_seq_len=128))  # large enough that torch divides its work

    def by(count: int) -> measuring.LossOf:
        def loss(given: Batch) -> Tensor:
            torch.set_num_threads(count)  # for its backward, too
            return batch_loss(model, given, chunk=chunk)

        return loss

    assert measuring.loss_difference(model, by(2), by(1), batch(128, 8)) < SUMS


# --- the loss in parts, in fp16 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 2.0**8], ids=["in range", "overflows at first"])
def test_in_fp16_losses_are_compared_with_loss_scaling(factor: float) -> None:
    fp16 = Precision.from_name("fp16", CPU)
    model, given = decoder(settings()), batch()
    engine = Engine(model, fp16, chunk=16)
    received: list[tuple[float, float]] = []

    def watched(loss: measuring.LossOf) -> measuring.LossOf:
        def of(part: Batch, grad_scale: Tensor) -> Tensor:
            summed = factor * loss(part, factor * grad_scale)
            summed.register_hook(lambda gradient: received.append((float(gradient), float(grad_scale))))
            return summed

        return of

    parts, whole = watched(engine.eager_loss), watched(Engine(model, fp16).eager_loss)
    assert measuring.loss_difference(model, parts, whole, given, fp16) < 2e-3
    assert all(gradient == scale for gradient, scale in received)
    begins = 2.0**16 / given.loss_tokens  # as GradScaler does
    wanted = [begins, begins] if factor == 1.0 else [begins, begins / 16, begins / 16]
    assert [scale for _, scale in received] == pytest.approx(wanted)


# --- padded vocabulary -----------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def plain_and_padded(request: pytest.FixtureRequest) -> tuple[Decoder, Decoder]:
    """A model, and the same with padding rows, many of which are more likely than any token."""
    plain, padded = (decoder(settings(vocab_multiple=many, tie_embeddings=request.param)) for many in (1, 100))
    assert (plain.config.vocab_size, padded.config.vocab_size, padded.config.unpadded_vocab_size) == (
        64,
        100,
        VOCABULARY,
    )
    weights = plain.state_dict()
    for name, weight in padded.state_dict().items():
        weight[: len(weights[name])] = weights[name]
    padded.state_dict()["lm_head.weight"][VOCABULARY:] *= 20
    return plain, padded


def test_padding_changes_neither_hidden_states_nor_logits_of_tokens(
    plain_and_padded: tuple[Decoder, Decoder],
) -> None:
    plain, padded = plain_and_padded
    ids = batch().input_ids
    assert torch.equal(padded.forward_hidden(ids), plain.forward_hidden(ids))
    assert measuring.relative_error([padded(ids)[..., :VOCABULARY]], [plain(ids)]) < SUMS


def gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("chunk", [0, 10], ids=["whole", "chunked"])
def test_padding_adds_exactly_its_share_of_the_softmax_to_the_loss(
    plain_and_padded: tuple[Decoder, Decoder], chunk: int
) -> None:
    """The likelihood of a token is that among the tokens times 1 - share of the padding."""
    plain, padded = plain_and_padded
    given = batch()
    share = padded(given.input_ids).double().softmax(-1)[..., VOCABULARY:].sum(-1)
    added = -torch.log1p(-share)[given.labels != IGNORE_INDEX].sum()
    own, loss = batch_loss(plain, given), batch_loss(padded, given, chunk=chunk)
    wanted = gradients(padded, added)
    for whole, part in zip(wanted, gradients(plain, own), strict=True):
        whole[: len(part)] += part
    assert measuring.relative_error([loss], [own + added]) < SUMS
    assert measuring.relative_error(gradients(padded, loss), wanted) < SUMS


def test_padding_tokens_are_never_generated(plain_and_padded: tuple[Decoder, Decoder]) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    likeliest = plain_and_padded[1](torch.tensor(prompts[:1])).argmax(-1)
    assert int(likeliest.max()) >= VOCABULARY, "else this shows nothing"
    answers, wanted = (
        generate_batch(model, prompts, [12] * 3, frozenset(), lambda: None) for model in plain_and_padded
    )
    assert answers == wanted
    for sampling in (SamplingParams(temperature=0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)):
        texts = [
            list(generate_tokens(model, prompts[0], 2 * LENGTH, sampling, frozenset())) for model in plain_and_padded
        ]
        assert texts[0] == texts[1]


# --- mixed precision ------------------------------------------------------------------------------------


def step_of(engine: Engine, given: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradients as a step of training has them, scaled for backward where the precision needs it."""
    model, device_type = engine.model, given.input_ids.device.type
    optimizer = build_optimizer(model, Config())
    scaler = torch.amp.GradScaler(device_type, enabled=engine.precision.needs_scaler)
    loss = engine.loss(given) / given.loss_tokens
    torch.autograd.backward(scaler.scale(loss))
    scaler.unscale_(optimizer)
    found = [weight.grad for weight in model.parameters() if weight.grad is not None]
    optimizer.zero_grad(set_to_none=True)
    return [loss.detach()], found


@pytest.mark.parametrize("chunk", [0, 10], ids=["whole", "chunked"])
@pytest.mark.parametrize("given", BATCHES, ids=KINDS)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=needs_gpu)], ids=str)
def test_gradients_in_mixed_precision_equal_those_in_fp32_within_tolerance(
    device: torch.device, name: str, given: Batch, chunk: int
) -> None:
    model, given = decoder(settings()).to(device), given.to(device)
    narrow = step_of(Engine(model, Precision.from_name(name, device), chunk=chunk), given)
    exact = step_of(Engine(model, Precision.from_name("fp32", device)), given)
    assert len(narrow[1]) == len(list(model.parameters()))
    errors = [measuring.relative_error(*pair) for pair in zip(narrow, exact, strict=True)]
    assert max(errors) < measuring.TOLERANCE[name]
    assert max(errors) > 10 * SUMS, "it was fp32 after all"


@pytest.fixture
def products() -> Iterator[None]:
    """In fp32 as before, afterwards."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@needs_gpu
@pytest.mark.parametrize("given", BATCHES, ids=KINDS)
def test_gradients_with_tf32_equal_those_in_fp32_within_tolerance(products: None, given: Batch) -> None:
    if not native_bf16(CUDA):
        pytest.skip("no TF32 on this GPU")
    model = decoder(settings(hidden_dim=256, mlp_dim=512)).to(CUDA)

    def by(products: str) -> measuring.LossOf:
        def loss(given: Batch) -> Tensor:
            torch.set_float32_matmul_precision(products)  # for its backward, too
            return Engine(model, FP32).loss(given)

        return loss

    assert measuring.loss_difference(model, by("high"), by("highest"), given.to(CUDA)) < measuring.TOLERANCE["tf32"]


# --- pinned memory and the transfer stream ------------------------------------------------------------------

STEPS, PER_STEP = 40, 2


def loader(folder: Path, device_type: str) -> BatchLoader:
    """Batches of 2 MiB a tensor, whose copies take longer than it takes to ask for what comes next."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(random.Random(0).choices("abcdefgh \n", k=1_200_000)), encoding="utf-8")
    config = Config(data=[str(text)], cache_dir=str(folder), vocab_size=300, batch_size=256, max_seq_len=1024)
    return BatchLoader(prepare(config, NullReporter()), config, device_type=device_type)


def tensors(batches: list[Batch]) -> list[Tensor]:
    return [tensor for given in batches for tensor in given.tensors()]


@needs_gpu
@pytest.mark.parametrize("busy", [True, False], ids=["while it computes", "while it waits"])
def test_batches_arrive_unchanged_on_a_gpu(tmp_path: Path, busy: bool) -> None:
    made, sent = loader(tmp_path, "cpu"), loader(tmp_path, "cuda")
    arriving = WindowLoader(sent.step_batches(0, PER_STEP), CUDA)
    arrived: list[list[Tensor]] = []
    for _ in range(STEPS):
        share = arriving.next_window().share
        if busy:
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # cycles: the host is steps ahead by the end
        arrived.append([tensor.clone() for tensor in tensors(share)])  # read behind that, as a step reads them
        if busy:
            arriving.prefetch()
    loaded = [tensors(window) for window in itertools.islice(made.step_batches(0, PER_STEP), STEPS)]
    for there, here in zip(arrived, loaded, strict=True):
        assert [tensor.device for tensor in there] == [CUDA] * len(here)
        assert all(torch.equal(one.cpu(), other) for one, other in zip(there, here, strict=True))
    made.close()
    sent.close()
