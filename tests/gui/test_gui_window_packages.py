"""The window while set-up has installed only its own packages, which pyproject.toml lists for the launcher."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata

from packaging.requirements import Requirement

from tests.gui.conftest import ROOT

# Opens every page with the modules of `argv[1]` missing, and lets the model section find a model of the catalogue.
OPEN_PAGES = """
import json, sys
missing = set(json.loads(sys.argv.pop()))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
from app import __main__ as program
from PySide6.QtCore import QTimer
build_controller = program.build_controller
def build(application, options):
    controller = build_controller(application, options)
    window = controller.window
    def show_pages():
        for page in window.pages:
            window.show_page(page)
            window.focus_search()
        controller.form.set_text("base_model", "Qwen/Qwen3-0.6B")
        report()
    def report():
        summary = window.setup.model.monitor.result
        if summary is None:
            return QTimer.singleShot(50, report)
        print(summary.parameters, len(window.banners.contents), flush=True)
        controller.shutdown()
    window.first_painted.connect(lambda: QTimer.singleShot(200, show_pages))
    return controller
program.build_controller = build
program.main([])
"""


def test_every_page_opens_while_only_the_window_s_packages_are_installed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    window = project["tool"]["traindeck"]["window"]
    assert set(window) <= {Requirement(text).name for text in project["project"]["dependencies"]}
    installed = installed_with(window)
    missing = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if not installed.intersection(map(normalize, distributions))
    ]
    assert "torch" in missing
    command = [sys.executable, "-c", OPEN_PAGES, json.dumps(missing)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Error" not in result.stderr, result.stderr
    parameters, banners = map(int, result.stdout.split())
    assert parameters > 500_000_000
    assert banners == 0


def installed_with(names: list[str]) -> set[str]:
    """These distributions and all that they require."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = normalize(waiting.pop())
        if name not in found:
            found.add(name)
            requirements = map(Requirement, metadata.requires(name) or ())
            waiting += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def normalize(name: str) -> str:
    return name.lower().replace("_", "-")
