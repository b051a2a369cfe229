"""What `doctor` looks at in a process of its own: `python -m trainer_core.doctor.child_main torch|packages`.

Importing torch or Qt can end a process (a missing processor instruction, a broken library), can hang
(a virus scanner) and costs memory; none of that may happen to whoever asks. Each answer is one JSON
line, sent at once, so that the last answer tells how far it came.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import sys
from typing import Any, Final

MODULES: Final = {  # what is imported, and the package that it comes from
    "numpy": "numpy",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "pyarrow.parquet": "pyarrow",
    "msgspec": "msgspec",
    "yaml": "pyyaml",
    "click": "click",
    "rich": "rich",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "PySide6.QtWidgets": "PySide6-Essentials",
    "pyqtgraph": "pyqtgraph",
}


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as plain values; `winerror` where Windows gave one, itself or in the text."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    in_text = re.search(r"WinError (\d+)", said[0])
    return {
        "error": said[0].rstrip("."),
        "winerror": getattr(error, "winerror", None) or (int(in_text[1]) if in_text else None),
    }


def look_at_packages() -> None:
    """Import each package that Traindeck needs beside torch."""
    for module, package in MODULES.items():
        say({"package": package})
        try:
            importlib.import_module(module)
            say({"package": package, "version": importlib.metadata.version(package)})
        except Exception as error:  # noqa: BLE001 - a library's import can raise anything; that is the finding
            say({"package": package, **failure(error)})


def look_at_torch() -> None:
    """Import torch, say what it is built for, and compute something on each GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        say({"missing": error.name == "torch", **failure(error)})
        return
    except Exception as error:  # noqa: BLE001 - as above
        say(failure(error))
        return
    say({"version": str(torch.__version__), "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)})
    if torch.version.cuda is None:
        return
    try:
        torch.cuda.init()
        say({"gpus": torch.cuda.device_count()})
    except Exception as error:  # noqa: BLE001 - as above
        say({"init": failure(error)})
        return
    for index in range(torch.cuda.device_count()):
        try:
            say({"name": torch.cuda.get_device_name(index), "right": _compute(torch, index)})
        except Exception as error:  # noqa: BLE001 - as above
            say({"name": f"cuda:{index}", **failure(error)})


def _compute(torch: Any, index: int) -> bool:
    """A matrix product on a GPU: wrong kernels for the card, or a library that does not load, show here."""
    ones = torch.ones(64, 64, device=f"cuda:{index}")
    return bool((ones @ ones).sum().item() == 64**3)


if __name__ == "__main__":
    {"torch": look_at_torch, "packages": look_at_packages}[sys.argv[1]]()
