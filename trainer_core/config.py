"""Every knob of a run: type, default, range, unit.

Command-line flags, the window's form, YAML files and checks are generated from `Config`. To add a knob, add a line
here, and its label, help and effect in `trainer_core/texts`.

Imports only `messages` and `schedule` of the project; no torch, no Qt.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from trainer_core import pause_schedule
from trainer_core.messages import TraindeckError
from trainer_core.rewards import setting as reward_settings

KnobGroup = Literal["data", "model", "training", "hardware", "checkpoints", "monitoring"]


def knob(
    group: KnobGroup,
    *,
    unit: str = "",
    main: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    shape: str = "",
) -> msgspec.Meta:
    """Metadata of a knob. `main`: in the window's short form; the others under Advanced.

    `pattern`: regular expression for the whole text; `shape` describes it for people.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "pattern": pattern}
    extra = {"group": group, "unit": unit, "main": main, "shape": shape}
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    return msgspec.Meta(extra=extra, **given)


_NO_PASSWORD: Final = "an address without name and password (set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"


# fmt: off
class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All knobs of a run. Immutable."""

    preset: Annotated[str, knob("data")] = ""

    data: Annotated[list[str], knob("data", main=True)] = []
    validation_data: Annotated[list[str], knob("data")] = []
    data_format: Annotated[Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tar"], knob("data")] = "auto"
    task: Annotated[Literal["auto", "pretrain", "sft"], knob("data")] = "auto"
    text_column: Annotated[str, knob("data")] = "text"
    prompt_column: Annotated[str, knob("data")] = "prompt"
    response_column: Annotated[str, knob("data")] = "response"
    input_column: Annotated[str, knob("data")] = "input"
    system_column: Annotated[str, knob("data")] = "system"
    messages_column: Annotated[str, knob("data")] = "messages"
    chosen_column: Annotated[str, knob("data")] = "chosen"
    rejected_column: Annotated[str, knob("data")] = "rejected"
    label_column: Annotated[str, knob("data")] = "label"
    thinking: Annotated[Literal["auto", "keep", "drop"], knob("data")] = "auto"
    on_bad_row: Annotated[Literal["skip", "stop"], knob("data")] = "skip"
    bad_row_limit: Annotated[int, knob("data", unit="rows", ge=0, le=1_000_000_000)] = 1000
    validation_fraction: Annotated[float, knob("data", ge=0.0, le=0.5)] = 0.05
    tokenizer: Annotated[str, knob("data")] = ""
    vocab_size: Annotated[int, knob("data", unit="tokens", ge=300, le=200_000)] = 8192
    pre_tokenizer: Annotated[Literal["gpt-2", "llama-bpe", "qwen2"], knob("data")] = "qwen2"
    tokenizer_sample_mib: Annotated[int, knob("data", unit="MiB", ge=1, le=4096)] = 32
    cache_dir: Annotated[str, knob("data")] = ""
    token_cache: Annotated[bool, knob("data")] = True
    packing: Annotated[bool, knob("data")] = False
    attend_across_documents: Annotated[bool, knob("data")] = True

    base_model: Annotated[str, knob("model", main=True)] = ""
    hub_endpoint: Annotated[str, knob("model")] = ""
    hub_send_token: Annotated[bool, knob("model")] = False
    hidden_dim: Annotated[int, knob("model", main=True, ge=8, le=65_536)] = 256
    n_layers: Annotated[int, knob("model", main=True, ge=1, le=512)] = 4
    n_heads: Annotated[int, knob("model", ge=0, le=1024)] = 0
    n_kv_heads: Annotated[int, knob("model", ge=0, le=1024)] = 0
    mlp_dim: Annotated[int, knob("model", ge=0, le=262_144)] = 0
    max_seq_len: Annotated[int, knob("model", unit="tokens", main=True, ge=8, le=1_048_576)] = 256
    rope_theta: Annotated[float, knob("model", gt=0.0)] = 10_000.0
    norm_eps: Annotated[float, knob("model", gt=0.0, le=0.01)] = 1e-5
    dropout: Annotated[float, knob("model", ge=0.0, lt=1.0)] = 0.0
    qkv_bias: Annotated[bool, knob("model")] = False
    qk_norm: Annotated[bool, knob("model")] = False
    tie_embeddings: Annotated[bool, knob("model")] = True
    vocab_multiple: Annotated[int, knob("model", unit="tokens", ge=1, le=1024)] = 64

    objective: Annotated[Literal["likelihood", "dpo", "ipo", "orpo", "kto", "simpo", "grpo"], knob("training", main=True)] = "likelihood"
    preference_beta: Annotated[float, knob("training", gt=0.0, le=100.0)] = 0.1
    label_smoothing: Annotated[float, knob("training", ge=0.0, lt=0.5)] = 0.0
    sft_share: Annotated[float, knob("training", ge=0.0, le=100.0)] = 0.0
    desirable_weight: Annotated[float, knob("training", ge=0.0, le=100.0)] = 1.0
    undesirable_weight: Annotated[float, knob("training", ge=0.0, le=100.0)] = 1.0
    rewards: Annotated[list[str], knob("training", main=True)] = []
    group_size: Annotated[int, knob("training", unit="answers", ge=2, le=1024)] = 8
    rollout_max_new_tokens: Annotated[int, knob("training", unit="tokens", ge=1, le=1_000_000)] = 256
    rollout_temperature: Annotated[float, knob("training", gt=0.0, le=5.0)] = 1.0
    rollout_top_p: Annotated[float, knob("training", gt=0.0, le=1.0)] = 1.0
    steps_per_generation: Annotated[int, knob("training", unit="steps", ge=1, le=1000)] = 1
    advantage_scale: Annotated[Literal["group", "batch", "none"], knob("training")] = "group"
    policy_loss: Annotated[Literal["dapo", "grpo", "dr_grpo"], knob("training")] = "dapo"
    clip_low: Annotated[float, knob("training", gt=0.0, le=1.0)] = 0.2
    clip_high: Annotated[float, knob("training", gt=0.0, le=10.0)] = 0.2
    kl_beta: Annotated[float, knob("training", ge=0.0, le=100.0)] = 0.0
    simpo_margin: Annotated[float, knob("training", ge=0.0, le=100.0)] = 0.5
    method: Annotated[Literal["full", "lora", "qlora"], knob("training", main=True)] = "full"
    lora_rank: Annotated[int, knob("training", main=True, ge=1, le=4096)] = 16
    lora_alpha: Annotated[float, knob("training", gt=0.0, le=65_536)] = 32.0
    lora_dropout: Annotated[float, knob("training", ge=0.0, lt=1.0)] = 0.0
    lora_targets: Annotated[list[str], knob("training")] = []
    lora_variant: Annotated[Literal["lora", "rslora", "dora"], knob("training")] = "lora"
    lora_embeddings: Annotated[bool, knob("training")] = False
    freeze: Annotated[list[str], knob("training")] = []
    batch_size: Annotated[int, knob("training", unit="sequences", main=True, ge=1, le=65_536)] = 16
    gradient_accumulation_steps: Annotated[int, knob("training", main=True, ge=1, le=65_536)] = 1
    auto_batch: Annotated[bool, knob("training")] = False
    max_epochs: Annotated[int, knob("training", unit="epochs", main=True, ge=1, le=1_000_000)] = 1
    max_steps: Annotated[int, knob("training", unit="steps", main=True, ge=0, le=1_000_000_000)] = 0
    learning_rate: Annotated[float, knob("training", main=True, gt=0.0, le=10.0)] = 3e-4
    min_learning_rate_ratio: Annotated[float, knob("training", ge=0.0, le=1.0)] = 0.1
    warmup_steps: Annotated[int, knob("training", unit="steps", ge=0, le=1_000_000_000)] = 100
    lr_schedule: Annotated[Literal["cosine", "linear", "constant", "plateau"], knob("training")] = "cosine"
    plateau_patience: Annotated[int, knob("training", unit="evaluations", ge=1, le=10_000)] = 3
    plateau_factor: Annotated[float, knob("training", gt=0.0, lt=1.0)] = 0.5
    early_stop_patience: Annotated[int, knob("training", unit="evaluations", ge=0, le=10_000)] = 0
    optimizer: Annotated[Literal["adamw", "adamw_8bit", "muon"], knob("training")] = "adamw"
    muon_momentum: Annotated[float, knob("training", ge=0.0, lt=1.0)] = 0.95
    weight_decay: Annotated[float, knob("training", ge=0.0, le=10.0)] = 0.1
    beta1: Annotated[float, knob("training", ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, knob("training", ge=0.0, lt=1.0)] = 0.95
    adam_epsilon: Annotated[float, knob("training", gt=0.0, le=0.1)] = 1e-8
    grad_clip: Annotated[float, knob("training", ge=0.0)] = 1.0
    on_bad_step: Annotated[Literal["skip", "rollback", "stop"], knob("training")] = "skip"
    spike_factor: Annotated[float, knob("training", ge=0.0)] = 20.0
    bad_step_limit: Annotated[int, knob("training", unit="steps", ge=1, le=1_000_000)] = 20
    seed: Annotated[int, knob("training", ge=0, le=2**63 - 1)] = 1234

    device: Annotated[str, knob("hardware", pattern=r"^(auto|cpu|cuda(:\d+)?)\Z", shape="auto, cpu, cuda, cuda:N")] = "auto"
    nproc_per_node: Annotated[int, knob("hardware", unit="processes", ge=1, le=64)] = 1
    parallel: Annotated[Literal["auto", "ddp", "fsdp", "deepspeed"], knob("hardware")] = "auto"
    deepspeed_config: Annotated[str, knob("hardware")] = ""
    fsdp_reshard_after_forward: Annotated[bool, knob("hardware")] = True
    fsdp_cpu_offload: Annotated[bool, knob("hardware")] = False
    collective_timeout_s: Annotated[int, knob("hardware", unit="s", ge=10, le=86_400)] = 600
    mixed_precision: Annotated[Literal["auto", "bf16", "fp16", "no"], knob("hardware")] = "auto"
    cpu_threads: Annotated[int, knob("hardware", unit="threads", ge=0, le=1024)] = 0
    deterministic: Annotated[bool, knob("hardware")] = False
    compile: Annotated[Literal["auto", "on", "off"], knob("hardware")] = "auto"
    cuda_graphs: Annotated[Literal["auto", "on", "off"], knob("hardware")] = "auto"
    attention: Annotated[Literal["auto", "flash", "efficient", "cudnn", "math", "flash2", "flash3"], knob("hardware")] = "auto"
    chunked_loss: Annotated[Literal["auto", "on", "off"], knob("hardware")] = "auto"
    activation_checkpointing: Annotated[Literal["auto", "off", "selective", "full"], knob("hardware")] = "off"
    checkpointed_layers: Annotated[int, knob("hardware", ge=0, le=10_000)] = 0
    activation_memory_budget: Annotated[float, knob("hardware", ge=0.0, le=1.0)] = 1.0
    tf32: Annotated[bool, knob("hardware")] = True
    num_workers: Annotated[int, knob("hardware", unit="processes", ge=-1, le=64)] = -1
    prefetch_factor: Annotated[int, knob("hardware", unit="batches", ge=1, le=64)] = 2
    pin_memory: Annotated[bool, knob("hardware")] = True
    persistent_workers: Annotated[bool, knob("hardware")] = True
    low_memory: Annotated[bool, knob("hardware")] = False
    pause_between: Annotated[str, knob("hardware")] = ""
    pause_for_others: Annotated[bool, knob("hardware")] = False
    keep_awake: Annotated[bool, knob("hardware")] = True

    save_steps: Annotated[int, knob("checkpoints", unit="steps", main=True, ge=0, le=1_000_000_000)] = 500
    keep_last: Annotated[int, knob("checkpoints", ge=1, le=10_000)] = 2
    keep_best: Annotated[int, knob("checkpoints", ge=0, le=10_000)] = 1
    background_saving: Annotated[bool, knob("checkpoints")] = True
    restarts: Annotated[int, knob("checkpoints", unit="times", ge=0, le=1000)] = 3

    log_steps: Annotated[int, knob("monitoring", unit="steps", ge=1, le=1_000_000)] = 10
    perf_steps: Annotated[int, knob("monitoring", unit="steps", ge=0, le=1_000_000_000)] = 50
    flops_steps: Annotated[int, knob("monitoring", unit="steps", ge=0, le=1_000_000_000)] = 0
    eval_steps: Annotated[int, knob("monitoring", unit="steps", main=True, ge=0, le=1_000_000_000)] = 250
    eval_on_start: Annotated[bool, knob("monitoring")] = False
    eval_batches: Annotated[int, knob("monitoring", unit="batches", ge=0, le=1_000_000)] = 50
    eval_examples: Annotated[int, knob("monitoring", ge=0, le=100_000)] = 64
    eval_max_new_tokens: Annotated[int, knob("monitoring", unit="tokens", ge=0, le=1_000_000)] = 0
    sample_steps: Annotated[int, knob("monitoring", unit="steps", ge=0, le=1_000_000_000)] = 250
    sample_prompts: Annotated[list[str], knob("monitoring")] = []
    sample_tokens: Annotated[int, knob("monitoring", unit="tokens", ge=1, le=65_536)] = 64
    sample_temperature: Annotated[float, knob("monitoring", ge=0.0, le=5.0)] = 0.8
    advice: Annotated[bool, knob("monitoring")] = True
    hardware_interval_s: Annotated[float, knob("monitoring", unit="s", ge=0.1, le=3600.0)] = 2.0
    use_tensorboard: Annotated[bool, knob("monitoring")] = False
    use_wandb: Annotated[bool, knob("monitoring")] = False
    wandb_project: Annotated[str, knob("monitoring")] = "traindeck"
    use_mlflow: Annotated[bool, knob("monitoring")] = False
    mlflow_tracking_uri: Annotated[str, knob("monitoring", pattern=r"^(?![^/]*//[^/]*@)", shape=_NO_PASSWORD)] = ""

    @property
    def effective_batch(self) -> int:
        """Sequences per optimizer update, over all ranks."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def uses_preferences(self) -> bool:
        """Whether the data are good and bad answers."""
        return self.objective not in ("likelihood", "grpo")

    @property
    def uses_rewards(self) -> bool:
        """Whether the model learns from its own answers."""
        return self.objective == "grpo"

    @property
    def checkpointing(self) -> tuple[Literal["off", "selective", "full"], int]:
        """Mode of activation checkpointing, and its layers (0: all)."""
        mode = self.activation_checkpointing
        return "off" if mode == "auto" else mode, self.checkpointed_layers

    @property
    def needs_measurement(self) -> bool:
        """Whether real steps determine a setting."""
        return self.auto_batch or self.activation_checkpointing == "auto"

    @property
    def uses_dropout(self) -> bool:
        """Whether training draws random numbers."""
        return self.dropout > 0 or (self.method != "full" and self.lora_dropout > 0)
# fmt: on


NEW_MODEL_KNOBS: Final = frozenset(
    (
        "vocab_size", "pre_tokenizer", "tokenizer_sample_mib", "hidden_dim", "n_layers", "n_heads", "n_kv_heads",
        "mlp_dim", "rope_theta", "norm_eps", "qkv_bias", "qk_norm", "tie_embeddings",
    )
)  # fmt: skip
"""Settings of a new model, which a base model determines."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of `Config`, for flags and forms."""

    name: str
    kind: Literal["int", "float", "bool", "str", "list", "choice"]
    default: Any
    unit: str
    group: KnobGroup
    main: bool
    shape: str  # form of a text, if restricted
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    minimum_open: bool  # the minimum is exclusive
    maximum_open: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def allowed(self) -> str:
        """The allowed values in words, for an error message."""
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "bool":
            return "true, false"
        if self.kind == "list":
            return "a list of texts"
        if self.kind == "str":
            return self.shape or "a text"
        noun = "a whole number" if self.kind == "int" else "a number"
        low = "" if self.minimum is None else f"{'>' if self.minimum_open else '>='} {_bound(self.minimum)}"
        high = "" if self.maximum is None else f"{'<' if self.maximum_open else '<='} {_bound(self.maximum)}"
        return f"{noun} {' and '.join(filter(None, (low, high)))}".strip()


def _bound(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


@functools.cache
def _annotations() -> dict[str, Any]:
    """The annotations of `Config`, cached: evaluating them takes 2 ms."""
    return typing.get_type_hints(Config, include_extras=True)


def _kind(annotation: Any) -> Literal["int", "float", "bool", "str", "list", "choice"]:
    if get_origin(annotation) is Literal:
        return "choice"
    if get_origin(annotation) is list:
        return "list"
    names: dict[Any, Literal["int", "float", "bool", "str"]] = {int: "int", float: "float", bool: "bool", str: "str"}
    return names[annotation]


@functools.cache
def knobs() -> Mapping[str, Knob]:
    """All knobs by name, in the order of `Config`."""
    found: dict[str, Knob] = {}
    defaults = Config()
    for name in Config.__struct_fields__:
        annotation, meta = get_args(_annotations()[name])
        found[name] = Knob(
            name=name,
            kind=_kind(annotation),
            default=getattr(defaults, name),
            choices=get_args(annotation) if get_origin(annotation) is Literal else (),
            minimum=meta.ge if meta.ge is not None else meta.gt,
            maximum=meta.le if meta.le is not None else meta.lt,
            minimum_open=meta.gt is not None,
            maximum_open=meta.lt is not None,
            **meta.extra,
        )
    return types.MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """Knobs from one source. `where` names it in errors: `presets/cpu.yaml`, `the command line`."""

    source: str
    values: Mapping[str, Any]


def resolve(layers: Iterable[ConfigLayer]) -> Config:
    """Merge layers of rising priority into one configuration and check each value.

    Raises `TraindeckError` with `config.unknown_key`, `config.bad_value` or `config.conflict`.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        given = expand_auto_batch(layer.values)
        values = merge(values, {name: check_value(name, value, layer.source) for name, value in given.items()})
    config = Config(**values)
    check_combinations(config)
    return config


def merge(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of settings, and those of a higher layer, which win. A number of sequences there replaces an automatic one,
    and epochs replace steps."""
    replaced = {"batch_size": "auto_batch", "max_epochs": "max_steps"}
    hidden = {name for cause, name in replaced.items() if cause in given}
    return {**{name: value for name, value in values.items() if name not in hidden}, **given}


def expand_auto_batch(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `batch_size: auto` by `auto_batch`, keeping the number of lower layers."""
    if str(values.get("batch_size")).lower() != "auto":
        return values
    return {"auto_batch": True, **{name: value for name, value in values.items() if name != "batch_size"}}


_SIMILARITY_CUTOFF: Final = 0.6  # of 1: a typo, not another word
_BOOLEAN_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def check_value(name: str, value: Any, source: str) -> Any:
    """Convert a value to its knob's type. Text is converted (`"3e-4"`: YAML reads it as text, flags are text)."""
    known = knobs()
    if name not in known:
        raise unknown_key_error(source, name, known)
    spec = known[name]
    bad = TraindeckError("config.bad_value", where=source, name=name, given=_quoted(value), allowed=spec.allowed())
    if spec.kind == "bool" and isinstance(value, str):
        value = _BOOLEAN_WORDS.get(value.lower(), value)
    if spec.kind == "choice" and isinstance(value, bool):  # YAML reads a bare `no`, `on` or `off` as a bool
        value = next((text for text, same in _BOOLEAN_WORDS.items() if same is value and text in spec.choices), value)
    if spec.kind == "list" and isinstance(value, str):
        value = [value]
    if isinstance(value, bool) != (spec.kind == "bool"):
        raise bad
    try:
        converted = msgspec.convert(value, _annotations()[name], strict=False)
    except msgspec.ValidationError as error:
        raise bad from error
    if isinstance(converted, float) and converted - converted != 0.0:  # NaN and infinity pass range checks
        raise bad
    return converted


def _quoted(value: Any) -> str:
    """A value for an error message, without the password of an address."""
    return f"“{re.sub('(?<=//)[^/]*@', '…@', value)}”" if isinstance(value, str) else str(value)


def unknown_key_error(source: str, name: str, known: Iterable[str]) -> TraindeckError:
    """Error for an unknown setting, with the nearest known name."""
    near = nearest(name, known)
    code = "config.unknown_key" if near else "config.no_such_key"
    return TraindeckError(code, where=source, name=name, **({"nearest": near} if near else {}))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most similar to `name`; empty: none is similar enough."""
    names = {one.replace("-", "_").lower(): one for one in sorted(known)}
    close = difflib.get_close_matches(name.replace("-", "_").lower(), names, n=1, cutoff=_SIMILARITY_CUTOFF)
    return names[close[0]] if close else ""


def check_combinations(config: Config) -> None:
    """Check combinations of knobs; raises `TraindeckError`."""
    heads = config.n_heads or default_n_heads(config.hidden_dim)
    kv_heads = config.n_kv_heads or heads
    if not config.base_model and (config.hidden_dim % heads != 0 or config.hidden_dim // heads % 2 != 0):
        raise TraindeckError("config.heads", n_heads=heads, hidden_dim=config.hidden_dim)
    if heads % kv_heads != 0:
        raise TraindeckError("config.kv_heads", n_kv_heads=kv_heads, n_heads=heads)
    if config.qkv_bias and config.qk_norm:
        raise TraindeckError("config.bias_and_norm")
    if (config.qkv_bias or config.qk_norm) and config.pre_tokenizer != "qwen2" and not config.tokenizer:
        raise TraindeckError("config.qwen_pre_tokenizer", pre_tokenizer=config.pre_tokenizer)
    if config.method != "full" and config.optimizer == "muon":
        raise TraindeckError("config.muon_and_lora")
    if config.method != "full" and config.freeze:
        raise TraindeckError("config.freeze_and_lora")
    if config.early_stop_patience and not config.eval_steps:
        raise TraindeckError("config.early_stop_without_eval")
    if config.nproc_per_node > config.effective_batch:
        raise TraindeckError("ranks.too_many", ranks=config.nproc_per_node, sequences=config.effective_batch)
    if (config.parallel == "deepspeed") != bool(config.deepspeed_config):
        raise TraindeckError("config.deepspeed_file")
    if config.uses_rewards:
        reward_settings.parse_all(config.rewards)
    if config.uses_rewards and (setting := _find_unsupported_by_rewards(config)):
        raise TraindeckError("config.rewards_unsupported", setting=setting)
    if setting := find_unsupported(config, config.parallel):
        raise TraindeckError("config.parallel_unsupported", setting=setting, parallel=config.parallel)
    try:
        pause_schedule.parse(config.pause_between)
    except ValueError as error:
        raise TraindeckError("config.schedule", given=str(error)) from error


def _find_unsupported_by_rewards(config: Config) -> str:
    unsupported = {
        "packing": config.packing,
        "task pretrain": config.task == "pretrain",
        "kl_beta with method full": bool(config.kl_beta) and config.method == "full",
        "kl_beta with lora_embeddings": bool(config.kl_beta) and config.lora_embeddings,
    }
    return next((setting for setting, given in unsupported.items() if given), "")


def find_unsupported(config: Config, parallel: str) -> str:
    """A setting that does not work with this value of `parallel`; empty: none."""
    if parallel not in ("fsdp", "deepspeed"):
        return ""
    unsupported = {
        "objective grpo": config.uses_rewards,  # generation needs whole weights
        "method qlora": config.method == "qlora",  # https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1945
        "optimizer adamw_8bit": config.optimizer == "adamw_8bit",  # its blocks of 256 entries would be cut
        "optimizer muon": config.optimizer == "muon" and parallel == "deepspeed",
        "lora_variant dora": config.method != "full" and config.lora_variant == "dora",
        "mixed_precision fp16": config.mixed_precision == "fp16",
    }
    return next((setting for setting, given in unsupported.items() if given), "")


def default_n_heads(hidden_dim: int) -> int:
    """Heads of width 64 if that divides the width, otherwise the nearest even split (at least one head)."""
    wanted = max(1, hidden_dim // 64)
    fitting = [n for n in range(1, wanted + 1) if hidden_dim % n == 0 and hidden_dim // n % 2 == 0]
    return max(fitting, default=1)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values by name, in the order of `Config`: for YAML and events."""
    return {name: getattr(config, name) for name in Config.__struct_fields__}
