"""Resolves requirements to the files of packages, with their URLs and hashes.

So the size of the download is known before it starts, it can be interrupted at any time, and the window's own packages
can be installed first.
"""

import json
import re
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import places
from launcher.downloads import Package
from launcher.environment import Environment, normalize
from launcher.messages import SetupError, message, mirror_advice, print_and_log, tool_error
from launcher.processes import run_logged
from launcher.sources import TorchSource, find_mirror, torch_sources
from launcher.uv import configured_sources, find_uv, packed_options, pip_env, uv_env

OPTIONS_OF_UV = {"--index-url": "--default-index", "--extra-index-url": "--index"}  # the others have the same name


def read_toml(path: Path) -> "dict[str, Any]":
    import tomllib  # Python 3.11: `main` has switched to one

    return tomllib.loads(path.read_text(encoding="utf-8"))


def requirements(dev: bool = False) -> "list[str]":
    project = read_toml(places.ROOT / "pyproject.toml")["project"]
    return [*project["dependencies"], *(project["optional-dependencies"]["dev"] if dev else [])]


def window_requirements() -> "list[str]":
    """The packages that the window starts with; without them in pyproject.toml, none."""
    return list(read_toml(places.ROOT / "pyproject.toml").get("tool", {}).get("traindeck", {}).get("window", []))


def name_of(requirement: str) -> str:
    """Normalized name of the package; empty for a comment."""
    return normalize(re.split(r"[<>=!~;\[# ]", requirement.strip(), maxsplit=1)[0])


def pins(choices: "dict[str, str]") -> "list[str]":
    """Constraints of the user, and ours for other packages."""
    own = read_constraints(Path(choices["constraints"])) if choices["constraints"] else []
    names = {name_of(line) for line in own}
    return [line for line in read_constraints(places.ROOT / "constraints.txt") if name_of(line) not in names] + own


def read_constraints(path: Path) -> "list[str]":
    """Lines with a package. Notepad puts a mark before UTF-8. Raises SetupError for a missing file."""
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if name_of(line)]
    except (OSError, ValueError) as error:
        raise SetupError(message("launcher.bad_constraints", path=path, error=error), 2) from error


def pinned_versions(choices: "dict[str, str]") -> "dict[str, str]":
    """Versions by normalized name."""
    found = (re.match(r"([\w.-]+)==([\w.+]+)", line) for line in pins(choices))
    return {normalize(match.group(1)): match.group(2) for match in found if match}


def torch_pin() -> str:
    """The torch version of constraints.txt, without a build tag."""
    return pinned_versions({"constraints": ""})["torch"]


def source_options(choices: "dict[str, str]") -> "list[str]":
    """Sources of packages other than torch, as options of pip."""
    mirror = find_mirror(choices["mirror"])
    return packed_options() or (["--index-url", mirror.pypi] if mirror else [])


def folder_source(label: str, folder: Path, tag: str) -> TorchSource:
    """A folder of wheels as the only source: of a pack, or what `--keep-downloads` kept, for use without a network.
    `tag`: the build of torch that is preferred."""
    pin = torch_pin()
    kept = [wheel.name.split("-")[1] for wheel in folder.glob("torch-*.whl")]
    version = next((one for one in (f"{pin}+{tag}", pin, *kept) if one in kept), pin)
    return TorchSource(label, version, ["--no-index", "--find-links", str(folder)])


class Resolver:
    """Finds the files of packages. `folder` takes its own files. `target`: for which Python, as options of uv; empty:
    for the environment in `folder`."""

    def __init__(self, folder: Path, choices: "dict[str, str]", target: "Sequence[str]" = ()) -> None:
        self.folder, self.choices, self.python = folder, choices, Environment(folder).python
        self.target = list(target) or ["--python", str(self.python)]

    def lock(self, wanted: "list[str]", torch: str, options: "Sequence[str]") -> "list[Package]":
        """Return what is installed for requirements. `torch`: its requirement; `options`: sources, as those of pip."""
        constraints = [line for line in pins(self.choices) if name_of(line) != "torch"]
        packages, output = self._resolve(wanted, [*constraints, torch], options)
        if not packages:
            raise tool_error(message("launcher.packages_not_installed"), output)
        return packages

    def find_torch(self, tag: str, system: str = sys.platform) -> TorchSource:
        """Return the first source that has exactly this build of torch."""
        sources = torch_sources(tag, torch_pin(), find_mirror(self.choices["mirror"]), system)
        if packed_options():
            sources = [folder_source(message("launcher.source.packed"), places.PACKED_WHEELS, tag)]
        elif places.DOWNLOADS.is_dir():
            sources.append(folder_source(message("launcher.source.kept"), places.DOWNLOADS, tag))
        tried: list[str] = []
        for source in sources:
            # === compares text: torch==2.13.0 would also take 2.13.0+cpu, which counts as newer.
            packages, output = self._resolve([f"torch==={source.version}"], [], source.options, "--no-deps")
            if packages:
                print_and_log(message("launcher.source.used", version=source.version, source=source.label), indent="  ")
                return source
            cut_off = re.search(r"Retrying|Could not fetch|timed out|error sending request|dns error", output)
            found = message("launcher.source.no_answer" if cut_off else "launcher.source.not_found")
            tried.append(message("launcher.source.tried", version=source.version, source=source.label, found=found))
        advice = [message("launcher.advice.torch_sources", mirror=mirror_advice())]
        advice += [] if tag == "cpu" else [message("launcher.advice.use_cpu")]
        failure = message("launcher.torch_not_found", version=torch_pin(), tag=tag)
        raise SetupError("\n".join([failure, *tried, *advice]))

    def _resolve(
        self, wanted: "list[str]", constraints: "list[str]", options: "Sequence[str]", *extra: str
    ) -> "tuple[list[Package], str]":
        """Return the packages, or none, and the output of the tool."""
        asked, pinned, answer = (self.folder / name for name in ("wanted.txt", "constraints.txt", "pylock.toml"))
        asked.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        pinned.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        if answer.exists():
            answer.unlink()  # uv would prefer its versions
        what = ["-c", str(pinned), *extra]
        activity, uv = message("launcher.activity.resolve"), find_uv()
        if not uv:
            command = [*pip_of(self.python), "install", "--dry-run", "--ignore-installed", "--report", str(answer)]
            code, output = run_logged([*command, "-r", str(asked), *what, *options], activity, env=pip_env())
            return ([] if code else read_report(answer)), output
        own, configured = [OPTIONS_OF_UV.get(option, option) for option in options], configured_sources()
        if "--default-index" in own and "--default-index" in configured:
            configured = configured[2:]  # it is the first
        elif "--no-index" in own:
            configured = []
        command = [uv, "pip", "compile", str(asked), "--format", "pylock.toml", "--output-file", str(answer)]
        command += ["--quiet", "--no-header", "--index-strategy", "unsafe-best-match", *self.target]
        code, output = run_logged([*command, *what, *configured, *own], activity, env=uv_env(), cwd=str(places.ROOT))
        return ([] if code else read_lock(answer)), output


def read_lock(path: Path) -> "list[Package]":
    """Read a pylock.toml (https://packaging.python.org/en/latest/specifications/pylock-toml/). uv lists the wheel that
    fits best first."""
    found = []
    for entry in read_toml(path).get("packages", []):
        file = entry["wheels"][0] if entry.get("wheels") else entry.get("sdist") or entry["archive"]
        url = (path.parent / file["path"]).resolve().as_uri() if "path" in file else file["url"]
        digest, size = file.get("hashes", {}).get("sha256", ""), int(file.get("size", 0))
        found.append(Package(normalize(entry["name"]), entry.get("version", ""), file_name(url), url, size, digest))
    return found


def read_report(path: Path) -> "list[Package]":
    """Read the report of `pip install --dry-run`."""
    found = []
    for entry in json.loads(path.read_text(encoding="utf-8"))["install"]:
        source, about = entry["download_info"], entry["metadata"]
        url, digest = source["url"], source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
        found.append(Package(normalize(about["name"]), about["version"], file_name(url), url, 0, digest))
    return found


def file_name(url: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])


def pip_of(python: Path) -> "list[str]":
    return [str(python), "-I", "-X", "utf8", "-m", "pip"]
