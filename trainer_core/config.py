"""Every knob of a run: its type, default, range, unit and one-line help, in one place.

Command-line flags, the window's form, YAML files and the checks all come from `Config`. To add a
knob, add a line here; nothing else needs to know. Chinese help is in `app/i18n/knobs.zh_CN.yaml`.

Imports only `messages` and `schedule` of the project; no torch, no Qt.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from trainer_core import schedule
from trainer_core.messages import TraindeckError

Group = Literal["data", "model", "training", "hardware", "checkpoints", "monitoring"]


def knob(
    group: Group,
    help: str,
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
    """Metadata of one knob. `main`: shown in the window's short form; the others under Advanced.

    `pattern`: what a text must match from beginning to end; `shape` says the same for people.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt, "pattern": pattern}
    extra = {"group": group, "unit": unit, "main": main, "shape": shape}
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    return msgspec.Meta(description=help, extra=extra, **given)


# fmt: off
class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All knobs of one run. Immutable: what a run was started with is what it trains with."""

    preset: Annotated[str, knob("data", "The preset that this configuration came from.")] = ""

    data: Annotated[list[str], knob("data", "Files or folders to train on, or builtin:python, builtin:tasks.", main=True)] = []
    validation_data: Annotated[list[str], knob("data", "Files or folders to measure eval loss on. Empty: the validation split of a data set folder, else validation_fraction of the data.")] = []
    data_format: Annotated[Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tar"], knob("data", "How to read the files; auto looks at each file.")] = "auto"
    task: Annotated[Literal["auto", "pretrain", "sft"], knob("data", "What is learned. pretrain: to go on with any text; sft: to answer prompts; auto: decided by the columns.")] = "auto"
    text_column: Annotated[str, knob("data", "Column or key that holds text.")] = "text"
    prompt_column: Annotated[str, knob("data", "Column or key that holds the prompt; instruction, question and the like are found too.")] = "prompt"
    response_column: Annotated[str, knob("data", "Column or key that holds the response; output, answer and the like are found too.")] = "response"
    input_column: Annotated[str, knob("data", "Column that is added below the prompt where it is filled (Alpaca); empty: none.")] = "input"
    system_column: Annotated[str, knob("data", "Column that holds the system prompt, where there is one; empty: none.")] = "system"
    messages_column: Annotated[str, knob("data", "Column or key that holds a chat: a list of messages with roles.")] = "messages"
    on_bad_row: Annotated[Literal["skip", "stop"], knob("data", "What to do with a row that cannot be read: skip leaves it out, stop ends the run.")] = "skip"
    bad_row_limit: Annotated[int, knob("data", "Skipped rows after which the data is given up; 0: no limit.", unit="rows", ge=0, le=1_000_000_000)] = 1000
    validation_fraction: Annotated[float, knob("data", "Share of the documents that is held back, to test the model on text that it has not learned (eval loss). Has no effect where there is validation data.", ge=0.0, le=0.5)] = 0.05
    tokenizer: Annotated[str, knob("data", "What cuts text into tokens (words and parts of words): a tokenizer.json or a model's folder; empty: one is trained on the data.")] = ""
    vocab_size: Annotated[int, knob("data", "How many different tokens (words and parts of words) there are when a tokenizer is trained.", unit="tokens", ge=300, le=200_000)] = 8192
    pre_tokenizer: Annotated[Literal["gpt-2", "llama-bpe", "qwen2"], knob("data", "How text is split before the tokenizer learns its tokens; qwen2 keeps digits apart.")] = "qwen2"
    tokenizer_sample_mib: Annotated[int, knob("data", "How much text a new tokenizer is trained on at most.", unit="MiB", ge=1, le=4096)] = 32
    cache_dir: Annotated[str, knob("data", "Folder of the token cache; empty: cache/ in Traindeck's folder.")] = ""
    token_cache: Annotated[bool, knob("data", "Keep the data on disk as tokens; off: encode parquet files anew in each epoch and keep only held-out tokens on disk.")] = True
    packing: Annotated[bool, knob("data", "Put several prompts and responses into one sequence; they do not see each other.")] = False
    attend_across_documents: Annotated[bool, knob("data", "In plain text, let tokens see the documents before their own in the same sequence.")] = True

    hidden_dim: Annotated[int, knob("model", "Width of the model: how many numbers stand for a token inside it.", main=True, ge=8, le=65_536)] = 256
    n_layers: Annotated[int, knob("model", "Layers on top of one another; more of them can learn more.", main=True, ge=1, le=512)] = 4
    n_heads: Annotated[int, knob("model", "From how many sides each layer looks back at the text (attention heads); 0: one per 64 of the width.", ge=0, le=1024)] = 0
    n_kv_heads: Annotated[int, knob("model", "How many key/value heads the attention heads share (grouped-query attention); 0: each has its own.", ge=0, le=1024)] = 0
    mlp_dim: Annotated[int, knob("model", "Inner width of each layer's feed-forward part (SwiGLU); 0: 8/3 of the width, rounded up to 64.", ge=0, le=262_144)] = 0
    max_seq_len: Annotated[int, knob("model", "How many tokens the model sees at once (its context).", unit="tokens", main=True, ge=8, le=1_048_576)] = 256
    rope_theta: Annotated[float, knob("model", "Base of the rotary position frequencies (RoPE), by which the model knows the order of the tokens.", gt=0.0)] = 10_000.0
    norm_eps: Annotated[float, knob("model", "Tiny number that is added in each normalisation (epsilon of RMSNorm).", gt=0.0, le=0.01)] = 1e-5
    dropout: Annotated[float, knob("model", "Share of activations, on the residual paths, that is dropped at random while training, against learning by heart.", ge=0.0, lt=1.0)] = 0.0
    qkv_bias: Annotated[bool, knob("model", "Bias on query, key and value projections (as Qwen2).")] = False
    qk_norm: Annotated[bool, knob("model", "RMSNorm on queries and keys (as Qwen3).")] = False
    tie_embeddings: Annotated[bool, knob("model", "Use one table of tokens for input and output (the input embedding is the output head too).")] = True
    vocab_multiple: Annotated[int, knob("model", "The vocabulary's rows in the model are filled up to a multiple of this, for speed.", unit="tokens", ge=1, le=1024)] = 64

    batch_size: Annotated[int, knob("training", "Sequences that are computed at the same time (a micro-batch). As a flag also auto: picked before training (auto_batch).", unit="sequences", main=True, ge=1, le=65_536)] = 16
    gradient_accumulation_steps: Annotated[int, knob("training", "Micro-batches in one step: the weights change once after all of them.", main=True, ge=1, le=65_536)] = 1
    auto_batch: Annotated[bool, knob("training", "Pick the fastest batch_size that leaves memory free, by real steps before training; batch_size x gradient_accumulation_steps, the effective batch, stays. The same as batch_size auto.")] = False
    max_epochs: Annotated[int, knob("training", "Passes over all of the data; counts only where max_steps is 0.", unit="epochs", main=True, ge=1, le=1_000_000)] = 1
    max_steps: Annotated[int, knob("training", "The step after which training ends; a step is one update of the weights. 0: after max_epochs.", unit="steps", main=True, ge=0, le=1_000_000_000)] = 0
    learning_rate: Annotated[float, knob("training", "How far a step moves the weights, at its peak.", main=True, gt=0.0, le=10.0)] = 3e-4
    min_learning_rate_ratio: Annotated[float, knob("training", "What is left of the learning rate at the end, as a share of its peak.", ge=0.0, le=1.0)] = 0.1
    warmup_steps: Annotated[int, knob("training", "Steps at the beginning over which the learning rate rises to its peak.", unit="steps", ge=0, le=1_000_000_000)] = 100
    lr_schedule: Annotated[Literal["cosine", "linear", "constant", "plateau"], knob("training", "How the learning rate goes on after warmup; plateau: lowered when the eval loss stands still.")] = "cosine"
    plateau_patience: Annotated[int, knob("training", "Evaluations without a better loss before a plateau schedule lowers the rate.", unit="evaluations", ge=1, le=10_000)] = 3
    plateau_factor: Annotated[float, knob("training", "What a plateau schedule multiplies the rate by.", gt=0.0, lt=1.0)] = 0.5
    optimizer: Annotated[Literal["adamw", "muon"], knob("training", "How gradients change the weights: adamw, or muon (Muon for the matrices inside the layers and AdamW for the rest).")] = "adamw"
    muon_momentum: Annotated[float, knob("training", "How much Muon keeps of the direction of earlier steps (momentum).", ge=0.0, lt=1.0)] = 0.95
    weight_decay: Annotated[float, knob("training", "How strongly each step pulls the weights towards zero (matrices only, not norms and biases).", ge=0.0, le=10.0)] = 0.1
    beta1: Annotated[float, knob("training", "How much AdamW keeps of earlier gradients (decay of the first moment).", ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, knob("training", "How much AdamW keeps of the size of earlier gradients (decay of the second moment).", ge=0.0, lt=1.0)] = 0.95
    adam_epsilon: Annotated[float, knob("training", "Tiny number that AdamW adds before it divides (epsilon).", gt=0.0, le=0.1)] = 1e-8
    grad_clip: Annotated[float, knob("training", "A gradient whose norm is larger than this is made smaller; 0: never.", ge=0.0)] = 1.0
    on_bad_step: Annotated[Literal["skip", "rollback", "stop"], knob("training", "What to do with a step whose gradient is not finite or jumps: leave it out, go back to the last good checkpoint and past the batch, or stop.")] = "skip"
    spike_factor: Annotated[float, knob("training", "A gradient norm of so many times its running mean makes a step bad; 0: only what is not finite.", ge=0.0)] = 20.0
    bad_step_limit: Annotated[int, knob("training", "Bad steps in a row after which training stops.", unit="steps", ge=1, le=1_000_000)] = 20
    seed: Annotated[int, knob("training", "Where chance begins: first weights, order of the data, samples. The same number makes the same choices.", ge=0, le=2**63 - 1)] = 1234

    device: Annotated[str, knob("hardware", "What computes. auto: a GPU where there is one; cpu; cuda or cuda:N: the GPU of that number.", pattern=r"^(auto|cpu|cuda(:\d+)?)\Z", shape="auto, cpu, cuda, cuda:N")] = "auto"
    ranks: Annotated[int, knob("hardware", "GPUs that train together, from the chosen one on: each has a process and a part of every step's batch. On a CPU: processes that share its cores.", unit="processes", ge=1, le=64)] = 1
    mixed_precision: Annotated[Literal["auto", "bf16", "fp16", "no"], knob("hardware", "Precision of the numbers in forward and backward; auto: bf16 or fp16 on a GPU, fp32 on a CPU.")] = "auto"
    cpu_threads: Annotated[int, knob("hardware", "Threads of CPU arithmetic; 0: all, or fewer where a short measurement before a long run finds those faster.", unit="threads", ge=0, le=1024)] = 0
    deterministic: Annotated[bool, knob("hardware", "Bit-for-bit repeatable on a GPU too; slower.")] = False
    compile: Annotated[Literal["auto", "on", "off"], knob("hardware", "Compile the model (torch.compile); auto: where it works, equals the reference and pays for itself.")] = "auto"
    cuda_graphs: Annotated[Literal["auto", "on", "off"], knob("hardware", "Record a step's kernels and start them at once; auto: for small models on a GPU.")] = "auto"
    attention: Annotated[Literal["auto", "flash", "efficient", "cudnn", "math", "flash2", "flash3"], knob("hardware", "How attention is computed; auto: the fastest that equals the reference.")] = "auto"
    chunked_loss: Annotated[Literal["auto", "on", "off"], knob("hardware", "Compute the loss in parts, so that the logits never fill memory; auto: where they would be large.")] = "auto"
    activation_checkpointing: Annotated[Literal["off", "selective", "full"], knob("hardware", "Compute activations again in the backward pass instead of keeping them: cheap ones, or all.")] = "off"
    activation_memory_budget: Annotated[float, knob("hardware", "Share of the activations' memory that a compiled model may keep; 1: all.", ge=0.0, le=1.0)] = 1.0
    tf32: Annotated[bool, knob("hardware", "TF32 for matrix products that are left in fp32 on a GPU.")] = True
    num_workers: Annotated[int, knob("hardware", "Loader processes; -1: chosen by cores, memory and platform.", unit="processes", ge=-1, le=64)] = -1
    prefetch_factor: Annotated[int, knob("hardware", "Batches that each loader process holds ready.", unit="batches", ge=1, le=64)] = 2
    pin_memory: Annotated[bool, knob("hardware", "Page-locked batches for faster copies to a GPU.")] = True
    persistent_workers: Annotated[bool, knob("hardware", "Keep loader processes from one epoch to the next.")] = True
    low_memory: Annotated[bool, knob("hardware", "Spare system memory: no loader processes, no pinning, small preparation batches; training waits while a checkpoint is written.")] = False
    pause_between: Annotated[str, knob("hardware", "Pause by the clock, such as 09:00-18:00 or mon-fri 09:00-18:00, sat 22:00-06:00; empty: never.")] = ""
    pause_for_others: Annotated[bool, knob("hardware", "Pause while another program makes much use of the GPU, and go on a minute after it has finished.")] = False
    keep_awake: Annotated[bool, knob("hardware", "Keep the computer from going to sleep while it trains; a pause lets it.")] = True

    save_steps: Annotated[int, knob("checkpoints", "Save a checkpoint every so many steps; 0: only at the end.", unit="steps", main=True, ge=0, le=1_000_000_000)] = 500
    keep_last: Annotated[int, knob("checkpoints", "How many of the newest checkpoints are kept.", ge=1, le=10_000)] = 2
    keep_best: Annotated[int, knob("checkpoints", "How many checkpoints with the lowest eval loss are kept as well.", ge=0, le=10_000)] = 1
    background_saving: Annotated[bool, knob("checkpoints", "Train on while a checkpoint is written. Off: training waits for it, and a crash never costs more than one save interval.")] = True
    restarts: Annotated[int, knob("checkpoints", "How often a run goes on by itself after a failure that passes, such as a driver reset, without progress in between; 0: never.", unit="times", ge=0, le=1000)] = 3

    log_steps: Annotated[int, knob("monitoring", "Report loss and speed every so many steps.", unit="steps", ge=1, le=1_000_000)] = 10
    perf_steps: Annotated[int, knob("monitoring", "Report memory, utilisation, energy and gradient noise every so many steps; 0: never.", unit="steps", ge=0, le=1_000_000_000)] = 50
    flops_steps: Annotated[int, knob("monitoring", "Count the arithmetic of each layer every so many steps; 0: never.", unit="steps", ge=0, le=1_000_000_000)] = 0
    eval_steps: Annotated[int, knob("monitoring", "Test the model on held-out data every so many steps (eval loss); 0: only at the end.", unit="steps", main=True, ge=0, le=1_000_000_000)] = 250
    eval_batches: Annotated[int, knob("monitoring", "Size of the validation sample in batches, of batch_size when the run starts: the same sequences of all held-out data at every evaluation. 0: all of them.", unit="batches", ge=0, le=1_000_000)] = 50
    eval_examples: Annotated[int, knob("monitoring", "Held-out prompts that each evaluation answers and compares with the right answers (exact match, BLEU-4).", ge=0, le=100_000)] = 64
    eval_max_new_tokens: Annotated[int, knob("monitoring", "Longest answer to a held-out prompt in an evaluation; 0: twice the length of its reference answer.", unit="tokens", ge=0, le=1_000_000)] = 0
    sample_steps: Annotated[int, knob("monitoring", "Have the model write some text every so many steps; 0: only at the end.", unit="steps", ge=0, le=1_000_000_000)] = 250
    sample_prompts: Annotated[list[str], knob("monitoring", "Beginnings that the samples go on from; empty: taken from held-out data.")] = []
    sample_tokens: Annotated[int, knob("monitoring", "Length of one sample.", unit="tokens", ge=1, le=65_536)] = 64
    sample_temperature: Annotated[float, knob("monitoring", "How much chance is in the samples; 0: always the likeliest token.", ge=0.0, le=5.0)] = 0.8
    advice: Annotated[bool, knob("monitoring", "Say what would make the run better, with the figures that tell so.")] = True
    hardware_interval_s: Annotated[float, knob("monitoring", "Time between two looks at GPU and memory.", unit="s", ge=0.1, le=3600.0)] = 2.0
    use_wandb: Annotated[bool, knob("monitoring", "Report to Weights & Biases, a service on the web, too.")] = False
    wandb_project: Annotated[str, knob("monitoring", "Name of the project at Weights & Biases.")] = "traindeck"

    @property
    def effective_batch(self) -> int:
        """Sequences per optimizer update, of all ranks together."""
        return self.batch_size * self.gradient_accumulation_steps
# fmt: on


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of `Config`, read out for flags and forms."""

    name: str
    kind: Literal["int", "float", "bool", "str", "list", "choice"]
    default: Any
    help: str
    unit: str
    group: Group
    main: bool
    shape: str  # what a text may be, where not any
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    minimum_open: bool  # the minimum itself is not allowed
    maximum_open: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def label(self) -> str:
        """English label for forms: `n_layers` becomes `N layers`; the window may word it better."""
        return self.name.replace("_", " ").capitalize()

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
def _hints() -> dict[str, Any]:
    """The annotations of `Config`; reading them costs 2 ms, too much for every value of a file."""
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
        annotation, meta = get_args(_hints()[name])
        found[name] = Knob(
            name=name,
            kind=_kind(annotation),
            default=getattr(defaults, name),
            help=meta.description,
            choices=get_args(annotation) if get_origin(annotation) is Literal else (),
            minimum=meta.ge if meta.ge is not None else meta.gt,
            maximum=meta.le if meta.le is not None else meta.lt,
            minimum_open=meta.gt is not None,
            maximum_open=meta.lt is not None,
            **meta.extra,
        )
    return types.MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class Layer:
    """Some knobs from one place. `where` names it in errors: `presets/cpu.yaml`, `the command line`."""

    where: str
    values: Mapping[str, Any]


def resolve(layers: Iterable[Layer]) -> Config:
    """One configuration from layers of rising priority, each value checked.

    Raises `TraindeckError` with `config.unknown_key`, `config.bad_value` or `config.conflict`.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        given = with_auto_batch(layer.values)
        if "batch_size" in given:  # a number takes back what was automatic below
            values.pop("auto_batch", None)
        for name, value in given.items():
            values[name] = check_value(name, value, layer.where)
    config = Config(**values)
    check_together(config)
    return config


def with_auto_batch(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`batch_size: auto` as `auto_batch`, which leaves the number of the layers below."""
    if str(values.get("batch_size")).lower() != "auto":
        return values
    return {"auto_batch": True, **{name: value for name, value in values.items() if name != "batch_size"}}


_ALIKE: Final = 0.6  # of 1: a slip of the keys, not another word
_SAME_THING: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def check_value(name: str, value: Any, where: str) -> Any:
    """The value as its knob's type. Text is converted (`"3e-4"`: YAML reads it as text, flags are text)."""
    known = knobs()
    if name not in known:
        raise unknown_key(where, name, known)
    spec = known[name]
    bad = TraindeckError("config.bad_value", where=where, name=name, given=_shown(value), allowed=spec.allowed())
    if spec.kind == "bool" and isinstance(value, str):
        value = _SAME_THING.get(value.lower(), value)
    if spec.kind == "choice" and isinstance(value, bool):  # YAML reads a bare `no`, `on` or `off` as true or false
        value = next((text for text, same in _SAME_THING.items() if same is value and text in spec.choices), value)
    if spec.kind == "list" and isinstance(value, str):
        value = [value]
    if isinstance(value, bool) != (spec.kind == "bool"):
        raise bad
    try:
        converted = msgspec.convert(value, _hints()[name], strict=False)
    except msgspec.ValidationError as error:
        raise bad from error
    if isinstance(converted, float) and converted - converted != 0.0:  # NaN and infinity pass range checks
        raise bad
    return converted


def _shown(value: Any) -> str:
    return f"“{value}”" if isinstance(value, str) else str(value)


def unknown_key(where: str, name: str, known: Iterable[str]) -> TraindeckError:
    """What is told of a setting that there is none of: with the one that was probably meant, if there is one."""
    near = nearest(name, known)
    code = "config.unknown_key" if near else "config.no_such_key"
    return TraindeckError(code, where=where, name=name, **({"nearest": near} if near else {}))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is so like `name` that it may be meant; empty: none is."""
    names = {one.replace("-", "_").lower(): one for one in sorted(known)}
    close = difflib.get_close_matches(name.replace("-", "_").lower(), names, n=1, cutoff=_ALIKE)
    return names[close[0]] if close else ""


def check_together(config: Config) -> None:
    """What one knob alone cannot tell; raises `TraindeckError`."""
    heads = config.n_heads or default_heads(config.hidden_dim)
    kv_heads = config.n_kv_heads or heads
    if config.hidden_dim % heads != 0 or config.hidden_dim // heads % 2 != 0:
        raise TraindeckError("config.heads", n_heads=heads, hidden_dim=config.hidden_dim)
    if heads % kv_heads != 0:
        raise TraindeckError("config.kv_heads", n_kv_heads=kv_heads, n_heads=heads)
    if config.qkv_bias and config.qk_norm:
        raise TraindeckError("config.bias_and_norm")
    if (config.qkv_bias or config.qk_norm) and config.pre_tokenizer != "qwen2" and not config.tokenizer:
        raise TraindeckError("config.qwen_pre_tokenizer", pre_tokenizer=config.pre_tokenizer)
    if config.ranks > config.effective_batch:
        raise TraindeckError("ranks.too_many", ranks=config.ranks, sequences=config.effective_batch)
    try:
        schedule.parse(config.pause_between)
    except ValueError as error:
        raise TraindeckError("config.schedule", given=str(error)) from error


def default_heads(hidden_dim: int) -> int:
    """Heads of width 64 where that divides the width, else the nearest even split (at least one head)."""
    wanted = max(1, hidden_dim // 64)
    fitting = [n for n in range(1, wanted + 1) if hidden_dim % n == 0 and hidden_dim // n % 2 == 0]
    return max(fitting, default=1)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values by name, in the order of `Config`: for YAML and the wire."""
    return {name: getattr(config, name) for name in Config.__struct_fields__}
