"""Fast paths without a compiler have the results of the reference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.core.engines import CPU, FP32, LENGTH, VOCAB_SIZE, build_decoder, random_batch, tiny_model_config
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.data.loader import BatchLoader
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

ROUNDING = 1e-5  # relative error of fp32 sums in another order; measured below 1e-6
BATCHES = [random_batch(), random_batch(packed=True)]
BATCH_IDS = ["one document", "several documents"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine, threads would wait for each other in every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- CPU threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 100], ids=["whole", "chunked"])
def test_two_threads_compute_the_same_as_one(chunk: int) -> None:
    # Large enough for torch to use both threads.
    model = build_decoder(tiny_model_config(hidden_dim=128, mlp_dim=256, max_seq_len=128))

    def loss_with(count: int) -> measuring.LossOf:
        def loss(batch: Batch) -> Tensor:
            torch.set_num_threads(count)  # also for backward
            return batch_loss(model, batch, chunk=chunk)

        return loss

    assert measuring.loss_difference(model, loss_with(2), loss_with(1), random_batch(128, 8)) < ROUNDING


# --- chunked loss in fp16 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 2.0**8], ids=["in range", "overflows at first"])
def test_in_fp16_losses_are_compared_with_loss_scaling(factor: float) -> None:
    fp16 = Precision.from_name("fp16", CPU)
    model, batch = build_decoder(tiny_model_config()), random_batch()
    engine = Engine(model, fp16, chunk=16)
    received: list[tuple[float, float]] = []

    def with_gradient_hook(loss: measuring.LossOf) -> measuring.LossOf:
        def hooked_loss(part: Batch, grad_scale: Tensor) -> Tensor:
            scaled_loss = factor * loss(part, factor * grad_scale)
            scaled_loss.register_hook(lambda gradient: received.append((float(gradient), float(grad_scale))))
            return scaled_loss

        return hooked_loss

    chunked, full = with_gradient_hook(engine.eager_loss), with_gradient_hook(Engine(model, fp16).eager_loss)
    assert measuring.loss_difference(model, chunked, full, batch, fp16) < 2e-3
    assert all(gradient == scale for gradient, scale in received)
    first_scale = 2.0**16 / batch.loss_tokens  # the initial scale of GradScaler
    expected = [first_scale, first_scale] if factor == 1.0 else [first_scale, first_scale / 16, first_scale / 16]
    assert [scale for _, scale in received] == pytest.approx(expected)


# --- padded vocabulary -----------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def plain_and_padded(request: pytest.FixtureRequest) -> tuple[Decoder, Decoder]:
    """A model, and the same with padding rows, many of which are more likely than any token."""
    plain, padded = (
        build_decoder(tiny_model_config(vocab_multiple=multiple, tie_embeddings=request.param)) for multiple in (1, 100)
    )
    assert (plain.config.vocab_size, padded.config.vocab_size, padded.config.unpadded_vocab_size) == (
        64,
        100,
        VOCAB_SIZE,
    )
    weights = plain.state_dict()
    for name, weight in padded.state_dict().items():
        weight[: len(weights[name])] = weights[name]
    padded.state_dict()["lm_head.weight"][VOCAB_SIZE:] *= 20
    return plain, padded


def test_padding_changes_neither_hidden_states_nor_logits_of_tokens(
    plain_and_padded: tuple[Decoder, Decoder],
) -> None:
    plain, padded = plain_and_padded
    ids = random_batch().input_ids
    assert torch.equal(padded.forward_hidden(ids), plain.forward_hidden(ids))
    assert measuring.relative_error([padded(ids)[..., :VOCAB_SIZE]], [plain(ids)]) < ROUNDING


def gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("chunk", [0, 10], ids=["whole", "chunked"])
def test_padding_adds_exactly_its_share_of_the_softmax_to_the_loss(
    plain_and_padded: tuple[Decoder, Decoder], chunk: int
) -> None:
    """Padding with the share p of the softmax multiplies the probability of each token by 1 - p."""
    plain, padded = plain_and_padded
    batch = random_batch()
    share = padded(batch.input_ids).double().softmax(-1)[..., VOCAB_SIZE:].sum(-1)
    added = -torch.log1p(-share)[batch.labels != IGNORE_INDEX].sum()
    plain_loss, loss = batch_loss(plain, batch), batch_loss(padded, batch, chunk=chunk)
    expected = gradients(padded, added)
    for full, part in zip(expected, gradients(plain, plain_loss), strict=True):
        full[: len(part)] += part
    assert measuring.relative_error([loss], [plain_loss + added]) < ROUNDING
    assert measuring.relative_error(gradients(padded, loss), expected) < ROUNDING


def test_padding_tokens_are_never_generated(plain_and_padded: tuple[Decoder, Decoder]) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    most_likely = plain_and_padded[1](torch.tensor(prompts[:1])).argmax(-1)
    assert int(most_likely.max()) >= VOCAB_SIZE, "without a likely padding token the test proves nothing"
    padded_answers, expected = (
        generate_batch(model, prompts, [12] * 3, frozenset(), lambda: None) for model in plain_and_padded
    )
    assert padded_answers == expected
    for sampling in (SamplingParams(temperature=0), SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)):
        texts = [
            list(generate_tokens(model, prompts[0], 2 * LENGTH, sampling, frozenset())) for model in plain_and_padded
        ]
        assert texts[0] == texts[1]


# --- mixed precision ------------------------------------------------------------------------------------


def step_loss_and_gradients(engine: Engine, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and unscaled gradients of a training step, with a GradScaler where the precision needs it."""
    model, device_type = engine.model, batch.input_ids.device.type
    optimizer = build_optimizer(model, Config())
    scaler = torch.amp.GradScaler(device_type, enabled=engine.precision.needs_scaler)
    loss = engine.loss(batch) / batch.loss_tokens
    torch.autograd.backward(scaler.scale(loss))
    scaler.unscale_(optimizer)
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    optimizer.zero_grad(set_to_none=True)
    return [loss.detach()], grads


@pytest.mark.parametrize("chunk", [0, 10], ids=["whole", "chunked"])
@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=needs_gpu)], ids=str)
def test_gradients_in_mixed_precision_equal_those_in_fp32_within_tolerance(
    device: torch.device, name: str, batch: Batch, chunk: int
) -> None:
    model, batch = build_decoder(tiny_model_config()).to(device), batch.to(device)
    low_precision = step_loss_and_gradients(Engine(model, Precision.from_name(name, device), chunk=chunk), batch)
    exact = step_loss_and_gradients(Engine(model, Precision.from_name("fp32", device)), batch)
    assert len(low_precision[1]) == len(list(model.parameters()))
    errors = [measuring.relative_error(*pair) for pair in zip(low_precision, exact, strict=True)]
    assert max(errors) < measuring.TOLERANCE[name]
    assert max(errors) > 10 * ROUNDING, "computed in fp32"


@pytest.fixture
def restored_precision() -> Iterator[None]:
    """Restores the precision of fp32 matrix products after the test."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@needs_gpu
@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
def test_gradients_with_tf32_equal_those_in_fp32_within_tolerance(restored_precision: None, batch: Batch) -> None:
    if not native_bf16(CUDA):
        pytest.skip("no TF32 on this GPU")
    model = build_decoder(tiny_model_config(hidden_dim=256, mlp_dim=512)).to(CUDA)

    def loss_with(precision: str) -> measuring.LossOf:
        def loss(batch: Batch) -> Tensor:
            torch.set_float32_matmul_precision(precision)  # also for backward
            return Engine(model, FP32).loss(batch)

        return loss

    assert (
        measuring.loss_difference(model, loss_with("high"), loss_with("highest"), batch.to(CUDA))
        < measuring.TOLERANCE["tf32"]
    )


# --- pinned memory and the transfer stream ------------------------------------------------------------------

STEPS, BATCHES_PER_STEP = 40, 2


def loader(folder: Path, device_type: str) -> BatchLoader:
    """Batches of 2 MiB per tensor: a copy takes longer than the request for the next batch."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(random.Random(0).choices("abcdefgh \n", k=1_200_000)), encoding="utf-8")
    config = Config(data=[str(text)], cache_dir=str(folder), vocab_size=300, batch_size=256, max_seq_len=1024)
    return BatchLoader(prepare(config, NullReporter()), config, device_type=device_type)


def tensors(batches: list[Batch]) -> list[Tensor]:
    return [tensor for batch in batches for tensor in batch.tensors()]


@needs_gpu
@pytest.mark.parametrize("computing", [True, False], ids=["GPU busy", "GPU idle"])
def test_batches_arrive_unchanged_on_a_gpu(tmp_path: Path, computing: bool) -> None:
    cpu_loader, gpu_loader = loader(tmp_path, "cpu"), loader(tmp_path, "cuda")
    window_loader = WindowLoader(gpu_loader.step_batches(0, BATCHES_PER_STEP), CUDA)
    on_gpu: list[list[Tensor]] = []
    for _ in range(STEPS):
        share = window_loader.next_window().share
        if computing:
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # cycles; the host gets steps ahead of the GPU
        on_gpu.append([tensor.clone() for tensor in tensors(share)])  # on the compute stream, like a step
        if computing:
            window_loader.prefetch()
    on_cpu = [tensors(window) for window in itertools.islice(cpu_loader.step_batches(0, BATCHES_PER_STEP), STEPS)]
    for gpu_tensors, cpu_tensors in zip(on_gpu, on_cpu, strict=True):
        assert [tensor.device for tensor in gpu_tensors] == [CUDA] * len(cpu_tensors)
        assert all(
            torch.equal(gpu_tensor.cpu(), cpu_tensor)
            for gpu_tensor, cpu_tensor in zip(gpu_tensors, cpu_tensors, strict=True)
        )
    cpu_loader.close()
    gpu_loader.close()
