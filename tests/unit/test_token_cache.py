"""The token cache: reuse, interruption and concurrent preparation."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.prepared_data import RecordingReporter, decode_split, list_caches, prepare_files, read_files
from trainer_core.data import cache, encoder, prepare
from trainer_core.data.token_files import TokenFileWriter
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

ROOT = Path(prepare.__file__).resolve().parents[2]


@pytest.fixture
def frequent_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, and a commit after each."""
    monkeypatch.setattr(encoder, "_BATCH_CHARS", 4096)
    monkeypatch.setattr(encoder, "_COMMIT_INTERVAL_S", 0.0)


SCRIPT = """
import sys
from trainer_core.config import Config
from trainer_core.data import encoder
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter
if __name__ == "__main__":
    encoder._BATCH_CHARS, encoder._COMMIT_INTERVAL_S = 4096, 0.0
    processes = int(sys.argv[2])
    encoder.choose_num_processes = lambda *_: processes
    done = prepare(Config(data=[sys.argv[1]], vocab_size=320, max_seq_len=32), NullReporter())
    print(done.train.tokens, flush=True)
"""


def start_preparation(data: Path, folder: Path, processes: int = 0) -> subprocess.Popen[str]:
    """Start a process that prepares `data` with frequent commits."""
    script = folder / "prepare script.py"
    if not script.exists():  # another process may be reading it
        script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(data), str(processes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


# --- reuse -----------------------------------------------------------------------------------------


def test_unchanged_data_is_encoded_once(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare_files(text)
    monkeypatch.setattr(prepare, "encode_documents", lambda *_: pytest.fail("encoded again"))
    second = prepare_files(text)
    assert (first.folder, first.train, first.vocab_size) == (second.folder, second.train, second.vocab_size)


def test_batch_size_learning_rate_and_sequence_length_keep_the_cache(home: Path, text: Path) -> None:
    first = prepare_files(text)
    assert prepare_files(text, batch_size=3, learning_rate=1e-2, max_seq_len=64, seed=7).folder == first.folder


def test_changed_data_or_tokenizer_settings_create_a_new_cache(home: Path, text: Path) -> None:
    folders = {
        prepare_files(text).folder,
        prepare_files(text, vocab_size=330).folder,
        prepare_files(text, pre_tokenizer="gpt-2").folder,
    }
    text.write_text(text.read_text(encoding="utf-8").replace("Line 3999", "Lime 3999"), encoding="utf-8")
    folders.add(prepare_files(text).folder)
    assert len(folders) == 4


def test_a_copy_with_another_path_and_date_reuses_the_cache(home: Path, text: Path) -> None:
    first = prepare_files(text)
    copy = text.parent / "copies" / "副本.txt"
    copy.parent.mkdir()
    copy.write_bytes(text.read_bytes())
    os.utime(copy, (1_000_000_000, 1_000_000_000))
    assert prepare_files(copy).folder == first.folder


def test_a_changed_byte_in_a_file_of_the_same_size_is_detected(home: Path, text: Path) -> None:
    first = prepare_files(text)
    content = bytearray(text.read_bytes())
    middle = content.index(b" ", len(content) // 2)
    content[middle] = ord("_")
    text.write_bytes(content)
    assert prepare_files(text).folder != first.folder


def test_warnings_are_repeated_when_a_cache_is_reused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words to train on"}\n' * 100 + "bad\n", encoding="utf-8")
    for _ in range(2):
        reporter = RecordingReporter()
        prepare_files(tmp_path / "a.jsonl", reporter=reporter)
        assert reporter.warnings["data.rows_skipped"]["count"] == 1


def test_a_cache_with_a_missing_file_is_rebuilt(home: Path, text: Path) -> None:
    first = prepare_files(text)
    before = decode_split(first, "train")
    (first.folder / "train" / "tokens.bin").unlink()
    second = prepare_files(text)
    assert decode_split(second, "train") == before


def test_a_reused_cache_obeys_the_current_bad_row_settings(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words to train on"}\n' * 100 + "bad\nworse\n", encoding="utf-8")
    prepare_files(path)
    for knobs, code in (({"on_bad_row": "stop"}, "data.bad_row"), ({"bad_row_limit": 1}, "data.too_many_bad_rows")):
        with pytest.raises(TraindeckError) as caught:
            prepare_files(path, **knobs)
        assert (caught.value.code, caught.value.params["position"]) == (code, "line 101")


def test_a_complete_cache_whose_rename_failed_is_used_at_the_next_start(
    home: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_in_use(*_: Any) -> None:
        raise PermissionError(13, "file in use")

    with monkeypatch.context() as patched:
        patched.setattr(
            cache.files, "replace", lambda source, target: raise_in_use() if source.is_dir() else source.replace(target)
        )
        with pytest.raises(TraindeckError) as caught:
            prepare_files(text)
        assert caught.value.code == "disk.not_writable"
    monkeypatch.setattr(prepare, "_encode_data", lambda *_: pytest.fail("encoded again"))
    assert prepare_files(text).train.samples > 0


# --- interruptions ---------------------------------------------------------------------------------


def test_the_cache_is_identical_after_any_number_of_stops(home: Path, text: Path, frequent_commits: None) -> None:
    expected = read_files(prepare_files(text).folder)
    cache.files.remove_tree(home / "cache")
    polls, stops, result = 0, 0, None
    while result is None:
        polls += 1 if polls < 3 else 7
        try:
            result = prepare_files(text, reporter=RecordingReporter(stop_at=polls))
        except StopRequested:
            stops += 1
            assert [folder for folder in list_caches(home) if cache.read_meta(folder)] == []
    assert stops > 3
    assert read_files(result.folder) == expected
    assert list_caches(home) == [result.folder]


def test_a_stopped_preparation_resumes_near_its_position(home: Path, text: Path, frequent_commits: None) -> None:
    counting = RecordingReporter()
    prepare_files(text, reporter=counting)
    cache.files.remove_tree(home / "cache")
    with pytest.raises(StopRequested):
        prepare_files(text, reporter=RecordingReporter(stop_at=counting.polls - 3))
    (building,) = [folder for folder in list_caches(home) if folder.suffix == ".building"]
    position = json.loads((building / "journal.json").read_bytes())["position"]
    assert position["file_counts"]["read"] > 20
    resumed = RecordingReporter()
    prepare_files(text, reporter=resumed)
    assert resumed.polls < counting.polls / 2


@pytest.mark.parametrize("processes", [0, 2])
def test_the_cache_is_identical_after_kills_at_any_moment(home: Path, text: Path, processes: int) -> None:
    assert start_preparation(text, text.parent, processes).communicate(timeout=60)[0]
    (folder,) = list_caches(home)
    expected = read_files(folder)
    cache.files.remove_tree(home / "cache")
    rng, journal = random.Random(processes), home / "cache" / f"{folder.name}.building" / "journal.json"
    for _ in range(3):
        before = journal.read_bytes() if journal.exists() else b""
        process = start_preparation(text, text.parent, processes)
        while process.poll() is None and (not journal.exists() or journal.read_bytes() == before):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        process.communicate()
        assert not (folder / cache.META_FILE).exists() or cache.read_meta(folder)
    assert start_preparation(text, text.parent, processes).communicate(timeout=60)[0]
    assert read_files(folder) == expected


def test_preparation_restarts_if_committed_data_is_missing(home: Path, text: Path, frequent_commits: None) -> None:
    counting = RecordingReporter()
    expected = read_files(prepare_files(text, reporter=counting).folder)
    cache.files.remove_tree(home / "cache")
    with pytest.raises(StopRequested):
        prepare_files(text, reporter=RecordingReporter(stop_at=counting.polls - 3))
    (building,) = [folder for folder in list_caches(home) if folder.suffix == ".building"]
    tokens = building / "train" / "tokens.bin"
    os.truncate(tokens, 100)
    assert read_files(prepare_files(text).folder) == expected


def test_a_resumed_preparation_does_not_retry_an_inexact_gigatoken(
    home: Path, text: Path, frequent_commits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gigatoken_used: list[bool] = []
    original = prepare.encode_documents

    def encode(*arguments: Any) -> Any:
        gigatoken_used.append(arguments[-1])
        if arguments[-1]:
            raise prepare.EncoderMismatchError
        return original(*arguments)

    monkeypatch.setattr(prepare, "encode_documents", encode)
    counting = RecordingReporter()
    expected = read_files(prepare_files(text, reporter=counting).folder)
    cache.files.remove_tree(home / "cache")
    gigatoken_used.clear()
    with pytest.raises(StopRequested):
        prepare_files(text, reporter=RecordingReporter(stop_at=counting.polls - 3))
    assert read_files(prepare_files(text).folder) == expected
    assert gigatoken_used == [True, False, False]


def test_worker_processes_exit_with_a_killed_parent(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "much.txt"
    data.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(400_000)), encoding="utf-8")
    process = start_preparation(data, tmp_path, processes=2)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    expected = 3  # two workers and the resource tracker
    while len(workers) < expected and process.poll() is None and time.monotonic() < deadline:
        workers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []


def test_preparation_completes_after_a_worker_is_killed(
    home: Path, text: Path, frequent_commits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_files(prepare_files(text).folder)
    cache.files.remove_tree(home / "cache")
    monkeypatch.setattr(encoder, "choose_num_processes", lambda *_: 2)

    class WorkerKiller(RecordingReporter):
        def poll(self) -> None:
            super().poll()
            for child in psutil.Process().children() if self.polls > 10 else ():
                with contextlib.suppress(psutil.NoSuchProcess):  # already exited
                    if "multiprocessing.spawn" in " ".join(child.cmdline()):
                        child.kill()

    result = prepare_files(text, reporter=WorkerKiller())
    assert read_files(result.folder) == expected


def test_concurrent_processes_prepare_the_same_data_once(home: Path, text: Path) -> None:
    running = [start_preparation(text, text.parent) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    result = prepare_files(text)
    assert outputs == [str(result.train.tokens)] * 3
    assert list_caches(home) == [result.folder]


def test_a_process_waiting_for_another_can_be_stopped(home: Path, text: Path) -> None:
    name = prepare_files(text).folder.name
    cache.files.remove_tree(home / "cache" / name)
    with cache.file_locks.file_lock(home / "cache" / f"{name}.lock"), pytest.raises(StopRequested):
        prepare_files(text, reporter=RecordingReporter(stop_at=8))


def test_a_full_disk_raises_an_error_and_leaves_no_files(
    home: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TokenFileWriter, "add_block", raise_disk_full)
    with pytest.raises(TraindeckError) as caught:
        prepare_files(text)
    assert caught.value.code == "disk.full"
    needed, free = (int(str(caught.value.params[name])) for name in ("needed_mib", "free_mib"))
    assert needed >= free
    assert list_caches(home) == []


def test_a_cache_folder_that_cannot_be_created_raises_an_error(home: Path, text: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        prepare_files(text, cache_dir=str(text / "below a file"))
    assert caught.value.code == "disk.not_writable"


def test_a_file_that_changes_while_it_is_read_raises_an_error_and_leaves_no_files(
    home: Path, text: Path, frequent_commits: None
) -> None:
    class AppendingReporter(RecordingReporter):
        def poll(self) -> None:
            super().poll()
            if self.polls == 30:
                with text.open("a", encoding="utf-8") as file:
                    file.write("one more line\n")

    with pytest.raises(TraindeckError) as caught:
        prepare_files(text, reporter=AppendingReporter())
    assert caught.value.code == "data.changed_while_read"
    assert list_caches(home) == []
