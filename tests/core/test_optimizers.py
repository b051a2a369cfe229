"""Muon and AdamW equal their references; a skipped step changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainer_core.config import Config
from trainer_core.models.decoder import Decoder
from trainer_core.train import optimizers
from trainer_core.train.model_shape import model_config_of
from trainer_core.train.optimizers import MuonWithAdamW, orthogonalize

KINDS = ("adamw", "adamw_8bit", "muon")
SHAPES = ((48, 48), (32, 80), (80, 32), (48, 48), (32, 80))


def random_matrices(seed: int = 0) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape) * 0.02) for shape in SHAPES]


def set_gradients(weights: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)


def build_model(optimizer: str = "muon", **knobs: object) -> tuple[Decoder, MuonWithAdamW]:
    config = Config(hidden_dim=32, n_layers=2, n_heads=2, max_seq_len=16, optimizer=optimizer, **knobs)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = Decoder(model_config_of(config, 64))
    return model, optimizers.build_optimizer(model, config)


def train(model: Decoder, optimizer: torch.optim.Optimizer, step: int, bad: float | Tensor = 0.0) -> None:
    """One update with a batch that depends only on `step`. With `bad`, all gradients are NaN."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(64, (4, 16), generator=generator)
    model(ids).square().mean().backward()
    flag = torch.as_tensor(bad, dtype=torch.float32)
    if float(flag):
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad.fill_(torch.nan)
    optimizers.update(optimizer, torch.amp.GradScaler("cpu", enabled=False), flag)
    optimizer.zero_grad()


def weights_and_state(model: Decoder, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [value for weight in model.parameters() for value in optimizer.state.get(weight, {}).values()]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *moments)]


def test_an_update_equals_torch_muon_with_its_orthogonalization(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_orthogonalize = pytest.importorskip("torch.optim._muon")._zeropower_via_newtonschulz

    def one_by_one(stacked: Tensor) -> Tensor:
        return torch.stack([torch_orthogonalize(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7) for matrix in stacked])

    monkeypatch.setattr(optimizers, "orthogonalize", one_by_one)
    actual, expected = random_matrices(), random_matrices()
    optimizer = MuonWithAdamW([{"params": actual, "kind": "muon", "weight_decay": 0.1}], lr=0.02)
    torch_optimizer = torch.optim.Muon(
        expected, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(5):
        set_gradients(actual, step)
        set_gradients(expected, step)
        optimizer.step()
        torch_optimizer.step()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("magnitudes", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(48, 48), (32, 96), (96, 32)])
def test_four_newton_schulz_steps_are_as_accurate_as_five_of_torch(shape: tuple[int, int], magnitudes: float) -> None:
    torch_orthogonalize = pytest.importorskip("torch.optim._muon")._zeropower_via_newtonschulz
    torch.manual_seed(1)
    left, _, right = torch.linalg.svd(torch.randn(6, *shape), full_matrices=False)
    values = torch.logspace(0, -magnitudes, min(shape))  # singular values over this many orders of magnitude
    stacked = 1e-3 * left @ torch.diag(values) @ right
    exact = left @ right

    def similarity(result: Tensor) -> float:
        return torch.cosine_similarity(result.float().flatten(1), exact.flatten(1)).mean().item()

    expected = torch.stack([torch_orthogonalize(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7) for matrix in stacked])
    assert similarity(orthogonalize(stacked)) > similarity(expected) - 0.005
    singular_values = torch.linalg.svdvals(orthogonalize(stacked).float())
    assert singular_values.min() > 0.7
    assert singular_values.max() < 1.3


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e12])
def test_orthogonalization_of_any_magnitude_is_finite(value: float) -> None:
    assert orthogonalize(torch.full((2, 8, 12), value)).isfinite().all()


@pytest.mark.parametrize("shape", [(8, 32, 64), (8, 64, 64), (4, 96, 32)])
def test_orthogonalization_in_bfloat16_equals_float32_within_rounding(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(2)
    stacked = torch.randn(*shape)
    results: dict[torch.dtype, Tensor] = {}
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(optimizers, "compute_dtype", lambda _, dtype=dtype: dtype)
        results[dtype] = orthogonalize(stacked).float()
    assert torch.cosine_similarity(results[torch.float32].flatten(1), results[torch.bfloat16].flatten(1)).min() > 0.99
    assert (
        torch.linalg.matrix_norm(results[torch.bfloat16], 2).max() < 1.3
    )  # rounding does not amplify a singular value


def test_stacked_updates_equal_separate_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked, separate = random_matrices(), random_matrices()
    for weights, limit in ((stacked, 10**9), (separate, 1)):
        monkeypatch.setattr(optimizers, "_MAX_STACKED", limit)
        optimizer = MuonWithAdamW([{"params": weights, "kind": "muon"}], lr=0.01)
        for step in range(3):
            set_gradients(weights, step)
            optimizer.step()
    torch.testing.assert_close(stacked, separate, rtol=1e-5, atol=1e-6)


def test_muon_updates_matrices_inside_the_layers_and_adamw_the_rest() -> None:
    model, optimizer = build_model(tie_embeddings=False, qkv_bias=True)
    names = {id(weight): name for name, weight in model.named_parameters()}
    kinds = {names[id(weight)]: group["kind"] for group in optimizer.param_groups for weight in group["params"]}
    assert set(kinds) == set(names.values())
    assert kinds["model.embed_tokens.weight"] == kinds["lm_head.weight"] == kinds["model.norm.weight"] == "adamw"
    inner = {name for name, kind in kinds.items() if kind == "muon"}
    assert inner == {name for name in kinds if ".layers." in name and "_proj.weight" in name}
    decays = {names[id(w)]: group["weight_decay"] for group in optimizer.param_groups for w in group["params"]}
    assert all((decay > 0) == (model.get_parameter(name).dim() == 2) for name, decay in decays.items())


@pytest.mark.parametrize("kind", KINDS)
def test_adamw_equals_the_fused_adamw_of_torch(kind: str) -> None:
    model, optimizer = build_model(kind)
    reference, _ = build_model(kind)
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = [
        {
            "params": [reference.get_parameter(names[id(weight)]) for weight in group["params"]],
            "weight_decay": group["weight_decay"],
        }
        for group in optimizer.param_groups
        if group["kind"] == "adamw"
    ]
    defaults = Config()
    expected = torch.optim.AdamW(
        groups, lr=defaults.learning_rate, betas=(defaults.beta1, defaults.beta2), eps=defaults.adam_epsilon, fused=True
    )
    for step in range(3):
        for trained in (model, reference):
            generator = torch.Generator().manual_seed(step)
            for weight in trained.parameters():
                weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        expected.step()
    for group in groups:
        for weight in group["params"]:
            name = next(name for name, parameter in reference.named_parameters() if parameter is weight)
            assert torch.equal(model.get_parameter(name), weight), name
            actual = optimizer.state[model.get_parameter(name)]
            assert all(torch.equal(actual[key], value) for key, value in expected.state[weight].items())


def test_8_bit_adamw_equals_that_of_bitsandbytes_for_large_matrices_inside_the_layers() -> None:
    from bitsandbytes.optim import AdamW8bit

    _model, optimizer = build_model("adamw_8bit")
    group = next(group for group in optimizer.param_groups if group["kind"] == "adamw_8bit")
    assert {weight.numel() for weight in group["params"]} == {128 * 32}
    copies = [nn.Parameter(weight.detach().clone()) for weight in group["params"]]
    expected = AdamW8bit(copies, group["lr"], group["betas"], group["eps"], group["weight_decay"])
    for step in range(3):
        for weights in (group["params"], copies):
            set_gradients(weights, step)
        optimizer.step()
        expected.step()
    assert all(map(torch.equal, group["params"], copies))
    state = optimizer.state[group["params"][0]]
    assert state["exp_avg_8bit"].dtype == state["exp_avg_sq_8bit"].dtype == torch.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_unscales_gradients(kind: str) -> None:
    states = []
    for scale in (None, 1024.0):
        model, optimizer = build_model(kind)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for _ in range(3):
            scaler.scale(model(torch.ones(1, 4, dtype=torch.long)).square().mean()).backward()
            optimizers.update(optimizer, scaler, torch.zeros(()))
            optimizer.zero_grad()
        states.append(weights_and_state(model, optimizer))
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_changes_nothing(kind: str) -> None:
    states = []
    for with_bad_steps in (False, True):
        model, optimizer = build_model(kind)
        for step in range(4):
            train(model, optimizer, step)
            if with_bad_steps and step in (0, 2):
                train(model, optimizer, 99, bad=1.0)
        states.append(weights_and_state(model, optimizer))
    assert all(map(torch.equal, *states))


def build_scaled_step(
    gradient: float,
) -> tuple[Callable[[float], None], Decoder, torch.optim.Optimizer, torch.amp.GradScaler]:
    """A model and a step with loss scaling, like in fp16."""
    model, optimizer = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)

    def step(bad: float, value: float = gradient) -> None:
        scaler.scale(model(torch.zeros(1, 4, dtype=torch.long)).square().mean()).backward()
        assert model.lm_head.weight.grad is not None
        model.lm_head.weight.grad.add_(value)
        optimizers.update(optimizer, scaler, torch.tensor(bad))
        optimizer.zero_grad()

    return step, model, optimizer, scaler


@pytest.mark.parametrize(("gradient", "bad", "updates", "scale"), [
    (0.0, 0.0, True, 1024.0),
    (torch.inf, 0.0, False, 512.0),  # an overflow: skipped, and the scale is lowered
    (0.0, 1.0, False, 1024.0),  # a spike: skipped, and the scale is kept
    (torch.nan, 1.0, False, 512.0),
])  # fmt: skip
def test_overflows_and_bad_steps_are_skipped_and_only_overflows_lower_the_scale(
    gradient: float, bad: float, updates: bool, scale: float
) -> None:
    step, model, optimizer, scaler = build_scaled_step(gradient)
    before = [weight.detach().clone() for weight in model.parameters()]
    step(bad)
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert any(changed) == updates
    assert scaler.get_scale() == scale
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_an_update_never_synchronizes_with_a_gpu(kind: str) -> None:
    model, optimizer = build_model(kind)
    model = model.cuda()
    optimizer = optimizers.build_optimizer(model, Config(optimizer=kind))  # type: ignore[arg-type]
    scaler = torch.amp.GradScaler("cuda", enabled=True)
    flag = torch.zeros((), device="cuda")
    before = [weight.detach().clone() for weight in model.parameters()]
    for bad in (1.0, 0.0):
        flag.fill_(bad)
        scaler.scale(model(torch.zeros(1, 4, dtype=torch.long, device="cuda")).square().mean()).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizers.update(optimizer, scaler, flag)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.zero_grad()
        unchanged = all(map(torch.equal, before, model.parameters()))
        assert unchanged == bool(bad)
