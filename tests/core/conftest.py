"""Fixtures of the trainer tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainer_core.train.engine import compilation


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cache of compiled code for the whole session. Skips the test without a C++ compiler."""
    if compilation.unavailable_reason(torch.device("cpu")) is not None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        patch.setenv("TORCH_WARM_POOL", "0")
        yield folder
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
