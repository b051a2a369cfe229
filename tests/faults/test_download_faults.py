"""A disk that is full in the middle of a download."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.hub_server import Hub, serve
from tests.unit.test_base_model_hub import MODEL, Recorder, model_files
from trainer_core.base_model import download
from trainer_core.base_model.source import resolve
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter, Unit
from trainer_core.protocol import PhaseName


def test_a_full_disk_in_the_middle_of_a_download_is_reported_and_the_download_continues_later(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(small_disk / "hub"))
    monkeypatch.setattr(download, "_OVERHEAD_BYTES", 0)  # the disk has 7 MiB
    filler = small_disk / "filler"
    with serve(Hub({MODEL: model_files()}, stalls_after=300_000)) as server:

        class FillDisk(Recorder):
            def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
                if done >= 300_000 and not filler.exists():
                    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                        while True:
                            file.write(bytes(65_536))
                    server.stalls_after = None
                    server.released.set()

        with pytest.raises(TraindeckError) as caught:
            resolve(MODEL, FillDisk(), server.endpoint)
        assert (caught.value.code, caught.value.exit_code) == ("disk.full", ExitCode.DISK_FULL)
        filler.unlink()
        server.requests.clear()
        base = resolve(MODEL, NullReporter(), server.endpoint)
        first = next(headers for _, path, headers in server.requests if path.startswith("/lfs/"))
        assert int(first["range"].removeprefix("bytes=").removesuffix("-")) > 0
    assert (base.folder / base.weights[1]).read_bytes() == model_files()[base.weights[1]]
