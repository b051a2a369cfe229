"""The wire: what the trainer says (events) and what it is told (commands), one JSON object per line.

Events go to stdout and to `events.jsonl`; commands come on stdin. UTF-8 with non-ASCII escaped, so a
line survives any code page. `docs/protocol.md` and its JSON Schema are generated from this file.

Imports nothing else of the project; no torch, no Qt.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, get_args

import msgspec

VERSION: Final = (1, 7)
"""(major, minor). A reader that meets a newer major version says so; a newer minor only adds."""

Param = str | int | float | bool | None
PhaseName = Literal[
    "preparing",
    "checking",
    "compiling",
    "training",
    "evaluating",
    "saving",
    "paused",
    "stopping",
    "done",
    "failed",
]
CheckpointKind = Literal["regular", "best", "final", "emergency"]
DoneReason = Literal["finished", "stopped", "parent_lost"]
PauseReason = Literal["asked", "schedule", "other_program", "disk_full"]


class Event(msgspec.Struct, kw_only=True, omit_defaults=False, tag_field="type"):
    """What every event has. `t` is seconds since the epoch; `seq` counts from 1 within a process."""

    t: float = 0.0  # seconds since the epoch
    seq: int = 0  # from 1 within a process; a gap: events were dropped for a slow reader


class FastPath(msgspec.Struct, kw_only=True):
    """A way to compute faster than the reference: whether it is used, why, and what it was measured to do."""

    name: str  # such as compile, attention, fused_adamw, chunked_loss; names of `messages.engine.PATHS`
    used: bool  # by this run; in hello: this machine can, and is no slower for it
    choice: str = ""  # which of several ways, such as flash or "2 threads"
    reason: str = ""  # why (not): a code of messages.CATALOGUE
    params: dict[str, Param] = {}  # for the words of the reason
    error: float | None = None  # largest relative difference from the reference; None: not compared
    gain: float | None = None  # times as fast as without; None: not measured


class Hello(Event, tag="hello", kw_only=True):
    """The first event of a process: who speaks, and with which resolved configuration."""

    version: tuple[int, int] = VERSION  # (major, minor) of this protocol
    command: str = "train"  # which subcommand speaks
    pid: int  # of the process that speaks
    run_dir: str  # absolute path
    traindeck: str  # version
    python: str  # version
    torch: str  # version
    devices: list[str] = []  # names for people, the first is the one in use
    precision: str = ""  # fp32, bf16 or fp16
    resumed_from_step: int | None = None  # None: a new run. Steps after it in events.jsonl are done again
    config: dict[str, Any] = {}  # every knob by its name
    fast_paths: list[FastPath] = []  # of this machine; `ready` tells of those that depend on the run


class Source(msgspec.Struct, kw_only=True):
    """One data source as it was found."""

    path: str  # file, folder or builtin:name, as it was given
    format: str  # text, jsonl, json, csv, tsv, parquet, arrow, tar, tasks (built in); of a folder: "jsonl ×2, csv"
    encoding: str = ""  # of text files, told likewise; empty where the format says it
    compression: str = ""  # gzip or zstd, told likewise; empty: none
    columns: list[str] = []  # that were used
    found: list[str] = []  # all columns that there are
    used: dict[str, str] = {}  # what a column is used as (text, prompt, response, input, system, messages): its name
    files: int = 1  # how many were read
    bytes: int = 0  # of these files
    skipped: int = 0  # files of a folder that cannot be used
    first_skipped: str = ""  # path of the first of them
    first_skipped_reason: str = ""  # its code of messages.CATALOGUE
    split: str = ""  # of a data set folder, that was read: train, validation, test...; empty: it has no splits


class Ready(Event, tag="ready", kw_only=True):
    """Data and model are there; training begins."""

    task: Literal["pretrain", "sft"]  # what is learned: all text, or responses to prompts
    sources: list[Source] = []  # the data as it was found
    validation_sources: list[Source] = []  # to measure eval loss on; empty: validation_fraction of the data
    train_documents: int  # documents, or prompt/response pairs, to train on
    train_tokens: int  # tokens to train on, per epoch
    validation_documents: int  # held back to measure eval loss
    validation_tokens: int  # held back to measure eval loss
    validation_sequences: int = 0  # that these make
    eval_sequences: int = 0  # of them that every evaluation reads, drawn uniformly when the run started
    truncated: int = 0  # pairs that were longer than the sequence and were cut
    dropped: int = 0  # pairs whose prompt left no room for a response
    vocab_size: int  # of the tokenizer
    parameters: int  # trainable weights
    steps_per_epoch: int  # optimizer updates
    total_steps: int  # optimizer updates of the whole run
    samples_per_epoch: int = 0  # sequences to train on; with packing several conversations each
    fill: float | None = None  # with packing: share of their positions that hold tokens, 0..1
    fill_alone: float | None = None  # what it would be with one conversation a sequence
    loader_workers: int = 0  # processes that load batches; 0: none
    loader_ahead: int = 0  # batches kept ready, by these or by a thread; 0: made when they are needed
    loader_pinned: bool = False  # batches are put into page-locked memory
    loader_reason: Literal["set", "low_memory", "cpu", "gpu", "disk"] = "set"  # why so
    fast_paths: list[FastPath] = []  # as this run computes
    compile_s: float | None = None  # seconds that compiling took, in vain too; None: nothing was compiled


class Counts(msgspec.Struct, kw_only=True):
    """How much data. Tokens are counted as the model gets them: with those that a template or an end adds."""

    rows: int = 0  # of tables, with something to learn in them; pieces of plain text
    documents: int = 0  # rows; of a plain text, what is held back and each stretch in between
    characters: int = 0  # of their text
    tokens: int = 0  # of their text, once encoded


class LengthBin(msgspec.Struct, kw_only=True):
    """One bar of a histogram: documents of `start` up to, but not including, `stop` tokens."""

    start: int  # tokens
    stop: int  # tokens
    documents: int  # that are so long


class BadRow(msgspec.Struct, kw_only=True):
    """A row that could not be used."""

    path: str  # of its file
    position: str  # such as: line 17
    reason: str  # technical


class Token(msgspec.Struct, array_like=True):
    """One token of a sample. Sent as an array of these values, in this order."""

    text: str  # empty: the rest of a character that begins in the token before
    id: int  # in the vocabulary
    learned: bool  # the loss counts it; otherwise it is only given
    special: bool  # a marker, not text
    document: int  # from 0 in each sample; another number: another document


class SampleView(msgspec.Struct, kw_only=True):
    """A training sample as the model gets it."""

    tokens: list[Token]  # its beginning
    length: int  # tokens of the whole sample


class DataReport(Event, tag="data_report", kw_only=True):
    """What the data holds: of all of it, or of a part, with estimates for the rest."""

    complete: bool  # all data was read: every figure is exact
    prepared: bool = False  # and the tokens are those that training gets
    task: Literal["pretrain", "sft"]  # what is learned: all text, or responses to prompts
    sources: list[Source] = []  # the data as it was found
    bytes: int  # of all files
    read_bytes: int  # of the files, that were read for this report
    tokenizer: str = ""  # path of the one given; empty: trained on what was read
    vocab_size: int  # of the tokenizer
    read: Counts  # what was read; exact
    total: Counts  # all the data; an estimate where it is not complete
    train_documents: int  # to train on; estimated as `total` is
    train_tokens: int  # to train on, per epoch; estimated as `total` is
    validation_documents: int  # held back; estimated as `total` is
    validation_tokens: int  # held back; estimated as `total` is
    max_seq_len: int  # tokens of one sequence
    lengths: list[LengthBin] = []  # lengths of the documents that were read
    longest: int = 0  # tokens of the longest document that was read
    longer: int = 0  # documents read that are longer than a sequence
    truncated: int = 0  # prompt/response: samples read that are cut at the end of a sequence
    cut_tokens: int = 0  # prompt/response: tokens of what was read that are cut away
    dropped: int = 0  # prompt/response: samples read whose prompt leaves no room for a response
    left_out_turns: int = 0  # tool calls and their results, in messages, that the chat template cannot write
    left_out_tokens: int = 0  # plain text: tokens at the end that make no whole sequence; estimated as `total` is
    packs: int | None = None  # with packing: sequences made of the samples that were read
    fill: float | None = None  # with packing: share of their positions that hold tokens, 0..1
    fill_alone: float | None = None  # prompt/response: the same with one sample a sequence, padded to its batch
    duplicates: int = 0  # rows read whose content was there before
    validation_sources: list[Source] = []  # to measure eval loss on; empty: validation_fraction of the data
    validation_rows: int = 0  # rows read that are held out; pieces of plain text
    overlap: int = 0  # of them, those whose content is also in the training data that was read
    empty: int = 0  # rows read without any text
    bad: int = 0  # rows read that could not be used
    first_bad: BadRow | None = None  # the first of them
    undecodable: int = 0  # bytes read that are not of the file's encoding
    samples_per_epoch: int  # sequences to train on; estimated as `total` is
    tokens_per_step: int  # tokens of one optimizer update, prompts too, padding left out
    steps_per_epoch: int  # optimizer updates, a short last one included; estimated as `total` is
    full_steps_per_epoch: int  # those of a whole effective batch
    total_steps: int  # optimizer updates of the whole run; estimated as `total` is, unless limited
    limited: bool = False  # max_steps says how many there are in all
    samples_per_step: int  # the effective batch: micro-batch times accumulation times devices
    batch_is_default: bool = False  # nobody chose the batch: training with a preset may have another, and other steps
    samples: list[SampleView] = []  # the first few

    @property
    def divided(self) -> bool:
        """Whether plain texts are divided because parts of them are held back: documents are stretches of them."""
        held_back = self.validation_documents > 0 and not self.validation_sources
        return self.read.documents != self.read.rows and held_back


class Phase(Event, tag="phase", kw_only=True):
    """What the trainer is doing now."""

    phase: PhaseName  # from now on
    step: int | None = None  # None: before the first step, or not about a step
    reason: PauseReason | None = None  # why it is paused; None: in other phases
    until: float | None = None  # paused by schedule: when it goes on, seconds since the epoch


class Progress(Event, tag="progress", kw_only=True):
    """How far any work of over a second is. `total` is None while it cannot be known."""

    phase: PhaseName  # the work that this is about
    done: float  # in units
    total: float | None = None  # in units; None: cannot be known yet
    unit: Literal["steps", "bytes", "documents", "tokens", "batches", "files", "trials"] = "steps"  # of done and total
    eta_s: float | None = None  # seconds to the end of this work; None: too early to tell


class StepTime(msgspec.Struct, kw_only=True):
    """Milliseconds of one step, averaged over the steps since the last event. They add up to the step."""

    data: float  # waiting for the next batch
    transfer: float  # copying it to the device
    forward: float  # model and loss
    backward: float  # gradients
    sync: float = 0.0  # adding them up with those of the other ranks, and waiting for these
    optimizer: float  # clipping and update
    checkpoint: float = 0.0  # saving, spread over these steps
    other: float  # the rest of the step


class Step(Event, tag="step", kw_only=True):
    """One optimizer update (the newest of those since the last event)."""

    step: int  # number of the update, from 1
    epoch: float  # passes over the data, with the fraction
    tokens: int  # that the loss counted since the run began: of conversations the answers; never padding
    samples: int  # sequences trained on since the run began
    loss: float | None  # mean over the tokens since the last event; None: not a finite number
    learning_rate: float  # of this update
    grad_norm: float | None = None  # before clipping; None: not measured
    tokens_per_s: float  # of these `tokens`, since the last event
    samples_per_s: float  # since the last event
    mfu: float | None = None  # model FLOPs utilisation, 0..1; None where the peak is unknown
    time_ms: StepTime  # where the time went
    bad_steps: int = 0  # left out since the last event, for a gradient that was not finite or jumped


class Performance(Event, tag="performance", kw_only=True):
    """How well the machine is used, at its own interval (`perf_steps`). Bytes, joules.

    Energy is for evaluations, samples and checkpoints too; it is not told of an interval in which training paused, as
    another program may have had the GPU, or went back to a checkpoint.
    """

    step: int  # of this update
    data_ratio: float  # share of the time that was waited for data, 0..1
    compute_ratio: float  # share that forward, backward and optimizer took, 0..1
    mfu: float | None = None  # model FLOPs utilisation, 0..1; None where the peak is unknown
    flops_per_token: float  # forward and backward; the formula is in docs/performance.md
    peak_flops: float | None = None  # per second, that `mfu` is measured against; None: unknown
    peak_name: str = ""  # whose peak that is, in which arithmetic; also where it is unknown. Empty: no GPU
    memory_allocated: int | None = None  # held by tensors; None: no GPU
    memory_reserved: int | None = None  # held by torch's allocator
    memory_peak: int | None = None  # most that tensors held since the last of these events
    energy_j: float | None = None  # of all ranks' GPUs since the last of these events; None: unknown, or see above
    energy_per_million_tokens_j: float | None = None  # at that rate
    gradient_noise: float | None = None  # simple noise scale, in sequences; None: steps are not in parts, or too early
    loss_scale: float | None = None  # fp16: what the loss is multiplied by
    overflows: int = 0  # fp16: steps left out since the run began, for a scale that was too large


class FlopsRow(msgspec.Struct, kw_only=True):
    """The arithmetic of one part of the model."""

    module: str  # its name in the model
    forward: float  # FLOPs of one micro-batch
    backward: float  # FLOPs of one micro-batch
    share: float  # of all, 0..1


class FlopsProfile(Event, tag="flops_profile", kw_only=True):
    """Where the arithmetic of a step is, counted on request (`flops_steps`)."""

    step: int  # at this update
    tokens: int  # positions of the micro-batch that was counted
    total: float  # FLOPs of it, forward and backward
    formula: float  # what the formula behind `mfu` says
    rows: list[FlopsRow] = []  # in the order of the model


class BadStep(Event, tag="bad_step", kw_only=True):
    """A step whose gradient was not finite or jumped. It was found on the device and is told some steps later."""

    step: int  # number of the update
    kind: Literal["not_finite", "spike"]  # what was wrong with its gradient
    grad_norm: float | None = None  # None: not finite
    usual: float | None = None  # the running mean of the norm at that time
    action: Literal["skipped", "rolled_back", "stopped"]  # what was done
    epoch: int = 0  # of its batches, from 0
    samples: list[int] = []  # numbers of its samples in the data


class MemoryMove(Event, tag="memory_move", kw_only=True):
    """A step did not fit, and was done again in another way; or there was room again. The effective batch stays."""

    step: int  # number of the update that was tried
    action: Literal["halved", "checkpointing", "chunked_loss", "grown"]  # what changed
    during: Literal["forward", "backward", "optimizer", "evaluation", "none"]  # where memory ended; none: it did not
    batch_size: int  # sequences of one forward pass from now on
    gradient_accumulation_steps: int  # forward passes of one update from now on
    requested: int | None = None  # bytes that were asked for in vain; None: unknown
    free: int | None = None  # bytes that the device had left then; None: unknown
    total: int | None = None  # bytes of the device; None: unknown


class Trial(msgspec.Struct, kw_only=True):
    """Settings that real steps were run with. Bytes are peaks."""

    batch_size: int  # sequences per micro-batch
    gradient_accumulation_steps: int  # micro-batches per update
    activation_checkpointing: Literal["off", "selective", "full"]  # the knob
    chunked_loss: Literal["auto", "on", "off"]  # the knob
    fits: bool  # the steps were done; False: memory ended
    peak: int | None = None  # of the device's memory: a GPU's, or the process's where there is none; None: it ended
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None  # of full sequences, prompts too; None: not measured


class CheckReport(Event, tag="check", kw_only=True):
    """What real steps of a configuration say before it is started. Bytes; seconds."""

    verdict: Literal["fits", "tight", "does_not_fit"]  # tight: under a tenth of the memory is left
    device: str  # name for people
    chosen: Trial  # the configuration as it is; with an automatic batch the one that was picked
    offers: list[Trial] = []  # that fit with the same effective batch, fastest first
    memory_total: int | None = None  # of the device
    memory_free: int | None = None  # of the device before these steps: what other programs leave
    ram_total: int  # of the machine
    ram_free: int  # before these steps
    total_steps: int  # of the run
    seconds: float | None = None  # to finish at this pace, evaluations and checkpoints left out; None: not measured
    compile_s: float | None = None  # seconds that compiling took, in vain too; None: nothing was compiled
    checkpoint_bytes: int  # of one
    checkpoints: int  # that are kept at most
    disk_needed: int  # for these, one more in the making, and what is missing of the token cache
    disk_free: int  # on the disk of the run
    parameters: int  # trainable weights
    tokens_per_step: int  # of one optimizer update, prompts too, padding left out
    from_cache: bool = False  # measured before, with the same GPU, torch and configuration
    took_s: float = 0.0  # that the check took


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU at one moment. None: this driver or platform does not tell. Bytes, watts, °C, MHz."""

    index: int  # NVML's number
    name: str  # for people
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
    throttle: list[str] = []  # what holds the clocks back: power, thermal, hw_thermal, power_brake …


class Host(msgspec.Struct, kw_only=True):
    """The machine beside its GPUs. Bytes; shares are 0..1."""

    ram_used: int  # by all programs, without what can be freed at once
    ram_total: int  # of the machine
    rss: int  # resident memory of the trainer and its loader workers
    cpu: float  # of all processors, since the last sample
    disk_free: int  # on the disk of the run
    on_battery: bool | None = None  # not plugged in; None: no battery, or nobody tells
    slept_s: float | None = None  # seconds that it was asleep since it was started; None: nobody tells


class Hardware(Event, tag="hardware", kw_only=True):
    """A sample of the machine at its own interval."""

    gpus: list[Gpu] = []  # all NVIDIA GPUs of the machine
    host: Host  # the machine beside them


class Eval(Event, tag="eval", kw_only=True):
    """A pass over the validation sample: the same held-out sequences at every evaluation."""

    step: int  # after this update
    loss: float | None  # mean over all tokens of the sample; None: not a finite number
    perplexity: float | None  # exp(loss)
    tokens: int  # of the sample that count in the loss
    seconds: float  # that it took
    best: bool = False  # the lowest loss so far
    bleu4: float | None = None  # 0..100, prompt/response data only
    exact_match: float | None = None  # 0..1
    examples: int = 0  # held-out prompts that bleu4 and exact_match count
    cut_by_limit: int = 0  # answers longer than `eval_max_new_tokens`
    cut_by_context: int = 0  # answers that reached `max_seq_len`, prompts that leave no room included


class Sample(Event, tag="sample", kw_only=True):
    """Text that the model wrote during training."""

    step: int  # after this update
    prompt: str  # what the model goes on from
    text: str  # without the prompt
    expected: str | None = None  # the held-out answer, where there is one


class Loaded(Event, tag="loaded", kw_only=True):
    """`generate --control stdin` has its model, and writes on command."""

    checkpoint: str  # absolute path of its folder
    step: int  # after which it was saved
    chat: bool  # trained to answer prompts; otherwise it goes on with texts
    parameters: int  # weights
    device: str  # name for people
    max_seq_len: int  # tokens that the model sees at most
    seconds: float = 0.0  # that verifying and loading took


class Text(Event, tag="text", kw_only=True):
    """A piece of what is being written; at most some 20 a second."""

    id: int | None = None  # of the command
    piece: str  # follows the pieces before
    tokens: int  # written so far


class Generated(Event, tag="generated", kw_only=True):
    """A text asked for by `generate` is over."""

    id: int | None = None  # of the command
    tokens: int  # written
    prompt_tokens: int = 0  # given; of more than `max_seq_len` only the newest are seen
    seconds: float  # that it took, reading the prompt included
    tokens_per_s: float  # tokens by seconds
    reason: Literal["end", "length", "interrupted", "failed"]  # failed: a warning before this says why


class Checkpoint(Event, tag="checkpoint", kw_only=True):
    """A checkpoint that is on disk and verified. Paths are names inside the run's checkpoints folder."""

    step: int  # after this update
    path: str  # name of the new folder
    bytes: int  # of all its files
    seconds: float  # that saving took
    kind: CheckpointKind  # why it was made
    kept: list[str] = []  # names of all that are there now
    removed: list[str] = []  # names of those deleted by rotation


class Notice(Event, kw_only=True):
    """Base of what is said in words: a code of `messages.CATALOGUE`, its parameters, technical detail."""

    code: str  # of messages.CATALOGUE, such as memory.out
    params: dict[str, Param] = {}  # for the words of the code
    detail: str = ""  # technical, for experts; not translated


class Advice(Notice, tag="advice", kw_only=True):
    """Something that would make the run better, with the figures that say so."""

    step: int | None = None  # the newest one when this was found; None: not about a step
    fix: dict[str, Any] = {}  # knobs and values that would mend it at the next start; empty: nothing to set
    over: bool = False  # what was said with this code before is no longer so


class Warn(Notice, tag="warning", kw_only=True):
    """Something went less than well; the run goes on."""


class Error(Notice, tag="error", kw_only=True):
    """The run ends because of this. The last event before the process exits with `exit_code`."""

    exit_code: int = 1  # of the process; see the README


class Ack(Event, tag="ack", kw_only=True):
    """The answer to a command, sent when it was taken (not when it is carried out)."""

    command: str  # the one that was taken
    id: int | None = None  # of the command, where it had one
    accepted: bool = True  # False: it cannot be done now
    reason: str = ""  # why it was not accepted


class Done(Event, tag="done", kw_only=True):
    """The run is over, finished or stopped on request; everything is saved."""

    reason: DoneReason  # why it ended
    steps: int  # optimizer updates that the run has now
    total_steps: int  # that were planned
    best_loss: float | None = None  # lowest eval loss
    final_loss: float | None = None  # last eval loss
    tokens: int = 0  # that the loss counted since the run began, as `Step.tokens`
    seconds: float = 0.0  # spent in steps since the run began: not preparing, compiling, evaluating or paused
    tokens_per_s: float = 0.0  # of these tokens in these seconds
    peak_vram: int | None = None  # most bytes that torch reserved; None: no GPU
    model: str | None = None  # path of the checkpoint that holds the result


AnyEvent = (
    Hello
    | Ready
    | DataReport
    | Phase
    | Progress
    | Step
    | Performance
    | FlopsProfile
    | BadStep
    | MemoryMove
    | CheckReport
    | Hardware
    | Eval
    | Sample
    | Loaded
    | Text
    | Generated
    | Checkpoint
    | Advice
    | Warn
    | Error
    | Ack
    | Done
)
DROPPABLE: Final = (Step, Performance, Hardware, Progress)
"""Events that may be left out when the reader is slow; all others always arrive."""


class Command(msgspec.Struct, kw_only=True, tag_field="command"):
    """What every command has. An `id` comes back in the acknowledgement."""

    id: int | None = None  # any number; comes back in the ack


class Stop(Command, tag="stop", kw_only=True):
    """Finish the step, save a checkpoint, exit 3."""


class Pause(Command, tag="pause", kw_only=True):
    """Finish the step and wait."""


class Resume(Command, tag="resume", kw_only=True):
    """Go on after a pause."""


class Save(Command, tag="save", kw_only=True):
    """Save a checkpoint at the end of this step."""


class SampleNow(Command, tag="sample", kw_only=True):
    """Write a text from `prompt` at the end of this step."""

    prompt: str = ""  # what to go on from; empty: as the run's own samples
    max_tokens: int = 64  # length of the text


class Set(Command, tag="set", kw_only=True):
    """Change an interval while running. Only what does not change the result may be set."""

    name: Literal["log_steps", "sample_steps", "perf_steps", "flops_steps", "hardware_interval_s"]  # the knob
    value: float  # from now on


class Turn(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: str  # system, user, assistant or tool
    content: str  # what it says


class Generate(Command, tag="generate", kw_only=True):
    """Write a text (`generate --control stdin`). One after the other; `text` and `generated` carry the command's id."""

    prompt: str = ""  # to go on from, or to answer
    turns: list[Turn] = []  # a conversation to answer, in place of the prompt; for a model that chats
    max_tokens: int = 200  # length of the text; from 1
    temperature: float = 0.8  # 0 to 5; 0: always the likeliest
    top_k: int = 0  # only the likeliest so many; 0: no limit
    top_p: float = 1.0  # only the likeliest that reach this share together; above 0, at most 1
    seed: int = 0  # the same seed, the same text; from 0


class Interrupt(Command, tag="interrupt", kw_only=True):
    """End what is being written, and what was asked for before this; what was written stays."""


AnyCommand = Stop | Pause | Resume | Save | SampleNow | Set | Generate | Interrupt

_event_decoder: Final[msgspec.json.Decoder[AnyEvent]] = msgspec.json.Decoder(AnyEvent)
_command_decoder: Final[msgspec.json.Decoder[AnyCommand]] = msgspec.json.Decoder(AnyCommand)


_NOT_OURS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: `[[[[[…`


class ProtocolError(ValueError):
    """A line that is not an event (or command) of this protocol."""


def encode(message: AnyEvent | AnyCommand) -> bytes:
    """One line with its newline. ASCII only; NaN and infinity become null, which JSON knows."""
    built = msgspec.to_builtins(message)
    return json.dumps(_sendable(built), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _sendable(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, str):
        # Lone surrogates (undecodable file names on Linux) are no text: strict readers refuse the whole line.
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value


def decode_event(line: bytes) -> AnyEvent:
    """The event of one line. Unknown fields are ignored (a newer minor version); raises `ProtocolError`."""
    try:
        return _event_decoder.decode(line)
    except _NOT_OURS as error:
        raise ProtocolError(str(error)) from error


def decode_command(line: bytes) -> AnyCommand:
    """The command of one line; raises `ProtocolError`."""
    try:
        return _command_decoder.decode(line)
    except _NOT_OURS as error:
        raise ProtocolError(str(error)) from error


def event_types() -> tuple[type[Event], ...]:
    """All events, in the order of this file: for the generated reference."""
    return get_args(AnyEvent)


def command_types() -> tuple[type[Command], ...]:
    """All commands, in the order of this file."""
    return get_args(AnyCommand)
