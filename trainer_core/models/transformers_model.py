"""Causal language models that transformers computes, with the interface of our decoder.

They run in the same training loop, without our attention backends and without compilation. Shapes: see
`language_model.py`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer_core.messages import TraindeckError
from trainer_core.models import transformers_config
from trainer_core.models.attention import AttentionFunction, CuSeqlens
from trainer_core.models.decoder import Linear
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import TransformersConfig

_ROUNDING: Final = 0.05  # relative difference that other shapes of the same computation cause, in any precision


class TransformersCache:
    """Keys and values of one sequence."""

    def __init__(self, hf_config: Any) -> None:
        from transformers import DynamicCache

        self.past, self.length = DynamicCache(config=hf_config), 0


class _IdentityBackbone(nn.Module):
    """Returns its `inputs_embeds`, so that a model computes logits of hidden states."""

    decoder = property(lambda self: self)  # OPT calls this part of its backbone

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _BackboneOutput:
        return _BackboneOutput(inputs_embeds)


class _BackboneOutput:
    """Hidden states; all other fields are None."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class TransformersModel(LanguageModel):
    """A causal language model of transformers.

    It has the modules and weights of that model under their own names, so checkpoints and adapters need no translation.
    Weights are undefined unless `initialize`.
    """

    config: TransformersConfig
    _inner: Any  # model of transformers
    _head_only: Any  # the same with `_IdentityBackbone`

    def __init__(self, config: TransformersConfig, initialize: bool = True, dtype: torch.dtype = torch.float32) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        inner = _build(config, initialize, dtype)
        head = copy.copy(inner)
        head.__dict__["_modules"] = {**inner._modules, inner.base_model_prefix: _IdentityBackbone()}
        # Not as submodules: only their parts, which are shared, have names.
        self.__dict__.update(_inner=inner, _head_only=head, config=config, linear_types=(nn.Linear, Conv1D))
        self.__dict__.update({name: inner.__dict__[name] for name in ("_modules", "_parameters", "_buffers")})

    @property
    def model_type(self) -> str:
        return str(self.config.values["model_type"])

    @property
    def backbone(self) -> nn.Module:
        return self._inner.base_model  # type: ignore[no-any-return]

    @property
    def layers(self) -> list[nn.Module]:
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [module for module in self._inner.modules() if isinstance(module, GradientCheckpointingLayer)]

    @property
    def embedding(self) -> nn.Embedding:
        return self._inner.get_input_embeddings()  # type: ignore[no-any-return]

    @property
    def head(self) -> nn.Linear:
        return self._inner.get_output_embeddings()  # type: ignore[no-any-return]

    @cached_property
    def has_plain_head(self) -> bool:
        """Compares logits: some models scale or cap them, which shows only in their code."""
        if getattr(self.head, "bias", None) is not None:
            return False
        weight = self.head.weight
        hidden = torch.linspace(-100, 100, weight.shape[1], dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            return torch.equal(self.logits(hidden), F.linear(hidden.view(1, 1, -1), weight).view(-1))

    def forward_hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        cu_seqlens: CuSeqlens | None = None,
        cache: TransformersCache | None = None,
    ) -> Tensor:
        """Hidden states before the head (B, T, D). Documents follow from `positions_BT`, which restart in each: with a
        mask, transformers would ignore sliding windows.
        """
        inputs = {} if positions_BT is None else {"position_ids": positions_BT}
        if cache is None:
            return self.backbone(ids_BT, use_cache=False, **inputs).last_hidden_state  # type: ignore[no-any-return]
        output = self.backbone(ids_BT, use_cache=True, past_key_values=cache.past, **inputs)
        cache.length += ids_BT.shape[1]
        return output.last_hidden_state  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        rows_1ND = hidden.reshape(1, -1, hidden.shape[-1])
        logits_1NV: Tensor = self._head_only(inputs_embeds=rows_1ND).logits
        return logits_1NV.view(*hidden.shape[:-1], -1)

    def new_cache(self, capacity: int) -> TransformersCache:
        return TransformersCache(self._inner.config)

    def set_attention(self, attend: AttentionFunction) -> None:
        """No effect: transformers selects it."""

    def checkpoint_layers(self, count: int, options: dict[str, Any]) -> None:
        if not count:
            self._inner.gradient_checkpointing_disable()
            return
        self._inner.gradient_checkpointing_enable({"use_reentrant": False, **options})
        for layer in self.layers[count:]:
            layer.gradient_checkpointing = False  # type: ignore[assignment]

    def train(self, mode: bool = True) -> TransformersModel:
        self._inner.training = self._head_only.training = mode
        return super().train(mode)

    def read_folder(self, folder: Path, values: dict[str, Any]) -> dict[str, Tensor]:
        """Read weights whose names in the files differ from those in the model, by the names in the model.

        `values`: of `config.json`. Raises `ValueError` if they do not fit.
        """
        try:
            loaded, info = type(self._inner).from_pretrained(
                folder,
                config=transformers_config.hf_config(values, str(folder)),
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (RuntimeError, LookupError, TypeError, OSError) as error:
            raise ValueError(f"{error!s:.200}") from error
        if info["missing_keys"]:
            raise ValueError(f"“{min(info['missing_keys'])}” is missing")
        if info["mismatched_keys"]:
            name, actual, expected = min(info["mismatched_keys"])
            raise ValueError(f"“{name}” {list(actual)} → {list(expected)}")
        return loaded.state_dict()  # type: ignore[no-any-return]

    def save_folder(self, folder: Path, dtype: torch.dtype) -> None:
        """Write `model.safetensors` with the names that other programs expect."""
        self._inner.to(dtype).save_pretrained(folder, max_shard_size="1000GB")


def _build(config: TransformersConfig, initialize: bool, dtype: torch.dtype) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hf_config = transformers_config.hf_config(config.values, str(config.values["model_type"]))
    for name, value in vars(hf_config).items():  # random numbers are drawn only as the setting `dropout` says
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(hf_config, name, 0.0)
    try:
        with contextlib.nullcontext() if initialize else _no_init_weights():
            inner: Any = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=dtype)  # type: ignore[no-untyped-call]
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ImportError) as error:
        raise transformers_config.bad_config_error(str(config.values["model_type"]), error) from error
    inner.tie_weights()
    for module in inner.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.dropout
        elif type(module) is nn.Linear:
            module.__class__ = Linear  # faster on a CPU
    return inner


def _no_init_weights() -> Any:
    newer = importlib.util.find_spec("transformers.initialization") is not None  # transformers 5
    module = importlib.import_module("transformers.initialization" if newer else "transformers.modeling_utils")
    return module.no_init_weights()


# --- what training relies on -----------------------------------------------------------------------------


@torch.no_grad()
def require_compatible(model: TransformersModel, path: str, documents: bool) -> None:
    """Compute a few tokens to check that this model works as training and generation expect.

    `documents`: a sequence holds several, which must not attend to each other. Raises `model.incompatible` or
    `model.no_documents`.
    """
    kind = {"path": path, "model_type": model.model_type}
    model.eval()
    try:
        problem = _find_problem(model)
        if problem:
            raise TraindeckError("model.incompatible", reason=problem, **kind)
        if documents and not _separates_documents(model):
            raise TraindeckError("model.no_documents", **kind)
    finally:
        model.train()


def _find_problem(model: TransformersModel) -> str:
    """What differs, as a phrase below `reason` in the texts; empty: nothing."""
    ids = torch.arange(8, device=model.head.weight.device).remainder(model.config.n_tokens).unsqueeze(0)
    later = ids.clone()
    later[:, 4:] = ids[:, :4]
    hidden, cache = model.forward_hidden(ids), model.new_cache(8)
    if not all(weight.is_floating_point() for weight in model.state_dict().values()):
        return "its weights are not floating-point numbers"
    if not model._inner.supports_gradient_checkpointing:
        return "it has no activation checkpointing"
    if model.config.dropout and not any(isinstance(module, nn.Dropout) for module in model.modules()):
        return "it has no dropout"
    if not _equal(model.logits(hidden), model._inner(ids).logits):
        return "its logits do not follow from its hidden states"
    if not _unaffected(model.forward_hidden(later)[:, :4], hidden[:, :4]):
        return "a token attends to later ones"
    cached = [model.forward_hidden(part, cache=cache) for part in (ids[:, :6], ids[:, 6:7], ids[:, 7:])]
    return "" if _equal(torch.cat(cached, 1), hidden) else "its cache has another format"


def _separates_documents(model: TransformersModel) -> bool:
    ids = torch.arange(8, device=model.head.weight.device).remainder(model.config.n_tokens).unsqueeze(0)
    other, positions_BT = ids.clone(), ids.remainder(4)
    other[:, :4] = ids[:, 4:]
    first, second = (model.forward_hidden(one, positions_BT=positions_BT)[:, 4:] for one in (ids, other))
    return _unaffected(first, second)


def _unaffected(actual: Tensor, expected: Tensor) -> bool:
    """Whether results of the same shape are equal; the tolerance is for routing to experts."""
    return _equal(actual, expected, torch.finfo(actual.dtype).eps ** 0.5)


def _equal(actual: Tensor, expected: Tensor, tolerance: float = _ROUNDING) -> bool:
    return bool((actual.float() - expected.float()).norm() <= tolerance * expected.float().norm())
