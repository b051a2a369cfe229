"""Files, identifiers and links in documents exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PATH = re.compile(r"[\w./-]*[/.][\w./-]*")
CODE = [*(ROOT / "app").rglob("*.py"), *(ROOT / "trainer_core").rglob("*.py")]
SOURCES = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for folder in ("app", "assets", "bench", "launcher", "presets", "tests", "trainer_core")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml", ".json")
] + ["/train_gpu.py"]
GENERATED = {".venv", ".venv/bin/python", "logs/setup.log"}
EXAMPLES = {"test_a_run_that_was_stopped_resumes_at_the_same_step"}


def code_spans(text: str) -> set[str]:
    """Return the texts in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def words_in(paths: Iterable[Path]) -> set[str]:
    return {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def missing_names(text: str) -> set[str]:
    """Return paths in backticks that do not exist and identifiers in backticks that are not in the code.

    If the paragraph of an identifier names source files, the identifier must be in one of them.
    """
    missing = set()
    for paragraph in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
        names = code_spans(paragraph) - GENERATED - EXAMPLES
        paths = {name: list(ROOT.glob(name.strip("/").replace("NAME", "*"))) for name in names if PATH.fullmatch(name)}
        missing |= {name for name, matches in paths.items() if not matches}
        files = [path for matches in paths.values() for path in matches if path.suffix in (".py", ".yaml")]
        identifiers = {name for name in names if re.fullmatch(r"\w+", name) and not (ROOT / name).exists()}
        missing |= identifiers - words_in([*(files or CODE), ROOT / "pyproject.toml"])
    return missing


def test_names_in_contributing_exist() -> None:
    assert missing_names((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) == set()


def test_a_missing_name_or_path_is_detected() -> None:
    text = "in `app/pages/plots/page.py` and `app/gone.py`, `_PLACES` or `PlotsPage`; `presets/NAME.yaml`\n\n`mypy`"
    assert missing_names(text) == {"app/gone.py", "_PLACES"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_source_files_named_in_documents_exist(document: Path) -> None:
    names = {name for name in code_spans(document.read_text(encoding="utf-8")) if re.fullmatch(r"\w+/[\w/]+\.py", name)}
    assert {name for name in names if not any(file.endswith(f"/{name}") for file in SOURCES)} == set()


def test_folders_and_files_named_in_the_layout_exist() -> None:
    layout = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Layout\n\n```\n")[2]
    lines = [line for line in layout.partition("```")[0].splitlines() if not line.startswith(" " * 8)]
    names = {part for line in lines for part in re.findall(r"\w+", re.split(r" {2,}", line.strip())[0])}
    modules = {part.removesuffix(".py") for file in SOURCES for part in file.split("/")}
    assert len(names) > 100
    assert names - modules == {"NAME"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_linked_files_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
