"""Wire protocol: events of the trainer and commands to it, one JSON object per line.

Events go to stdout and to `events.jsonl`; commands come on stdin. UTF-8 with non-ASCII escaped, so that lines survive
any code page. `docs/protocol.md` and its JSON Schema are generated from this file.

Imports nothing else of the project; no torch, no Qt.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, get_args

import msgspec

VERSION: Final = (2, 0)
"""(major, minor). Readers reject a newer major version; a newer minor version only adds."""

Param = str | int | float | bool | None
PhaseName = Literal[
    "loading", "preparing", "training_base", "checking", "compiling", "training", "evaluating", "saving", "verifying",
    "uploading", "paused", "stopping", "done", "failed", "connecting", "installing", "downloading",
]  # fmt: skip
ProgressUnit = Literal["steps", "bytes", "documents", "tokens", "batches", "files", "trials", "prompts"]
ExportCheck = Literal["tokens", "vocabulary", "template", "greedy", "probabilities", "perplexity", "end_token"]
CheckpointKind = Literal["regular", "best", "final", "emergency"]
DoneReason = Literal["finished", "early_stop", "stopped", "parent_lost"]
PauseReason = Literal["requested", "schedule", "other_program", "disk_full"]


class Event(msgspec.Struct, kw_only=True, omit_defaults=False, tag_field="type"):
    """Fields of every event."""

    t: float = 0.0  # seconds since the epoch
    seq: int = 0  # from 1 within a process; a gap: events were dropped for a slow reader


class FastPath(msgspec.Struct, kw_only=True):
    """An implementation that is faster than the reference: whether it is used, why, and its measured effect."""

    name: str  # such as compile, attention, fused_adamw, chunked_loss; names of `messages.engine.PATHS`
    used: bool  # by this run; in hello: available on this machine and no slower
    choice: str = ""  # selected variant, such as flash or "2 threads"
    reason: str = ""  # message code
    params: dict[str, Param] = {}  # of the reason's message
    error: float | None = None  # largest relative difference from the reference; None: not compared
    speedup: float | None = None  # speedup; None: not measured


class Hello(Event, tag="hello", kw_only=True):
    """First event of a process, with the resolved configuration."""

    version: tuple[int, int] = VERSION  # (major, minor) of this protocol
    command: str = "train"  # the subcommand
    pid: int  # of this process
    run_dir: str  # absolute path
    traindeck: str  # version
    python: str  # version
    torch: str  # version
    devices: list[str] = []  # human-readable, the one in use first
    precision: str = ""  # fp32, bf16 or fp16
    resumed_from_step: int | None = None  # None: a new run. Later steps in events.jsonl are repeated
    config: dict[str, Any] = {}  # every knob by name
    fast_paths: list[FastPath] = []  # of this machine


class Source(msgspec.Struct, kw_only=True):
    """One data source."""

    path: str  # file, folder or builtin:name, as given
    format: str  # text, jsonl, json, csv, tsv, parquet, arrow, tar, tasks (built in); of a folder: "jsonl ×2, csv"
    encoding: str = ""  # of text files, in the same form; empty where the format implies it
    compression: str = ""  # gzip or zstd, in the same form; empty: none
    columns: list[str] = []  # columns in use
    all_columns: list[str] = []  # also those not in use
    column_roles: dict[str, str] = {}  # name of the column by role: text, prompt, response, input, system, messages
    files: int = 1  # number of files read
    bytes: int = 0  # of these files
    skipped: int = 0  # unusable files of a folder
    first_skipped: str = ""  # path of the first one
    first_skipped_reason: str = ""  # its message code
    split: str = ""  # split of a data set folder that was read: train, validation, test...; empty: it has no splits


class Ready(Event, tag="ready", kw_only=True):
    """Data and model are loaded; training begins."""

    task: Literal["pretrain", "sft", "preference"]  # all text, responses to prompts, or good and bad responses
    sources: list[Source] = []  # training data
    validation_sources: list[Source] = []  # of the eval loss; empty: validation_fraction of the data
    train_documents: int  # documents, or prompt/response pairs, to train on
    train_tokens: int  # tokens to train on, per epoch
    validation_documents: int  # held out
    validation_tokens: int  # held out
    validation_sequences: int = 0  # made of these tokens
    eval_sequences: int = 0  # sequences of every evaluation, drawn uniformly when the run started
    truncated: int = 0  # pairs cut to the maximum length
    dropped: int = 0  # pairs whose prompt leaves no room for a response
    vocab_size: int  # of the tokenizer
    parameters: int  # all weights
    trainable_parameters: int | None = None  # of them, those that are trained; None: all
    steps_per_epoch: int  # optimizer updates
    total_steps: int  # optimizer updates of the whole run
    samples_per_epoch: int = 0  # sequences; with packing, of several conversations each
    fill: float | None = None  # with packing: share of positions that hold tokens, 0..1
    fill_unpacked: float | None = None  # the same with one conversation per sequence
    loader_workers: int = 0  # loader processes
    loader_prefetch: int = 0  # batches prepared ahead by the processes; 0: on demand
    loader_pinned: bool = False  # batches are in page-locked memory
    loader_reason: Literal["set", "low_memory", "cpu", "gpu", "disk", "encoding"] = "set"  # reason of this choice
    startup_s: dict[str, float] = {}  # seconds since the start of the process by phase; starting: before the first
    fast_paths: list[FastPath] = []  # of this run


class Compiled(Event, tag="compiled", kw_only=True):
    """The run has switched from eager to compiled code, or keeps eager code."""

    step: int  # steps done
    compile_s: float  # seconds that training waited for the compiler
    fast_paths: list[FastPath] = []  # of this run from now on


class DataCounts(msgspec.Struct, kw_only=True):
    """Amount of data. Tokens include those of chat templates and ends of documents."""

    rows: int = 0  # of tables, with text to learn; pieces of plain text
    documents: int = 0  # rows; for plain text, held-out parts and the stretches between them
    characters: int = 0  # of their text
    tokens: int = 0  # of their text, once encoded


class LengthBin(msgspec.Struct, kw_only=True):
    """One bar of a histogram: documents of `start` to below `stop` tokens."""

    start: int  # tokens
    stop: int  # tokens
    documents: int  # of this length


class BadRow(msgspec.Struct, kw_only=True):
    """A row that could not be used."""

    path: str  # of its file
    position: str  # such as: line 17
    reason: str  # technical


class Token(msgspec.Struct, array_like=True):
    """One token of a sample, sent as an array of these values."""

    text: str  # empty: the rest of a character that begins in the previous token
    id: int  # in the vocabulary
    in_loss: bool  # counts in the loss
    special: bool  # a special token, not text
    document: int  # number of the document in the sample, from 0


class AnswerView(msgspec.Struct, kw_only=True):
    """The conversation with a good or a bad answer."""

    chosen: bool  # a good one
    length: int  # tokens
    skipped: int = 0  # tokens of the prompt, before the first one that is shown


class SampleView(msgspec.Struct, kw_only=True):
    """A training sample."""

    tokens: list[Token]  # its first tokens
    length: int  # tokens of the whole sample
    answers: list[AnswerView] = []  # of preferences: a pair, or one answer; the documents of `tokens`


class PreferenceCounts(msgspec.Struct, kw_only=True):
    """Good and bad answers of the data that was read."""

    sides: int  # answers of a row, at most: 2 in pairs, 1 in labelled rows
    chosen: int  # good answers
    rejected: int  # bad answers
    chosen_tokens: float  # mean length of a good answer
    rejected_tokens: float  # of a bad one
    equal: int = 0  # pairs with twice the same answer, which are left out
    swapped: int = 0  # rows that contradict another: the same pair the other way round, or the other label


class DataReport(Event, tag="data_report", kw_only=True):
    """Content of the data set: exact, or estimated from a part."""

    complete: bool  # all data was read: every figure is exact
    prepared: bool = False  # tokens are those of the prepared cache
    task: Literal["pretrain", "sft", "preference"]  # all text, responses to prompts, or good and bad responses
    sources: list[Source] = []  # training data
    bytes: int  # of all files
    read_bytes: int  # of these, read for this report
    tokenizer: str = ""  # path, if one is set; empty: trained on the data that was read
    vocab_size: int  # of the tokenizer
    read: DataCounts  # exact, of what was read
    total: DataCounts  # all data; estimated unless complete
    train_documents: int  # estimated like `total`
    train_tokens: int  # per epoch; estimated like `total`
    validation_documents: int  # held out; estimated like `total`
    validation_tokens: int  # held out; estimated like `total`
    max_seq_len: int  # tokens of one sequence
    lengths: list[LengthBin] = []  # lengths of the documents that were read
    longest: int = 0  # tokens of the longest document that was read
    over_length: int = 0  # documents read that are longer than a sequence
    truncated: int = 0  # prompt/response: samples read that are cut at the maximum length
    truncated_tokens: int = 0  # prompt/response: tokens cut from samples read
    dropped: int = 0  # prompt/response: samples read whose prompt leaves no room for a response
    skipped_turns: int = 0  # tool calls and results that the chat template cannot represent
    remainder_tokens: int = 0  # plain text: tokens at the end that fill no sequence; estimated like `total`
    packed_sequences: int | None = None  # with packing: sequences made of samples read
    fill: float | None = None  # with packing: share of positions that hold tokens, 0..1
    fill_unpacked: float | None = None  # prompt/response: the same with one sample per sequence, padded to its batch
    duplicates: int = 0  # rows read whose content occurred before
    validation_sources: list[Source] = []  # of the eval loss; empty: validation_fraction of the data
    validation_rows: int = 0  # rows read that are held out; pieces of plain text
    overlap: int = 0  # of them, rows whose content also occurs in the training data that was read
    empty: int = 0  # rows read without any text
    bad: int = 0  # rows read that could not be used
    first_bad: BadRow | None = None  # first bad row
    undecodable: int = 0  # bytes read that are invalid in the file's encoding
    samples_per_epoch: int  # sequences; estimated like `total`
    tokens_per_step: int  # tokens of one optimizer update, including prompts, without padding
    steps_per_epoch: int  # optimizer updates, including a shorter last one; estimated like `total`
    full_steps_per_epoch: int  # those of a whole effective batch
    total_steps: int  # optimizer updates of the whole run; estimated like `total`, unless limited
    limited: bool = False  # max_steps sets the number of steps
    samples_per_step: int  # effective batch: micro-batch times accumulation times devices
    batch_is_default: bool = False  # default batch size: a preset may use another one, with other steps
    preference: PreferenceCounts | None = None  # with an objective that needs good and bad answers
    samples: list[SampleView] = []  # first samples

    @property
    def splits_documents(self) -> bool:
        """Whether plain texts are divided because parts of them are held out."""
        held_back = self.validation_documents > 0 and not self.validation_sources
        return self.read.documents != self.read.rows and held_back


class Phase(Event, tag="phase", kw_only=True):
    """Current phase of the trainer."""

    phase: PhaseName  # from now on
    step: int | None = None  # None: before the first step, or not about a step
    reason: PauseReason | None = None  # of a pause; None: another phase
    until: float | None = None  # scheduled pause: its end, seconds since the epoch


class Progress(Event, tag="progress", kw_only=True):
    """Progress of work of more than a second."""

    phase: PhaseName  # of this work
    done: float  # in units
    total: float | None = None  # in units; None: cannot be known yet
    unit: ProgressUnit = "steps"  # of done and total
    eta_s: float | None = None  # remaining seconds of this work; None: too early to tell


class StepTime(msgspec.Struct, kw_only=True):
    """Milliseconds per step, averaged over the steps since the last event. They add up to the step."""

    data: float  # waiting for the next batch
    transfer: float  # copying it to the device
    generation: float = 0.0  # answers to learn from
    forward: float  # model and loss
    backward: float  # gradients
    sync: float = 0.0  # summing gradients over ranks, including waiting for other ranks
    optimizer: float  # clipping and update
    checkpoint: float = 0.0  # saving, spread over these steps
    other: float  # the rest of the step

    @property
    def total(self) -> float:
        parts = self.data + self.transfer + self.generation + self.forward + self.backward
        return parts + self.sync + self.optimizer + self.checkpoint + self.other


class Step(Event, tag="step", kw_only=True):
    """One optimizer update (the last one since the previous event)."""

    step: int  # number of the update, from 1
    epoch: float  # passes over the data, with the fraction
    tokens: int  # in the loss, since the run began: for conversations the answers; without padding
    samples: int  # sequences, since the run began
    loss: float | None  # mean over the tokens (with preferences: the pairs) since the last event; None: not finite
    learning_rate: float  # of this update
    grad_norm: float | None = None  # before clipping; None: not measured
    tokens_per_s: float  # of these `tokens`, since the last event
    samples_per_s: float  # since the last event
    mfu: float | None = None  # model FLOPs utilisation, 0..1; None where the peak is unknown
    time_ms: StepTime  # parts of the time of a step
    bad_steps: int = 0  # skipped since the last event because of a non-finite gradient or a spike
    reward_accuracy: float | None = None  # share of pairs whose chosen answer has the higher reward, 0..1
    reward_margin: float | None = None  # mean reward of the chosen answers minus that of the rejected ones
    chosen_reward: float | None = None  # mean; the formula is in docs/preferences.md
    rejected_reward: float | None = None  # mean
    entropy: float | None = None  # of the tokens of generated answers, in nats: their mean negative log-probability
    kl: float | None = None  # estimated KL divergence from the model before training, per token; 0 if not computed
    clip_ratio: float | None = None  # share of these tokens without gradient: too unlike the model that generated them


class Performance(Event, tag="performance", kw_only=True):
    """Utilization of the machine, every `perf_steps` steps. Bytes, joules.

    Energy includes evaluations, samples and checkpoints. It is unknown for an interval with a pause, in which another
    program may have used the GPU, or with a rollback.
    """

    step: int  # of this update
    data_ratio: float  # share of time spent waiting for data, 0..1
    compute_ratio: float  # share of time spent in forward, backward and optimizer, 0..1
    mfu: float | None = None  # model FLOPs utilisation, 0..1; None where the peak is unknown
    flops_per_token: float  # forward and backward; the formula is in docs/performance.md
    peak_flops: float | None = None  # per second, reference of `mfu`; None: unknown
    peak_name: str = ""  # card and arithmetic of the peak; set also where it is unknown. Empty: no GPU
    memory_allocated: int | None = None  # held by tensors; None: no GPU
    memory_reserved: int | None = None  # held by torch's allocator
    memory_peak: int | None = None  # most that tensors held since the last of these events
    energy_j: float | None = None  # of all ranks' GPUs since the last performance event; None: unknown
    energy_per_million_tokens_j: float | None = None  # at that rate
    gradient_noise: float | None = None  # simple noise scale in sequences; None: one micro-batch per step, or too early
    loss_scale: float | None = None  # fp16 loss scale
    overflows: int = 0  # fp16: steps skipped since the run began because the scale was too large


class FlopsRow(msgspec.Struct, kw_only=True):
    """FLOPs of one part of the model."""

    module: str  # its name in the model
    forward: float  # FLOPs of one micro-batch
    backward: float  # FLOPs of one micro-batch
    share: float  # of all, 0..1


class FlopsProfile(Event, tag="flops_profile", kw_only=True):
    """FLOPs of a step by part, on request (`flops_steps`)."""

    step: int  # at this update
    tokens: int  # positions of the micro-batch that was counted
    total: float  # FLOPs of the micro-batch, forward and backward
    formula: float  # FLOPs by the formula of `mfu`
    rows: list[FlopsRow] = []  # in the order of the model


class BadStep(Event, tag="bad_step", kw_only=True):
    """A step with a non-finite gradient or a spike. Detected on the device and reported some steps later."""

    step: int  # number of the update
    kind: Literal["not_finite", "spike"]  # of the gradient
    grad_norm: float | None = None  # None: not finite
    mean_grad_norm: float | None = None  # running mean of the norm at that time
    action: Literal["skipped", "rolled_back", "stopped"]  # action taken
    epoch: int = 0  # of its batches, from 0
    samples: list[int] = []  # numbers of its samples in the data


class OomRecovery(Event, tag="oom_recovery", kw_only=True):
    """A step ran out of memory and was repeated with less, or memory suffices again. The effective batch stays."""

    step: int  # number of the update
    action: Literal["halved", "checkpointing", "chunked_loss", "grown"]  # what changed
    during: Literal["forward", "backward", "optimizer", "evaluation", "none"]  # where; none: "grown"
    batch_size: int  # sequences per forward pass from now on
    gradient_accumulation_steps: int  # forward passes per update from now on
    requested: int | None = None  # bytes of the failed allocation; None: unknown
    free: int | None = None  # free bytes of the device at that time; None: unknown
    total: int | None = None  # total bytes of the device; None: unknown


class MeasuredSettings(msgspec.Struct, kw_only=True):
    """Settings measured with real steps. Bytes are peaks."""

    batch_size: int  # sequences per micro-batch
    gradient_accumulation_steps: int  # micro-batches per update
    activation_checkpointing: Literal["off", "selective", "full"]  # the knob
    checkpointed_layers: int = 0  # the knob
    chunked_loss: Literal["auto", "on", "off"]  # the knob
    fits: bool  # False: out of memory
    peak: int | None = None  # device memory (of a GPU, otherwise of the process); None: out of memory
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None  # of full sequences, including prompts; None: not measured


class CheckReport(Event, tag="check", kw_only=True):
    """Result of a check: real steps of a configuration. Bytes; seconds."""

    verdict: Literal["fits", "tight", "does_not_fit"]  # tight: less than a tenth of the memory is left
    device: str  # human-readable
    chosen: MeasuredSettings  # the configuration; with an automatic batch size, the one selected
    alternatives: list[MeasuredSettings] = []  # with the same effective batch, fastest first
    memory_total: int | None = None  # of the device
    memory_free: int | None = None  # of the device before the check
    ram_total: int  # of the machine
    ram_free: int  # before these steps
    total_steps: int  # of the run
    seconds: float | None = None  # to finish at this rate, without evaluations and checkpoints; None: not measured
    compile_s: float | None = None  # waiting for the compiler; None: not compiled
    checkpoint_bytes: int  # of one
    checkpoints: int  # kept at most
    disk_needed: int  # for these, one temporary, and the missing part of the token cache
    disk_free: int  # on the disk of the run
    parameters: int  # all weights
    tokens_per_step: int  # of one optimizer update, including prompts, without padding
    from_cache: bool = False  # measured earlier with the same GPU, torch and configuration
    duration_s: float = 0.0  # of the check


class Gpu(msgspec.Struct, kw_only=True):
    """State of one GPU. None: not reported by this driver or platform. Bytes, watts, °C, MHz."""

    index: int  # NVML's number
    name: str  # human-readable
    utilization: float | None = None  # 0..1
    vram_used: int | None = None  # by all programs
    vram_total: int | None = None  # of the card
    torch_allocated: int | None = None  # held by tensors of this run
    torch_reserved: int | None = None  # held by torch's allocator for this run
    shared_used: int | None = None  # spill into system memory (Windows)
    power_w: float | None = None  # drawn now
    power_limit_w: float | None = None  # allowed now
    temperature_c: float | None = None  # of the chip
    clock_mhz: int | None = None  # of the processors (SM)
    throttle: list[str] = []  # throttle reasons: power, thermal, hw_thermal, power_brake ...


class Host(msgspec.Struct, kw_only=True):
    """State of the machine without GPUs. Bytes; shares are 0..1."""

    ram_used: int  # by all programs, without caches that can be freed
    ram_total: int  # of the machine
    rss: int  # resident memory of the trainer and its loader workers
    cpu: float  # of all processors, since the last sample
    disk_free: int  # on the disk of the run
    on_battery: bool | None = None  # None: no battery, or unknown
    slept_s: float | None = None  # seconds of sleep since the machine started; None: unknown


class Hardware(Event, tag="hardware", kw_only=True):
    """Hardware sample, every `hardware_interval_s` seconds."""

    gpus: list[Gpu] = []  # all NVIDIA GPUs of the machine
    host: Host  # the machine beside them


class Eval(Event, tag="eval", kw_only=True):
    """An evaluation on the validation sample, the same sequences each time."""

    step: int  # after this update
    loss: float | None  # mean over all tokens of the sample (with preferences: its pairs); None: not finite
    perplexity: float | None  # exp(loss); None: preferences
    tokens: int  # in the loss
    seconds: float  # of this evaluation
    best: bool = False  # the highest reward accuracy so far, then the lowest loss
    bleu4: float | None = None  # 0..100, prompt/response data only
    exact_match: float | None = None  # 0..1
    examples: int = 0  # validation prompts that bleu4 and exact_match count
    truncated_by_limit: int = 0  # answers longer than `eval_max_new_tokens`
    truncated_by_context: int = 0  # answers that reached `max_seq_len`, including prompts that leave no room
    neutral_loss_en: float | None = None  # loss on built-in English text that is not of the task; with a base model
    neutral_loss_zh: float | None = None  # the same for Chinese text
    reward_accuracy: float | None = None  # share of pairs whose chosen answer has the higher reward, 0..1
    reward_margin: float | None = None  # mean reward of the chosen answers minus that of the rejected ones
    chosen_reward: float | None = None  # mean; the formula is in docs/preferences.md
    rejected_reward: float | None = None  # mean
    reward: float | None = None  # mean of the answers to validation prompts; of a run that learns from rewards


class Score(msgspec.Struct, kw_only=True):
    """A score over all rows, with its 95 % bootstrap confidence interval."""

    value: float  # of the rows
    low: float  # 2.5th percentile of the resamples
    high: float  # 97.5th percentile


class ModelScores(msgspec.Struct, kw_only=True):
    """Scores of one model, or of one way to prompt it. The answers are greedy."""

    name: Literal["model", "base", "system", "examples", "tuned"]  # system, examples: the base model prompted so
    model: str = ""  # path of its folder
    loss: Score | None = None  # mean over tokens of texts or responses, in nats; None: not finite
    perplexity: Score | None = None  # exp(loss)
    tokens: int = 0  # in the loss
    exact_match: Score | None = None  # 0..1, prompt/response data only
    bleu4: Score | None = None  # 0..100
    chrf: Score | None = None  # 0..100
    judged: Score | None = None  # share of answers that the judge accepts, 0..1; None: no judge
    gain: Score | None = None  # improvement of `main_score` over the first model on the same rows; None: that model
    truncated_by_limit: int = 0  # answers that did not end within the token limit
    truncated_by_context: int = 0  # answers that reached the context length, including prompts that leave no room
    seconds: float = 0.0  # of losses and answers


class Evaluation(Event, tag="evaluation", kw_only=True):
    """Result of `evaluate`: scores on the same rows."""

    task: Literal["pretrain", "sft"]  # texts, or responses to prompts
    data: list[str] = []  # paths of the data, of which the rows are a sample
    rows: int  # evaluated
    refused: int = 0  # rows left out because a chat template cannot write them
    not_in_loss: int = 0  # rows left out of all losses: their answers do not fit into the context of every model
    judge: str = ""  # as given; empty: none
    main_score: Literal["judged", "exact_match", "loss"]  # by which models are compared; for a loss, less is better
    results: str = ""  # path of the file with a line per row; empty: not written
    scores: list[ModelScores] = []  # in the order of evaluation


class TaskScore(msgspec.Struct, kw_only=True):
    """One metric of a task of `lm-eval`."""

    task: str  # its name
    metric: str  # such as acc, acc_norm, exact_match
    value: float  # as `lm-eval` reports it
    stderr: float | None = None  # its standard error; None: not estimated


class TaskScores(Event, tag="task_scores", kw_only=True):
    """Result of `evaluate --lm-eval`."""

    model: str  # path of its folder
    path: str  # of the file with everything that `lm-eval` returned
    scores: list[TaskScore] = []  # in the order of the tasks


class Sample(Event, tag="sample", kw_only=True):
    """Text generated during training."""

    step: int  # after this update
    prompt: str  # text that the model continues
    text: str  # without the prompt
    expected: str | None = None  # reference answer, if there is one


class RewardedAnswer(msgspec.Struct, kw_only=True):
    """An answer that was generated to learn from."""

    prompt: str  # as the model reads it
    text: str  # the answer
    reference: str  # the answer in the data
    reward: float  # sum of the weighted scores


class Rollouts(Event, tag="rollouts", kw_only=True):
    """Answers that were generated to learn from. Emitted for the steps with a `step` event."""

    step: int  # that begins to learn from them
    answers: int  # to all prompts of the generation
    reward: float  # mean
    reward_std: float  # standard deviation
    scores: dict[str, float]  # mean of each part of the reward, 0..1, by its setting without the weight
    answer_tokens: float  # mean, with the end token
    truncated_ratio: float  # share of answers that reached `rollout_max_new_tokens` or `max_seq_len`
    no_signal_ratio: float  # share of prompts whose answers all have the same reward, so that their gradient is zero
    seconds: float  # of generation and rewards
    samples: list[RewardedAnswer] = []  # answers to the first prompts, of up to 100,000 characters together


class ModelLoaded(Event, tag="loaded", kw_only=True):
    """`generate --control stdin` has loaded its model and accepts commands."""

    checkpoint: str  # absolute path of its folder; with --base, of the base model
    step: int  # at which it was saved; 0: no checkpoint
    chat: bool  # answers prompts; otherwise continues texts
    parameters: int  # weights
    device: str  # human-readable
    max_seq_len: int  # context length
    seconds: float = 0.0  # of verifying and loading


class GeneratedPiece(Event, tag="text", kw_only=True):
    """A piece of generated text; at most about 20 a second."""

    id: int | None = None  # of the command
    piece: str  # follows the previous pieces
    tokens: int  # written so far


class GenerationDone(Event, tag="generated", kw_only=True):
    """End of a text requested by `generate`."""

    id: int | None = None  # of the command
    tokens: int  # written
    prompt_tokens: int = 0  # given; only the last `max_seq_len` are used
    seconds: float  # including the prompt
    tokens_per_s: float  # tokens by seconds
    reason: Literal["end", "length", "interrupted", "failed"]  # failed: the preceding warning says why


class VerificationCheck(msgspec.Struct, kw_only=True):
    """Comparison of what another program computes from an exported model with what its checkpoint computes."""

    name: ExportCheck  # what is compared
    passed: bool  # within the bound
    compared: int  # texts, conversations, prompts, probabilities, end tokens or tokens
    equal: int  # of them
    value: float | None = None  # largest difference of log-probabilities; perplexity of the exported model
    reference: float | None = None  # perplexity of the checkpoint
    bound: float | None = None  # the largest value that passes; of greedy tokens, the gap below which they may differ
    place: str = ""  # text or prompt of the first difference; empty: none
    expected: str = ""  # there, by the checkpoint
    found: str = ""  # there, by the program


class Verification(Event, tag="verification", kw_only=True):
    """Verification of an exported model in the program that will read it. Also the content of `verification.json`."""

    folder: str  # name of the exported folder
    format: str  # hf, peft or gguf
    dtype: str  # of the weights, such as bf16 or q8_0
    program: str  # name and version of the program that read it; empty: it is not installed
    passed: bool | None  # None: not verified
    reason: str = ""  # message code: why it is not verified
    params: dict[str, Param] = {}  # of the reason's message
    checks: list[VerificationCheck] = []  # in the order of the table
    limitations: list[str] = []  # notes that do not fail: non_nfc, date, built_in_texts
    expected_prompt: str = ""  # rendered by Traindeck, as in training; empty: the model has no chat template
    found_prompt: str = ""  # the same conversation rendered by the program


class UploadFile(msgspec.Struct, kw_only=True):
    """A file of an upload."""

    name: str  # without its folder
    bytes: int  # size


class HubUpload(Event, tag="hub_upload", kw_only=True):
    """An upload to the Hugging Face Hub: before it begins, and again with `url` when it is complete."""

    account: str  # name of the user on the Hub
    endpoint: str  # address of the Hub or of a mirror
    repository: str  # ORG/NAME
    private: bool  # only those whom the account permits can read it
    exists: bool  # False: the upload creates it
    files: list[UploadFile]  # all that is sent
    url: str = ""  # of the uploaded model; empty: not uploaded yet


class RemoteCheck(Event, tag="remote_check", kw_only=True):
    """Another machine, reached over ssh."""

    host: str  # as ssh calls it
    folder: str  # of Traindeck there; absolute
    python: str  # version of python3
    gpus: list[str] = []  # name, memory in MiB
    free: int  # bytes on the disk of the folder
    installed: bool  # whether Traindeck is installed in the folder


class Checkpoint(Event, tag="checkpoint", kw_only=True):
    """A checkpoint is on disk and verified. Paths are names in the run's checkpoints folder."""

    step: int  # after this update
    path: str  # name of the new folder
    bytes: int  # of all its files
    seconds: float  # that saving took
    kind: CheckpointKind  # reason of the checkpoint
    kept: list[str] = []  # names of all existing checkpoints
    removed: list[str] = []  # names of those deleted by rotation


class MessageEvent(Event, kw_only=True):
    """Base of events with a message: code, parameters, technical detail."""

    code: str  # message code, such as memory.out
    params: dict[str, Param] = {}  # of the message
    detail: str = ""  # technical; not translated


class Advice(MessageEvent, tag="advice", kw_only=True):
    """A recommendation, with its figures."""

    step: int | None = None  # latest at that time; None: not about a step
    suggested_settings: dict[str, Any] = {}  # knobs and values that help at the next start; empty: nothing to set
    resolved: bool = False  # earlier advice with this code no longer applies


class Warn(MessageEvent, tag="warning", kw_only=True):
    """A problem that does not end the run."""


class Error(MessageEvent, tag="error", kw_only=True):
    """The run ends because of this error. Last event before the process exits with `exit_code`."""

    exit_code: int = 1  # see the README


class Ack(Event, tag="ack", kw_only=True):
    """Acknowledges a command on receipt (not when it is carried out)."""

    command: str  # the command
    id: int | None = None  # of the command, where it had one
    accepted: bool = True  # False: not possible now
    reason: str = ""  # why it was not accepted


class Done(Event, tag="done", kw_only=True):
    """The run has finished or stopped on request; everything is saved."""

    reason: DoneReason  # reason of the end
    steps: int  # optimizer updates that the run has now
    total_steps: int  # planned
    best_loss: float | None = None  # lowest eval loss
    final_loss: float | None = None  # last eval loss
    tokens: int = 0  # in the loss, since the run began, as `Step.tokens`
    seconds: float = 0.0  # in steps, since the run began: without preparing, compiling, evaluating and pauses
    tokens_per_s: float = 0.0  # tokens by seconds
    peak_vram: int | None = None  # peak bytes reserved by torch; None: no GPU
    model: str | None = None  # path of the final checkpoint


AnyEvent = (
    Hello | Ready | DataReport | Phase | Progress | Step | Performance | Compiled | FlopsProfile | BadStep | OomRecovery
    | CheckReport | Hardware | Eval | Evaluation | TaskScores | Sample | Rollouts | ModelLoaded | GeneratedPiece
    | GenerationDone | Verification | HubUpload | RemoteCheck | Checkpoint | Advice | Warn | Error | Ack | Done
)  # fmt: skip
DROPPABLE: Final = (Step, Performance, Hardware, Progress)
"""Events that may be dropped for a slow reader; all others always arrive."""


class Command(msgspec.Struct, kw_only=True, tag_field="command"):
    """Fields of every command. The acknowledgement repeats the `id`."""

    id: int | None = None  # any number; repeated in the ack


class Stop(Command, tag="stop", kw_only=True):
    """Finish the step, save a checkpoint, exit 3."""


class Pause(Command, tag="pause", kw_only=True):
    """Finish the step and wait."""


class Resume(Command, tag="resume", kw_only=True):
    """Continue after a pause."""


class Save(Command, tag="save", kw_only=True):
    """Save a checkpoint at the end of this step."""


class SampleCommand(Command, tag="sample", kw_only=True):
    """Generate a text from `prompt` at the end of this step."""

    prompt: str = ""  # text to continue; empty: the run's own prompts
    max_tokens: int = 64  # length of the text


class Set(Command, tag="set", kw_only=True):
    """Change an interval while running. Only settings that do not change the result can be set."""

    name: Literal["log_steps", "sample_steps", "perf_steps", "flops_steps", "hardware_interval_s"]  # the knob
    value: float  # from now on


class Turn(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: str  # system, user, assistant or tool
    content: str  # text


class Generate(Command, tag="generate", kw_only=True):
    """Generate a text (`generate --control stdin`). `text` and `generated` carry the command's id."""

    prompt: str = ""  # text to continue or to answer
    turns: list[Turn] = []  # conversation to answer instead of the prompt, for a chat model
    chat: bool | None = None  # answer the prompt with the chat template, or continue it; None: as the model was trained
    max_tokens: int = 200  # length of the text; from 1
    temperature: float = 0.8  # 0 to 5; 0: greedy
    top_k: int = 0  # sample from the k most likely tokens; 0: no limit
    top_p: float = 1.0  # nucleus sampling: smallest set of tokens with this total probability; above 0, at most 1
    seed: int = 0  # from 0; the same seed gives the same text


class Interrupt(Command, tag="interrupt", kw_only=True):
    """End the current text and discard earlier requests; generated text stays."""


AnyCommand = Stop | Pause | Resume | Save | SampleCommand | Set | Generate | Interrupt
EVENT_TYPES: Final[tuple[type[Event], ...]] = get_args(AnyEvent)
COMMAND_TYPES: Final[tuple[type[Command], ...]] = get_args(AnyCommand)

_event_decoder: Final[msgspec.json.Decoder[AnyEvent]] = msgspec.json.Decoder(AnyEvent)
_command_decoder: Final[msgspec.json.Decoder[AnyCommand]] = msgspec.json.Decoder(AnyCommand)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # RecursionError: deeply nested JSON


class ProtocolError(ValueError):
    """A line that is no event (or command) of this protocol."""


def encode(message: AnyEvent | AnyCommand) -> bytes:
    """One line with its newline. ASCII only; NaN and infinity become null."""
    built = msgspec.to_builtins(message)
    return json.dumps(_to_json_value(built), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, str):
        # Lone surrogates (undecodable file names on Linux) are no valid text: strict readers refuse the line.
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    return value


def decode_event(line: bytes) -> AnyEvent:
    """Decode an event. Unknown fields are ignored (a newer minor version); raises `ProtocolError`."""
    try:
        return _event_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise ProtocolError(str(error)) from error


def decode_command(line: bytes) -> AnyCommand:
    """Decode a command; raises `ProtocolError`."""
    try:
        return _command_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise ProtocolError(str(error)) from error
