"""Bug reports: contents, and masking of personal data."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.core import bug_report
from trainer_core import __version__
from trainer_core.system import child_process
from trainer_core.system.redaction import Masker

USER, HOST = "王小明", "xiaoming-desktop"
HOMES = ("C:\\Users\\王小明", "/home/wang.xm")
WANDB, HF = "0123456789abcdef0123456789abcdef01234567", "hf_AbCdEfGhIjKlMnOpQrStUv"
OPENAI, KNOWN_SECRET = "sk-proj-abcdefghijklmnop1234", "correct-horse-battery"


@pytest.fixture
def masker() -> Masker:
    return Masker(HOMES, [USER, "wang.xm"], [HOST], [KNOWN_SECRET])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("C:\\Users\\王小明\\训练\\a.txt", "~\\训练\\a.txt"),
        ("c:/users/王小明/a.txt", "~/a.txt"),
        (json.dumps("C:\\Users\\王小明\\a.txt"), '"~\\\\a.txt"'),
        ("file:///C%3A/Users/%E7%8E%8B%E5%B0%8F%E6%98%8E/a", "file:///~/a"),
        ("/home/wang.xm/runs/a", "~/runs/a"),
        ("/home/wang.xm2/runs/a", "/home/<user>/runs/a"),
        ("D:\\Users\\Someone\\a", "D:\\Users\\<user>\\a"),
        ("/home/lee/a and /Users/kim/b", "/home/<user>/a and /Users/<user>/b"),
        ("by 王小明 on xiaoming-desktop.", "by <user> on <computer>."),
        (f"wandb: login {WANDB}", "wandb: login <secret>"),
        (f"token={HF}", "token=<secret>"),
        (f'"api_key": "{OPENAI}"', '"api_key": "<secret>"'),
        ("WANDB_API_KEY=abcdefgh1234", "WANDB_API_KEY=<secret>"),
        ("password: hunter22", "password: <secret>"),
        ("https://me:pass@host.com/x", "https://<secret>@host.com/x"),
        ("https://0a1b2c3d4e@host.com/x", "https://<secret>@host.com/x"),
        ("git+https://oauth2:@host.com/x", "git+https://<secret>@host.com/x"),
        ("redis://:pass@host:6379", "redis://<secret>@host:6379"),
        ("Authorization: Bearer abc.def-ghi123", "Authorization: Bearer <secret>"),
        (f"it was {KNOWN_SECRET}!", "it was <secret>!"),
        ("AKIAABCDEFGHIJKLMNOP", "<secret>"),
    ],
)
def test_names_and_keys_are_masked(masker: Masker, text: str, masked: str) -> None:
    assert masker.mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 123456789, tokens_per_s: 1234.5",
        "vocab_size: 8192\ntoken_cache: true\ntokenizer: D:/tokenizer.json",
        "Every token: 12345678 of them",
        "step 100, loss 2.5, torch 2.13.0+cu130, NVIDIA RTX A6000",
        "n_kv_heads: 4\nkeep_last: 2",
    ],
)
def test_numbers_and_settings_are_not_masked(masker: Masker, text: str) -> None:
    assert masker.mask(text) == text


def test_a_short_user_name_is_masked_only_as_a_whole_word() -> None:
    assert Masker([], ["al", "ann"], [], []).mask("all annual plans of ann") == "all annual plans of <user>"


def make_run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir(parents=True)
    run.joinpath("config.yaml").write_text(
        f"data: ['C:\\Users\\王小明\\novel.txt']\nsample_prompts: ['my private words']\n"
        f"batch_size: 8\nwandb_project: {HOST}\n",
        encoding="utf-8",
    )
    events = [
        {"type": "hello", "run_dir": "C:\\Users\\王小明\\runs\\a", "config": {"sample_prompts": ["my private words"]}},
        {"type": "step", "step": 1, "loss": 2.5, "tokens": 123},
        {"type": "sample", "step": 1, "prompt": "Dear diary", "text": "secret row of data", "expected": None},
        {"type": "data_report", "samples": [{"tokens": [["secret", 1], ["row", 2]]}], "first_bad": {"reason": "row 3"}},
        {"type": "ready", "sources": [{"path": "novel.txt", "column_roles": {"text": "story"}}]},
        {"type": "warning", "code": "data.bad_row", "detail": "cannot read: secret row of data", "params": {"row": 3}},
        {"type": "error", "code": "internal", "detail": f"RuntimeError: {WANDB} at C:\\Users\\王小明\\x.py"},
    ]
    lines = [json.dumps(event) for event in events]  # non-ASCII characters are escaped, as by the trainer
    run.joinpath("events.jsonl").write_text("\n".join([*lines, "secret row of data, cut"]), encoding="utf-8")
    run.joinpath("log.txt").write_text(f"wandb: api key {HF}\nTraceback at C:\\Users\\王小明\\x.py\n", encoding="utf-8")
    return run


def collect_parts(masker: Masker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(bug_report, "doctor", lambda: f"[ok] C:\\Users\\王小明\\td can be written on {HOST}\n")
    log, settings = folder / "window.log", folder / "settings.json"
    log.write_text(f"ValueError: {OPENAI}\n", encoding="utf-8")
    settings.write_text(
        json.dumps(
            {"recent_data": ["C:\\Users\\王小明\\novel.txt"], "values": {"sample_prompts": ["my private words"]}}
        ),
        encoding="utf-8",
    )
    return dict(bug_report.iter_parts(make_run(folder), log, settings, masker))


def test_a_report_contains_every_part_without_personal_data(
    masker: Masker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = collect_parts(masker, tmp_path, monkeypatch)
    assert set(parts) == {
        "versions.txt", "doctor.txt", "run/config.json", "run/events-tail.jsonl", "run/log-tail.txt", "window.log",
        "settings.json",
    }  # fmt: skip
    content = "\n".join(parts.values())
    for private in (USER, "\\u738b", HOST, WANDB, HF, OPENAI, "private words", "Dear diary", "secret row"):
        assert private not in content, private
    assert "novel.txt" in parts["run/config.json"]
    assert '"batch_size": 8' in parts["run/config.json"]
    events = [json.loads(line) for line in parts["run/events-tail.jsonl"].splitlines()]
    assert [event["type"] for event in events] == [
        "hello", "step", "sample", "data_report", "ready", "warning", "error",
    ]  # fmt: skip
    assert events[1] == {"type": "step", "step": 1, "loss": 2.5, "tokens": 123}
    assert events[2]["prompt"] == "<10 characters>"
    assert "RuntimeError" in events[6]["detail"]


def test_read_tail_returns_the_last_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    lines = bug_report.read_tail(path, 100).splitlines()
    assert lines[-1] == "line 999"
    assert lines[0].startswith("line 9")
    assert len(lines) in (10, 11, 12)
    assert bug_report.read_tail(tmp_path / "none", 100) == ""


def test_values_of_secret_environment_variables_are_masked() -> None:
    environment = {"MY_SECRET_SAUCE": "tomato-and-basil", "PATH": "/usr/bin"}
    masked = Masker.for_this_machine(environment).mask("with tomato-and-basil and /usr/bin")
    assert masked == "with <secret> and /usr/bin"


@pytest.mark.parametrize("key", ["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "/wJalrXUtnFEMIK7MDENG/bPxRfiCYEXAMPLEKE"])
def test_a_key_with_slashes_is_also_masked_if_percent_encoded(key: str) -> None:
    masker = Masker.for_this_machine({"AWS_SECRET_ACCESS_KEY": key})
    assert masker.mask(f"sent {key} and {key.replace('/', '%2F')}") == "sent <secret> and <secret>"


def test_the_command_writes_a_zip(tmp_path: Path) -> None:
    out = tmp_path / "报告 1.zip"
    run = make_run(tmp_path)
    command = [sys.executable, "-P", "-m", "app.core.bug_report", str(out), "--run", str(run)]
    subprocess.run(command, env=child_process.environment(TRAINDECK_API_TOKEN="my-own-little-token"), check=True)
    with zipfile.ZipFile(out) as archive:
        assert {"versions.txt", "doctor.txt", "run/config.json"} <= set(archive.namelist())
        assert "Python" in archive.read("doctor.txt").decode()
        versions = archive.read("versions.txt").decode()
        assert versions.startswith(f"traindeck {__version__}\n")
        assert "torch" in versions


def test_damaged_files_of_a_run_do_not_prevent_a_report(
    masker: Masker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug_report, "doctor", lambda: "fine\n")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "events.jsonl", "log.txt"):
        run.joinpath(name).write_bytes(b"\xff\x00[[[{: \n" * 50)
    parts = dict(bug_report.iter_parts(run, None, None, masker))
    assert {"versions.txt", "doctor.txt"} <= set(parts)
