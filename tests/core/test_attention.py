"""Every attention backend has the result and the gradients of the reference.

The reference is the formula in float64 (Vaswani et al. 2017, section 3.2.1).
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer_core.models.attention import (
    BACKENDS,
    AttentionBackend,
    CuSeqlens,
    additive_mask,
    attend_to_cache,
    document_mask,
    mask_from_cu_seqlens,
)

CUDA = torch.device("cuda")
CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}  # relative to the largest value
SEGMENTS = torch.tensor([[0] * 7 + [1] * 13, [0] * 12 + [1] * 3 + [-1] * 5], dtype=torch.int32)
CU_SEQLENS = CuSeqlens(torch.tensor([0, 7, 20, 32, 35, 40], dtype=torch.int32), 13)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def random_inputs(kv_heads: int, device: torch.device, dtype: torch.dtype, width: int = 16) -> list[Tensor]:
    """Queries, keys and values in the memory layout of the decoder (heads after positions), and an output gradient."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 20, heads, width, generator=generator) for heads in (4, kv_heads, kv_heads, 4)]
    return [x.to(device, dtype).transpose(1, 2) for x in tensors]


def result_and_gradients(
    backend: AttentionBackend, inputs: list[Tensor], mask: Tensor | None, cu_seqlens: CuSeqlens | None
) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    output = backend.attend(q, k, v, mask=mask, cu_seqlens=cu_seqlens)
    assert output.dtype == inputs[0].dtype
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), inputs[3])]


def compare(
    backend: AttentionBackend, kv_heads: int, packed: bool, device: torch.device, dtype: torch.dtype, width: int = 16
) -> None:
    inputs = random_inputs(kv_heads, device, dtype, width)
    mask = document_mask(SEGMENTS) if packed else torch.ones(20, 20, dtype=torch.bool).tril()
    q, k, v, gradient = (x.cpu().double() for x in inputs)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = reference_attention(*leaves, mask)
    expected = [output.detach(), *torch.autograd.grad(output, leaves, gradient)]
    arguments: list[dict[str, Any]] = [{"mask": None, "cu_seqlens": None}]
    if packed:
        cu_seqlens = replace(CU_SEQLENS, offsets=CU_SEQLENS.offsets.to(device))
        arguments = [{"mask": mask.to(device), "cu_seqlens": None}, {"mask": None, "cu_seqlens": cu_seqlens}]
    for kwargs in arguments:
        for actual, reference in zip(result_and_gradients(backend, inputs, **kwargs), expected, strict=True):
            assert float((actual.cpu().double() - reference).abs().max() / reference.abs().max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("packed", [False, True], ids=["one document", "several documents"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "name", [name for name, backend in BACKENDS.items() if not backend.unavailable_reason(CPU, torch.float32, 16)]
)
def test_cpu_backends_equal_the_formula(name: str, kv_heads: int, packed: bool) -> None:
    compare(BACKENDS[name], kv_heads, packed, CPU, torch.float32)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("queries", [1, 3])
def test_attention_to_cached_keys_of_rows_with_different_lengths_equals_the_formula(
    queries: int, kv_heads: int
) -> None:
    q, k, v = (x.double() for x in random_inputs(kv_heads, CPU, torch.float32)[:3])
    q, room = q[:, :, -queries:], torch.full_like(k[:, :, :5], torch.inf)  # slots after the last key, never read
    k, v = (torch.cat((x, room), dim=2)[:, :, :20] for x in (k, v))
    mask = (torch.arange(20) < torch.tensor([[9], [17]]))[:, None, None].expand(2, 1, queries, 20)
    actual = attend_to_cache(q, k, v, mask=additive_mask(mask, torch.float64), cu_seqlens=None)
    torch.testing.assert_close(actual, reference_attention(q, k, v, mask))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "several documents"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BACKENDS)
def test_gpu_backends_equal_the_formula(name: str, dtype: torch.dtype, kv_heads: int, packed: bool) -> None:
    if BACKENDS[name].unavailable_reason(CUDA, dtype, 64):
        pytest.skip("this GPU does not support the backend")
    compare(BACKENDS[name], kv_heads, packed, CUDA, dtype, 64)


def test_backends_available_on_a_cpu() -> None:
    available = {name for name, backend in BACKENDS.items() if not backend.unavailable_reason(CPU, torch.float32, 16)}
    assert available == {"sdpa", "flash", "math", "documents"}
    for name in BACKENDS.keys() - available:
        assert BACKENDS[name].unavailable_reason(CPU, torch.float32, 16) == ("path.no_gpu", {})


def test_every_unavailable_reason_has_a_text() -> None:
    from trainer_core.messages import template

    dtypes, widths = (torch.float32, torch.bfloat16), (16, 20, 512)
    devices = [CPU, *([CUDA] if torch.cuda.is_available() else [])]
    for backend, *arguments in itertools.product(BACKENDS.values(), devices, dtypes, widths):
        code, params = backend.unavailable_reason(*arguments) or ("path.on", {})
        assert template(code, "en")[0].format(**params)


def test_each_choice_of_the_setting_is_a_backend() -> None:
    from trainer_core.config import knobs

    assert set(knobs()["attention"].choices) - {"auto"} <= BACKENDS.keys()


def test_the_mask_from_cu_seqlens_is_the_document_mask() -> None:
    assert torch.equal(mask_from_cu_seqlens(CU_SEQLENS, 2, 20), document_mask(SEGMENTS))


class FakeFlashAttention:
    """Fake FlashAttention package: computes by the formula and records the shapes of its inputs."""

    def __init__(self, returns_lse: bool) -> None:
        self.returns_lse, self.shapes = returns_lse, []

    def flash_attn_func(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor | tuple[Tensor, Tensor]:
        self.shapes.append(tuple(q.shape))
        mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
        assert causal
        output = reference_attention(*(x.transpose(1, 2) for x in (q, k, v)), mask).transpose(1, 2)
        return (output, output.sum(-1)) if self.returns_lse else output

    def flash_attn_varlen_func(
        self, q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, q_longest: int, k_longest: int,
        causal: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        self.shapes.append(tuple(q.shape))
        assert causal
        assert q_longest == k_longest == int(q_offsets.diff().max())
        assert torch.equal(q_offsets, k_offsets)
        mask = document_mask(torch.bucketize(torch.arange(len(q)), q_offsets.long(), right=True)[None])
        output = reference_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask)[0].transpose(0, 1)
        return (output, output.sum(-1)) if self.returns_lse else output


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("name", "module"), [("flash2", "flash_attn"), ("flash3", "flash_attn_interface")])
def test_flash_attention_packages_receive_their_layout(
    name: str, module: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = FakeFlashAttention(returns_lse=name == "flash3")
    monkeypatch.setitem(sys.modules, module, package)
    for packed, shape in ((False, (2, 20, 4, 16)), (True, (40, 4, 16))):
        compare(BACKENDS[name], kv_heads, packed, CPU, torch.float32)
        assert shape in package.shapes


def test_torch_varlen_attention_receives_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer_core.models import attention

    def varlen_attn(  # the signature of torch 2.13
        query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
        window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        assert window_size == (-1, 0)
        assert enable_gqa == (query.shape[1] != key.shape[1])
        package = FakeFlashAttention(returns_lse=False)
        output = package.flash_attn_varlen_func(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, causal=True)
        assert isinstance(output, Tensor)
        return output

    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    attention._load_torch_varlen.cache_clear()
    for kv_heads in (4, 2):
        compare(BACKENDS["varlen"], kv_heads, True, CPU, torch.float32)
    attention._load_torch_varlen.cache_clear()
