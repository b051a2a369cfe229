"""The other machine: checks it, installs Traindeck there, and copies files in both directions."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from trainer_core import protocol
from trainer_core.base_model.weight_files import ADAPTER_CONFIG_FILE
from trainer_core.data.cache import ContentHashes
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.remote import keeper, ssh
from trainer_core.remote.ssh import Connection
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files, program_files, yaml_files

DEFAULT_FOLDER: Final = "~/traindeck"
_PROGRAM: Final = (
    "app", "launcher", "presets", "trainer_core", "train_gpu.py", "train_gpu.sh", "pyproject.toml", "constraints.txt",
)  # fmt: skip
_FETCHING: Final = ".fetching"  # folder of incomplete files in a run
_MIN_PYTHON: Final = (3, 6)  # of the launcher, which finds or asks for a newer one
_NEEDED_GIB: Final = (3, 8)  # for an installation; with CUDA
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileToSend:
    """A file and its name on the other machine, with slashes."""

    path: Path
    name: str
    size: int
    digest: str  # as of `ContentHashes`


class RemoteHost:
    """A machine by its name for ssh, and Traindeck's folder there, below which everything is."""

    def __init__(self, name: str, folder: str, reporter: Reporter) -> None:
        self.name, self.folder, self._reporter = name, folder, reporter
        self._found: dict[str, Any] = {}  # answer of `check`

    # --- check and installation -------------------------------------------------------------------------

    def check(self) -> protocol.RemoteCheck:
        """Python, GPUs, disk and Traindeck on the other machine. Raises `remote.…`."""
        found = self._found = ssh.request(self.name, "check", root=self.folder)
        if tuple(map(int, found["version"].split("."))) < _MIN_PYTHON:
            raise TraindeckError("remote.no_python", host=self.name, reason=f"Python {found['version']}")
        return protocol.RemoteCheck(
            host=self.name,
            folder=found["root"],
            python=found["version"],
            gpus=found["gpus"],
            free=found["free"],
            installed=found["installed"] and bool(found["own"] or found["key"]),
        )

    @property
    def root(self) -> str:
        return str(self._found["root"])

    def install(self) -> None:
        """Install this version of Traindeck, unless it is there. `check` comes first. Raises `remote.…`.

        An installation of the user's, such as a clone in the folder, is used as it is.
        """
        found, key = self._found, ""
        if not found["own"]:
            program = list_program()
            key = _set_key(program)
        if found["installed"] and key == found["key"]:
            return
        needed, free = _NEEDED_GIB[bool(found["gpus"])] * 1024, found["free"] >> 20
        if not found["installed"] and free < needed:
            raise TraindeckError("remote.disk_full", host=self.name, needed_mib=needed, free_mib=free)
        with self._reporter.phase("installing"):
            if key:
                self._send(program)
                ssh.request(self.name, "install", root=self.root, key=key)
            with self._execute(["sh", "train_gpu.sh", "setup"]) as setup:
                for line in ssh.read_lines(setup):
                    sys.stderr.write(f"{line}\n")
                    self._reporter.poll()
            if key:
                with self._execute(["true"], {f"{found['program']}/.ready": key}) as marking:
                    list(ssh.read_lines(marking))

    def create_run(self, name: str) -> str:
        """Create the folder of a new run. Returns its path, which ends in another name if this one is used."""
        return str(ssh.request(self.name, "create_run", root=self.root, name=name)["path"])

    def _execute(self, command: list[str], write: dict[str, str] | None = None) -> Connection:
        """Run a command in the program's folder, after writing files. Its output follows on `stdout`."""
        request = {
            "action": "execute",
            "command": command,
            "folder": self._found["program"],
            "environment": {"TRAINDECK_HOME": self.root, "PYTHONPATH": self._found["program"], "PYTHONUTF8": "1"},
            "write": write or {},
        }
        connection = Connection(self.name, request)
        try:
            connection.answer()
        except BaseException:
            connection.close()
            raise
        return connection

    def trainer(self, *arguments: str, write: dict[str, str] | None = None) -> Connection:
        """Run a command of `trainer_core`."""
        return self._execute([self._found["python"], "-u", "-P", "-m", "trainer_core", *arguments], write)

    # --- files to the other machine -----------------------------------------------------------------------

    def upload(self, root: Path, names: Sequence[str]) -> str:
        """Send files and folders of `root`, unless their content is there. Returns the folder there that has them.

        Raises `remote.…`.
        """
        total = sum(files.folder_size(root / name) for name in names)
        hashes = ContentHashes(run_dir.home() / "cache", self._reporter, total)
        sent = list(_list_files(root, names, hashes.get))
        hashes.save()
        return self._send(sent)

    def _send(self, sent: list[FileToSend]) -> str:
        """Send the files that are missing; a lost connection is continued. Returns their folder."""
        listed = [[file.name, file.size, file.digest] for file in sent]
        request = {"action": "put", "root": self.root, "key": _set_key(sent), "files": listed}
        paths = {file.digest: file.path for file in sent}
        with Connection(self.name, request) as connection:
            answer = connection.answer()
            total = sum(size - start for _, start, size in answer["missing"])
            done = 0
            for digest, start, size in answer["missing"]:
                with paths[digest].open("rb") as file:
                    file.seek(start)
                    left = size - start
                    while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
                        connection.write(chunk)
                        left, done = left - len(chunk), done + len(chunk)
                        self._reporter.progress("uploading", done, total, "bytes")
                        self._reporter.poll()
                if left:  # it became shorter meanwhile
                    raise TraindeckError("remote.changed", host=self.name)
            return str(connection.answer()["path"])

    # --- files from the other machine -----------------------------------------------------------------------

    def fetch(self, there: str, run: RunDir, paths: dict[str, str]) -> None:
        """Bring the files of a run here, but those that are here. `paths`: of data, there → here.

        Checkpoints appear when they are complete and equal their manifests. An interrupted transfer is continued.
        Raises `remote.…`.
        """
        area = run.path / _FETCHING
        known = (folder.name for folder in checkpoint_dir.list_checkpoints(run.checkpoints))
        skip = [run.events.name, run.lock.name, keeper.FOLDER, *known]
        have, parts = _list_versions(run.path), _list_versions(area)
        request = {"action": "fetch", "run": there, "skip": skip, "have": have, "parts": parts}
        with Connection(self.name, request) as connection:
            total, done = int(connection.answer()["bytes"]), 0
            while "name" in (entry := connection.answer()):
                for amount in _receive(connection, area, entry):
                    done += amount
                    self._reporter.progress("downloading", done, total, "bytes")
                    self._reporter.poll()
        with files.translate_os_errors(run.path):
            _remove_unsent(area, set(entry["sent"]))
            damaged = list(_keep_checkpoints(area, run, paths))
            _keep_files(area, run, paths)
        if damaged:
            folder, problem = damaged[0]
            raise TraindeckError("remote.damaged", host=self.name, path=folder.name, reason=problem)


def list_program() -> list[FileToSend]:
    """Files that make Traindeck on another machine, named as in the repository."""
    listed = (file for name in _PROGRAM for file in _list_files(program_files.parent_of(name), [name], _hash))
    return [file for file in listed if not file.name.startswith(f"trainer_core/{program_files.WHEEL_FOLDER}/")]


def _list_files(root: Path, names: Sequence[str], digest: Callable[[Path], str]) -> Iterator[FileToSend]:
    """Files below `names` in `root`, without hidden ones."""
    for name in names:
        for file in [root / name] if (root / name).is_file() else sorted((root / name).rglob("*")):
            short = file.relative_to(root)
            hidden = any(part[0] == "." or part == "__pycache__" for part in short.parts[1:])
            if file.is_file() and not hidden:
                yield FileToSend(file, short.as_posix(), file.stat().st_size, digest(file))


def _hash(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _set_key(sent: list[FileToSend]) -> str:
    """Hash of the names and contents of files."""
    listed = json.dumps(sorted((file.name, file.digest) for file in sent))
    return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


def _list_versions(folder: Path) -> dict[str, list[int]]:
    """Size and modification time (whole seconds) of files, by name with slashes."""
    found: dict[str, list[int]] = {}
    for file in folder.rglob("*"):
        short = file.relative_to(folder)
        if file.is_file() and short.parts[0] != _FETCHING:
            status = file.stat()
            found[short.as_posix()] = [status.st_size, int(status.st_mtime)]
    return found


def _receive(connection: Connection, area: Path, entry: dict[str, Any]) -> Iterator[int]:
    """Receive a file from `start` on; yields amounts. What was received before a failure stays for the next time."""
    path = area.joinpath(*str(entry["name"]).split("/"))
    if not path.resolve().is_relative_to(area.resolve()):
        raise TraindeckError("remote.failed", host=connection.host, reason=str(entry["name"]))
    left = int(entry["size"]) - int(entry["start"])
    with files.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if entry["start"] else "wb") as file:
            try:
                file.seek(entry["start"])
                while left:
                    chunk = connection.stdout.read1(min(_CHUNK_BYTES, left))
                    if not chunk:
                        raise connection.failure()
                    file.write(chunk)
                    left -= len(chunk)
                    yield len(chunk)
            finally:
                file.flush()
                os.utime(path, (entry["changed"], entry["changed"]))


def _remove_unsent(area: Path, sent: set[str]) -> None:
    """Delete what an interrupted transfer left of files that are no longer there, such as a rotated checkpoint's."""
    for name in _list_versions(area):
        if name not in sent:
            files.retry_sharing_violation((area / name).unlink)


def _keep_checkpoints(area: Path, run: RunDir, paths: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """Move complete checkpoints into the run's folder and delete the others. Yields damaged ones, with reasons."""
    for folder in checkpoint_dir.list_checkpoints(area / run.checkpoints.name):
        listed = checkpoint_dir.verify_files(folder, hashes=False)
        if not all((folder / name).is_file() for name in listed):  # rotated away during its transfer
            files.remove_tree(folder)
        elif problem := checkpoint_dir.find_problem(folder):
            files.remove_tree(folder)
            yield folder, problem
        else:
            _localize_checkpoint(folder, paths)
            run.checkpoints.mkdir(exist_ok=True)
            files.replace(folder, run.checkpoints / folder.name)


def _keep_files(area: Path, run: RunDir, paths: dict[str, str]) -> None:
    """Move files into the run's folder."""
    for file in [entry for entry in area.rglob("*") if entry.is_file()]:
        target = run.path / file.relative_to(area)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target == run.config:
            _localize(file, paths)
        files.replace(file, target)
    files.remove_tree(area)


def _localize_checkpoint(folder: Path, paths: dict[str, str]) -> None:
    """Write paths of this machine into a verified checkpoint: of an adapter's base model and of schemas of rewards."""
    info = checkpoint_dir.read_info(folder)
    if info is None:
        return
    candidates = (folder / ADAPTER_CONFIG_FILE, folder / "state.json")
    if [file for file in candidates if file.is_file() and _replace_paths(file, paths)]:
        checkpoint_dir.write_manifest(folder, info.step, info.kind, info.eval_loss, info.eval_reward)


def _replace_paths(file: Path, paths: dict[str, str]) -> bool:
    """Replace strings of a JSON file. Returns whether it has changed."""
    text = changed = file.read_text(encoding="utf-8")
    for there, here in paths.items():
        for is_ascii in (True, False):
            before, after = (json.dumps(path, ensure_ascii=is_ascii) for path in (there, here))
            changed = changed.replace(before, after)
    if changed != text:
        file.write_text(changed, encoding="utf-8", newline="\n")
    return changed != text


def _localize(config: Path, paths: dict[str, str]) -> None:
    """Write paths of this machine into config.yaml."""
    values = yaml_files.read(config)
    for name, value in values.items():
        if isinstance(value, str | list):
            values[name] = paths.get(value, value) if isinstance(value, str) else [paths.get(one, one) for one in value]
    config.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
