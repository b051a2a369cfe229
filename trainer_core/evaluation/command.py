"""Command `evaluate`: finds models and rows, evaluates, keeps the results."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from trainer_core import presets, protocol, run_plan
from trainer_core.base_model import preset_run
from trainer_core.config import Config, ConfigLayer
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import Document
from trainer_core.evaluation.judge import TIME_LIMIT_S, Judge, load_judge
from trainer_core.evaluation.report import (
    FOLDER,
    RowResult,
    Rows,
    comparable_losses,
    main_score,
    require_own_results,
    require_replaceable,
    score_models,
    write_results,
)
from trainer_core.evaluation.rows import Conversation, draw_examples, select_rows
from trainer_core.generation.model_source import ModelSource, find_model
from trainer_core.messages import TraindeckError
from trainer_core.protocol import TaskScores
from trainer_core.run_context import RunContext
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

ModelName = Literal["model", "base", "system", "examples", "tuned"]

_NO_FLAGS: Final = {"preset": None, "config_file": None}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command. `rows`: 0 for all; `max_new_tokens`: 0 for twice the tokens of the reference.

    `compare`: also evaluate the base model, with the prompt `system` if it is set and with `examples` training rows.
    """

    rows: int = 0
    max_new_tokens: int = 0
    judge: str = ""
    results: Path | None = None
    compare: bool = False
    system: str = ""
    examples: int = 0
    device: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to evaluate.

    data: Settings of the data to evaluate on. `training_data`: those from which examples are drawn.
    base: Base model of the run. None: it has none, or the model is no run.
    all_rows: Whether `data` are evaluated as a whole; otherwise their held-out rows.
    max_seq_len: Tokens at which the losses of a run with these settings are cut; 0: without settings, as of the model.
    """

    source: ModelSource
    base: ModelSource | None
    run: RunDir | None
    data: Config
    training_data: Config
    all_rows: bool
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class Variant:
    """A model and what precedes its prompts."""

    name: ModelName
    source: ModelSource
    system: str = ""
    examples: Sequence[Conversation] = ()


def find_subject(model: str, flags: Mapping[str, Any], options: Options, context: RunContext) -> Subject:
    """The model that `model` names: a run or model as `find_model` finds, or the base model of a preset (`preset:NAME`)
    or of a file of knobs, with its data; a base model that is a preset itself is trained first. `flags`: knobs of the
    user.

    Raises as these and `run_plan.build_config`, `evaluate.no_data` without a run and data, and `evaluate.no_base` with
    `compare` for a run without a base model that is not to be one of a next run, on other data.
    """
    planned = _planned_run(model)
    if planned is None:
        source = find_model(model, context)
        run = _run_of(source)
        layers = [ConfigLayer(str(run.config), presets.read_mapping(run.config))] if run is not None else []
    else:
        source, run, layers = _find_base(model, planned.values, options.device, context), None, [planned]
    config = run_plan.build_config({**_NO_FLAGS, **flags}, layers)
    if flags.get("data"):
        config = msgspec.structs.replace(config, validation_data=[])
    if not config.data:
        raise TraindeckError("evaluate.no_data", path=str(source.folder))
    tuned = run is not None and bool(layers[0].values.get("base_model"))
    if options.compare and run is not None and not tuned and not flags.get("data"):
        raise TraindeckError("evaluate.no_base", path=str(run.path))
    base = find_model(model, context, base=True) if options.compare and tuned else None
    if not flags.get("data") or (options.compare and base is None and planned is None):
        training_data, all_rows = config, False
    else:
        training_data, all_rows = run_plan.build_config(_NO_FLAGS, layers), True
    return Subject(source, base, run, config, training_data, all_rows, config.max_seq_len if layers else 0)


def _planned_run(model: str) -> ConfigLayer | None:
    """Settings of `preset:NAME` or of a YAML file; None: `model` is neither."""
    if model.startswith(preset_run.PREFIX):
        return presets.load(model.removeprefix(preset_run.PREFIX)).layer()
    is_file = Path(model).suffix.lower() in (".yaml", ".yml")
    return ConfigLayer(model, presets.read_mapping(Path(model))) if is_file else None


def _find_base(model: str, settings: Mapping[str, Any], device: str, context: RunContext) -> ModelSource:
    """The base model of `settings`; of a preset without one, the model of the preset."""
    base = str(settings.get("base_model") or (model if model.startswith(preset_run.PREFIX) else ""))
    if not base:
        raise TraindeckError("base_model.none", path=model)
    if base.startswith(preset_run.PREFIX):
        base = str(preset_run.find_or_train(base.removeprefix(preset_run.PREFIX), device, context))
    endpoint, send_token = str(settings.get("hub_endpoint") or ""), bool(settings.get("hub_send_token"))
    return find_model(base, context, endpoint=endpoint, send_token=send_token)


def _run_of(source: ModelSource) -> RunDir | None:
    """The run of a checkpoint."""
    run = RunDir(source.checkpoint.parent.parent) if source.checkpoint is not None else None
    return run if run is not None and run.exists() else None


def _load_judge(text: str, context: RunContext) -> Judge:
    """A judge that rejects answers for which a pattern takes too long. The first one is reported."""
    judge, slow = load_judge(text), list[str]()

    @functools.cache
    def accepts(answer: str) -> bool:
        try:
            return judge(answer)
        except TimeoutError:
            if not slow:
                context.warn("evaluate.slow_judge", judge=text, seconds=round(TIME_LIMIT_S))
            slow.append(answer)
            return False

    return accepts


def evaluate(subject: Subject, options: Options, context: RunContext) -> protocol.Evaluation:
    """Evaluate a model, and with `compare` its base model, on the same rows, and keep the results.

    If the results cannot be written, the scores are emitted first.

    Raises as `require_own_results`, `select_rows`, `draw_examples`, `generate.load_model`, `choose_device` and
    `write_results`, `evaluate.bad_judge`, `evaluate.rows_refused` and `StopRequested`.
    """
    judge = _load_judge(options.judge, context) if options.judge else None
    if options.results is not None:
        require_own_results(options.results, [*subject.data.data, *subject.data.validation_data])
    context.set_phase("preparing")
    task, documents, paths = select_rows(subject.data, options.rows, subject.all_rows, context)
    variants = _variants(subject, task, documents, options, context)
    results, seconds = _run(variants, task, documents, subject, options, context)
    kept = [row for row in range(len(documents)) if all(found[row] is not None for found in results.values())]
    if not kept:
        raise TraindeckError("evaluate.rows_refused", count=len(documents))
    usable = {name: [one for row in kept if (one := found[row]) is not None] for name, found in results.items()}
    target = options.results or _default_target(subject.run)
    event = protocol.Evaluation(
        t=time.time(),
        task="pretrain" if task == "pretrain" else "sft",
        data=subject.data.data,
        rows=len(kept),
        refused=len(documents) - len(kept),
        not_in_loss=0 if task == "pretrain" else comparable_losses(usable).count(False),
        judge=options.judge,
        main_score=main_score(task, judge),
        results=str(target or ""),
        scores=score_models(task, usable, judge, options.seed),
    )
    for scores, variant in zip(event.scores, variants, strict=True):
        scores.model, scores.seconds = str(variant.source.folder), seconds[variant.name]
    if target is not None:
        context.set_phase("saving")
        try:
            write_results(target, event, Rows(task, [documents[row] for row in kept], paths), usable, judge)
        except TraindeckError:
            context.emit(msgspec.structs.replace(event, results=""))
            raise
    return event


def run_tasks(model: str, tasks: str, include_path: Path | None, options: Options, context: RunContext) -> TaskScores:
    """Run tasks of `lm-eval`, separated by commas. The results of a model that is no run go to the current folder.

    Raises as `find_model`, `require_replaceable` and `harness.run_tasks`.
    """
    from trainer_core.evaluation import harness
    from trainer_core.train.device import choose_device

    source = find_model(model, context)
    target = options.results or _default_target(_run_of(source), ".lm_eval.json") or Path("lm_eval.json").absolute()
    require_replaceable(target, harness.holds_results)
    device, names = str(choose_device(options.device)), [name.strip() for name in tasks.split(",")]
    return harness.run_tasks(source, names, include_path, device, target, context)


def _variants(
    subject: Subject, task: Task, documents: Sequence[Document], options: Options, context: RunContext
) -> list[Variant]:
    """The models to evaluate. Prompts and examples precede conversations only."""
    if not options.compare:
        return [Variant("model", subject.source)]
    base = subject.base or subject.source
    variants = [Variant("base", base)]
    if options.system and task == "sft":
        variants.append(Variant("system", base, options.system))
    if options.examples and task == "sft":
        drawn = draw_examples(subject.training_data, options.examples, documents, context)
        variants.append(Variant("examples", base, options.system, drawn))
    return variants if subject.base is None else [*variants, Variant("tuned", subject.source)]


def _default_target(run: RunDir | None, suffix: str = ".jsonl") -> Path | None:
    """A new file in the folder of the run."""
    if run is None:
        return None
    folder = run.path / FOLDER
    names = {path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}")}
    return folder / f"{run_dir.unique_name(time.strftime('%Y%m%d-%H%M%S'), names)}{suffix}"


def _run(
    variants: Sequence[Variant],
    task: Task,
    documents: Sequence[Document],
    subject: Subject,
    options: Options,
    context: RunContext,
) -> tuple[dict[str, list[RowResult | None]], dict[str, float]]:
    """Results of all rows and seconds by the name of the variant. None: the chat template cannot write the row.

    One model is in memory at a time.
    """
    from trainer_core.evaluation import inference
    from trainer_core.generation import generate
    from trainer_core.train.device import choose_device
    from trainer_core.train.oom import release_memory

    device = choose_device(options.device)
    results: dict[str, list[RowResult | None]] = {}
    seconds: dict[str, float] = {}
    for source, own in itertools.groupby(variants, lambda variant: variant.source):
        context.set_phase("loading")
        with context.interruptible():
            loaded = generate.load_model(source, device)
        context.set_phase("evaluating")
        for variant in own:
            began = time.monotonic()
            rows = [inference.encode(loaded, one, variant.system, variant.examples) for one in documents]
            usable = [row for row in rows if row is not None]
            window = 0 if variant.system or variant.examples else subject.max_seq_len
            found = iter(inference.run_model(loaded, usable, task, options.max_new_tokens, window, context))
            results[variant.name] = [None if row is None else next(found) for row in rows]
            seconds[variant.name] = time.monotonic() - began
        del loaded
        release_memory(device)
    return results, seconds
