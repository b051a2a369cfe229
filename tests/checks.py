"""All checks of the repository: `train_gpu test`.

Without arguments, skip slow tests (tests/slow.py); with `--all`, run every test. Other arguments go to pytest.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PARALLEL: Final = ("-n", "2", "--dist", "loadfile")
_LINT_IMPORTS: Final = "import sys; from importlinter.cli import lint_imports_command as main; sys.exit(main())"


def pytest_arguments(arguments: list[str]) -> list[str]:
    if not arguments:
        return [*_PARALLEL, "-m", "not slow"]
    if "--all" in arguments:
        return [*_PARALLEL, *(argument for argument in arguments if argument != "--all")]
    return arguments


def run(arguments: list[str]) -> int:
    """Run all checks. Returns the exit code of the first that fails."""
    checks = {
        "ruff": ["-m", "ruff", "check", "."],
        "mypy": ["-m", "mypy"],
        "import contracts": ["-c", _LINT_IMPORTS],
        "pytest": ["-m", "pytest", *pytest_arguments(arguments)],
    }
    failed = {}
    for name, command in checks.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        code = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
        if code:
            failed[name] = code
        if code in (130, -signal.SIGINT):
            break
    words = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
    print(f"== failed: {words}" if failed else "== all checks passed", file=sys.stderr, flush=True)
    return next(iter(failed.values()), 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)  # it reaches the check too, whose exit code ends all of them
    sys.exit(run(sys.argv[1:]))
