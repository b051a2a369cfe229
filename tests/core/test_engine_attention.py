"""Selection of the attention backend: only one that equals the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tests.core.engines import batch, build, path, settings
from tests.core.test_engine import LONG, NoCompiler
from trainer_core.models.attention import BACKENDS, AttentionBackend, sdpa
from trainer_core.system import hardware
from trainer_core.train.engine import compilation, engine, measuring


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with two threads and an empty cache."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(hardware, "usable_threads", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


def test_on_a_cpu_packed_documents_are_computed_one_after_the_other() -> None:
    config = settings(attend_across_documents=False, compile="off")
    given = batch(packed=True)
    built = build(config, example=given)
    reference = build(config, example=given, recorded={"attention": "sdpa"})
    assert (built.choices["attention"], built.varlen) == ("documents", True)
    attention, row = path(built, "attention"), path(built, "varlen_attention")
    assert (row.used, row.choice, row.reason) == (True, "documents", attention.reason)
    assert row.error is not None
    for way in (built, reference):
        torch.autograd.backward(way.loss(given))
    pairs = [built.model.parameters(), reference.model.parameters()]
    found, wanted = ([weight.grad for weight in weights if weight.grad is not None] for weights in pairs)
    assert measuring.relative_error(found, wanted) < 1e-5
    resumed = build(config, example=given, recorded=built.choices)
    assert resumed.choices == built.choices
    assert path(resumed, "varlen_attention").reason == "path.recorded"
    assert path(reference, "varlen_attention").reason == "path.not_tried"


def test_sequences_of_one_document_use_sdpa() -> None:
    built = build(settings(compile="off"))
    assert built.choices["attention"] == "sdpa"
    assert path(built, "varlen_attention").reason == "path.not_needed"


def install_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-2 and -3, computed by the `documents` backend."""
    for name in ("flash2", "flash3"):
        monkeypatch.setitem(
            BACKENDS, name, AttentionBackend(name, BACKENDS["documents"].attend, lambda *_: None, uses_cu_seqlens=True)
        )


def test_flash_attention_is_preferred_for_several_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    install_flash_attention(monkeypatch)
    built = build(settings(attend_across_documents=False, compile="off"), example=batch(packed=True))
    rows = {name: path(built, name) for name in ("attention", "flash3", "flash2", "varlen_attention")}
    assert {name: (row.used, row.reason) for name, row in rows.items()} == {
        "attention": (True, "path.on"),
        "flash3": (True, "path.on"),
        "flash2": (False, "path.not_tried"),
        "varlen_attention": (False, "path.not_tried"),
    }
    assert built.choices["attention"] == "flash3"


@pytest.mark.parametrize(("attend", "reason"), [(False, "path.differs"), (True, "path.failed")])
def test_a_failing_variable_length_backend_reports_the_reason(
    attend: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BACKENDS,
        "flash2",
        AttentionBackend("flash2", failing if attend else wrong, lambda *_: None, uses_cu_seqlens=True),
    )
    config = settings(attend_across_documents=False, compile="off", cpu_threads=2)
    built = build(config, example=batch(packed=True))
    assert (path(built, "flash2").used, path(built, "flash2").reason) == (False, reason)
    assert built.choices["attention"] == "sdpa"
    set_so = build(msgspec.structs.replace(config, attention="flash2"), example=batch(packed=True))
    assert (path(set_so, "flash2").used, path(set_so, "flash2").reason) == (False, reason)


@pytest.mark.parametrize("checkpointing", ["off", "full"])
@pytest.mark.parametrize("faster", [True, False])
def test_compiled_code_with_a_mask_replaces_variable_length_attention_if_faster(
    faster: bool, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine, "BackgroundCompiler", NoCompiler)
    monkeypatch.setattr(compilation, "compile_whole", compilation.full_loss)

    def seconds(ways: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        for way in ways.values():
            way()
        return {"slow": 1.0, "fast": 0.5 if faster else 1.0}

    monkeypatch.setattr(measuring, "time_alternatives", seconds)
    config = settings(attend_across_documents=False, activation_checkpointing=checkpointing)
    built = build(config, steps=LONG, example=batch(packed=True))
    said = path(built, "attention")
    wanted = ("sdpa", "path.masked") if faster else ("documents", "path.on")
    assert (said.choice, said.reason) == wanted
    assert path(built, "compile").reason == ("path.on" if faster else "path.slower")
    by_documents = path(built, "varlen_attention")
    assert (by_documents.used, by_documents.reason) == (not faster, "path.outdone" if faster else "path.on")
    assert (built.compiled is not None, built.varlen, built.choices["attention"]) == (faster, not faster, wanted[0])
    given = batch(packed=True)
    torch.testing.assert_close(built.loss(given), built.eager_loss(given))


# --- comparison with the reference ---------------------------------------------------------------------------


def wrong(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: Any) -> Tensor:
    return sdpa(q, k, v, mask=mask, cu_seqlens=cu_seqlens) * 1.01


def not_finite(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: Any) -> Tensor:
    return sdpa(q, k, v, mask=mask, cu_seqlens=cu_seqlens) / 0.0


def failing(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize("source", ["settings", "checkpoint"])
@pytest.mark.parametrize(
    ("attend", "reason"), [(wrong, "path.differs"), (not_finite, "path.differs"), (failing, "path.failed")]
)
def test_a_wrong_attention_backend_is_not_used(
    attend: Any, reason: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "flash", AttentionBackend("flash", attend, lambda *_: None))
    config = settings(compile="off", attention="flash" if source == "settings" else "auto")
    built = build(config, recorded={"attention": "flash"} if source == "checkpoint" else None)
    said = path(built, "attention")
    assert (said.used, said.reason, said.choice) == (False, reason, "flash")
    assert built.choices["attention"] == "sdpa"
    if reason == "path.differs":
        assert said.error is not None
        assert said.error > 1e-3 == said.params["tolerance"]
    reference = build(settings(compile="off"))
    assert torch.equal(built.loss(batch()), reference.loss(batch()))
