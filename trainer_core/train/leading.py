"""Rank 0 and the others: they are started, waited for, watched, and ended; and why one of them has gone is told."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from trainer_core import error_codes, protocol, rank_info
from trainer_core.config import Config, to_dict
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process, files
from trainer_core.train import nccl
from trainer_core.train.joined import Joined
from trainer_core.train.ranks import RankLost
from trainer_core.train.rendezvous import FolderStore, read_if_there, store_of_launcher, wait_for

_FOLDER: Final = "ranks-"
_LEAVING_S: Final = 5.0  # that a rank may take to end when it was told so, or to say why it ended
_CONNECTING_S: Final = 60.0
_POLL_S: Final = 0.05
_LAST_BYTES: Final = 4096
_WATCH_S: Final = 0.5
_NOTICING_S: Final = 3.0  # in which a main thread that is not in CUDA polls
_FREEING_S: Final = 20.0  # in which CUDA lets go of the main thread, once NCCL has been broken off
_ENDING_S: Final = 600.0  # in which it ends what it was doing, such as writing a checkpoint
_GONE: Final = "a process of this run has ended"
_ABOUT_RANKS: Final = frozenset({"failure.peer_lost", "failure.nccl", "failure.nccl_timeout"})


class Others:
    """The other ranks of a run, from rank 0: those that `torchrun` has started, or our own.

    As a context: what fails inside because another rank has gone is raised as that rank's own failure.
    """

    def __init__(self, config: Config, run: RunDir, context: RunContext) -> None:
        self._size, self._run, self._context = config.ranks, run, context
        self._ranks: Joined | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = run.path / f"{_FOLDER}{os.getpid()}"
        self._ours = rank_info.from_environment() is None
        self._patience = 0.0
        self._watch: _Watch | None = None
        self._store = self._own_store() if self._ours else store_of_launcher(0, self._size)

    def _own_store(self) -> Store:
        for left in self._run.path.glob(f"{_FOLDER}*"):  # of a process that was killed
            files.remove_tree(left)
        with files.translate_os_errors(self._run.path):
            self._folder.mkdir()
        return FolderStore(self._folder)

    def __enter__(self) -> Others:
        if self._ours:
            child_process.kill_children_on_exit()
            self._processes = [self._started(rank) for rank in range(1, self._size)]
            self._context.pause_conditions.append(self._look)  # asked whenever something is polled
        return self

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder), "--rank", str(rank), "--of", str(self._size), "--leader", str(os.getpid())]
        with log_of(self._run, rank).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", *child_process.interpreter_flags(), "-m", "trainer_core", "rank", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_process.environment(),
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )

    def _look(self) -> None:
        """No reason to wait, but to end: a process has gone."""
        if not self._one_has_gone():
            return
        if self._ranks is not None:
            self._ranks.lost(_GONE)
        raise RankLost(_GONE)

    def _one_has_gone(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    def join(
        self, config: Config, device: torch.device, precision: str, data: dict[str, Any], source: Path | None = None
    ) -> Joined:
        """See `Join`. Raises `RankLost`, `ranks.no_connection`, and what polling raises."""
        wait_for(self._store, [f"here/{rank}" for rank in range(1, self._size)], self._context.poll)
        self._store.set("go", "1")
        self._patience = time.monotonic() + _CONNECTING_S
        self._ranks = Joined(self._store, 0, self._size)
        self._ranks.most(0, poll=self._not_for_ever)
        self._ranks.tell(
            "begin",
            config=to_dict(config),
            run=str(self._run.path),
            source=str(source) if source else None,
            device=str(device),
            precision=precision,
            data=data,
        )
        if reason := self._ranks.use_gpus(device, self._context.poll):
            self._context.warn("ranks.no_nccl", reason=reason)
        if self._ranks.has_nccl and self._processes:
            self._watch = _Watch(self._ranks, self._one_has_gone, self._end_from_outside)
        return self._ranks

    def _not_for_ever(self) -> None:
        """While the first word goes from one to another. On a Wine it never arrives."""
        self._context.poll()
        if time.monotonic() > self._patience:
            raise TraindeckError("ranks.no_connection")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._watch is not None:
            self._watch.stop()
        told = self._cause(error) if isinstance(error, Exception) else None
        whole = error is None or isinstance(error, StopRequested)
        code = ExitCode.FAILED if not whole else ExitCode.STOPPED if error else ExitCode.FINISHED
        self._say_that_it_ended(code)
        if whole and self._ranks is not None and self._ranks.end(code):
            self._wait(lambda: all(process.poll() is not None for process in self._processes))
        if self._look in self._context.pause_conditions:
            self._context.pause_conditions.remove(self._look)
        for process in self._processes:
            child_process.kill_tree(process)
        if self._ranks is not None and not self._ranks.close():
            nccl.leave_without_waiting(_exit_code(told or error, code))
        with contextlib.suppress(OSError):
            files.remove_tree(self._folder)
        if told is not None:
            raise told from error

    def _say_that_it_ended(self, code: ExitCode) -> None:
        """For those who do not listen: they find us gone, and look there."""
        with contextlib.suppress(RuntimeError, OSError):
            self._store.set("ended", str(int(code)))

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _LEAVING_S
        while not done() and time.monotonic() < end:
            time.sleep(_POLL_S)

    # --- why one has gone ------------------------------------------------------------------------------

    def _cause(self, error: Exception) -> TraindeckError | None:
        """What the first of the others that failed says, or what its process ended with, where that may be the reason
        for `error`. None: there is no other reason."""
        code = error.code if isinstance(error, TraindeckError) else ""
        if not isinstance(error, RankLost) and code not in _ABOUT_RANKS:
            return None
        found: list[TraindeckError] = []

        def known() -> bool:
            found.extend(filter(None, map(self._told_by, range(1, self._size))))
            return bool(found)

        self._wait(known)
        if found:
            return min(found, key=lambda told: told.code in _ABOUT_RANKS)  # who only missed another one may tell first
        return None if code else TraindeckError("failure.peer_lost", detail=str(error))

    def _end_from_outside(self) -> None:
        """End this process, whose main thread does not come back from the GPU, and say why."""
        lost = _Interrupted()
        told = self._cause(lost) or lost
        self._context.set_phase("failed")
        self._context.emit(
            protocol.Error(code=told.code, params=dict(told.params), detail=told.detail, exit_code=told.exit_code)
        )
        closing = threading.Thread(target=self._context.dispatcher.close, daemon=True)
        closing.start()
        closing.join(_LEAVING_S)
        for process in self._processes:
            child_process.kill_tree(process)
        os._exit(told.exit_code)

    def _told_by(self, rank: int) -> TraindeckError | None:
        said = read_if_there(self._store, f"failed/{rank}")
        if said is not None:
            told = json.loads(said)
            return self._named(rank, told["code"], told["detail"], told["params"])
        code = self._processes[rank - 1].poll() if self._processes else None
        if code is None or code == 0:
            return None
        last = _last_words(log_of(self._run, rank))
        ending = error_codes.classify_termination(code, last)
        if ending is None:
            return self._named(rank, "failure.peer_lost", last.rpartition("\n")[2] or f"exit code {code}", {})
        return self._named(rank, ending.code, ending.detail, ending.params)

    def _named(self, rank: int, code: str, detail: str, params: dict[str, Any]) -> TraindeckError:
        self._context.warn("ranks.ended", number=rank + 1, of=self._size, log=log_of(self._run, rank).name)
        return TraindeckError(code, detail, **params)


def log_of(run: RunDir, rank: int) -> Path:
    """Where a rank writes what it has to say."""
    return run.path / f"rank-{rank}.log"


def _exit_code(error: BaseException | None, otherwise: ExitCode) -> int:
    """What this process is about to end with."""
    if isinstance(error, TraindeckError):
        return error.exit_code
    found = error_codes.classify_exception(error) if isinstance(error, Exception) else None
    return found.exit_code if found is not None else otherwise


def _last_words(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


class _Interrupted(TraindeckError):  # noqa: N818 - what has come to pass
    """Raised in the main thread from outside."""

    heard: ClassVar = threading.Event()  # there was one; the main thread goes on

    def __init__(self) -> None:
        super().__init__("failure.peer_lost", detail=_GONE)
        self.heard.set()


class _Watch:
    """Looks at the other processes for a main thread that cannot poll: with NCCL it may wait in CUDA for a sum in which
    a process that has gone takes no part.

    Breaking off the sum lets the main thread go, with numbers that are not whole. So that it does not go on with them,
    to save them perhaps, `_Interrupted` waits for it where it comes back. If it does not, `end` ends the process.
    """

    def __init__(self, ranks: Joined, one_has_gone: Callable[[], bool], end: Callable[[], None]) -> None:
        self._ranks, self._one_has_gone, self._end = ranks, one_has_gone, end
        self._main = threading.get_ident()
        self._over = threading.Event()
        self._turn = threading.Lock()
        _Interrupted.heard.clear()
        threading.Thread(target=self._run, name="ranks", daemon=True).start()

    def stop(self) -> None:
        """From the main thread, which takes care of everything from now on."""
        while not self._over.is_set():
            with contextlib.suppress(_Interrupted), self._turn:
                self._over.set()

    def _run(self) -> None:
        while not self._one_has_gone():
            if self._over.wait(_WATCH_S):
                return
        if self._over.wait(_NOTICING_S):
            return
        patience = _ENDING_S
        if not self._ranks.apart:  # else the main thread knows it, and is on its way
            if not self._interrupt():
                return
            self._ranks.abort_nccl()
            if self._over.wait(_FREEING_S):
                return
            patience = patience if _Interrupted.heard.is_set() else 0.0
        if not self._over.wait(patience):
            self._end()

    def _interrupt(self) -> bool:
        with self._turn:
            if self._over.is_set():
                return False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._main), ctypes.py_object(_Interrupted))
            return True
