"""Activation checkpointing changes memory use, but no results."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from tests.core.shapes import model_shape
from trainer_core.models.decoder import Decoder
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.loss import token_loss

SHAPE = model_shape(67, 32, 3, max_seq_len=16, dropout=0.2, qk_norm=True)
Mode = Literal["off", "selective", "full"]


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SHAPE)


def loss_and_gradients(model: Any, decoder: Decoder) -> tuple[list[Tensor], Tensor]:
    """Loss and gradients for a fixed seed, and the RNG state afterwards."""
    ids = torch.arange(32).view(2, 16)
    decoder.zero_grad()
    torch.manual_seed(7)
    loss = token_loss(model(ids), ids)
    loss.backward()
    gradients = [weight.grad.clone() for weight in decoder.parameters() if weight.grad is not None]
    return [loss.detach(), *gradients], torch.get_rng_state()


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_gradients_are_identical_with_dropout(model: Decoder, mode: Mode) -> None:
    expected, state = loss_and_gradients(model, model)
    checkpoint_activations(model, mode)
    actual, new_state = loss_and_gradients(model, model)
    assert len(expected) == len(list(model.parameters())) + 1
    assert all(map(torch.equal, actual, expected))
    assert torch.equal(state, new_state)


def saved_bytes(model: Decoder) -> int:
    """Bytes saved for backward, without weights; each storage counts once."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.state_dict().values()}
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(32).view(2, 16)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        hidden = model.forward_hidden(ids)
    hidden.sum().backward()
    return sum(sizes.values())


def test_full_checkpointing_saves_fewer_activations(model: Decoder) -> None:
    expected = saved_bytes(model)
    checkpoint_activations(model, "full")
    assert saved_bytes(model) < expected / 3


def test_fewer_checkpointed_layers_save_more_activations_and_change_no_gradient(model: Decoder) -> None:
    expected, _ = loss_and_gradients(model, model)
    sizes = []
    for layers in (1, 2, 3):
        checkpoint_activations(model, "full", layers)
        assert all(map(torch.equal, loss_and_gradients(model, model)[0], expected))
        sizes.append(saved_bytes(model))
    assert sizes[0] > sizes[1] > sizes[2]
    checkpoint_activations(model, "full")
    assert saved_bytes(model) == sizes[2]


class OperationCounter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products and SiLU activations."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls = self.activations = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.matmuls += operator is torch.ops.aten.mm.default
        self.activations += operator is torch.ops.aten.silu.default
        return operator(*args, **(kwargs or {}))


def count_operations(model: Decoder) -> tuple[int, int]:
    with OperationCounter() as counter:
        loss_and_gradients(model, model)
    return counter.matmuls, counter.activations


def test_selective_checkpointing_recomputes_cheap_operations_only(model: Decoder) -> None:
    matmuls, activations = count_operations(model)
    checkpoint_activations(model, "selective")
    assert count_operations(model) == (matmuls, 2 * activations)
    checkpoint_activations(model, "full")
    # torch ends a recomputation as soon as backward has its tensors.
    assert count_operations(model)[0] >= matmuls + 6 * SHAPE.n_layers
    checkpoint_activations(model, "off")
    assert count_operations(model) == (matmuls, activations)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_weights_keep_their_names_and_a_copy_is_independent(model: Decoder, mode: Mode) -> None:
    names = list(model.state_dict())
    checkpoint_activations(model, mode)
    copied = copy.deepcopy(model)
    assert list(copied.state_dict()) == names
    loss_and_gradients(copied, copied)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_traced_model_has_the_same_gradients(model: Decoder, mode: Mode) -> None:
    """Traced without code generation, and without dropout, whose random numbers would differ."""
    model = Decoder(model_shape(67, 32, 2, max_seq_len=16))
    expected, _ = loss_and_gradients(model, model)
    checkpoint_activations(model, mode)
    try:
        actual, _ = loss_and_gradients(torch.compile(model, backend="aot_eager", fullgraph=True), model)
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
