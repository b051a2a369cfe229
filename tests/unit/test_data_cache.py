"""The token cache: reused, rebuilt with a reason, gone on with, and never taken for whole when it is not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.preparing import Listener, caches, content, decoded, prepared
from trainer_core.data import cache, encoder, prepare
from trainer_core.data.token_files import TokenFileWriter
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested

ROOT = Path(prepare.__file__).resolve().parents[2]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, each of them committed."""
    monkeypatch.setattr(encoder, "_BATCH_LIMIT", 4096)
    monkeypatch.setattr(encoder, "_COMMIT_INTERVAL_S", 0.0)


SCRIPT = """
import sys
from trainer_core.config import Config
from trainer_core.data import encoder
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter
if __name__ == "__main__":
    encoder._BATCH_LIMIT, encoder._COMMIT_INTERVAL_S = 4096, 0.0
    processes = int(sys.argv[2])
    encoder.choose_num_processes = lambda *_: processes
    done = prepare(Config(data=[sys.argv[1]], vocab_size=320, max_seq_len=32), NullReporter())
    print(done.train.tokens, flush=True)
"""


def start(data: Path, folder: Path, processes: int = 0) -> subprocess.Popen[str]:
    """A process that prepares `data`, committing often."""
    script = folder / "preparing it.py"
    if not script.exists():  # another process may be reading it
        script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(data), str(processes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


# --- reuse -----------------------------------------------------------------------------------------


def test_the_same_data_is_not_tokenised_twice(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(text)
    monkeypatch.setattr(prepare, "_build_cache", lambda *_: pytest.fail("made again"))
    second = prepared(text)
    assert (first.reused, second.reused) == (False, True)
    assert (first.folder, first.train, first.vocab_size) == (second.folder, second.train, second.vocab_size)


def test_batch_size_learning_rate_and_length_do_not_make_a_new_cache(home: Path, text: Path) -> None:
    first = prepared(text)
    assert prepared(text, batch_size=3, learning_rate=1e-2, max_seq_len=64, seed=7).folder == first.folder


def test_changed_data_or_options_make_a_new_cache(home: Path, text: Path) -> None:
    folders = {
        prepared(text).folder,
        prepared(text, vocab_size=330).folder,
        prepared(text, pre_tokenizer="gpt-2").folder,
    }
    text.write_text(text.read_text(encoding="utf-8").replace("Line 3999", "Lime 3999"), encoding="utf-8")
    folders.add(prepared(text).folder)
    assert len(folders) == 4


def test_a_moved_file_keeps_its_cache(home: Path, text: Path, tmp_path: Path) -> None:
    first = prepared(text)
    (tmp_path / "elsewhere").mkdir()
    text.rename(tmp_path / "elsewhere" / text.name)
    assert prepared(tmp_path / "elsewhere" / text.name).folder == first.folder


def test_a_file_with_another_name_and_date_but_the_same_content_keeps_its_cache(home: Path, text: Path) -> None:
    first = prepared(text)
    copy = text.with_name("副本.txt")
    copy.write_bytes(text.read_bytes())
    os.utime(copy, (1_000_000_000, 1_000_000_000))
    assert prepared(copy).folder == first.folder


def test_a_change_in_the_middle_of_the_same_size_is_seen(home: Path, text: Path) -> None:
    first = prepared(text)
    content = bytearray(text.read_bytes())
    middle = content.index(b" ", len(content) // 2)
    content[middle] = ord("_")
    text.write_bytes(content)
    assert prepared(text).folder != first.folder


def test_warnings_are_repeated_when_a_cache_is_reused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words to train on"}\n' * 100 + "bad\n", encoding="utf-8")
    for _ in range(2):
        listener = Listener()
        prepared(tmp_path / "a.jsonl", listener=listener)
        assert listener.warnings["data.rows_skipped"]["count"] == 1


def test_a_cache_that_lost_a_file_is_built_again(home: Path, text: Path) -> None:
    first = prepared(text)
    before = decoded(first, "train")
    (first.folder / "train" / "tokens-00000.bin").unlink()
    second = prepared(text)
    assert not second.reused
    assert decoded(second, "train") == before


def test_a_rebuilt_cache_says_why(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "novels"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"All about {name}. " * 200, encoding="utf-8")

    def why(**knobs: Any) -> tuple[str, dict[str, Any]]:
        listener = Listener()
        prepared(folder, listener=listener, **knobs)
        ((code, params),) = [item for item in listener.warnings.items() if item[0].startswith("cache.")] or [("", {})]
        return code, params

    assert why() == ("", {})
    (folder / "a.txt").write_text("Something else. " * 300, encoding="utf-8")
    assert why() == ("cache.file_changed", {"path": str(folder / "a.txt")})
    (folder / "c.txt").write_text("A third one. " * 100, encoding="utf-8")
    assert why() == ("cache.file_new", {"path": str(folder / "c.txt"), "count": 1})
    (folder / "b.txt").unlink()
    assert why() == ("cache.file_gone", {"path": str(folder / "b.txt"), "count": 1})
    assert why(vocab_size=330) == ("cache.option_changed", {"names": "vocab_size"})
    last = max(caches(home), key=lambda one: one.stat().st_mtime)
    (last / "train" / "offsets.bin").unlink()
    assert why(vocab_size=330) == ("cache.damaged", {})
    cache.files.remove_tree(last)
    assert why(vocab_size=330) == ("cache.gone", {})


def test_a_copy_of_data_that_was_prepared_elsewhere_is_compared_by_content(home: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (first / name).write_text(f"All about {name}. " * 200, encoding="utf-8")
    prepared(first)
    shutil.copytree(first, second)
    assert prepared(second).reused
    (second / "b.txt").unlink()
    listener = Listener()
    prepared(second, listener=listener)
    assert listener.warnings["cache.file_gone"] == {"path": "b.txt", "count": 1}, "that of the first folder is there"


def test_another_role_of_the_same_columns_makes_a_new_cache_and_names_columns_as_the_reason(
    home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    path.write_text("\n".join([json.dumps(row)] * 50), encoding="utf-8")
    first, listener = prepared(path), Listener()
    roles = {"system_column": "instruction", "prompt_column": "input", "response_column": "output"}
    second = prepared(path, listener=listener, **roles)
    assert first.folder != second.folder
    assert listener.warnings["cache.option_changed"] == {"names": "columns"}


def test_bad_rows_that_a_cache_was_made_in_spite_of_still_end_what_does_not_allow_them(
    home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words to train on"}\n' * 100 + "bad\nworse\n", encoding="utf-8")
    prepared(path)
    for knobs, code in (({"on_bad_row": "stop"}, "data.bad_row"), ({"bad_row_limit": 1}, "data.too_many_bad_rows")):
        with pytest.raises(TraindeckError) as caught:
            prepared(path, **knobs)
        assert (caught.value.code, caught.value.params["position"]) == (code, "line 101")


def test_a_finished_cache_that_could_not_be_renamed_is_put_in_place_by_the_next(
    home: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: Any) -> None:
        raise PermissionError(13, "held by a scanner")

    with monkeypatch.context() as patched:
        patched.setattr(
            cache.files, "replace", lambda source, target: held() if source.is_dir() else source.replace(target)
        )
        with pytest.raises(TraindeckError) as caught:
            prepared(text)
        assert caught.value.code == "disk.not_writable"
    monkeypatch.setattr(prepare, "_encode_data", lambda *_: pytest.fail("encoded again"))
    assert prepared(text).train.samples > 0


# --- interruptions ---------------------------------------------------------------------------------


def test_a_stop_at_any_poll_loses_nothing_and_changes_nothing(home: Path, text: Path, eager: None) -> None:
    whole = content(prepared(text).folder)
    cache.files.remove_tree(home / "cache")
    polls, stops, result = 0, 0, None
    while result is None:
        polls += 1 if polls < 3 else 7
        try:
            result = prepared(text, listener=Listener(stop_at=polls))
        except StopRequested:
            stops += 1
            assert [one for one in caches(home) if cache.read_meta(one)] == []
    assert stops > 3
    assert content(result.folder) == whole
    assert caches(home) == [result.folder]


def test_what_was_done_before_a_stop_is_not_done_again(home: Path, text: Path, eager: None) -> None:
    counting = Listener()
    prepared(text, listener=counting)
    cache.files.remove_tree(home / "cache")
    with pytest.raises(StopRequested):
        prepared(text, listener=Listener(stop_at=counting.polls - 3))
    (making,) = [one for one in caches(home) if one.suffix == ".making"]
    position = json.loads((making / "journal.json").read_bytes())["position"]
    assert position["tally"]["read"] > 20
    rest = Listener()
    prepared(text, listener=rest)
    assert rest.polls < counting.polls / 2


@pytest.mark.parametrize("processes", [0, 2])
def test_killed_at_any_moment_it_goes_on_and_the_result_is_the_same(home: Path, text: Path, processes: int) -> None:
    assert start(text, text.parent, processes).communicate(timeout=60)[0]
    (folder,) = caches(home)
    whole = content(folder)
    cache.files.remove_tree(home / "cache")
    draw, journal = random.Random(processes), home / "cache" / f"{folder.name}.making" / "journal.json"
    for _ in range(5):
        before = journal.read_bytes() if journal.exists() else b""
        process = start(text, text.parent, processes)
        while process.poll() is None and (not journal.exists() or journal.read_bytes() == before):
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.1))
        process.kill()
        process.communicate()
        assert not (folder / cache.META_FILE).exists() or cache.read_meta(folder)
    assert start(text, text.parent, processes).communicate(timeout=60)[0]
    assert content(folder) == whole


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_files_that_have_less_than_was_committed_are_made_from_the_beginning(
    home: Path, text: Path, eager: None, damage: str
) -> None:
    counting = Listener()
    whole = content(prepared(text, listener=counting).folder)
    cache.files.remove_tree(home / "cache")
    with pytest.raises(StopRequested):
        prepared(text, listener=Listener(stop_at=counting.polls - 3))
    (making,) = [one for one in caches(home) if one.suffix == ".making"]
    tokens = making / "train" / "tokens-00000.bin"
    tokens.unlink() if damage == "gone" else os.truncate(tokens, 100)
    assert content(prepared(text).folder) == whole


def test_where_the_two_ways_to_encode_differ_the_slow_one_is_kept_to_after_an_interruption(
    home: Path, text: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    encode_all = prepare.encode_documents

    def watched(*given: Any) -> Any:
        tried.append(given[-1])
        if given[-1]:
            raise prepare.EncoderMismatchError
        return encode_all(*given)

    monkeypatch.setattr(prepare, "encode_documents", watched)
    counting = Listener()
    whole = prepared(text, listener=counting)
    kept = content(whole.folder)
    cache.files.remove_tree(home / "cache")
    tried.clear()
    with pytest.raises(StopRequested):
        prepared(text, listener=Listener(stop_at=counting.polls - 3))
    assert content(prepared(text).folder) == kept
    assert tried == [True, False, False]


def test_helpers_end_with_the_process_that_is_killed(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "much.txt"
    data.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(400_000)), encoding="utf-8")
    process = start(data, tmp_path, processes=2)
    helpers: list[psutil.Process] = []
    until = time.monotonic() + 60
    while len(helpers) < 3 and process.poll() is None and time.monotonic() < until:  # two, and what watches them
        helpers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)
    assert len(helpers) >= 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(helpers, timeout=20)
    assert alive == []


def test_a_lost_helper_costs_nothing(home: Path, text: Path, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content(prepared(text).folder)
    cache.files.remove_tree(home / "cache")
    monkeypatch.setattr(encoder, "choose_num_processes", lambda *_: 2)

    class Killer(Listener):
        def poll(self) -> None:
            super().poll()
            for child in psutil.Process().children() if self.polls > 10 else ():
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
                    if "multiprocessing.spawn" in " ".join(child.cmdline()):
                        child.kill()

    result = prepared(text, listener=Killer())
    assert content(result.folder) == whole


def test_an_unfinished_cache_of_long_ago_is_removed(home: Path, text: Path) -> None:
    half = home / "cache" / "0123456789abcdef01234567.making"
    half.mkdir(parents=True)
    (half / "tokens").write_bytes(b"x")
    recent = home / "cache" / "1123456789abcdef01234567.making"
    recent.mkdir()
    os.utime(half, (1_000_000_000, 1_000_000_000))
    result = prepared(text)
    assert sorted(caches(home)) == sorted([result.folder, recent])


def test_processes_that_prepare_the_same_data_at_once_all_succeed_and_it_is_done_once(home: Path, text: Path) -> None:
    running = [start(text, text.parent) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    result = prepared(text)
    assert result.reused
    assert said == [str(result.train.tokens)] * 3
    assert caches(home) == [result.folder]


def test_a_second_process_waits_for_the_first_and_can_be_stopped(home: Path, text: Path) -> None:
    name = prepared(text).folder.name
    cache.files.remove_tree(home / "cache" / name)
    with cache.file_locks.file_lock(home / "cache" / f"{name}.lock"), pytest.raises(StopRequested):
        prepared(text, listener=Listener(stop_at=8))


def test_a_full_disk_is_said_and_leaves_nothing(home: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TokenFileWriter, "add_block", full)
    with pytest.raises(TraindeckError) as caught:
        prepared(text)
    assert caught.value.code == "disk.full"
    needed, free = (int(str(caught.value.params[name])) for name in ("needed_mib", "free_mib"))
    assert needed >= free, "what is free once the rest is removed was not enough"
    assert caches(home) == []


def test_a_cache_folder_that_cannot_be_made_is_said(home: Path, text: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        prepared(text, cache_dir=str(text / "below a file"))
    assert caught.value.code == "disk.not_writable"


def test_a_file_that_changes_while_it_is_read_is_said_and_nothing_is_kept(home: Path, text: Path, eager: None) -> None:
    class Writing(Listener):
        def poll(self) -> None:
            super().poll()
            if self.polls == 30:
                with text.open("a", encoding="utf-8") as file:
                    file.write("one more line\n")

    with pytest.raises(TraindeckError) as caught:
        prepared(text, listener=Writing())
    assert caught.value.code == "data.changed_while_read"
    assert caches(home) == []
