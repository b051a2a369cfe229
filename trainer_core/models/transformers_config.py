"""`config.json` of models that transformers computes. transformers is imported only when such a file is read: no torch.

The modeling code is that of transformers itself. Code of the model's own repository is never run.
"""

from __future__ import annotations

from typing import Any, Final

from trainer_core.messages import TraindeckError
from trainer_core.models.hf_values import MAX_POSITIONS, HfValues
from trainer_core.models.model_config import TransformersConfig

_SIZES: Final = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
_NOT_ARCHITECTURE: Final = frozenset({
    "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype",
    "transformers_version", "use_cache", "used_max_seq_len", "used_vocab_size", "_name_or_path",
})  # fmt: skip


def read(values: dict[str, Any], path: str) -> TransformersConfig:
    """The architecture in a `config.json`, for a causal language model of text.

    Raises `model.unsupported` for an architecture that transformers does not have, `model.not_causal` for another kind
    of model, and `model.bad_config` for impossible values.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    in_file = HfValues(values, path)
    in_file.require({"quantization_config": None})
    config = hf_config(values, path)
    expected = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(config.model_type))
    names = values.get("architectures") or [expected]
    if names != [expected] or config.is_encoder_decoder or "text_config" in type(config).sub_configs:
        raise TraindeckError("model.not_causal", path=path, architecture=f"{names!r:.60}")
    sizes = HfValues({name: getattr(config, name, None) for name in _SIZES}, path)  # under their standard names
    positions = sizes.size("max_position_embeddings", MAX_POSITIONS)  # missing: relative positions
    return TransformersConfig(
        vocab_size=sizes.size("vocab_size"),
        hidden_dim=sizes.size("hidden_size"),
        n_layers=sizes.size("num_hidden_layers"),
        tie_embeddings=bool(config.tie_word_embeddings),
        max_seq_len=in_file.size("used_max_seq_len", positions),
        max_positions=positions,
        unpadded_vocab_size=in_file.size("used_vocab_size") if values.get("used_vocab_size") else 0,
        values={"architectures": [expected], **_architecture(values)},
    )


def hf_config(values: dict[str, Any], path: str) -> Any:
    """The `PreTrainedConfig` of a `config.json`, without special tokens, which may be outside of the vocabulary.

    Raises `model.unsupported` or `model.bad_config`.
    """
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise HfValues(values, path).unsupported("model_type")
    try:
        cls: Any = CONFIG_MAPPING[kind]
        return cls(**_architecture(values), bos_token_id=None, eos_token_id=None, pad_token_id=None)
    except Exception as error:  # of any type, for values that the class does not accept
        raise bad_config_error(path, error) from error


def bad_config_error(path: str, error: Exception) -> TraindeckError:
    """`model.bad_config` for an error of transformers, on one line."""
    reason = " ".join(str(error).split())
    return TraindeckError("model.bad_config", path=path, reason=f"{type(error).__name__}: {reason:.200}")


def _architecture(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _NOT_ARCHITECTURE}
