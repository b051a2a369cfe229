"""One of several ranks, on `torch.distributed`: gloo between processes, NCCL between GPUs where it is available.

A rank that fails stores why under `failed/RANK` before it exits. Its connections close, so that collective operations
of other ranks fail; they look there for the reason. A rank that hangs is found by the time-out of an operation, and
named from what each rank published last.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, NoReturn, TypeVar

import psutil
import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer_core import error_codes, rank_info
from trainer_core.data.order import keyed_hash
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.rank_info import RankInfo
from trainer_core.runs import file_locks
from trainer_core.train.checkpoint_writer import Shards
from trainer_core.train.process_group import PeerFailed, ProcessGroup

T = TypeVar("T")

_POLL_S: Final = 0.01
_PUBLISH_S: Final = 5.0
_EXPLAIN_S: Final = 5.0  # in which ranks that fail, or miss one that failed, store why
_EXPLAIN_LIMIT_S: Final = 25.0  # for all requests to the store that find the cause
_PROCESS_CHECK_S: Final = 1.0  # interval in which a waiting rank checks the other processes
_PEER_CODES: Final = frozenset({"failure.peer_lost", "failure.nccl", "failure.nccl_timeout", "ranks.timeout"})


class TorchProcessGroup(ProcessGroup):
    """One of several ranks. `timeout_s`: of an operation, set by rank 0. Raises `ranks.no_connection`."""

    def __init__(self, info: RankInfo, timeout_s: float | None, warn: Callable[..., None]) -> None:
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank, self.local_world_size = info.local_rank, info.local_world_size
        self._sections = 0
        self._warn = warn
        self._checkpoints = 0
        self._state: tuple[str, int] = ("starting", 0)
        _configure_environment(info)
        try:
            found, _, _ = next(rendezvous("env://", info.rank, info.world_size))
            attempt, self._timeout_s = _agree_on_attempt(PrefixStore("traindeck", found), info, timeout_s)
            self._store = PrefixStore(f"traindeck/{attempt}", found)
            distributed.init_process_group(
                _backend(),
                store=PrefixStore(f"torch/{attempt}", found),
                rank=info.rank,
                world_size=info.world_size,
                timeout=datetime.timedelta(seconds=self._timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            raise TraindeckError("ranks.no_connection", detail=str(error)) from error
        self._closed = threading.Event()
        threading.Thread(target=self._publish, name="ranks", daemon=True).start()

    def close(self) -> None:
        """Leave the group after a run that ended as planned on all ranks."""
        self._closed.set()
        gc.collect()  # DDP aborts at exit now and then if its reducer outlives the group
        with contextlib.suppress(RuntimeError):
            distributed.barrier()
            distributed.destroy_process_group()

    # --- operations ----------------------------------------------------------------------------------

    def broadcast(self, value: Any) -> Any:
        content = json.dumps(value).encode("utf-8") if self.rank == 0 and value is not None else b""
        length = torch.tensor([len(content)], dtype=torch.int64)
        with self._collective():
            distributed.broadcast(length, 0)
            if not int(length):
                return None
            data = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            distributed.broadcast(data, 0)
        return json.loads(bytes(data.tolist()))

    def max(self, *values: int) -> list[int]:
        together = torch.tensor(values, dtype=torch.int64)
        with self._collective():
            distributed.all_reduce(together, distributed.ReduceOp.MAX)
        return [int(value) for value in together.tolist()]

    def gather(self, value: Any) -> list[Any]:
        content = json.dumps(value).encode("utf-8")
        (longest,) = self.max(len(content))
        own = torch.frombuffer(bytearray(content.ljust(longest)), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.world_size)]
        with self._collective():
            distributed.all_gather(found, own)
        return [json.loads(bytes(one.tolist())) for one in found]

    def sum(self, tensor: Tensor) -> None:
        with self._collective():
            distributed.all_reduce(tensor)

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        self._sections += 1
        key = f"section/{self._sections}"
        if self.rank:
            outcome = json.loads(self._wait(key))
            if "stop" in outcome:
                raise StopRequested(outcome["stop"])
            return outcome["result"]  # type: ignore[no-any-return]
        try:
            result = work()
        except StopRequested as stop:
            self._store.set(key, json.dumps({"stop": stop.reason}))
            raise
        self._store.set(key, json.dumps({"result": result}))
        return result

    def choose(self, make: Callable[[Any], T], choices: Callable[[T], Any], recorded: Any) -> T:
        made: list[T] = []

        def make_first() -> Any:
            made.append(make(recorded))
            return choices(made[0])

        chosen = self.on_rank_zero(make_first)
        return made[0] if made else make(chosen)

    def seed(self, seed: int, step: int) -> None:
        torch.manual_seed(keyed_hash(f"rank/{seed}/{self.rank}", step))

    def doing(self, phase: str, step: int) -> None:
        self._state = (phase, step)

    def new_shards(self) -> Shards:
        self._checkpoints += 1
        return _StoredShards(self._store, f"checkpoint/{self._checkpoints}", self)

    def _wait(self, key: str) -> bytes:
        """Wait for a key that rank 0 sets, without a time limit: it may be paused. Raises `PeerFailed`."""
        with self._collective():
            for exited in self.poll_until_set(key):
                if self.has_key("failed/0"):
                    raise PeerFailed(json.loads(self._store.get("failed/0"))["exit_code"])
                if 0 in exited:
                    raise PeerFailed(TraindeckError("ranks.lost").exit_code)
            return bytes(self._store.get(key))

    def poll_until_set(self, key: str) -> Iterator[list[int]]:
        """Yield at each poll, until the store has the key; once a second the ranks whose process has exited. Raises as
        `has_key`.
        """
        next_check = time.monotonic() + _PROCESS_CHECK_S
        while not self.has_key(key):
            exited: list[int] = []
            if time.monotonic() > next_check:
                exited = _in_time(self._exited_ranks, self._timeout_s)
                next_check = time.monotonic() + _PROCESS_CHECK_S
            yield exited
            time.sleep(_POLL_S)

    def has_key(self, key: str) -> bool:
        """Whether the store has the key. Raises `RuntimeError` if it does not respond within the time limit."""
        return _in_time(lambda: bool(self._store.check([key])), self._timeout_s)

    # --- failures ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        """Around operations that fail only because of another rank."""
        try:
            yield
        except RuntimeError as error:
            self.explain(error)

    def explain(self, error: Exception) -> NoReturn:
        """Raise the failure of the rank that made a collective operation fail with `error`.

        Rank 0 reports it; on other ranks it is `PeerFailed`.
        """
        failure = TraindeckError("failure.peer_lost", detail=str(error))  # where the store does not respond, too
        with contextlib.suppress(RuntimeError):
            failure = _in_time(lambda: self._find_cause(error), _EXPLAIN_LIMIT_S)
        if self.rank:
            raise PeerFailed(failure.exit_code) from error
        raise failure from error

    def _find_cause(self, error: Exception) -> TraindeckError:
        timed_out = "imed out" in str(error) or "imeout" in str(error)
        lost = TraindeckError("failure.peer_lost", detail=str(error))
        failure = self._timeout_error(error) if timed_out else lost
        self.report_failure(failure)
        found = self._reported_failures(wait=not timed_out)
        causes = {rank: report for rank, report in found.items() if report["code"] not in _PEER_CODES}
        missing = [rank for rank in range(self.world_size) if rank not in found]
        if causes:
            rank, report = next(iter(causes.items()))
            self._warn("ranks.failed", number=rank + 1, of=self.world_size, log=f"rank-{rank}.log")
            code, detail, params = report["code"], report["detail"], report["params"]
            failure = TraindeckError(code, detail, **params)
        elif missing and not timed_out:
            failure = TraindeckError("ranks.lost", detail=str(error), number=missing[0] + 1, of=self.world_size)
        return failure

    def report_failure(self, failure: TraindeckError) -> None:
        """Store why this rank ends, for the others."""
        report = {"code": failure.code, "detail": failure.detail, "params": failure.params}
        with contextlib.suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", json.dumps({**report, "exit_code": failure.exit_code}))

    def _reported_failures(self, wait: bool) -> dict[int, dict[str, Any]]:
        """What each rank reported, once one names a cause or all have reported."""
        found: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + (_EXPLAIN_S if wait else 0.0)
        with contextlib.suppress(RuntimeError):  # the store may be gone with rank 0
            while True:
                for rank in range(self.world_size):
                    if rank not in found and self._store.check([f"failed/{rank}"]):
                        found[rank] = json.loads(self._store.get(f"failed/{rank}"))
                known = any(report["code"] not in _PEER_CODES for report in found.values())
                if known or len(found) == self.world_size or time.monotonic() > end:
                    break
                time.sleep(_POLL_S)
        return found

    def _timeout_error(self, error: Exception) -> TraindeckError:
        """Name the rank that others wait for: one that no longer publishes, or the one that is furthest behind."""
        before = self._published()
        time.sleep(1.5 * _PUBLISH_S)
        published = self._published()
        silent = [rank for rank in range(self.world_size) if published.get(rank) == before.get(rank)]
        rank = silent[0] if silent else min(published, key=lambda one: int(published[one]["step"]))
        last = published.get(rank, {"phase": "starting", "step": 0})
        return TraindeckError(
            "ranks.timeout",
            detail=str(error),
            seconds=round(self._timeout_s),
            number=rank + 1,
            of=self.world_size,
            phase=str(last["phase"]),
            step=int(last["step"]),
        )

    def _published(self) -> dict[int, dict[str, Any]]:
        """What each rank published last, with a number that counts."""
        found: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(RuntimeError):
            for rank in range(self.world_size):
                if self._store.check([f"doing/{rank}"]):
                    found[rank] = json.loads(self._store.get(f"doing/{rank}"))
        return found

    def _publish(self) -> None:
        """Publish the status of this rank until it leaves the group. Abort NCCL when another process has exited: unlike
        gloo, it does not detect closed connections.
        """
        process = {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}
        with_nccl = "nccl" in _backend()
        for number in itertools.count():
            phase, step = self._state
            status = {"phase": phase, "step": step, "number": number, **process}
            with contextlib.suppress(RuntimeError):
                self._store.set(f"doing/{self.rank}", json.dumps(status))
            if self._closed.wait(_PUBLISH_S):
                return
            if with_nccl and self._exited_ranks():
                distributed.distributed_c10d._abort_process_group()
                return

    def _exited_ranks(self) -> list[int]:
        """Ranks of this machine whose process has exited."""
        local = {rank: one for rank, one in self._published().items() if one["host"] == socket.gethostname()}
        return [rank for rank, one in local.items() if not file_locks.is_alive(one["pid"], one["started"])]


def _in_time(work: Callable[[], T], limit_s: float) -> T:
    """The result of `work`. Raises `RuntimeError` if it takes longer: a request to a store behind a broken link never
    returns.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            future.set_exception(error)

    threading.Thread(target=run, name="store", daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        raise RuntimeError(f"timed out: no answer within {limit_s:g} s") from error


class _StoredShards:
    """`Shards` over a store, from any thread."""

    def __init__(self, store: Any, key: str, group: TorchProcessGroup) -> None:
        self._store, self._key, self._group = store, key, group
        self._rank, self._size = group.rank, group.world_size
        self._opened = False

    def open(self, folder: str) -> str:
        if self._rank == 0:
            self._opened = True
            self._store.set(f"{self._key}/folder", folder)
            return folder
        return self._get("folder")

    def finish(self, problem: str) -> None:
        self._store.set(f"{self._key}/{self._rank}", problem)
        if self._rank == 0:
            problems = [self._get(str(rank)) for rank in range(1, self._size)]
            if any(problems):
                raise OSError(next(filter(None, problems)))

    def cancel(self) -> None:
        if not self._opened:
            self.open("")

    def _get(self, name: str) -> str:
        for exited in self._group.poll_until_set(f"{self._key}/{name}"):
            if any(self._group.has_key(f"failed/{rank}") for rank in range(self._size)):
                raise OSError("a rank has failed")
            if exited:
                raise TraindeckError("ranks.lost", number=exited[0] + 1, of=self._size)
        return str(self._store.get(f"{self._key}/{name}").decode("utf-8"))


@contextlib.contextmanager
def join_group(info: RankInfo, timeout_s: float | None, warn: Callable[..., None]) -> Iterator[ProcessGroup]:
    """See `process_group.join`."""
    group = TorchProcessGroup(info, timeout_s, warn)
    try:
        yield group
    except PeerFailed:
        raise
    except StopRequested:
        group.close()
        raise
    except Exception as error:
        failure = error_codes.to_traindeck_error(error)
        if failure is not error and failure.code in _PEER_CODES:  # of an operation of DDP or FSDP2
            group.explain(error)
        group.report_failure(failure)
        raise
    group.close()


def _agree_on_attempt(store: Any, info: RankInfo, timeout_s: float | None) -> tuple[str, float]:
    """A name of this start of the ranks, and the time limit that rank 0 gives.

    `store` may hold keys of earlier starts: elastic agents keep it, and each counts only the restarts that it caused.
    So rank 0 answers the random number of each rank.
    """
    own = secrets.token_hex(8)
    if info.rank:
        store.set(f"arrived/{info.rank}", own)
        attempt, timeout_s = json.loads(store.get(f"answer/{own}"))
        store.set(f"joined/{attempt}/{info.rank}", "")
        return attempt, float(timeout_s)
    assert timeout_s is not None
    missing, end = list(range(1, info.world_size)), time.monotonic() + timeout_s
    while missing:
        for rank in missing:
            if store.check([f"arrived/{rank}"]):
                number = store.get(f"arrived/{rank}").decode("utf-8")
                store.set(f"answer/{number}", json.dumps([own, timeout_s]))
        missing = [rank for rank in missing if not store.check([f"joined/{own}/{rank}"])]
        if time.monotonic() > end:
            raise RuntimeError(f"ranks {missing} did not connect within {timeout_s} s")
        time.sleep(_POLL_S)
    return own, timeout_s


def _backend() -> str:
    if not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl" if distributed.is_nccl_available() else "cpu:gloo,cuda:gloo"


def _configure_environment(info: RankInfo) -> None:
    os.environ.update(rank_info.rendezvous_environment())
    if sys.platform == "win32":
        os.environ.setdefault("USE_LIBUV", "0")
    if sys.platform == "linux" and info.local_world_size == info.world_size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would look up this machine's name
