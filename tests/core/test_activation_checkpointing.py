"""Activation checkpointing changes memory and nothing else."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.loss import token_loss

SHAPE = ModelConfig(67, 32, 3, 4, 2, 48, max_seq_len=16, dropout=0.2, qk_norm=True)
Mode = Literal["off", "selective", "full"]


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SHAPE)


def step(model: Any, decoder: Decoder) -> tuple[list[Tensor], Tensor]:
    """Loss and gradients after a fixed seed, and the generator's state at the end."""
    ids = torch.arange(32).view(2, 16)
    decoder.zero_grad()
    torch.manual_seed(7)
    loss = token_loss(model(ids), ids)
    loss.backward()
    gradients = [weight.grad.clone() for weight in decoder.parameters() if weight.grad is not None]
    return [loss.detach(), *gradients], torch.get_rng_state()


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_gradients_are_identical_with_dropout(model: Decoder, mode: Mode) -> None:
    plain, state = step(model, model)
    checkpoint_activations(model, mode)
    again, state_again = step(model, model)
    assert len(plain) == len(list(model.parameters())) + 1
    assert all(torch.equal(some, other) for some, other in zip(plain, again, strict=True))
    assert torch.equal(state, state_again)


def saved_bytes(model: Decoder) -> int:
    """Bytes that backward finds saved, each tensor once, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.state_dict().values()}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(32).view(2, 16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.forward_hidden(ids)
    hidden.sum().backward()
    return sum(found.values())


def test_full_saves_less_for_backward(model: Decoder) -> None:
    plain = saved_bytes(model)
    checkpoint_activations(model, "full")
    assert saved_bytes(model) < plain / 3


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products and the operations of SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.cheap = 0

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.products += operator is torch.ops.aten.mm.default
        self.cheap += operator is torch.ops.aten.silu.default
        return operator(*given, **(named or {}))


def counted(model: Decoder) -> tuple[int, int]:
    with Counted() as count:
        step(model, model)
    return count.products, count.cheap


def test_selective_recomputes_cheap_operations_only(model: Decoder) -> None:
    products, cheap = counted(model)
    checkpoint_activations(model, "selective")
    assert counted(model) == (products, 2 * cheap)
    checkpoint_activations(model, "full")
    assert counted(model)[0] >= products + 6 * SHAPE.n_layers  # torch stops when it has what backward needs
    checkpoint_activations(model, "off")
    assert counted(model) == (products, cheap)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_weights_keep_their_names_and_a_copy_is_independent(model: Decoder, mode: Mode) -> None:
    names = list(model.state_dict())
    checkpoint_activations(model, mode)
    other = copy.deepcopy(model)
    assert list(other.state_dict()) == names
    step(other, other)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_traced_model_has_the_same_gradients(model: Decoder, mode: Mode) -> None:
    """Traced by the compiler without code generation, and without dropout, whose random numbers differ there."""
    model = Decoder(ModelConfig(67, 32, 2, 4, 2, 48, max_seq_len=16))
    plain, _ = step(model, model)
    checkpoint_activations(model, mode)
    try:
        traced, _ = step(torch.compile(model, backend="aot_eager", fullgraph=True), model)
    finally:
        torch.compiler.reset()
    for some, other in zip(plain, traced, strict=True):
        torch.testing.assert_close(some, other, rtol=1e-4, atol=1e-6)
