"""Of several GPUs every training of a benchmark sees one, so that all do the same work."""

from __future__ import annotations

import os
import sys

import pytest

from bench import cards, runs
from bench.peers import hf_trainer

TELL = "import json, os; print(json.dumps({'type': 'done', 'seen': os.environ['CUDA_VISIBLE_DEVICES']}))"
SEEN = [(None, "0"), ("2", "2"), ("3,1", "3"), ("GPU-1a0b, GPU-2a0b", "GPU-1a0b"), ("-1", "-1")]


@pytest.fixture(params=SEEN, ids=[str(before) for before, _ in SEEN])
def wanted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is to be seen, with the environment that a person has set for it."""
    before, wanted = request.param
    if before is None:
        monkeypatch.delenv(cards.VISIBLE, raising=False)
    else:
        monkeypatch.setenv(cards.VISIBLE, before)
    return str(wanted)


def test_a_training_process_sees_the_first_card(wanted: str) -> None:
    assert runs.train([sys.executable, "-c", TELL]).first("done")["seen"] == wanted


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_so_does_the_hugging_face_trainer_by_itself(wanted: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["hf_trainer", "folder", "--device", device])
    seen = []
    monkeypatch.setattr(hf_trainer, "train", lambda chosen: seen.append(os.environ[cards.VISIBLE]))
    hf_trainer.main()
    assert seen == [wanted if device == "cuda" else ""]
