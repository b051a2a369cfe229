"""Runs on the other machine without Traindeck: sent over ssh, with a request as a line of JSON on stdin.

Standard library only, syntax of Python 3.6. stdin is unbuffered, so that a process that replaces this one reads on.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from io import FileIO
from pathlib import Path
from typing import Any

CHUNK = 1024 * 1024


def answer(**fields: Any) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def root_of(request: "dict[str, Any]") -> Path:
    return Path(request["root"]).expanduser().resolve()


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def check(request: "dict[str, Any]", _stdin: FileIO) -> None:
    """Describe this machine and the installation: the user's in the folder, or the one that `install` makes."""
    root = root_of(request)
    own = (root / "train_gpu.py").is_file()
    program = root if own else root / "program"
    # The launcher may have put the environment elsewhere.
    python = Path(read(program / ".venv-setup" / "home.txt").strip() or program) / ".venv" / "bin" / "python"
    root.mkdir(parents=True, exist_ok=True)  # the surest way to learn whether it is writable
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    listed = b""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True
        ).stdout
    answer(
        root=str(root),
        program=str(program),
        python=str(python),
        version="{}.{}.{}".format(*sys.version_info[:3]),
        free=shutil.disk_usage(str(root)).free,
        gpus=[line.strip() for line in listed.decode("utf-8", "replace").splitlines() if line.strip()],
        own=own,
        installed=python.exists(),
        key=read(program / ".ready"),
    )


def put(request: "dict[str, Any]", stdin: FileIO) -> None:
    """Receive the contents that are missing, and link them into a folder named by the hash of all."""
    root, files = root_of(request), request["files"]  # name, bytes, hash
    for name, _, _ in files:
        if name.startswith("/") or ".." in name.split("/"):  # outside of the folder
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    blobs, target = root / "blobs", root / "sets" / request["key"]
    exists, missing = target.is_dir(), []
    blobs.mkdir(parents=True, exist_ok=True)
    for digest, size in sorted({(digest, size) for _, size, digest in files}):
        if not exists and not (blobs / digest).exists():
            part = blobs / (digest + ".part")
            missing.append([digest, min(size, part.stat().st_size) if part.exists() else 0, size])
    needed, free = sum(size - start for _, start, size in missing), shutil.disk_usage(str(blobs)).free
    if needed > free:
        answer(error="disk_full", needed=needed, free=free)
        return
    answer(missing=missing)
    for digest, start, size in missing:
        receive(stdin, blobs / digest, start, size)
    if not exists:
        part = target.with_name(target.name + ".part")
        shutil.rmtree(str(part), ignore_errors=True)
        for name, _, digest in files:
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(str(blobs / digest), str(path))
            except OSError:  # a file system without links
                shutil.copyfile(str(blobs / digest), str(path))
        part.rename(target)
    answer(path=str(target))


def receive(stdin: FileIO, path: Path, start: int, size: int) -> None:
    """Append bytes to a part, which becomes the file if its hash, the name of `path`, is right."""
    part, left = path.with_name(path.name + ".part"), size - start
    with part.open("ab") as file:
        file.truncate(start)
        while left:
            chunk = stdin.read(min(CHUNK, left))
            if not chunk:
                sys.exit(1)  # the connection was lost; the next one continues
            file.write(chunk)
            left -= len(chunk)
    hashed = hashlib.blake2b(digest_size=16)  # as data/cache.py
    with part.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            hashed.update(chunk)
    if hashed.hexdigest() != path.name:
        part.unlink()
        answer(error="changed")
        sys.exit(1)
    part.replace(path)


def install(request: "dict[str, Any]", _stdin: FileIO) -> None:
    """Replace the program by a set of files, but not its environment, unless a run uses it."""
    root = root_of(request)
    source, program = root / "sets" / request["key"], root / "program"
    for lock in root.glob("runs/*/keeper/lock"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(json.loads(read(lock))["pid"], 0)
            answer(error="busy", run=lock.parent.parent.name)
            return
    program.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        (program / ".ready").unlink()
    for entry in source.iterdir():
        target = program / entry.name
        if target.is_dir():
            shutil.rmtree(str(target))
        (shutil.copytree if entry.is_dir() else shutil.copyfile)(str(entry), str(target))
    answer()


def create_run(request: "dict[str, Any]", _stdin: FileIO) -> None:
    """Create a folder for a run, with a number after its name if the name is used."""
    runs, name, number = root_of(request) / "runs", request["name"], 1
    runs.mkdir(parents=True, exist_ok=True)
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            break
        except FileExistsError:
            number += 1
    answer(path=str(folder))


def execute(request: "dict[str, Any]", _stdin: FileIO) -> None:
    """Replace this process by a command, after writing files."""
    for name, text in request["write"].items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if shutil.which(request["command"][0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), request["command"][0])
    answer()  # what follows is of the command
    os.execvp(request["command"][0], request["command"])


def fetch(request: "dict[str, Any]", _stdin: FileIO) -> None:
    """Send the files of a run that the other side lacks, newest checkpoint first, each from where its part ends.

    have, parts: Files of the other side, complete and incomplete: name → bytes, modification time.
    The last answer names the files that were sent, without those that were deleted meanwhile.
    """
    run, have, parts, found, sent = Path(request["run"]), request["have"], request["parts"], [], []
    for path in sorted((Path(root) / name for root, _, names in os.walk(str(run)) for name in names), reverse=True):
        name = path.relative_to(run).as_posix()
        hidden = any(part[0] == "." or part in request["skip"] for part in name.split("/"))
        with contextlib.suppress(OSError):  # removed by rotation
            if path.is_file() and not hidden:
                size, changed = path.stat().st_size, int(path.stat().st_mtime)
                part = parts.get(name)
                start = part[0] if part and part[1] == changed and part[0] <= size else 0
                if have.get(name) != [size, changed]:
                    found.append((name, start, size, changed))
    found.sort(key=lambda file: not file[0].startswith("checkpoints/"))
    answer(bytes=sum(size - start for _, start, size, _ in found))
    for name, start, size, changed in found:
        with contextlib.suppress(FileNotFoundError), (run / name).open("rb") as file:
            file.seek(start)
            answer(name=name, start=start, size=size, changed=changed)
            left = size - start
            while left:
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    sys.exit(1)
                sys.stdout.buffer.write(chunk)
                left -= len(chunk)
            sent.append(name)
    answer(sent=sent)


def main() -> None:
    stdin = os.fdopen(0, "rb", 0, closefd=False)
    request = json.loads(stdin.readline().decode("utf-8"))
    actions = {
        "check": check,
        "put": put,
        "install": install,
        "create_run": create_run,
        "execute": execute,
        "fetch": fetch,
    }
    try:
        actions[request["action"]](request, stdin)
    except OSError as error:
        answer(error="system", reason=error.strerror or str(error), path=str(error.filename or ""))


if __name__ == "__main__":
    main()
