"""Untrusted models, data and configurations: no code execution, no memory exhaustion, no writes elsewhere."""

from __future__ import annotations

import ast
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from tokenizers import pre_tokenizers

from tests.core.trainer_process import ROOT, TINY, environment, finish, run, start, text_file
from trainer_core import config, presets
from trainer_core.config import ConfigLayer
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir

STEPS = ["--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trained run."""
    home = tmp_path_factory.mktemp("untrusted")
    result = run(home, "train", *TINY, *STEPS, "--run-dir", "runs/run", "--data", str(text_file(home)))
    assert result.code == 0, result.stderr
    return home


# --- code execution --------------------------------------------------------------------------------------

FORBIDDEN: Final = {
    ("pickle",), ("marshal",), ("shelve",), ("dill",), ("cloudpickle",), ("joblib",),
    ("torch", "load"), ("torch", "save"), ("yaml", "unsafe_load"), ("yaml", "full_load"),
    ("os", "system"), ("os", "popen"),
    ("eval",), ("exec",), ("compile",), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"),
    ("tarfile",), ("zipfile",), ("shutil", "unpack_archive"),
    ("archive", "extract"), ("archive", "extractall"),
}  # fmt: skip
ALLOWED_ARCHIVES: Final = {
    ("app/core/bug_report.py", "zipfile"),  # writes the bug report
    ("trainer_core/data/readers/tar.py", "tarfile"),  # data; read as a stream, never extracted
}
FORBIDDEN_FLAGS: Final = {"shell", "trust_remote_code", "allow_pickle"}


def syntax_nodes() -> Iterator[tuple[str, ast.AST]]:
    for folder in ("trainer_core", "app"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield path.relative_to(ROOT).as_posix(), node


def dotted_name(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        return (*dotted_name(node.value), node.attr)
    return (node.id,) if isinstance(node, ast.Name) else ("?",)


def test_no_code_evaluates_file_content() -> None:
    violations: list[tuple[str, object]] = []
    for file, node in syntax_nodes():
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            violations += [(file, name)] if name in FORBIDDEN else []
            violations += [
                (file, keyword.arg)
                for keyword in node.keywords
                if keyword.arg in FORBIDDEN_FLAGS
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            ]
            if name == ("yaml", "load") and not any(keyword.arg == "Loader" for keyword in node.keywords):
                violations.append((file, name))
        elif isinstance(node, ast.Import):
            violations += [(file, alias.name) for alias in node.names if (alias.name,) in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom):
            violations += [(file, node.module)] if (node.module,) in FORBIDDEN else []
    assert set(violations) == ALLOWED_ARCHIVES


def test_yaml_loaders_return_plain_values_only() -> None:
    safe = ("SafeLoader", "CSafeLoader", "_Loader", "CLoader")
    loader_names = {
        (file, node.attr) for file, node in syntax_nodes() if isinstance(node, ast.Attribute) and "Loader" in node.attr
    }
    assert {name for _, name in loader_names if name not in safe[:2]} <= {"DataLoader"}


SHADOWED_MODULES: Final = (
    "torch", "json", "yaml", "click", "msgspec", "numpy", "conftest", "random", "socket", "pickle", "app",
    "sitecustomize", "usercustomize", "modeling_untrusted", "multiprocessing",
)  # fmt: skip


def test_modules_in_the_working_directory_are_not_imported(home: Path, tmp_path: Path) -> None:
    for name in SHADOWED_MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'run')!r}, 'a').write('{name} ')\n", encoding="utf-8"
        )
    text_file(tmp_path)
    arguments = ["train", *TINY, *STEPS, "--data", str(tmp_path), "--data-format", "text", "--num-workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments, "--run-dir", str(home / "modules"), "--restarts", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=tmp_path,
    )
    result = finish(process)
    assert result.code == 0, result.stderr
    assert not (tmp_path / "run").exists(), (tmp_path / "run").read_text()


# --- configurations --------------------------------------------------------------------------------------

BILLION_LAUGHS: Final = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    [
        BILLION_LAUGHS + "batch_size: *a11\n",
        "batch_size: " + "[" * 50_000,
        "batch_size: " + "{a: " * 5000,
        "!!python/object/apply:os.system [touch executed]\n",
        "batch_size: !!python/object/apply:os.system [touch executed]\n",
        "seed: " + "9" * 100_000 + "\n",
        "preset: 2001-99-99\n",
        "? [a, b]\n: c\n",
        "batch_size: 1\n" * 100_000,
    ],
    ids=["laughs", "lists", "maps", "tag", "tag inside", "number", "date", "key", "large"],
)
def test_a_hostile_configuration_is_rejected_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraindeckError) as rejection:
        config.resolve([ConfigLayer(str(path), presets.read_mapping(path))])
    assert rejection.value.exit_code == 2
    assert len(str(rejection.value) + rejection.value.detail) < 2000


def test_a_hostile_configuration_of_a_run_is_left_out_of_its_summary(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(BILLION_LAUGHS + "data: *a11\n", encoding="utf-8")
    assert run_dir.summarize(RunDir(tmp_path)).data == []


# --- models ----------------------------------------------------------------------------------------------


def publish_checkpoint(home: Path, name: str, change: Callable[[Path], None]) -> Path:
    """A modified copy of the checkpoint with a matching manifest, as an attacker would publish it."""
    (original,) = checkpoint_dir.list_checkpoints(home / "runs" / "run" / "checkpoints")
    folder = home / name
    folder.mkdir()
    for file in original.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    change(folder)
    manifest = json.loads((folder / checkpoint_dir.MANIFEST).read_bytes())
    for file in manifest["files"]:
        content = (folder / file).read_bytes()
        manifest["files"][file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / checkpoint_dir.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


LOAD_MODELS: Final = """
import json, sys
from pathlib import Path
import psutil, torch
from trainer_core.generation import generate
from trainer_core.messages import TraindeckError, format_message
for folder in sys.argv[1:]:
    before = psutil.Process().memory_info().rss
    try:
        generate.load_model(Path(folder), torch.device("cpu"))
        message = ""
    except TraindeckError as error:
        message = format_message(error.code, error.params, "en")
    except BaseException as error:
        message = "UNEXPECTED: " + repr(error)[:300]
    print(json.dumps([message, psutil.Process().memory_info().rss - before]), flush=True)
"""


def assert_all_rejected(home: Path, changes: dict[str, Callable[[Path], None]]) -> None:
    """Each model is rejected with a message of one line, and without much memory. One process loads all models."""
    folders = [publish_checkpoint(home, name, change) for name, change in changes.items()]
    command = [sys.executable, "-c", LOAD_MODELS, *map(str, folders)]
    completed = subprocess.run(command, capture_output=True, env=environment(home), cwd=home, timeout=120, check=False)
    outputs = [json.loads(line) for line in completed.stdout.splitlines()]
    assert completed.returncode == 0, (list(changes)[len(outputs)], completed.stderr.decode()[-500:])
    for name, (message, memory_growth) in zip(changes, outputs, strict=True):
        assert 0 < len(message) < 700, name
        assert "UNEXPECTED" not in message, (name, message)
        assert "\n" not in message, (name, message)
        assert memory_growth < 500_000_000, name


def write_header(length: int, content: bytes = b"", body: bytes = b"") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + content + body)

    return change


def write_tensors(**entries: Any) -> Callable[[Path], None]:
    content = json.dumps(entries).encode()
    return write_header(len(content), content, bytes(64))


def test_hostile_weights_are_rejected_in_one_sentence(home: Path) -> None:
    entry = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    assert_all_rejected(
        home,
        {
            "endless header": write_header(2**60),
            "header beyond the file": write_header(90_000_000),
            "long header": write_header(120_000_000, b" " * 120_000_000),
            "no header": write_header(0),
            "nested header": write_header(100_000, b'{"a":' * 20_000),
            "shape beyond the file": write_tensors(x=entry | {"shape": [10**12]}),
            "offsets beyond the file": write_tensors(x=entry | {"shape": [10**9], "data_offsets": [0, 4 * 10**9]}),
            "overflowing shape": write_tensors(x=entry | {"shape": [2**40, 2**40]}),
            "negative shape": write_tensors(x=entry | {"shape": [-4]}),
            "overlapping": write_tensors(x=entry, y=entry),
        },
    )


def change_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_bytes())
        (folder / "config.json").write_text(json.dumps(document | values), encoding="utf-8")

    return change


def test_a_model_with_impossible_sizes_is_rejected_in_one_sentence(home: Path) -> None:
    assert_all_rejected(
        home,
        {
            "width": change_config(hidden_size=10**12),
            "vocabulary": change_config(vocab_size=10**15),
            "layers": change_config(num_hidden_layers=10**9),
            "length": change_config(max_position_embeddings=10**12),
            "largest allowed sizes": change_config(
                hidden_size=65_536, num_hidden_layers=512, intermediate_size=262_144
            ),
            "no heads": change_config(num_attention_heads=0),
            "odd heads": change_config(num_attention_heads=3),
            "negative": change_config(hidden_size=-32),
            "words": change_config(hidden_size="many"),
            "not a number": change_config(rms_norm_eps=float("nan")),
            "a list": lambda folder: (folder / "config.json").write_text("[]"),
            "nothing": lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'),
            "nested": lambda folder: (folder / "config.json").write_text("[" * 100_000),
        },
    )


def test_a_manifest_refers_to_files_of_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"mine")
    entry = {"bytes": 4, "sha256": hashlib.sha256(b"mine").hexdigest()}
    for name in ("../secret", str(tmp_path / "secret"), "..\\secret", "a/b", "", ".", "C:secret"):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        document = {"step": 1, "kind": "final", "eval_loss": None, "files": {name: entry}}
        (folder / checkpoint_dir.MANIFEST).write_text(json.dumps(document), encoding="utf-8")
        assert checkpoint_dir.find_problem(folder) is not None, name


def test_a_branch_copies_only_files_of_the_manifest(home: Path) -> None:
    (home / "theirs" / "checkpoints").mkdir(parents=True)
    name = "theirs/checkpoints/step-00000002"
    folder = publish_checkpoint(home, name, lambda folder: (folder / "sitecustomize.py").write_text("1"))
    (home / "theirs" / "config.yaml").write_bytes((home / "runs" / "run" / "config.yaml").read_bytes())
    result = run(home, "train", "--resume", str(folder), "--run-dir", "branch", "--max-steps", "3")
    assert result.code == 0, result.stderr
    copied = {path.name for path in (home / "branch" / "checkpoints" / "step-00000002").iterdir()}
    assert "model.safetensors" in copied
    assert "sitecustomize.py" not in copied


# --- tokenizers --------------------------------------------------------------------------------------------


def tokenizer_json(folder: Path, pattern: str) -> Path:
    """A byte-level tokenizer with this split pattern."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [
        {"id": 256 + n, "content": name} | flags
        for n, name in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    ]
    document = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "model": {"type": "BPE", "vocab": {letter: n for n, letter in enumerate(alphabet)}, "merges": []},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize("pattern", ["(a+)+$", "(" * 100_000, "("], ids=["exponential", "nested", "invalid"])
def test_a_malicious_split_pattern_is_rejected(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(TraindeckError) as rejection:
        Codec.load(tokenizer_json(tmp_path, pattern)).encode_texts(["a" * 60 + "b. And so on."])
    assert rejection.value.code == "data.bad_tokenizer"
    assert any(text in str(rejection.value) for text in ("retry-limit", "Oniguruma")), rejection.value
    assert "\n" not in str(rejection.value)


# --- secrets and ports -----------------------------------------------------------------------------------

KEY: Final = "5ecre7" * 7  # 42 characters, like older keys of Weights & Biases


def test_a_key_in_the_environment_is_never_written(home: Path) -> None:
    variables = environment(home) | {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline", "HF_TOKEN": KEY}
    arguments = ["train", *TINY, *STEPS, "--data", str(home / "文本 text.txt"), "--run-dir", "secret", "--use-wandb"]
    for command in (arguments, ["doctor", "--output", "json"], ["runs", "--output", "json"]):
        command_line = [sys.executable, "-m", "trainer_core", *command]
        completed = subprocess.run(command_line, capture_output=True, env=variables, cwd=home, timeout=120, check=False)
        assert KEY.encode() not in completed.stdout + completed.stderr, command[0]
    written = [path for path in (home / "secret").rglob("*") if path.is_file()]
    assert {"config.yaml", "events.jsonl", "log.txt"} <= {path.name for path in written}
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_listens_on_no_port(home: Path) -> None:
    process = start(
        home, "train", *TINY, "--max-steps", "5000", "--data", str(home / "文本 text.txt"), "--run-dir", "quiet",
        "--num-workers", "1", "--control", "stdin", stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    for line in process.stdout:
        if b'"type":"step"' in line:
            break
    trainer = psutil.Process(process.pid)
    processes = [trainer, *trainer.children(recursive=True)]
    sockets = [socket for member in processes for socket in member.net_connections("inet")]
    process.stdin.close()
    process.stdin = None
    assert finish(process).code == 3
    assert sockets == []
