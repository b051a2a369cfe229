"""Resolves, downloads, installs and verifies the packages of an environment.

One lock names every package with its URL and hash. So the size of the download is known before it starts, it can be
interrupted at any time, and the window's own packages can be installed first.
"""

import contextlib
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from launcher import places
from launcher.downloads import Downloads, RemoteFile, local_path, remote_size, use_settings
from launcher.environment import Environment
from launcher.failures import SetupError, tool_error
from launcher.messages import emit, message, print_and_log
from launcher.mirrors import find_mirror
from launcher.processes import child_env, clean_env, run_logged, show_activity
from launcher.torch_builds import TorchSource, torch_sources
from launcher.uv import configured_sources, find_uv, uv_environment

LARGE_BYTES = 60_000_000  # data can be previewed before PyTorch and packages as large are there
OPTIONS_OF_UV = {"--index-url": "--default-index", "--extra-index-url": "--index"}  # the others have the same name


class Package(NamedTuple):
    """A package of the lock. `path`: its file where it is on this machine; otherwise `file` is downloaded."""

    name: str
    version: str
    file: RemoteFile
    path: "Path | None" = None


# --- requirements --------------------------------------------------------------------------------------


def project_table() -> "dict[str, Any]":
    import tomllib  # Python 3.11: `main` has switched to one

    return tomllib.loads((places.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(dev: bool) -> "list[str]":
    project = project_table()["project"]
    return [*project["dependencies"], *(project["optional-dependencies"]["dev"] if dev else [])]


def window_requirements() -> "list[str]":
    """The packages that the window starts with; without them in pyproject.toml, none."""
    return list(project_table().get("tool", {}).get("traindeck", {}).get("window", []))


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normalize(re.split(r"[<>=!~;\[ ]", requirement.strip(), maxsplit=1)[0])


def write_constraints(folder: Path, extra: str, torch: str) -> Path:
    """Write the constraints of one resolution: the user's pins, ours for other packages, and the torch build."""

    def lines(path: Path) -> "list[str]":
        return [line for line in path.read_text(encoding="utf-8").splitlines() if name_of(line) not in ("", "torch")]

    own = lines(Path(extra)) if extra else []
    taken = {name_of(line) for line in own}
    ours = [line for line in lines(places.ROOT / "constraints.txt") if name_of(line) not in taken]
    path = folder / "constraints.txt"
    path.write_text("\n".join([*ours, *own, torch]) + "\n", encoding="utf-8")
    return path


def pinned_versions(extra: str) -> "dict[str, str]":
    """Versions by normalized name: our pins, and the user's own."""
    found = {}
    for path in [places.ROOT / "constraints.txt", *([Path(extra)] if extra else [])]:
        for name, version in re.findall(r"(?m)^([\w.-]+)==([\w.+]+)", path.read_text(encoding="utf-8")):
            found[normalize(name)] = version
    return found


def torch_pin() -> str:
    """The torch version that constraints.txt asks for, without a build tag."""
    match = re.search(r"^torch==([\d.]+)", (places.ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise SetupError(message("launcher.no_torch_pin"))
    return match.group(1)


# --- resolution ----------------------------------------------------------------------------------------


class Resolver:
    """Finds the files of packages. `folder` takes its own files. `target`: for which Python, as options of uv; empty:
    for the environment in `folder`."""

    def __init__(self, folder: Path, target: "Sequence[str]" = ()) -> None:
        self.folder, self.uv = folder, find_uv()
        self.env = Environment(folder)
        use_settings(*configured_sources()[1:])
        self.target = list(target) or ["--python", str(self.env.python)]

    def resolve(
        self, wanted: "list[str]", constraints: "Path | None", options: "Sequence[str]", *extra: str
    ) -> "tuple[list[Package], str]":
        """Return the packages, or none and the output of the tool. `options`: sources, as options of pip."""
        asked, answer = self.folder / "wanted.txt", self.folder / "pylock.toml"
        asked.write_text("\n".join(wanted) + "\n", encoding="utf-8")
        answer.unlink() if answer.exists() else None
        pins = ["-c", str(constraints)] if constraints else []
        activity = message("launcher.activity.resolve")
        if not self.uv:
            command = [*pip_of(self.env), "install", "--dry-run", "--ignore-installed", "--report", str(answer)]
            code, output = run_logged([*command, "-r", str(asked), *pins, *extra, *options], activity, env=pip_env())
            return ([] if code else read_report(answer)), output
        sources = configured_sources()
        own = [OPTIONS_OF_UV.get(option, option) for option in options]
        configured = sources.options if "--default-index" not in own else without(sources.options, "--default-index")
        configured = [] if "--no-index" in own else configured
        command = [self.uv, "pip", "compile", str(asked), "--format", "pylock.toml", "--output-file", str(answer)]
        command += ["--quiet", "--no-header", "--index-strategy", "unsafe-best-match", *self.target, *pins, *extra]
        env = uv_environment(sources.variables)
        code, output = run_logged([*command, *configured, *own], activity, env=env, cwd=str(places.ROOT))
        return ([] if code else read_lock(answer)), output

    def find_torch(self, tag: str, mirror: str, system: str = sys.platform) -> TorchSource:
        """Return the first source that has exactly this build of torch."""
        tried: list[str] = []
        answers: dict[str, tuple[list[Package], str]] = {}
        online = torch_sources(tag, torch_pin(), find_mirror(mirror), system)
        kept = [folder_source(message("launcher.source.kept"), places.DOWNLOADS)] if places.DOWNLOADS.is_dir() else []
        packed = folder_source(message("launcher.source.packed"), places.PACKED_WHEELS)
        for source in [packed] if is_packed() else [*online, *kept]:
            key = str((source.version, source.options))
            if key not in answers:
                # === compares text: torch==2.13.0 would also take 2.13.0+cpu, which counts as newer.
                answers[key] = self.resolve([f"torch==={source.version}"], None, source.options, "--no-deps")
            if answers[key][0]:
                print_and_log(message("launcher.source.used", version=source.version, source=source.label), indent="  ")
                if source.warning:
                    print_and_log(source.warning, indent="  ")
                return source
            cut_off = re.search(r"Retrying|Could not fetch|timed out|error sending request|dns error", answers[key][1])
            found = message("launcher.source.no_answer" if cut_off else "launcher.source.not_found")
            tried.append(message("launcher.source.tried", version=source.version, source=source.label, found=found))
        advice = [message("launcher.advice.torch_sources")]
        advice += [] if tag == "cpu" else [message("launcher.advice.use_cpu")]
        raise SetupError(
            "\n".join([message("launcher.torch_not_found", version=torch_pin(), tag=tag), *tried, *advice])
        )


def is_packed() -> bool:
    """Whether this copy of Traindeck came with its packages (`pack`)."""
    return places.PACKED_WHEELS.is_dir()


def packed_options() -> "list[str]":
    """The only source of such a copy, as options of pip and uv."""
    return ["--no-index", "--find-links", str(places.PACKED_WHEELS)] if is_packed() else []


def folder_source(label: str, folder: Path) -> TorchSource:
    """A folder of wheels as the only source: of a pack, or what `--keep-downloads` kept, for use without a network."""
    wheel = next(iter(folder.glob("torch-*.whl")), None)
    version = wheel.name.split("-")[1] if wheel else torch_pin()
    return TorchSource(label, version, ["--no-index", "--find-links", str(folder)])


def source_options(choices: "dict[str, str]") -> "list[str]":
    """Sources of packages other than torch, as options of pip."""
    mirror = find_mirror(choices["mirror"])
    return packed_options() or (["--index-url", mirror.pypi] if mirror else [])


def without(options: "list[str]", name: str) -> "list[str]":
    """Options of pairs without those of this name."""
    if name not in options:
        return options
    place = options.index(name)
    return without(options[:place] + options[place + 2 :], name)


def read_lock(path: Path) -> "list[Package]":
    """Read a pylock.toml (https://packaging.python.org/en/latest/specifications/pylock-toml/). uv lists the wheel that
    fits best first."""
    import tomllib

    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("packages", []):
        files = entry.get("wheels") or [entry.get("sdist") or entry["archive"]]
        url = files[0].get("url", "")
        local = path.parent / files[0]["path"] if "path" in files[0] else local_path(url) if is_local(url) else None
        name = files[0].get("name") or file_name(url or str(local))
        file = RemoteFile(name, url, int(files[0].get("size", 0)), files[0].get("hashes", {}).get("sha256", ""))
        found.append(Package(normalize(entry["name"]), entry.get("version", ""), file, local))
    return found


def read_report(path: Path) -> "list[Package]":
    """Read the report of `pip install --dry-run`."""
    found = []
    for entry in json.loads(path.read_text(encoding="utf-8"))["install"]:
        source, about = entry["download_info"], entry["metadata"]
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
        local = local_path(source["url"]) if is_local(source["url"]) else None
        file = RemoteFile(file_name(source["url"]), source["url"], 0, digest)
        found.append(Package(normalize(about["name"]), about["version"], file, local))
    return found


def is_local(url: str) -> bool:
    return url.startswith("file:")


def file_name(url: str) -> str:
    return re.split(r"[/\\]", re.split(r"[?#]", url)[0])[-1].replace("%2B", "+").replace("%2b", "+")


def with_sizes(packages: "list[Package]") -> "list[Package]":
    """Fill in sizes that the index did not tell."""
    with ThreadPoolExecutor(8) as pool:
        sizes = pool.map(lambda one: one.file.size or (0 if one.path else remote_size(one.file.url)), packages)
        return [
            one._replace(file=one.file._replace(size=size))
            for one, size in zip(packages, sizes)  # noqa: B905  3.10
        ]


# --- installation --------------------------------------------------------------------------------------


def pip_of(env: Environment) -> "list[str]":
    return [str(env.python), "-I", "-X", "utf8", "-m", "pip"]


def pip_env() -> "dict[str, str]":
    return dict(clean_env(), PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off")


def installed_versions(env: Environment) -> "dict[str, str]":
    """Versions by normalized name. A package whose installation was interrupted is forgotten and installed again."""
    found = {}
    for info in env.site_packages.glob("*.dist-info"):
        name, _, version = info.name[: -len(".dist-info")].rpartition("-")
        if (info / "INSTALLER").exists():
            found[normalize(name)] = version
        else:
            print_and_log(message("launcher.reason.half_installed", name=info.name), indent="  ")
            shutil.rmtree(str(info), ignore_errors=True)
    return found


def install_files(env: Environment, files: "list[Path]", compile_all: bool = True) -> None:
    """Install exactly these files. `compile_all`: compile their modules, else Python does so as it imports them."""
    uv, paths = find_uv(), [str(path) for path in files]
    activity = message("launcher.activity.install_packages")
    if uv:
        command = [uv, "pip", "install", "--python", str(env.python), "--no-deps"]
        command += ["--compile-bytecode"] if compile_all else []
        options = configured_sources()  # source distributions are built with packages of these
        code, output = run_logged([*command, *options.options, *paths], activity, env=uv_environment(options.variables))
    else:
        code, output = run_logged([*pip_of(env), "install", "--no-deps", *paths], activity, env=pip_env())
    if code:
        raise tool_error(message("launcher.packages_not_installed"), output)


def received_bytes(file: RemoteFile) -> int:
    """Bytes of a file that an earlier setup downloaded."""
    for name in (file.name, file.name + ".part"):
        with contextlib.suppress(OSError):
            return (places.DOWNLOADS / name).stat().st_size
    return 0


def batches(packages: "list[Package]", window: "set[str]") -> "list[tuple[str, list[Package]]]":
    """Divide the packages into parts in the order of their use: those of the window, of data, all."""
    first = [one for one in packages if one.name in window]
    large = [one for one in packages if one.name not in window and (one.name == "torch" or one.file.size > LARGE_BYTES)]
    rest = [one for one in packages if one not in first and one not in large]
    return [("window", first), ("data", rest), ("all", large)]


def fetch_and_install(
    env: Environment, parts: "list[tuple[str, list[Package]]]", keep: bool, compile_all: bool = True
) -> None:
    """Download all parts in parallel and install each when its files are complete."""
    folder = places.DOWNLOADS
    remote = [one.file for _, part in parts for one in part if one.path is None]
    total = sum(file.size for file in remote)
    with Downloads(folder, remote) as downloads:
        for name, part in parts:
            wait_for(downloads, [one.file.name for one in part if one.path is None], total)
            files = [one.path or downloads.futures[one.file.name].result() for one in part]
            if files:
                emit("stage", stage="install", text=message("launcher.activity.install_packages"))
                install_files(env, files, compile_all)
            emit("ready", part=name)
            if name == "window":
                env.write_state(dict(env.state, window=True))
    if not keep:
        shutil.rmtree(str(folder), ignore_errors=True)


def fetch(packages: "list[Package]") -> "list[Path]":
    """Download packages and keep them."""
    remote = [one.file for one in packages if one.path is None]
    with Downloads(places.DOWNLOADS, remote) as downloads:
        wait_for(downloads, [file.name for file in remote], sum(file.size for file in remote))
        return [one.path or downloads.futures[one.file.name].result() for one in packages]


def wait_for(downloads: Downloads, names: "list[str]", total: int) -> None:
    """Show the progress until these files are there. The first error is raised."""
    started = shown = time.monotonic()
    emit("stage", stage="download", text=message("launcher.activity.download"))
    while True:
        pending = [name for name in names if not downloads.futures[name].done()]
        for future in downloads.futures.values():
            if future.done():
                future.result()
        rate = downloads.rate()
        left = max(total - downloads.received, 0)
        emit(
            "progress", done=downloads.received, total=total, rate=round(rate) or None,
            eta_s=round(left / rate) if rate else None, file=downloads.current,
        )  # fmt: skip
        if not pending:
            return
        if time.monotonic() - shown >= 1:
            shown = time.monotonic()
            amount = message("launcher.amount", done=downloads.received / 1e6, total=total / 1e6, rate=rate / 1e6)
            show_activity(message("launcher.activity.download"), shown - started, amount)
        with contextlib.suppress(Exception):
            downloads.futures[pending[0]].exception(timeout=0.25)


VERIFY_SCRIPT = """
import sys, torch
if sys.argv[1] != "cpu":
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    print("GPU: " + torch.cuda.get_device_name(0))
print("PyTorch " + torch.__version__)
"""


def verify_torch(env: Environment, tag: str) -> None:
    """Import torch and, with a CUDA build, run a kernel on the GPU."""
    emit("stage", stage="verify", text=message("launcher.activity.test_torch"))
    variables = {name: value for name, value in child_env().items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [str(env.python), "-P", "-c", VERIFY_SCRIPT, tag]
    code, output = run_logged(command, message("launcher.activity.test_torch"), env=variables)
    if code and tag == "cpu":
        raise tool_error(message("launcher.torch_not_imported"), output)
    if code:
        raise tool_error(message("launcher.gpu_unusable"), output, 6)
    print_and_log(", ".join(output.splitlines()[-2:]), indent="  ")


def can_load_window(env: Environment) -> bool:
    """Whether the window's packages can be imported. On a server they may never have been."""
    command = [str(env.python), "-P", "-c", "import PySide6.QtWidgets, pyqtgraph"]
    return run_logged(command, message("launcher.activity.test_window"), env=child_env())[0] == 0
