"""Generated answers to validation prompts, and their quality."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.core.test_model import FAMILIES, random_decoder
from tests.core.training import build_trainer, pairs_file, tiny_config
from trainer_core import protocol
from trainer_core.generation import decoding
from trainer_core.generation.generate import Completion, SamplingParams, generate_batch, generate_tokens
from trainer_core.models.decoder import Decoder
from trainer_core.models.kv_cache import RaggedKvCache
from trainer_core.models.model_config import ModelConfig
from trainer_core.progress import NullReporter
from trainer_core.train.evaluate import answer_quality, answer_tokens
from trainer_core.train.samples import HeldOutExample

CONTEXT, LIMIT = 96, 24
END_TOKENS = frozenset(range(12))


def random_prompts(count: int = 64) -> list[list[int]]:
    """Prompts of 1 to 60 tokens, and one that leaves 5 tokens of the context."""
    generator = random.Random(count)
    lengths = [*(generator.randint(1, 60) for _ in range(count - 1)), CONTEXT - 5]
    return [[generator.randrange(97) for _ in range(length)] for length in lengths]


def generate_answers(
    model: Decoder, prompts: Sequence[list[int]], end_tokens: frozenset[int] = END_TOKENS
) -> list[Completion]:
    return generate_batch(model, prompts, [LIMIT] * len(prompts), end_tokens, lambda: None)


def model_with_context(settings: ModelConfig) -> Decoder:
    return random_decoder(replace(settings, max_seq_len=CONTEXT))


# --- one batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "qwen2", "qwen3", "gemma 3"])
def test_an_answer_does_not_depend_on_its_batch(family: str) -> None:
    model, prompts = model_with_context(FAMILIES[family]), random_prompts()
    alone = [generate_answers(model, [prompt])[0] for prompt in prompts]
    assert {answer.finish_reason for answer in alone} >= {"end", "limit"}
    generator = random.Random(7)
    for size in (64, 33, 2):
        order = generator.sample(range(64), size)
        assert generate_answers(model, [prompts[row] for row in order]) == [alone[row] for row in order]


@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "qwen2", "qwen3", "gemma 3"])
def test_batched_generation_equals_generation_one_by_one(family: str) -> None:
    model, prompts = model_with_context(FAMILIES[family]), random_prompts(8)
    for prompt, answer in zip(prompts, generate_answers(model, prompts), strict=True):
        limit = min(LIMIT, CONTEXT - len(prompt))
        assert answer.tokens == list(generate_tokens(model, prompt, limit, SamplingParams(temperature=0), END_TOKENS))


def test_each_answer_has_its_own_limit_and_context() -> None:
    model = model_with_context(FAMILIES["llama"])
    prompts = [[1] * 3, [2] * 80, [3] * (CONTEXT - 1)]
    completions = generate_batch(model, prompts, [7, 30, 30], frozenset(), lambda: None)
    assert [(len(answer.tokens), answer.finish_reason) for answer in completions] == [
        (7, "limit"),
        (16, "context"),
        (1, "context"),
    ]


def test_an_end_token_directly_after_the_limit_counts() -> None:
    model = model_with_context(FAMILIES["llama"])
    (unlimited,) = generate_answers(model, [[1, 2, 3]], frozenset())
    end = next(
        position for position in range(1, LIMIT) if unlimited.tokens[position] not in unlimited.tokens[:position]
    )
    (complete,) = generate_batch(model, [[1, 2, 3]], [end], frozenset({unlimited.tokens[end]}), lambda: None)
    assert (complete.tokens, complete.finish_reason) == (unlimited.tokens[:end], "end")
    (cut,) = generate_batch(model, [[1, 2, 3]], [end - 1], frozenset({unlimited.tokens[end]}), lambda: None)
    assert (cut.tokens, cut.finish_reason) == (unlimited.tokens[: end - 1], "limit")


def test_a_row_that_joins_a_batch_has_the_answer_that_it_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts, sampling = model_with_context(FAMILIES["qwen3"]), random_prompts(3)[:2], SamplingParams(seed=4)
    prompts.append(prompts[0][:2])
    alone = [generate_batch(model, [row], [30], frozenset(), lambda: None, sampling)[0] for row in prompts]
    monkeypatch.setattr(decoding, "_INITIAL_TOKENS", 3)  # its cache grows
    rows = [decoding.DecodingRow(prompt, 30, sampling) for prompt in prompts]
    batch = decoding.new_batch(model, frozenset())
    for row in rows:
        batch.add([row])
        for _ in range(10):
            batch.step()
    batch.remove([rows[1]])
    while batch.rows:
        batch.step()
    assert [rows[0].completion, rows[2].completion] == [alone[0], alone[2]]
    assert rows[1].completion.tokens == alone[1].tokens[:21]


def test_equal_prompts_are_computed_once_and_continue_on_their_own() -> None:
    model, (first, second), widths = model_with_context(FAMILIES["llama"]), random_prompts()[:2], []
    model.embedding.register_forward_hook(lambda module, args, output: widths.append(tuple(args[0].shape)))
    seeds = [SamplingParams(temperature=1.0, seed=seed) for seed in range(3)]
    alone = [generate_batch(model, [first], [9], frozenset(), lambda: None, sampling)[0] for sampling in seeds]
    widths.clear()
    rows = [decoding.DecodingRow(first, 9, sampling) for sampling in seeds]
    batch = decoding.new_batch(model, frozenset())
    batch.add([rows[0], decoding.DecodingRow(second, 1), *rows[1:]])
    while batch.rows:
        batch.step()
    assert widths[0] == (2, max(len(first), len(second)))
    assert [row.completion for row in rows] == alone


def test_finished_rows_leave_the_batch() -> None:
    model, prompts, rows = model_with_context(FAMILIES["llama"]), random_prompts(), []
    model.lm_head.register_forward_hook(lambda module, args, logits: rows.append(len(logits)))
    completions = generate_answers(model, prompts)
    predictions = [len(answer.tokens) + 1 for answer in completions]
    assert rows == [sum(count > step for count in predictions) for step in range(max(predictions))]
    assert rows[-1] < rows[0]


# --- many prompts ---------------------------------------------------------------------------------------------------


def test_batches_have_at_most_max_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    class Recorded(RaggedKvCache):
        def __init__(self, settings: ModelConfig, lengths: Sequence[int], capacity: int, like: torch.Tensor) -> None:
            sizes.append((len(lengths), capacity))
            super().__init__(settings, lengths, capacity, like)

    monkeypatch.setattr(decoding, "RaggedKvCache", Recorded)
    model, prompts = model_with_context(FAMILIES["llama"]), random_prompts()
    expected = generate_answers(model, prompts)
    sizes.clear()
    assert answer_tokens(model, prompts, [LIMIT] * 64, END_TOKENS, 500, NullReporter().poll) == expected
    assert sum(rows for rows, _ in sizes) == 64
    assert max(rows * capacity for rows, capacity in sizes) <= 500
    assert len(sizes) < 20  # short prompts share large batches


def test_a_batch_that_runs_out_of_memory_is_split() -> None:
    model, prompts = model_with_context(FAMILIES["llama"]), random_prompts()
    expected = generate_answers(model, prompts)
    failures = 0

    def too_large(module: nn.Module, args: Any) -> None:
        nonlocal failures
        if len(args[0]) > 5:
            failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model.model.layers[1].register_forward_pre_hook(too_large)
    assert answer_tokens(model, prompts, [LIMIT] * 64, END_TOKENS, 64 * CONTEXT, NullReporter().poll) == expected
    assert 0 < failures < 6
    assert model.training


# --- in a run -------------------------------------------------------------------------------------------------------


def test_a_truncated_answer_is_not_an_exact_match() -> None:
    completions = [
        Completion([1], "end"),
        Completion([1], "limit"),
        Completion([1], "context"),
        Completion([], "context"),
    ]
    quality = answer_quality(completions, ["yes", "yes\n", "yes", ""], ["yes"] * 4)
    assert (quality.exact_match, quality.examples) == (0.25, 4)
    assert (quality.truncated_by_limit, quality.truncated_by_context) == (1, 2)


def test_prompts_that_fill_the_context_count_as_truncated(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, pairs_file(tmp_path)))
    trainer.sample_writer._examples[0] = HeldOutExample([("user", "a long question")], list(range(100)), "42", 3)
    trainer.set_up()
    trainer.evaluate()
    (event,) = sink.events_of(protocol.Eval)
    assert event.examples == len(trainer.sample_writer._examples) > 1
    assert event.truncated_by_context >= 1
    trainer.sample_writer._examples = trainer.sample_writer._examples[:1]
    trainer.evaluate()
    event = sink.events_of(protocol.Eval)[1]
    assert (event.exact_match, event.examples, event.truncated_by_context) == (0.0, 1, 1)


@pytest.mark.parametrize(("setting", "limit"), [(0, None), (7, 7)], ids=["by reference", "by setting"])
def test_the_answer_limit_follows_the_reference_unless_set(tmp_path: Path, setting: int, limit: int | None) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, pairs_file(tmp_path), eval_max_new_tokens=setting))
    trainer.sample_writer.codec.stop_token_ids = frozenset()  # no answer ends before its limit
    trainer.set_up()
    lengths: list[int] = []
    decode = trainer.sample_writer.codec.decode

    def recorded(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return decode(ids)

    trainer.sample_writer.codec.decode = recorded  # type: ignore[method-assign, assignment]
    trainer.evaluate()
    examples = trainer.sample_writer._examples
    assert lengths == [min(limit or 2 * example.answer_tokens, 48 - len(example.prompt)) for example in examples]
    (event,) = sink.events_of(protocol.Eval)
    assert event.truncated_by_limit + event.truncated_by_context == event.examples == len(examples)


def test_long_answers_match_next_to_a_prompt_that_fills_the_context(tmp_path: Path) -> None:
    text = " ".join(f"{n:02d}" for n in range(80))  # the same answer to all prompts is learned within seconds
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": f"{n}?", "response": text} for n in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = tiny_config(
        tmp_path, path, max_seq_len=320, vocab_size=300, hidden_dim=64, qk_norm=True, optimizer="muon",
        muon_momentum=0.8, learning_rate=1e-2, batch_size=4, max_steps=80, eval_steps=0, eval_examples=16,
        validation_fraction=0.1,
    )  # fmt: skip
    trainer, sink = build_trainer(tmp_path, config)
    examples = trainer.sample_writer._examples
    assert min(example.answer_tokens for example in examples) > 200
    long = (examples[0].prompt * 320)[: 320 - 5]
    examples.append(HeldOutExample([("user", "long")], long, text, examples[0].answer_tokens))
    trainer.run()
    (event,) = sink.events_of(protocol.Eval)
    assert event.exact_match == (event.examples - 1) / event.examples
    assert (event.truncated_by_limit, event.truncated_by_context) == (0, 1)
