"""Which attention a run takes: only one that equals the reference, and the fastest where that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tests.core.engines import batch, build, path, settings
from trainer_core.machine import hardware
from trainer_core.model.attention import BACKENDS, Backend, sdpa
from trainer_core.train.engine import choosing_compile, compiling, measuring
from trainer_core.train.engine.choosing import Choosing


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of two threads that was never measured."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "usable_threads", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("may_take", "may_measure"):
        monkeypatch.setattr(Choosing, rule, lambda self, seconds: True)


def timed(monkeypatch: pytest.MonkeyPatch, **taken: float) -> list[list[str]]:
    """Each way takes so many seconds, one where it is not said."""
    asked: list[list[str]] = []

    def seconds(ways: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        asked.append(list(ways))
        return {name: taken.get(name, 1.0) for name in ways}

    monkeypatch.setattr(measuring, "seconds", seconds)
    return asked


@pytest.mark.parametrize("faster", [True, False])
def test_in_a_long_run_on_a_cpu_attention_goes_by_documents_where_that_is_faster(
    faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_enough(monkeypatch)
    asked = timed(monkeypatch, documents=0.5 if faster else 1.5)
    config = settings(attend_across_documents=False, compile="off", cpu_threads=2)
    given = batch(packed=True)
    built = build(config, example=given)
    reference = build(config, example=given, recorded={"attention": "sdpa"})
    assert built.choices["attention"] == ("documents" if faster else "sdpa")
    assert built.varlen == faster
    attention, row = path(built, "attention"), path(built, "varlen_attention")
    assert (row.used, row.choice, row.gain) == (faster, "documents", 1 / (0.5 if faster else 1.5))
    assert row.reason == ("path.fastest" if faster else "path.slower")
    assert row.error is not None
    assert attention.gain == (2.0 if faster else None)
    for way in (built, reference):
        torch.autograd.backward(way.loss(given))
    pairs = [built.model.parameters(), reference.model.parameters()]
    found, wanted = ([weight.grad for weight in weights if weight.grad is not None] for weights in pairs)
    assert measuring.difference(found, wanted) < 1e-5
    asked.clear()
    again = build(config, example=given)
    assert asked == []
    assert (again.choices, again.fast_paths) == (built.choices, built.fast_paths)
    resumed = build(config, example=given, recorded=built.choices)
    assert resumed.choices == built.choices
    assert path(resumed, "varlen_attention").reason == ("path.recorded" if faster else "path.not_tried")


@pytest.mark.parametrize("plain", [3.0, 0.5])
def test_where_everything_is_tried_the_gain_is_told_against_the_plain_formula(
    plain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, math=plain)
    attention = path(build(settings(compile="off"), thorough=True), "attention")
    assert (attention.choice, attention.gain) == ("sdpa", plain)
    assert attention.error is not None


def test_on_a_cpu_nothing_is_tried_where_it_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch)
    built = build(settings(compile="off", attend_across_documents=False), example=batch(packed=True))
    assert path(built, "varlen_attention").reason == "path.not_tried"
    long_enough(monkeypatch)
    built = build(settings(compile="off", cpu_threads=2))
    assert path(built, "varlen_attention").reason == "path.not_needed"
    assert asked == []


def with_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-2 and -3, as if they computed here: by the documents' own way."""
    for name in ("flash2", "flash3"):
        monkeypatch.setitem(BACKENDS, name, Backend(name, BACKENDS["documents"].attend, lambda *_: None, by_spans=True))


def test_every_attention_that_takes_spans_tells_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    long_enough(monkeypatch)
    with_packages(monkeypatch)
    timed(monkeypatch, flash3=0.25, flash2=0.5, documents=2.0)
    config = settings(attend_across_documents=False, compile="off", cpu_threads=2)
    built = build(config, example=batch(packed=True))
    rows = {name: path(built, name) for name in ("attention", "flash3", "flash2", "varlen_attention")}
    assert {name: (row.used, row.reason, row.gain) for name, row in rows.items()} == {
        "attention": (True, "path.fastest", 4.0),
        "flash3": (True, "path.fastest", 4.0),
        "flash2": (False, "path.outdone", 2.0),
        "varlen_attention": (False, "path.slower", 0.5),
    }
    assert all(row.error is not None and row.error < 1e-3 for row in rows.values())
    assert [row.choice for row in rows.values()] == ["flash3", "", "", "documents"]


@pytest.mark.parametrize(("attend", "reason"), [(False, "path.differs"), (True, "path.failed")])
def test_attention_that_takes_spans_and_fails_says_so(
    attend: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_enough(monkeypatch)
    monkeypatch.setitem(
        BACKENDS, "flash2", Backend("flash2", failing if attend else wrong, lambda *_: None, by_spans=True)
    )
    timed(monkeypatch, flash2=0.1)
    config = settings(attend_across_documents=False, compile="off", cpu_threads=2)
    built = build(config, example=batch(packed=True))
    assert (path(built, "flash2").used, path(built, "flash2").reason) == (False, reason)
    assert built.choices["attention"] == "sdpa"
    set_so = build(msgspec.structs.replace(config, attention="flash2"), example=batch(packed=True))
    assert (path(set_so, "flash2").used, path(set_so, "flash2").reason) == (False, reason)


@pytest.mark.parametrize("again", ["off", "selective", "full"])
@pytest.mark.parametrize("faster", [True, False])
def test_attention_by_documents_and_compiling_with_a_mask_are_weighed(
    faster: bool, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled takes a mask: the attention that is fastest alone must not keep it away."""
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    monkeypatch.setattr(choosing_compile, "_not_worth", lambda job: None)
    monkeypatch.setattr(compiling, "fill_cache", lambda *_: None)
    monkeypatch.setattr(compiling, "compile_whole", compiling.whole)
    taken = {"documents": 0.5, "slow": 1.0, "fast": 0.5 if faster else 1.0}

    def seconds(ways: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        for way in ways.values():
            way()
        return {name: taken.get(name, 1.0) for name in ways}

    monkeypatch.setattr(measuring, "seconds", seconds)
    config = settings(attend_across_documents=False, activation_checkpointing=again)
    built = build(config, example=batch(packed=True), thorough=True)
    said = path(built, "attention")
    wanted = ("sdpa", "path.masked") if faster else ("documents", "path.fastest")
    assert (said.choice, said.reason) == wanted
    assert path(built, "compile").reason == ("path.on" if faster else "path.slower")
    by_documents = path(built, "varlen_attention")
    assert (by_documents.used, by_documents.reason) == (not faster, "path.outdone" if faster else "path.fastest")
    assert (built.compiled is not None, built.varlen, built.choices["attention"]) == (faster, not faster, wanted[0])
    given = batch(packed=True)
    torch.testing.assert_close(built.loss(given), built.reference_loss(given))


# --- nothing that differs ----


def wrong(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Any) -> Tensor:
    return sdpa(q, k, v, mask=mask, spans=spans) * 1.01


def not_finite(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Any) -> Tensor:
    return sdpa(q, k, v, mask=mask, spans=spans) / 0.0


def failing(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize("asked_by", ["settings", "checkpoint"])
@pytest.mark.parametrize(
    ("attend", "reason"), [(wrong, "path.differs"), (not_finite, "path.differs"), (failing, "path.failed")]
)
def test_attention_that_is_wrong_is_not_used(
    attend: Any, reason: str, asked_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "flash", Backend("flash", attend, lambda *_: None))
    config = settings(compile="off", attention="flash" if asked_by == "settings" else "auto")
    built = build(config, recorded={"attention": "flash"} if asked_by == "checkpoint" else None)
    said = path(built, "attention")
    assert (said.used, said.reason, said.choice) == (False, reason, "flash")
    assert built.choices["attention"] == "sdpa"
    if reason == "path.differs":
        assert said.error is not None
        assert said.error > 1e-3 == said.params["tolerance"]
    reference = build(settings(compile="off"))
    assert torch.equal(built.loss(batch()), reference.loss(batch()))
