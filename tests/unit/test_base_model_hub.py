"""Downloads from a hub on loopback: resumed, verified, cancellable, and without the user's token on a mirror."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from tests.hub_server import COMMIT, Hub, serve
from trainer_core.base_model import download
from trainer_core.base_model import hub as hub_module
from trainer_core.base_model.source import plan_download, resolve
from trainer_core.messages import ExitCode, TraindeckError, format_message
from trainer_core.progress import NullReporter, StopRequested, Unit
from trainer_core.protocol import PhaseName

MODEL = "Qwen/Qwen3-0.6B"
ROOT = Path(__file__).resolve().parents[2]


def model_files(shards: int = 2) -> dict[str, bytes]:
    """A model of `shards` files of 1 MB, and files that no training needs."""
    tensors = {f"w{number}": np.full(262_144, number + 1, dtype=np.float32) for number in range(shards)}
    names = {name: f"model-{number + 1:05}-of-{shards:05}.safetensors" for number, name in enumerate(tensors)}
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": "模型卡".encode(),
        **{names[name]: save({name: tensor}) for name, tensor in tensors.items()},
        "consolidated.safetensors": save({"other": tensors["w0"]}),
        "pytorch_model.bin": b"cos\nsystem\n",
        "modeling_qwen3.py": b"raise SystemExit(1)",
        "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
        "config.json": b'{"model_type": "qwen3"}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "additional_chat_templates/tool_use.jinja": b"{{ messages }}",
    }


WANTED = {
    "README.md", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json",
    "additional_chat_templates/tool_use.jinja", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a stored token, and no waits."""
    folder = tmp_path / "缓存 hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(download, "_FIRST_WAIT_S", 0.01)
    return folder


@pytest.fixture
def server() -> Iterator[Hub]:
    with serve(Hub({MODEL: model_files()})) as running:
        yield running


class Recorder(NullReporter):
    def __init__(self) -> None:
        self.reported: list[tuple[PhaseName, float, float | None, Unit]] = []

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self.reported.append((phase, done, total, unit))


def refusal(server: Hub, text: str = MODEL) -> TraindeckError:
    with pytest.raises(TraindeckError) as caught:
        resolve(text, NullReporter(), server.endpoint)
    for language in ("en", "zh"):
        sentence = format_message(caught.value.code, caught.value.params, language)  # type: ignore[arg-type]
        assert "?" not in sentence
        assert "{" not in sentence
    assert "hf_secret" not in str(caught.value)
    return caught.value


def names_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_with_what_training_needs_and_nothing_else(server: Hub, cache: Path) -> None:
    recorder = Recorder()
    base = resolve(MODEL, recorder, server.endpoint)
    assert names_below(base.folder) == WANTED
    assert all(
        (base.folder / name).read_bytes() == content for name, content in model_files().items() if name in WANTED
    )
    assert base.origin == f"{MODEL}@{COMMIT}"
    assert base.weights == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    total = sum(len(content) for name, content in model_files().items() if name in WANTED)
    assert recorder.reported[-1] == ("loading", total, total, "bytes")
    assert [done for _, done, _, _ in recorder.reported] == sorted(done for _, done, _, _ in recorder.reported)
    assert not list(cache.rglob("*.incomplete"))


def test_huggingface_hub_finds_what_was_downloaded(server: Hub) -> None:
    base = resolve(MODEL, NullReporter(), server.endpoint)
    assert huggingface_hub.snapshot_download(MODEL, local_files_only=True) == str(base.folder)
    found = huggingface_hub.try_to_load_from_cache(MODEL, "model-00001-of-00002.safetensors")
    assert found == str(base.folder / "model-00001-of-00002.safetensors")


@pytest.mark.skipif(os.name == "nt", reason="on Wine, the links of huggingface_hub cannot be read")
def test_what_huggingface_hub_downloaded_is_used(server: Hub) -> None:
    folder = huggingface_hub.snapshot_download(MODEL, endpoint=server.endpoint, token=False, max_workers=1)
    server.requests.clear()
    assert str(resolve(MODEL, NullReporter(), server.endpoint).folder) == folder
    assert not server.requests


@pytest.mark.parametrize("text", [MODEL, f"{MODEL}@main", f"{MODEL}@{COMMIT}"])
def test_a_model_in_the_cache_needs_no_network(server: Hub, text: str) -> None:
    first = resolve(text, NullReporter(), server.endpoint)
    server.requests.clear()
    assert plan_download(text, NullReporter(), "http://127.0.0.1:9") is None
    assert resolve(text, NullReporter(), "http://127.0.0.1:9") == first
    assert resolve(first.origin, NullReporter(), "http://127.0.0.1:9") == first
    assert not server.requests


def test_a_folder_wins_over_a_model_of_the_same_name(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / MODEL
    folder.mkdir(parents=True)
    for name in (
        "config.json",
        "model.safetensors.index.json",
        *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2)),
    ):
        (folder / name).write_bytes(model_files()[name])
    monkeypatch.chdir(tmp_path)
    assert resolve(MODEL, NullReporter(), server.endpoint).folder == folder
    assert not server.requests


def test_sizes_are_known_before_the_download(server: Hub, cache: Path) -> None:
    plan = plan_download(MODEL, NullReporter(), server.endpoint)
    assert plan is not None
    total = sum(len(content) for name, content in model_files().items() if name in WANTED)
    assert (plan.bytes_to_fetch, plan.bytes_present, plan.bytes_total) == (total, 0, total)
    assert plan.free_bytes > 0
    assert not server.paths("resolve")
    assert not cache.exists()


def test_too_little_disk_space_is_reported_before_the_first_byte(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.files, "free_bytes", lambda path: 1_000_000)
    error = refusal(server)
    assert (error.code, error.exit_code) == ("disk.full", ExitCode.DISK_FULL)
    assert not server.paths("resolve")


# --- the token ---------------------------------------------------------------------------------------


def test_the_token_is_not_sent_to_a_mirror(server: Hub) -> None:
    resolve(MODEL, NullReporter(), server.endpoint)
    assert len(server.requests) > len(WANTED)
    assert not [path for _, path, headers in server.requests if "authorization" in headers]
    assert "hf_secret" not in json.dumps(server.requests)


def test_with_consent_the_token_is_sent_to_the_mirror_but_not_to_where_it_redirects(server: Hub) -> None:
    resolve(MODEL, NullReporter(), server.endpoint, send_token=True)
    sent = {path for _, path, headers in server.requests if headers.get("authorization") == "Bearer hf_secret"}
    assert sent == {path for path in server.paths() if not path.startswith("/lfs/")}


def test_the_token_is_sent_to_the_official_endpoint_only() -> None:
    official = "https://huggingface.co"
    assert hub_module._headers(official, send_token=False)["Authorization"] == "Bearer hf_secret"
    for other in ("http://huggingface.co", "https://huggingface.co.evil.example", "https://hf-mirror.com"):
        assert "Authorization" not in hub_module._headers(other, send_token=False)


# --- broken connections --------------------------------------------------------------------------------


@pytest.mark.parametrize("supports_ranges", [True, False])
def test_a_connection_that_breaks_in_the_middle_is_resumed(server: Hub, supports_ranges: bool) -> None:
    server.breaks_after, server.supports_ranges = [300_000, 100_000], supports_ranges
    recorder = Recorder()
    base = resolve(MODEL, recorder, server.endpoint)
    assert (base.folder / base.weights[0]).read_bytes() == model_files()[base.weights[0]]
    ranges = [
        headers.get("range") for _, path, headers in server.requests if path.endswith(f"/lfs/{MODEL}/{base.weights[0]}")
    ]
    assert ranges == [None, "bytes=300000-", "bytes=400000-" if supports_ranges else "bytes=100000-"]
    assert recorder.reported[-1][1] == recorder.reported[-1][2]


def test_a_server_that_stays_broken_is_reported_and_the_next_start_continues(server: Hub) -> None:
    server.breaks_after = [300_000, *[0] * 10]
    error = refusal(server)
    assert (error.code, error.exit_code) == ("hub.interrupted", ExitCode.DATA)
    server.breaks_after.clear()
    plan = plan_download(MODEL, NullReporter(), server.endpoint)
    assert plan is not None
    assert plan.bytes_present >= 300_000
    server.requests.clear()
    base = resolve(MODEL, NullReporter(), server.endpoint)
    assert (base.folder / base.weights[0]).read_bytes() == model_files()[base.weights[0]]
    assert [headers.get("range") for _, path, headers in server.requests if path.startswith("/lfs/")] == [
        "bytes=300000-",
        None,
    ]


def test_an_incomplete_file_that_is_damaged_is_downloaded_from_its_beginning(server: Hub, cache: Path) -> None:
    server.breaks_after = [300_000, *[0] * 10]
    refusal(server)
    (incomplete,) = cache.rglob("*.incomplete")
    incomplete.write_bytes(b"!" * 300_000)
    server.breaks_after.clear()
    base = resolve(MODEL, NullReporter(), server.endpoint)
    assert (base.folder / base.weights[0]).read_bytes() == model_files()[base.weights[0]]


class Stopper(NullReporter):
    """Stops once some bytes were received."""

    stopped = 0.0

    def __init__(self) -> None:
        self.done = 0.0

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self.done = done

    def poll(self) -> None:
        if self.done >= 300_000:
            self.stopped = time.monotonic()
            raise StopRequested


def test_a_stop_takes_effect_within_a_second_although_the_server_is_silent(server: Hub) -> None:
    server.stalls_after = 300_000
    stopper = Stopper()
    with pytest.raises(StopRequested):
        resolve(MODEL, stopper, server.endpoint)
    assert time.monotonic() - stopper.stopped < 1


def test_a_stopped_download_continues_where_it_ended(server: Hub, cache: Path) -> None:
    server.stalls_after = 300_000
    with pytest.raises(StopRequested):
        resolve(MODEL, Stopper(), server.endpoint)
    server.stalls_after = None
    server.released.set()
    base = resolve(MODEL, NullReporter(), server.endpoint)
    assert (base.folder / base.weights[0]).read_bytes() == model_files()[base.weights[0]]
    assert not list(cache.rglob("*.incomplete"))


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "tokenizer.json"])
def test_a_file_that_was_tampered_with_is_deleted_and_named(server: Hub, cache: Path, name: str) -> None:
    server.tampered[name] = model_files()[name][:-1] + b"!"
    error = refusal(server)
    assert (error.code, error.params["file"]) == ("hub.file_changed", name)
    assert name not in {path.name for path in cache.rglob("*")}
    assert not list(cache.rglob("*.incomplete"))
    server.tampered.clear()
    assert resolve(MODEL, NullReporter(), server.endpoint).config == {"model_type": "qwen3"}


def test_a_server_that_sends_too_much_is_cut_off(server: Hub) -> None:
    server.tampered["config.json"] = model_files()["config.json"] + b" " * 1_000_000
    assert refusal(server).code == "hub.file_changed"


def test_a_gated_model_says_where_to_ask_for_access(server: Hub) -> None:
    server.gated = True
    error = refusal(server)
    assert (error.code, error.exit_code) == ("hub.gated", ExitCode.DATA)
    assert f"https://huggingface.co/{MODEL}" in str(error)
    assert "hf auth login" in str(error)


@pytest.mark.parametrize("sends_error_codes", [True, False])
def test_an_unknown_model_is_reported(server: Hub, sends_error_codes: bool) -> None:
    server.sends_error_codes = sends_error_codes
    assert refusal(server, "Qwen/Qwen9").code == "hub.not_found"


def test_an_unknown_revision_is_reported(server: Hub) -> None:
    assert refusal(server, f"{MODEL}@v9").code == "hub.no_revision"


@pytest.mark.parametrize("text", [f"{MODEL}@../../x", "../x/y", "Qwen/..x", f"{MODEL}/x", "Qwen Qwen3"])
def test_text_that_is_no_name_of_a_model_makes_no_request(server: Hub, text: str) -> None:
    assert refusal(server, text).code == "base_model.not_found"
    assert not server.requests


def test_without_a_network_one_sentence_names_the_host(server: Hub) -> None:
    closed = Hub(endpoint="http://127.0.0.1:9")
    error = refusal(closed)
    assert (error.code, error.params["host"], error.exit_code) == ("hub.offline", "127.0.0.1:9", ExitCode.DATA)


def test_offline_mode_of_huggingface_hub_is_respected(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refusal(server).code == "hub.offline"
    assert not server.requests


def test_pickled_weights_are_not_downloaded(server: Hub) -> None:
    server.models[MODEL] = {name: content for name, content in model_files().items() if "safetensors" not in name}
    assert refusal(server).code == "base_model.pickled"
    assert not server.paths("resolve")


def test_a_model_that_needs_remote_code_is_refused_before_its_weights_are_downloaded(server: Hub) -> None:
    config = {"model_type": "chatglm", "auto_map": {"AutoModel": "modeling_chatglm.Model"}}
    server.models[MODEL]["config.json"] = json.dumps(config).encode()
    assert refusal(server).code == "base_model.remote_code"
    assert not server.paths("/lfs/")


# --- the process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_without_permission_for_links_the_files_themselves_are_in_the_cache_once(
    server: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(Path, "symlink_to", _no_permission)
    base = resolve(MODEL, NullReporter(), server.endpoint)
    if os.name == "posix":  # Wine does not follow the links
        assert (base.folder / base.weights[0]).is_symlink() == links
    copies = [
        path for path in cache.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size > 1e6
    ]
    assert len(copies) == len(base.weights)
    assert resolve(MODEL, NullReporter(), "http://127.0.0.1:9") == base


def _no_permission(*arguments: object) -> None:
    raise OSError(22, "A required privilege is not held by the client")


def test_a_process_downloads_without_a_word_on_the_console(server: Hub, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from trainer_core.base_model.source import resolve\n"
        "from trainer_core.progress import NullReporter\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules\n"
        "print(resolve(sys.argv[1], NullReporter(), sys.argv[2]).origin)"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "家 hf"), "HF_TOKEN": "hf_secret", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", script, MODEL, server.endpoint]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert (ended.stdout.strip(), ended.stderr) == (f"{MODEL}@{COMMIT}", "")
    assert (tmp_path / "家 hf" / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / COMMIT / "config.json").is_file()
    assert "hf_secret" not in json.dumps(server.requests)


STOP_WHILE_SILENT = """
import sys, time
from trainer_core.base_model.source import resolve
from trainer_core.progress import NullReporter, StopRequested

class Stopper(NullReporter):
    done = 0
    def progress(self, phase, done, total, unit):
        self.done = done
    def poll(self):
        if self.done >= 300_000:
            print(time.time())
            raise StopRequested

try:
    resolve(sys.argv[1], Stopper(), sys.argv[2])
except StopRequested:
    sys.exit(3)
"""


def test_a_process_that_is_stopped_ends_at_once_although_the_server_is_silent(server: Hub, tmp_path: Path) -> None:
    server.stalls_after = 300_000
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", STOP_WHILE_SILENT, MODEL, server.endpoint]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert time.time() - float(ended.stdout) < 3  # the exit of Python included


def test_a_pause_stops_receiving() -> None:
    counts: list[tuple[int, int]] = []

    def work(control: download.Control) -> None:
        while len(counts) < 3:
            control.check()
            control.received += 1
            time.sleep(0.001)

    class Pausing(NullReporter):
        def poll(self) -> None:
            time.sleep(0.05)  # what is received at this moment
            before = seen[0].received if seen else 0
            time.sleep(0.1)
            if seen:
                counts.append((before, seen[0].received))

    seen: list[download.Control] = []
    download.run_cancellable(work, Pausing(), seen.append)
    assert counts[-1][0] > counts[0][0] > 0
    assert all(before == after for before, after in counts)
