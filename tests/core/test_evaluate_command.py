"""`evaluate`: scores of a trained model on held-out rows and on given data."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import yaml
from torch import nn

from tests.core.test_transformers_models import base_folder
from tests.core.trainer_process import entered_phase, finish, read_until, run, send, start
from tests.core.training import OUT_OF_MEMORY, build_trainer, pairs_file, text_file, tiny_config
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.base_model.configure import apply_base_model, without_found_folder
from trainer_core.console.evaluation import format_notes
from trainer_core.data.prepare import prepare
from trainer_core.evaluation import command, harness, inference, scores
from trainer_core.evaluation.command import Options
from trainer_core.evaluation.rows import draw_examples, select_rows
from trainer_core.generation import generate
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.wire import EventDispatcher

CPU = torch.device("cpu")


class Trained(NamedTuple):
    """Two runs below `home`, one of prompts and responses and one of text, and the last `eval` event of the first."""

    home: Path
    pairs: RunDir
    text: RunDir
    eval_event: protocol.Eval


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("主 home")
    values = {
        "validation_fraction": 0.2, "eval_batches": 50, "max_steps": 30, "optimizer": "muon", "vocab_size": 300,
        "cpu_threads": 1,
    }  # fmt: skip
    evals = {}
    for name, data in (("pairs", pairs_file(home)), ("text", text_file(home))):
        config = tiny_config(home, data, **values)
        (home / "runs").mkdir(exist_ok=True)
        trainer, sink = build_trainer(home / "runs", config, name)
        trainer.run_dir.write_config(config)
        trainer.run()
        evals[name] = sink.events_of(protocol.Eval)[-1]
    return Trained(home, RunDir(home / "runs" / "pairs"), RunDir(home / "runs" / "text"), evals["pairs"])


def evaluate(model: Path, data: Path | None = None, **options: Any) -> protocol.Evaluation:
    context = RunContext(EventDispatcher(RecordingSink()))
    flags, values = {"data": (str(data),)} if data else {}, Options(device="cpu", **options)
    return command.evaluate(command.find_subject(str(model), flags, values, context), values, context)


def read_rows(event: protocol.Evaluation) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(event.results).read_text(encoding="utf-8").splitlines()]


def values_of(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row["models"]["model"][name] for row in rows]


# --- agreement with the run, sacrebleu and transformers ---------------------------------------------------------------


def test_the_held_out_rows_have_the_scores_of_the_run_s_own_evaluation(trained: Trained) -> None:
    event = evaluate(trained.pairs.path)
    (model,) = event.scores
    assert (event.rows, event.refused, model.tokens) == (42, 0, trained.eval_event.tokens)
    assert model.loss is not None
    assert model.exact_match is not None
    assert model.bleu4 is not None
    assert model.loss.value == pytest.approx(trained.eval_event.loss, rel=1e-5)
    assert model.exact_match.value == trained.eval_event.exact_match
    assert model.bleu4.value == pytest.approx(trained.eval_event.bleu4)
    truncated = (trained.eval_event.truncated_by_limit, trained.eval_event.truncated_by_context)
    assert (model.truncated_by_limit, model.truncated_by_context) == truncated


def test_the_scores_are_those_of_sacrebleu_for_the_answers_in_the_results(trained: Trained) -> None:
    from sacrebleu import corpus_bleu, corpus_chrf, sentence_chrf

    event = evaluate(trained.pairs.path, judge="regex:^x")
    rows, model = read_rows(event), event.scores[0]
    answers, references = values_of(rows, "answer"), [row["reference"] for row in rows]
    assert any(answers)
    assert model.chrf is not None
    assert model.bleu4 is not None
    assert model.judged is not None
    assert model.chrf.value == pytest.approx(corpus_chrf(answers, [references]).score)
    bleu = corpus_bleu(answers, [references], tokenize="zh", use_effective_order=True)
    assert model.bleu4.value == pytest.approx(bleu.score)
    assert model.judged.value == pytest.approx(sum(answer.startswith("x") for answer in answers) / len(answers))
    assert values_of(rows, "judged") == [answer.startswith("x") for answer in answers]
    sentences = [sentence_chrf(*pair).score for pair in zip(answers, ([one] for one in references), strict=True)]
    assert values_of(rows, "chrf") == pytest.approx(sentences, abs=1e-3)
    by_tokens = zip(values_of(rows, "loss"), values_of(rows, "tokens"), strict=True)
    assert model.loss is not None
    assert model.loss.value == pytest.approx(sum(loss * tokens for loss, tokens in by_tokens) / model.tokens)


def test_a_judge_that_takes_too_long_rejects_the_answer_and_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_core.evaluation.judge.TIME_LIMIT_S", 0.1)
    sink = RecordingSink()
    judge = command._load_judge("regex:^(a|aa)+$", RunContext(EventDispatcher(sink)))
    assert [judge(answer) for answer in ("aaa", "a" * 60 + "b", "a" * 61 + "b")] == [True, False, False]
    (warning,) = sink.events_of(protocol.Warn)
    assert (warning.code, warning.params["judge"]) == ("evaluate.slow_judge", "regex:^(a|aa)+$")


def test_perplexity_is_that_of_transformers(trained: Trained) -> None:
    transformers = pytest.importorskip("transformers")
    folder = checkpoint_dir.list_checkpoints(trained.text.checkpoints)[-1]
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    data = text_file(trained.home)
    event = evaluate(trained.text.path, data)
    texts = [
        document.text for document in select_rows(tiny_config(trained.home, data), 0, True, NullReporter()).documents
    ]
    assert "".join(texts) == data.read_text(encoding="utf-8")
    loss = tokens = 0.0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        for begin in range(0, len(ids) - 1, 48):  # max_seq_len
            window = torch.tensor([ids[begin : begin + 49]])
            with torch.no_grad():
                loss += reference(window, labels=window).loss.item() * (window.shape[1] - 1)
            tokens += window.shape[1] - 1
    (model,) = event.scores
    assert model.tokens == tokens
    assert model.perplexity is not None
    assert model.perplexity.value == pytest.approx(math.exp(loss / tokens), rel=1e-4)


def test_intervals_agree_with_those_of_sacrebleu_and_depend_on_the_seed_alone() -> None:
    draw = random.Random(0)
    words = ["the", "model", "learns", "一", "个", "词元", "at", "each", "step"]
    references = [" ".join(draw.choices(words, k=draw.randint(2, 12))) for _ in range(150)]
    answers = [" ".join(word if draw.random() < 0.8 else "?" for word in one.split()) for one in references]
    for metric in (scores.bleu(), scores.chrf()):
        found = scores.Bootstrap(150, 7).corpus(metric, answers, references)
        own = metric.corpus_score(answers, [references], n_bootstrap=1000)
        assert found is not None
        assert found.value == pytest.approx(own.score)
        assert (found.high - found.low) / 2 == pytest.approx(own._ci, rel=0.15)
        assert found == scores.Bootstrap(150, 7).corpus(metric, answers, references)
        assert found != scores.Bootstrap(150, 8).corpus(metric, answers, references)


def test_resamples_of_many_rows_are_drawn_in_chunks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random(300)
    whole = scores.Bootstrap(300, 5).mean(values.tolist())
    monkeypatch.setattr(scores, "_CHUNK_COUNTS", 7 * 300)
    parts = scores.Bootstrap(300, 5).mean(values.tolist())
    assert whole is not None
    assert parts is not None
    assert msgspec.structs.astuple(parts) == pytest.approx(msgspec.structs.astuple(whole), rel=1e-12)
    tracemalloc.start()
    scores.Bootstrap(5000, 5)
    assert tracemalloc.get_traced_memory()[1] < 2000 * 5000, "less than 2 KB for each row"
    tracemalloc.stop()


# --- rows -----------------------------------------------------------------------------------------------------------


def test_the_rows_are_those_that_the_run_holds_out(trained: Trained) -> None:
    config = tiny_config(trained.home, pairs_file(trained.home), validation_fraction=0.2)
    prepared = prepare(config, NullReporter())
    rows = select_rows(config, 10, False, NullReporter()).documents
    assert sorted(row.turns for row in rows) == sorted(map(tuple, prepared.held_out_chats(10)))
    assert len(select_rows(config, 0, False, NullReporter()).documents) == prepared.validation.documents


def test_examples_are_training_rows_that_are_not_evaluated(trained: Trained) -> None:
    config = tiny_config(trained.home, pairs_file(trained.home), validation_fraction=0.5)
    held_out = select_rows(config, 0, False, NullReporter()).documents
    everything = select_rows(config, 0, True, NullReporter()).documents
    training = {row.turns for row in everything} - {row.turns for row in held_out}
    drawn = draw_examples(config, 30, held_out, NullReporter())
    assert len(set(drawn) & training) == 30
    leaked = [row for row in everything if row.turns == drawn[0]]
    assert drawn[0] not in draw_examples(config, 30, [*held_out, *leaked], NullReporter())
    with pytest.raises(TraindeckError) as raised:
        draw_examples(config, 1000, held_out, NullReporter())
    assert (raised.value.code, raised.value.params["found"]) == ("evaluate.no_examples", len(training))


def test_a_conversation_that_the_template_refuses_is_left_out(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    good = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}]
    tool = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}]
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in (good, tool, good)), encoding="utf-8")
    event = evaluate(trained.pairs.path, path)
    assert (event.rows, event.refused) == (2, 1)
    assert [row["row"] for row in read_rows(event)] == [0, 2]


def test_a_row_of_the_results_is_named_by_its_file_and_its_number_there(trained: Trained, tmp_path: Path) -> None:
    good = '{"prompt": "1 + 1 =", "response": "2"}\n'
    (tmp_path / "a.jsonl").write_text(good + '{"prompt": "", "response": "2"}\nno JSON\n' + good, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(good, encoding="utf-8")
    event = evaluate(trained.pairs.path, tmp_path, results=tmp_path / "out" / "rows.jsonl")
    expected = [("a.jsonl", 0), ("a.jsonl", 3), ("b.jsonl", 0)]
    assert [(Path(row["file"]).name, row["row"]) for row in read_rows(event)] == expected


# --- comparison -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(trained: Trained) -> tuple[RunDir, list[protocol.Eval]]:
    """A LoRA run whose base model is the run of pairs, on other pairs with room for examples, and its evaluations."""
    path = trained.home / "other.jsonl"
    rows = ({"prompt": f"{n}?", "response": "11"} for n in range(120))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    values = {
        "base_model": str(trained.pairs.path), "method": "lora", "learning_rate": 3e-2, "eval_on_start": True,
        "validation_fraction": 0.2, "eval_batches": 50, "eval_steps": 0, "max_steps": 60, "max_seq_len": 30,
        "cpu_threads": 1,
    }  # fmt: skip
    config = apply_base_model(tiny_config(trained.home, path, **values), NullReporter())
    trainer, sink = build_trainer(trained.home / "runs", config, "tuned")
    trainer.run_dir.write_config(without_found_folder(config))
    trainer.run()
    return trainer.run_dir, sink.events_of(protocol.Eval)


def test_base_and_tuned_model_are_compared_on_the_rows_held_out_by_the_run(
    tuned: tuple[RunDir, list[protocol.Eval]],
) -> None:
    run_dir, (first, *_, last) = tuned
    event = evaluate(run_dir.path, compare=True, system="Answer.", examples=1)
    base, system, examples, model = event.scores
    assert [one.name for one in event.scores] == ["base", "system", "examples", "tuned"]
    for scores_, eval_ in ((base, first), (model, last)):
        assert scores_.loss is not None
        assert scores_.exact_match is not None
        assert scores_.loss.value == pytest.approx(eval_.loss, rel=1e-5)
        assert scores_.exact_match.value == eval_.exact_match
    assert base.tokens == system.tokens == examples.tokens == model.tokens
    assert len({one.loss.value for one in event.scores if one.loss}) == 4
    rows = read_rows(event)
    assert [*rows[0]["models"]] == ["base", "system", "examples", "tuned"]
    difference = [row["models"]["tuned"]["exact_match"] - row["models"]["base"]["exact_match"] for row in rows]
    assert model.gain is not None
    assert model.gain.value == pytest.approx(sum(difference) / len(difference))
    assert base.gain is None
    assert base.loss is not None
    assert model.loss is not None
    assert model.loss.high < base.loss.low


def test_all_losses_of_a_comparison_are_over_the_same_rows(
    trained: Trained, tuned: tuple[RunDir, list[protocol.Eval]], tmp_path: Path
) -> None:
    rows = [{"prompt": f"{n}?" if n % 2 else f"{n} 1 2 3 4 5 6?", "response": "11"} for n in range(20)]
    path = tmp_path / "mix.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    event = evaluate(tuned[0].path, path, compare=True, examples=2)
    long = {row["row"] for row in read_rows(event) if row["models"]["examples"]["tokens"] == 0}
    assert long == {*range(0, 20, 2)}
    assert (event.rows, event.not_in_loss, {one.tokens for one in event.scores}) == (20, 10, {30})
    alone = tmp_path / "short.jsonl"
    alone.write_text("".join(json.dumps(row) + "\n" for row in rows[1::2]), encoding="utf-8")
    short = evaluate(tuned[0].path, alone, compare=True, examples=2)
    assert [one.loss.value for one in event.scores if one.loss] == pytest.approx(
        [one.loss.value for one in short.scores if one.loss], rel=1e-5
    )
    assert "10 rows are not in the losses" in "".join(format_notes(event, "en"))
    many = evaluate(tuned[0].path, path, compare=True, examples=8)  # leave no room for any answer
    assert many.not_in_loss == 0
    assert [one.loss is None for one in many.scores] == [False, True, False]


def test_a_run_without_a_base_model_is_not_compared_on_its_own_data(trained: Trained) -> None:
    with pytest.raises(TraindeckError) as raised:
        evaluate(trained.pairs.path, compare=True)
    assert raised.value.code == "evaluate.no_base"


def test_before_training_the_rows_that_a_run_would_hold_out_are_evaluated(
    trained: Trained, tuned: tuple[RunDir, list[protocol.Eval]]
) -> None:
    after, data = evaluate(tuned[0].path, compare=True), trained.home / "other.jsonl"
    before = evaluate(trained.pairs.path, data, compare=True, examples=1)
    assert [one.name for one in before.scores] == ["base", "examples"]
    assert before.scores[0].loss == after.scores[0].loss
    assert [row["row"] for row in read_rows(before)] == [row["row"] for row in read_rows(after)]
    planned = evaluate(tuned[0].config, compare=True, examples=1, results=trained.home / "planned.jsonl")
    assert [one.loss for one in planned.scores] == [one.loss for one in before.scores]
    assert read_rows(planned)[0]["models"].keys() == {"base", "examples"}


def test_all_rows_of_a_file_are_evaluated_with_examples_from_the_data_of_a_configuration(trained: Trained) -> None:
    data, settings = trained.home / "few.jsonl", trained.home / "设置.yaml"
    data.write_text('{"prompt": "5 + 5 =", "response": "10"}\n' * 3, encoding="utf-8")
    knobs = {"base_model": str(trained.pairs.path), "data": [str(pairs_file(trained.home))], "validation_fraction": 0.2}
    settings.write_text(yaml.safe_dump(knobs, allow_unicode=True), encoding="utf-8")
    event = evaluate(settings, data, compare=True, examples=1)
    assert (event.rows, [one.name for one in event.scores]) == (3, ["base", "examples"])


def test_a_base_model_has_the_scores_of_the_evaluation_of_a_run_with_the_settings(
    trained: Trained, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.yaml"
    knobs = yaml.safe_load(trained.pairs.config.read_text(encoding="utf-8"))
    for max_seq_len in (48, 16):  # that of the run, and one that cuts responses
        changed = {**knobs, "base_model": str(trained.pairs.path), "max_seq_len": max_seq_len}
        settings.write_text(yaml.safe_dump(changed, allow_unicode=True), encoding="utf-8")
        (base,) = evaluate(settings, compare=True).scores
        assert base.loss is not None
        is_equal = base.loss.value == pytest.approx(trained.eval_event.loss, rel=1e-5)
        assert is_equal is (max_seq_len == 48)


def test_settings_without_a_base_model_are_refused(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump({"data": [str(pairs_file(tmp_path))]}), encoding="utf-8")
    with pytest.raises(TraindeckError) as raised:
        evaluate(settings, compare=True)
    assert raised.value.code == "base_model.none"


def test_a_base_model_without_the_tokens_of_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", "llama", chat_tokens=False)
    with pytest.raises(TraindeckError) as raised:
        evaluate(folder, pairs_file(tmp_path), compare=True)
    assert raised.value.code == "evaluate.no_template"


def test_a_model_folder_has_the_perplexity_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder, data = base_folder(tmp_path / "模型", "qwen3", num_key_value_heads=2, head_dim=16), tmp_path / "a.txt"
    data.write_text("The river is wide. 河流很宽。", encoding="utf-8")
    (model,) = evaluate(folder, data).scores
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    text = data.read_text(encoding="utf-8")
    ids = torch.tensor([transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])
    with torch.no_grad():
        expected = reference(ids, labels=ids).loss.item()
    assert model.loss is not None
    assert model.loss.value == pytest.approx(expected, rel=1e-4)


# --- memory, results, errors ------------------------------------------------------------------------------------------


def test_batches_that_run_out_of_memory_are_split(trained: Trained) -> None:
    config = tiny_config(trained.home, pairs_file(trained.home))
    task, documents, _ = select_rows(config, 40, True, NullReporter())
    loaded = generate.load_model(checkpoint_dir.list_checkpoints(trained.pairs.checkpoints)[-1], CPU)
    rows = [row for document in documents if (row := inference.encode(loaded, document))]
    expected = inference.run_model(loaded, rows, task, 4, 0, NullReporter())
    failures = []

    def too_large(module: nn.Module, args: Any) -> None:
        if len(args[0]) > 5:
            failures.append(len(args[0]))
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    loaded.model.model.layers[1].register_forward_pre_hook(too_large)  # type: ignore[union-attr, index]
    found = inference.run_model(loaded, rows, task, 4, 0, NullReporter())
    assert failures
    assert [one.answer for one in found] == [one.answer for one in expected]
    assert [one.loss for one in found] == pytest.approx([one.loss for one in expected], rel=1e-4)


def test_results_go_to_the_run_or_to_a_given_file(trained: Trained, tmp_path: Path) -> None:
    first, second = evaluate(trained.pairs.path, rows=3), evaluate(trained.pairs.path, rows=3)
    assert first.results != second.results
    assert Path(first.results).parent == trained.pairs.path / "evaluations"
    summary = protocol.decode_event(Path(first.results).with_suffix(".summary.json").read_bytes())
    assert summary == first
    target = tmp_path / "新 folder" / "rows.jsonl"
    assert evaluate(trained.pairs.path, rows=3, results=target).results == str(target)
    assert target.is_file()


def test_results_replace_only_those_of_an_earlier_evaluation(trained: Trained, tmp_path: Path) -> None:
    model, data, notes = trained.pairs.path, tmp_path / "data.jsonl", tmp_path / "notes.jsonl"
    data.write_bytes(pairs_file(tmp_path).read_bytes())
    notes.write_text('{"row": 1}\n', encoding="utf-8")
    (tmp_path / "other.summary.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty.jsonl").touch()
    before = {path: path.read_bytes() for path in (data, notes, tmp_path / "other.summary.json")}
    for target in (data, notes, tmp_path / "other.jsonl", tmp_path):
        with pytest.raises(TraindeckError) as raised:
            evaluate(model, data, rows=3, results=target)
        assert raised.value.code == "evaluate.overwrites"
    assert {path: path.read_bytes() for path in before} == before
    first = evaluate(model, data, rows=3, results=tmp_path / "empty.jsonl")
    second = evaluate(model, data, rows=2, results=Path(first.results))
    assert len(read_rows(second)) == 2


def test_results_that_are_evaluated_are_not_replaced(trained: Trained, tmp_path: Path) -> None:
    rows = Path(evaluate(trained.pairs.path, rows=3, results=tmp_path / "rows.jsonl").results)
    with pytest.raises(TraindeckError) as raised:
        evaluate(trained.text.path, rows, results=rows)
    assert raised.value.code == "evaluate.overwrites"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_place_that_cannot_be_written_is_reported_before_evaluating(trained: Trained) -> None:
    result = run(trained.home, "evaluate", "pairs", "--device", "cpu", "--results", "/proc/x.jsonl")
    assert [one.code for one in result.events_of(protocol.Error)] == ["disk.not_writable"]
    assert "evaluating" not in [one.phase for one in result.events_of(protocol.Phase)]


def test_scores_are_emitted_even_if_the_disk_is_full(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", fail)
    sink, values = RecordingSink(), Options(device="cpu", rows=3)
    context = RunContext(EventDispatcher(sink))
    with pytest.raises(TraindeckError) as raised:
        command.evaluate(command.find_subject(str(trained.pairs.path), {}, values, context), values, context)
    assert raised.value.code == "disk.full"
    (event,) = sink.events_of(protocol.Evaluation)
    assert (event.rows, event.results) == (3, "")


def test_a_folder_without_a_run_needs_data(trained: Trained, tmp_path: Path) -> None:
    alone = tmp_path / "copied"
    checkpoint_dir.list_checkpoints(trained.pairs.checkpoints)[-1].rename(alone)
    try:
        with pytest.raises(TraindeckError) as raised:
            evaluate(alone)
        assert raised.value.code == "evaluate.no_data"
        assert evaluate(alone, pairs_file(tmp_path), rows=3).results == ""
    finally:
        alone.rename(trained.pairs.checkpoints / "step-00000030")


def test_the_command_emits_progress_and_the_scores(trained: Trained) -> None:
    result = run(trained.home, "evaluate", "pairs", "--rows", "8", "--device", "cpu", "--judge", "regex:x")
    assert result.code == 0, result.stderr
    (event,) = result.events_of(protocol.Evaluation)
    assert (event.rows, event.scores[0].name) == (8, "model")
    steps = [one for one in result.events_of(protocol.Progress) if one.phase == "evaluating"]
    assert steps[-1].done == steps[-1].total == 16
    phases = [one.phase for one in result.events_of(protocol.Phase)]
    assert phases == ["preparing", "loading", "evaluating", "saving", "done"]


def test_a_stop_ends_the_command_without_results(trained: Trained) -> None:
    before = set((trained.pairs.path / "evaluations").glob("*"))
    process = start(trained.home, "evaluate", "pairs", "--control", "stdin", stdin=subprocess.PIPE)
    read_until(process, entered_phase("preparing"))  # torch is not yet imported
    send(process, protocol.Stop())
    assert finish(process).code == 3
    assert set((trained.pairs.path / "evaluations").glob("*")) == before


def test_mistakes_are_reported_before_a_model_is_loaded(trained: Trained) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "evaluate.bad_judge": {"model": trained.pairs.path, "judge": "regex:("},
        "base_model.not_found": {"model": trained.home / "no such run"},
        "data.not_found": {"model": trained.pairs.path, "data": trained.home / "no such file"},
    }
    for code, arguments in wrong.items():
        with pytest.raises(TraindeckError) as raised:
            evaluate(**arguments)
        assert raised.value.code == code


# --- lm-eval ----------------------------------------------------------------------------------------------------------


def run_tasks(model: Path, tasks: str, include_path: Path, results: Path | None = None) -> protocol.TaskScores:
    context = RunContext(EventDispatcher(RecordingSink()))
    return command.run_tasks(str(model), tasks, include_path, Options(device="cpu", results=results), context)


def test_local_tasks_of_lm_eval_run_on_an_adapter_and_their_results_stay_with_the_run(
    tuned: tuple[RunDir, list[protocol.Eval]], tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    rows = tmp_path / "行 rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?"}) + "\n" for n in range(4)), encoding="utf-8")
    task = {
        "task": "ones", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
        "doc_to_choice": ["1", "z"], "doc_to_target": 0, "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    (tmp_path / "ones.yaml").write_text(json.dumps(task), encoding="utf-8")
    event = run_tasks(tuned[0].path, "ones", tmp_path)
    ((name, metric, value),) = ((one.task, one.metric, one.value) for one in event.scores)
    model, codec, _ = generate.load_model(checkpoint_dir.list_checkpoints(tuned[0].checkpoints)[-1], CPU)

    def log_likelihood(prompt: str, continuation: str) -> float:
        ids, start = codec.encode(f"{prompt} {continuation}"), len(codec.encode(prompt))
        with torch.no_grad():
            scores_TV = model(torch.tensor([ids]))[0, start - 1 : -1].log_softmax(-1)
        return scores_TV.gather(1, torch.tensor(ids[start:])[:, None]).sum().item()

    expected = [log_likelihood(f"{n}?", "1") > log_likelihood(f"{n}?", "z") for n in range(4)]
    assert (name, metric, value) == ("ones", "acc", sum(expected) / 4)
    assert Path(event.path).parent == tuned[0].path / "evaluations"
    assert json.loads(Path(event.path).read_text(encoding="utf-8"))["results"]["ones"]["acc,none"] == value
    assert harness.holds_results(Path(event.path))
    with pytest.raises(TraindeckError) as raised:
        run_tasks(tuned[0].path, "ones", tmp_path, results=rows)
    assert raised.value.code == "evaluate.overwrites"
    with pytest.raises(TraindeckError) as raised:
        run_tasks(tuned[0].path, "twos", tmp_path)
    assert (raised.value.code, raised.value.params["tasks"]) == ("evaluate.bad_task", "twos")


def test_without_lm_eval_one_sentence_says_how_to_install_it(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    environment = os.environ.copy()
    with pytest.raises(TraindeckError) as raised:
        run_tasks(trained.pairs.path, "ones", tmp_path)
    assert raised.value.code == "evaluate.no_harness"
    assert f'{sys.executable} -m pip install "lm-eval[hf]"' in str(raised.value)
    assert os.environ == environment, "later downloads of this process are not refused"
