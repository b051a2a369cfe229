"""`torch.compile`: inductor writes its kernels and Triton compiles them, as on a card; then the graph that they were
written for is computed operator by operator."""

from __future__ import annotations

import copy

import torch
from torch import Tensor


def install(compile_fx) -> None:
    kind = compile_fx._InProcessFxCompile
    original = kind.codegen_and_compile

    def codegen_and_compile(self, graph, *arguments, **named):
        kept = copy.deepcopy(graph)  # inductor changes it
        made = original(self, graph, *arguments, **named)
        values = (node.meta.get("val") for node in kept.graph.nodes)
        if any(isinstance(value, Tensor) and value.device.type == "cuda" for value in values):
            made.current_callable = _computing(kept)
        return made

    kind.codegen_and_compile = codegen_and_compile


def _computing(graph):
    def call(inputs):
        given = list(inputs)
        inputs.clear()
        with torch.no_grad():
            results = _AsPlanned(graph).run(*given)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    call._boxed_call = True
    return call


class _AsPlanned(torch.fx.Interpreter):
    """Results lie in memory as the graph was told that they would: views of them rely on it."""

    def run_node(self, node):
        result, planned = super().run_node(node), node.meta.get("val")
        if node.op != "call_function":
            return result
        if isinstance(result, (tuple, list)) and isinstance(planned, (tuple, list)):
            return type(result)(map(_laid_out, result, planned))
        return _laid_out(result, planned)

    def call_function(self, target, arguments, named):
        try:
            return super().call_function(target, arguments, named)
        except RuntimeError as error:  # a number where the overload wants a tensor
            if "Expected a value of type" not in str(error):
                raise
            return target.overloadpacket(*arguments, **named)


def _laid_out(result, planned):
    if not (isinstance(result, Tensor) and isinstance(planned, Tensor)) or result.numel() < 2:
        return result
    stride = tuple(planned.stride())
    known = all(isinstance(one, int) for one in stride)
    if not known or stride == result.stride() or tuple(result.shape) != tuple(planned.shape):
        return result
    copied = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return copied.copy_(result)
