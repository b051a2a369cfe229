"""The attention operators that only CUDA has, by the formula."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def _attend(q, k, v, bias=None, causal=False, scale=None):
    """[B, H, T, D] each -> the same, and the logarithm of the sum of weights, [B, H, T]."""
    if k.shape[1] != q.shape[1]:
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = q.float() @ k.float().transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype), torch.logsumexp(scores, -1)


def _by_document(q, k, v, starts_q, starts_k, causal, scale):
    """[T, H, D] each, sequences one after the other."""
    outs, sums = [], []
    begin_q, begin_k = starts_q.tolist(), starts_k.tolist()
    for (a, b), (c, d) in zip(itertools.pairwise(begin_q), itertools.pairwise(begin_k), strict=True):
        if b > a:
            cut = (q[a:b], k[c:d], v[c:d])
            out, summed = _attend(*(one.transpose(0, 1)[None] for one in cut), None, causal, scale)
            outs.append(out[0].transpose(0, 1))
            sums.append(summed[0])
    missing = q.shape[0] - sum(one.shape[0] for one in outs)
    if missing:
        outs.append(q.new_zeros(missing, *q.shape[1:]))
        sums.append(q.new_zeros(q.shape[1], missing, dtype=torch.float32))
    return torch.cat(outs), torch.cat(sums, 1)


def _gradients(function, inputs, gradient):
    """Within an operator torch records nothing, unless it is told to."""
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    wanted = [key.AutogradCPU, key.AutogradCUDA, key.ADInplaceOrView, key.AutogradFunctionality]
    recorded = keys(wanted[0])
    for one in wanted[1:]:
        recorded = recorded | keys(one)
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(include, exclude - recorded):
        leaves = [one.detach().requires_grad_() for one in inputs]
        return torch.autograd.grad(function(*leaves), leaves, gradient)


def _seeds() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)


def _rows_first(out: Tensor) -> Tensor:
    """As the kernels leave it: [B, T, H, D] in memory."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    out, sums = _attend(q, k, v, None, causal, scale)
    return (_rows_first(out), sums, None, None, q.shape[2], k.shape[2], *_seeds(), q.new_empty(0))


def _flash_backward(g, q, k, v, out, sums, cq, ck, mq, mk, dropout, causal, seed, offset, *, scale=None):
    return tuple(_gradients(lambda a, b, c: _attend(a, b, c, None, causal, scale)[0], [q, k, v], g))


def _efficient(q, k, v, bias, with_sums, dropout=0.0, causal=False, *, scale=None):
    out, sums = _attend(q, k, v, bias, causal, scale)
    return (_rows_first(out), sums, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64))


def _efficient_backward(g, q, k, v, bias, out, sums, seed, offset, dropout, mask, causal=False, *, scale=None):
    found = _gradients(lambda a, b, c: _attend(a, b, c, bias, causal, scale)[0], [q, k, v], g)
    return (*found, q.new_empty(0))


def _cudnn(q, k, v, bias, with_sums, dropout=0.0, causal=False, debug=False, *, scale=None):
    out, sums = _attend(q, k, v, bias, causal, scale)
    zero = torch.zeros((), dtype=torch.int64)
    return (
        _rows_first(out),
        sums.unsqueeze(-1),
        None,
        None,
        q.shape[2],
        k.shape[2],
        zero,
        zero.clone(),
        q.new_empty(0),
    )


def _cudnn_backward(
    g, q, k, v, out, sums, seed, offset, bias, cq, ck, mq, mk, dropout, causal, *, scale=None
):  # fmt: skip
    return tuple(_gradients(lambda a, b, c: _attend(a, b, c, bias, causal, scale)[0], [q, k, v], g))


def _documents(starts_q, starts_k, causal, scale):
    """[B, T, H, D], or [T, H, D] with where each document starts."""
    if starts_q is not None:
        return lambda q, k, v: _by_document(q, k, v, starts_q, starts_k, causal, scale)

    def whole(q, k, v):
        out, sums = _attend(*(one.transpose(1, 2) for one in (q, k, v)), None, causal, scale)
        return out.transpose(1, 2), sums

    return whole


def _varlen(q, k, v, starts_q, starts_k, most_q, most_k, dropout, causal, debug=False, **more):
    causal = causal or more.get("window_size_right") == 0
    out, sums = _documents(starts_q, starts_k, causal, more.get("scale"))(q, k, v)
    return (out, sums, *_seeds(), q.new_empty(0))


def _varlen_backward(
    g, q, k, v, out, sums, starts_q, starts_k, most_q, most_k, dropout, causal, seed, offset, **more
):  # fmt: skip
    causal = causal or more.get("window_size_right") == 0
    attend = _documents(starts_q, starts_k, causal, more.get("scale"))
    return tuple(_gradients(lambda a, b, c: attend(a, b, c)[0], [q, k, v], g))


OPERATORS = {
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_flash_attention_forward": _varlen,
    "aten::_flash_attention_backward": _varlen_backward,
}
