"""Selection of the attention backend: only one that equals the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tests.core.engines import (
    LONG_RUN,
    FakeBackgroundCompiler,
    build_engine,
    fast_path,
    random_batch,
    tiny_model_config,
)
from trainer_core.models.attention import BACKENDS, AttentionBackend, sdpa
from trainer_core.system import hardware
from trainer_core.train.engine import compilation, measuring
from trainer_core.train.engine import engine as engine_module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with two threads and an empty cache."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(hardware, "usable_threads", lambda: 2)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(num_threads)


def test_packed_documents_use_the_documents_backend_on_a_cpu() -> None:
    config = tiny_model_config(attend_across_documents=False, compile="off")
    example = random_batch(packed=True)
    engine = build_engine(config, example=example)
    reference = build_engine(config, example=example, recorded={"attention": "sdpa"})
    assert (engine.choices["attention"], engine.varlen) == ("documents", True)
    attention, row = fast_path(engine, "attention"), fast_path(engine, "varlen_attention")
    assert (row.used, row.choice, row.reason) == (True, "documents", attention.reason)
    assert row.error is not None
    for built in (engine, reference):
        torch.autograd.backward(built.loss(example))
    pairs = [engine.model.parameters(), reference.model.parameters()]
    gradients, expected = ([weight.grad for weight in weights if weight.grad is not None] for weights in pairs)
    assert measuring.relative_error(gradients, expected) < 1e-5
    resumed = build_engine(config, example=example, recorded=engine.choices)
    assert resumed.choices == engine.choices
    assert fast_path(resumed, "varlen_attention").reason == "path.recorded"
    assert fast_path(reference, "varlen_attention").reason == "path.not_tried"


def test_sequences_of_one_document_use_sdpa() -> None:
    engine = build_engine(tiny_model_config(compile="off"))
    assert engine.choices["attention"] == "sdpa"
    assert fast_path(engine, "varlen_attention").reason == "path.not_needed"


def install_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-2 and -3, computed by the `documents` backend."""
    for name in ("flash2", "flash3"):
        monkeypatch.setitem(
            BACKENDS, name, AttentionBackend(name, BACKENDS["documents"].attend, lambda *_: None, uses_cu_seqlens=True)
        )


def test_flash_attention_is_preferred_for_several_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    install_flash_attention(monkeypatch)
    engine = build_engine(
        tiny_model_config(attend_across_documents=False, compile="off"), example=random_batch(packed=True)
    )
    rows = {name: fast_path(engine, name) for name in ("attention", "flash3", "flash2", "varlen_attention")}
    assert {name: (row.used, row.reason) for name, row in rows.items()} == {
        "attention": (True, "path.on"),
        "flash3": (True, "path.on"),
        "flash2": (False, "path.not_tried"),
        "varlen_attention": (False, "path.not_tried"),
    }
    assert engine.choices["attention"] == "flash3"


@pytest.mark.parametrize(("attend", "reason"), [(False, "path.differs"), (True, "path.failed")])
def test_a_failing_variable_length_backend_reports_the_reason(
    attend: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BACKENDS,
        "flash2",
        AttentionBackend("flash2", failing if attend else wrong, lambda *_: None, uses_cu_seqlens=True),
    )
    config = tiny_model_config(attend_across_documents=False, compile="off", cpu_threads=2)
    engine = build_engine(config, example=random_batch(packed=True))
    assert (fast_path(engine, "flash2").used, fast_path(engine, "flash2").reason) == (False, reason)
    assert engine.choices["attention"] == "sdpa"
    selected = build_engine(msgspec.structs.replace(config, attention="flash2"), example=random_batch(packed=True))
    assert (fast_path(selected, "flash2").used, fast_path(selected, "flash2").reason) == (False, reason)


@pytest.mark.parametrize("checkpointing", ["off", "full"])
@pytest.mark.parametrize("faster", [True, False])
def test_compiled_code_with_a_mask_replaces_variable_length_attention_if_faster(
    faster: bool, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine_module, "BackgroundCompiler", FakeBackgroundCompiler)
    monkeypatch.setattr(compilation, "compile_whole", compilation.full_loss)

    def fake_timings(alternatives: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        for compute in alternatives.values():
            compute()
        return {"slow": 1.0, "fast": 0.5 if faster else 1.0}

    monkeypatch.setattr(measuring, "time_alternatives", fake_timings)
    config = tiny_model_config(attend_across_documents=False, activation_checkpointing=checkpointing)
    engine = build_engine(config, steps=LONG_RUN, example=random_batch(packed=True))
    selected_path = fast_path(engine, "attention")
    expected = ("sdpa", "path.masked") if faster else ("documents", "path.on")
    assert (selected_path.choice, selected_path.reason) == expected
    assert fast_path(engine, "compile").reason == ("path.on" if faster else "path.slower")
    varlen_path = fast_path(engine, "varlen_attention")
    assert (varlen_path.used, varlen_path.reason) == (not faster, "path.outdone" if faster else "path.on")
    assert (engine.compiled is not None, engine.varlen, engine.choices["attention"]) == (
        faster,
        not faster,
        expected[0],
    )
    example = random_batch(packed=True)
    torch.testing.assert_close(engine.loss(example), engine.eager_loss(example))


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
    config = tiny_model_config(compile="off", attention="flash" if source == "settings" else "auto")
    engine = build_engine(config, recorded={"attention": "flash"} if source == "checkpoint" else None)
    selected_path = fast_path(engine, "attention")
    assert (selected_path.used, selected_path.reason, selected_path.choice) == (False, reason, "flash")
    assert engine.choices["attention"] == "sdpa"
    if reason == "path.differs":
        assert selected_path.error is not None
        assert selected_path.error > 1e-3 == selected_path.params["tolerance"]
    reference = build_engine(tiny_model_config(compile="off"))
    assert torch.equal(engine.loss(random_batch()), reference.loss(random_batch()))
