"""Command `push`: the files of an export as one commit on the Hugging Face Hub, with the user's own login.

Files are sent over HTTP, not over Xet, which mirrors lack. A stopped or failed upload leaves no commit.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from trainer_core import protocol
from trainer_core.base_model import hub
from trainer_core.base_model.download import DownloadControl, run_cancellable
from trainer_core.export.model_card import MODEL_CARD_FILE
from trainer_core.export.verification.verify import RESULT_FILE
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_WEIGHTS: Final = (".safetensors", ".gguf")
_MAX_NAME_CHARS: Final = 96  # of a repository
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = (401, 404)  # of a repository that the account cannot read; servers differ
_TIMEOUT_S: Final = 120.0  # without any data; a commit of many files takes the server a while
_MAX_REASON: Final = 200  # characters


@dataclass(frozen=True, slots=True)
class Push:
    """An upload to confirm."""

    folder: Path
    plan: protocol.HubUpload
    api: HfApi


def prepare(
    folder: Path,
    repository: str,
    public: bool,
    allow_unverified: bool,
    reporter: Reporter,
    endpoint: str = "",
    send_token: bool = False,
) -> Push:
    """What would be uploaded, and to where. Sends no file.

    `repository`: ORG/NAME; a name of the user's account; or empty for the folder's name. `endpoint` and `send_token`:
    see `hub.token_for`. Raises `push.*`.
    """
    _require_export(folder, allow_unverified)
    api = _connect(hub.resolve_endpoint(endpoint), send_token)
    host = _host(api.endpoint)

    def work(control: DownloadControl) -> protocol.HubUpload:
        with _translate_errors(repository or folder.name, host):
            account = str(api.whoami()["name"])
            name = repository if "/" in repository else f"{account}/{repository or _repository_name(folder.name)}"
            private = _is_private(api, name)
        if private is False and not public:
            raise TraindeckError("push.public", repository=name, host=host)
        return protocol.HubUpload(
            account=account,
            endpoint=api.endpoint,
            repository=name,
            private=not public if private is None else private,
            exists=private is not None,
            files=[protocol.UploadFile(name=path.name, bytes=path.stat().st_size) for path in exported_files(folder)],
        )

    return Push(folder, run_cancellable(work, reporter), api)


def exported_files(folder: Path) -> list[Path]:
    """The files of an export by name, without subfolders, links and hidden files, which an export does not write."""
    paths = (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return sorted(path for path in paths if not path.name.startswith("."))


def upload(push: Push, reporter: Reporter) -> protocol.HubUpload:
    """Create the repository if it does not exist, and commit the files. Raises `push.*` or `StopRequested`."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns that file objects are not sent over Xet
    plan, api = push.plan, push.api
    total = sum(file.bytes for file in plan.files)

    def work(control: DownloadControl) -> None:
        with _translate_errors(plan.repository, _host(plan.endpoint)), contextlib.ExitStack() as stack:
            control.received = -total  # a first reading is for the hashes
            handles = {
                file.name: stack.enter_context(_CountingFile(push.folder / file.name, control)) for file in plan.files
            }
            operations = [CommitOperationAdd(name, handle) for name, handle in handles.items()]
            control.received = 0
            if not plan.exists:
                api.create_repo(plan.repository, private=plan.private)
            api.create_commit(plan.repository, operations, commit_message=f"Upload {push.folder.name} with Traindeck")

    def report(control: DownloadControl) -> None:
        reporter.progress("uploading", min(max(control.received, 0), total), total, "bytes")

    with reporter.phase("uploading"):
        run_cancellable(work, reporter, report)
    return msgspec.structs.replace(plan, url=f"{plan.endpoint}/{plan.repository}")


def _connect(endpoint: str, send_token: bool) -> HfApi:
    """Raises `push.no_login` or `push.mirror`."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import get_session

    if get_token() is None:
        raise TraindeckError("push.no_login", host=_host(endpoint))
    if (token := hub.token_for(endpoint, send_token)) is None:
        raise TraindeckError("push.mirror", host=_host(endpoint))
    get_session().timeout = _TIMEOUT_S  # by default it waits forever
    return HfApi(endpoint, token, headers={"user-agent": hub.USER_AGENT})


def _host(endpoint: str) -> str:
    return urlsplit(endpoint).netloc or endpoint


def _require_export(folder: Path, allow_unverified: bool) -> None:
    """Raises `push.no_export`, `push.different` or `push.not_verified`."""
    names = [path.name for path in exported_files(folder)] if folder.is_dir() else []
    if MODEL_CARD_FILE not in names or not any(name.endswith(_WEIGHTS) for name in names):
        raise TraindeckError("push.no_export", path=str(folder))
    if allow_unverified:
        return
    passed = None
    with contextlib.suppress(OSError, protocol.ProtocolError):
        result = protocol.decode_event((folder / RESULT_FILE).read_bytes())
        passed = result.passed if isinstance(result, protocol.Verification) else None
    if not passed:
        raise TraindeckError("push.not_verified" if passed is None else "push.different", path=str(folder))


def _repository_name(name: str) -> str:
    """A name that the Hub accepts: ASCII letters, digits, `_`, and single `-` and `.`."""
    ascii_name = re.sub(r"[^A-Za-z0-9_.]+", "-", name)
    return re.sub(r"[-.]{2,}", "-", ascii_name)[:_MAX_NAME_CHARS].strip("-.") or "model"


def _is_private(api: HfApi, repository: str) -> bool | None:
    """Of an existing repository; None: it does not exist, or the account cannot read it."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return bool(api.model_info(repository).private)
    except HfHubHTTPError as error:
        if error.response.status_code in _NOT_FOUND:
            return None
        raise


@contextlib.contextmanager
def _translate_errors(repository: str, host: str) -> Iterator[None]:
    """Raises `push.no_login`, `push.forbidden`, `push.bad_name` or `push.failed`."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise TraindeckError("push.bad_name", str(error), repository=repository) from error
    except Exception as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error  # of one LFS file
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else 0
        if status == _UNAUTHORIZED:
            raise TraindeckError("push.no_login", str(error), host=host) from error
        code = "push.forbidden" if status == _FORBIDDEN else "push.failed"
        raise TraindeckError(code, str(error), repository=repository, host=host, reason=_reason(cause)) from error


def _reason(error: BaseException) -> str:
    """One line; of a refusal, what the server says, such as that the storage of the account is full."""
    from huggingface_hub.errors import HfHubHTTPError

    text = str(error)
    if isinstance(error, HfHubHTTPError):
        text = error.server_message or f"HTTP {error.response.status_code}"
    line = "".join(filter(str.isprintable, " ".join(text.split())))  # an answer must not control the terminal
    return line[:_MAX_REASON] or type(error).__name__


class _CountingFile(io.BufferedReader):
    """Counts what was read, and ends the upload at a Stop: a commit reads each file."""

    def __init__(self, path: Path, control: DownloadControl) -> None:
        super().__init__(io.FileIO(path))
        self._control = control

    def read(self, size: int | None = -1, /) -> bytes:
        self._control.check()
        content = super().read(size)
        self._control.received += len(content)
        return content
