#!/usr/bin/env python3
"""Set Traindeck up in .venv, then start it. Standard library only.

    train_gpu.py                     the window
    train_gpu.py setup [options]     set up and stop; the options are remembered (setup --help)
    train_gpu.py shortcut            a shortcut on the desktop (Windows)
    train_gpu.py uninstall [--runs]  remove what was made here, after asking; runs only with --runs
    train_gpu.py test [pytest args]  every check of the repository
    train_gpu.py ANYTHING ELSE       the headless trainer with these arguments

An old interpreter must get as far as finding a better one, so the syntax here stays within Python 3.6
(hence the quoted annotations), and whatever runs before `main` hands over uses no newer library either.
"""

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any, NamedTuple

WINDOWS = os.name == "nt"
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
STATE = VENV / "traindeck.json"  # what was set up; `complete` only after everything was verified
KEEP = ROOT / ".venv-setup"  # outlives .venv: the remembered choices and the lock
LOG = ROOT / "logs" / "setup.log"
SHORTCUTS = KEEP / "shortcuts.json"  # what `uninstall` removes beside folders of ours

LOCKED: "list[int]" = []  # POSIX: the lock's descriptor; a pip that outlives its killed parent keeps the lock

OLDEST, NEWEST = (3, 11), (3, 13)
LONGEST_BELOW = 192  # the longest path below this folder: \\.venv\\ and a licence of torch 2.13
FOREIGN = {f"PYTHON{name}" for name in ("HOME", "PATH", "STARTUP", "USERBASE", "EXECUTABLE", "IOENCODING")}
FOREIGN |= {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "USER", "REQUIRE_VIRTUALENV", "PYTHON")}
FOREIGN |= {"CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
CHOICES = ("torch", "mirror", "python", "constraints")  # each also as environment variable TRAINDECK_NAME
# The builds of torch 2.13; there is no cu128 any more (https://github.com/pytorch/pytorch/issues/178665).
TORCH_TAGS = ("cpu", "cu126", "cu130", "cu132")
TORCH_INDEX = "https://download.pytorch.org/whl/"
PYPI_LINUX_TAG = "cu130"  # what PyPI's plain Linux wheel of torch 2.13 is built with; on Windows it is CPU-only


class Mirror(NamedTuple):
    """Where to fetch from instead of PyPI and of torch's own index."""

    pypi: str
    torch: str  # {tag} stands for cpu, cu130 ...; empty: no torch wheels there
    torch_option: str = "--extra-index-url"


NJU_TORCH = "https://mirror.nju.edu.cn/pytorch/whl/{tag}"
MIRRORS = {
    "tsinghua": Mirror("https://pypi.tuna.tsinghua.edu.cn/simple", NJU_TORCH),  # has no torch wheels itself
    "nju": Mirror("https://mirror.nju.edu.cn/pypi/web/simple", NJU_TORCH),
    # One index for all builds: https://github.com/sjtug/mirror-requests/issues/421
    "sjtu": Mirror("https://mirror.sjtu.edu.cn/pypi/web/simple", "https://mirror.sjtu.edu.cn/pytorch-wheels"),
    # Flat pages of wheels, which pip reads only as find-links.
    "aliyun": Mirror(
        "https://mirrors.aliyun.com/pypi/simple", "https://mirrors.aliyun.com/pytorch-wheels/{tag}/", "--find-links"
    ),
}


class SetupError(Exception):
    """Something a person has to decide or repair; the message says what happened and what to do."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


# --- words: the terminal (stderr, because stdout belongs to the trainer's events) and the log ---------------


def log(text: str) -> None:
    """Append to the log; a log that cannot be written must not stop a start."""
    with contextlib.suppress(OSError):
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    log(text)


def run_logged(command: "list[str]", doing: str, **options: Any) -> "tuple[int, str]":
    """Run a command with its output in the log and a sign of life on the terminal: (exit code, output)."""
    log(f"{doing}: {command}")
    started = time.monotonic()
    # A pipe, not the log file itself: the last line is shown, and errors are looked up in the text.
    LOG.touch()  # a log that cannot be written ends here in one sentence
    child: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, pass_fds=LOCKED, **options
    )
    lines: list[str] = []

    def read() -> None:
        with LOG.open("ab") as file:
            for raw in child.stdout or ():
                file.write(raw.rstrip(b"\r\n") + b"\n")
                lines.append(raw.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(1.0)
            heartbeat(doing, time.monotonic() - started, lines[-1] if lines else "")
        code = child.wait()
    except BaseException:  # Ctrl+C reaches the child too; it gets a moment to tidy up
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(10)
        child.kill()
        raise
    finally:
        if sys.stderr.isatty():
            print("\r" + " " * 100, end="\r", file=sys.stderr, flush=True)
    log(f"exit code {code} after {time.monotonic() - started:.1f} s")
    return code, "\n".join(lines)


def heartbeat(doing: str, seconds: float, last_line: str) -> None:
    """Show that work goes on: one line rewritten on a terminal, a line every half minute elsewhere."""
    if sys.stderr.isatty():
        text = f"  {doing}: {seconds:.0f} s  {last_line.strip()[:60]}"
        print("\r" + text[:99].ljust(99), end="", file=sys.stderr, flush=True)
    elif int(seconds) % 30 == 29:
        print(f"  {doing}: {seconds:.0f} s so far", file=sys.stderr, flush=True)


def own_env() -> "dict[str, str]":
    """The environment without what would lead Python elsewhere or let pip install elsewhere than in .venv."""
    return {name: value for name, value in os.environ.items() if name.upper() not in FOREIGN}


# --- a Python to build .venv with ----------------------------------------------------------------------------

PROBE = """
import sys, struct
try:
    import venv, ensurepip
    missing = ""
except ImportError:
    missing = "no-venv"
try:
    import sysconfig
    if sysconfig.get_config_var("Py_GIL_DISABLED"): missing = "free-threaded"
except ImportError:
    pass
base = getattr(sys, "_base_executable", None) or sys.executable
out = [str(sys.version_info[0]), str(sys.version_info[1]), str(struct.calcsize("P") * 8), missing, base]
getattr(sys.stdout, "buffer", sys.stdout).write(("TRAINDECK|" + "|".join(out)).encode("utf-8"))
"""


def try_python(command: "list[str]") -> "tuple[str, str]":
    """Run a candidate: (its base executable, "") if it fits, ("", why not) otherwise."""
    try:
        output = subprocess.run(
            [*command, "-c", PROBE],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            env=dict(own_env(), PYTHONUTF8="1"),
            timeout=30,
        ).stdout.decode("utf-8", "replace")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"does not run ({type(error).__name__})"
    match = re.search(r"TRAINDECK\|(\d+)\|(\d+)\|(\d+)\|([^|]*)\|(.+)", output)
    if not match:
        return "", "does not run (no answer)"
    version = (int(match.group(1)), int(match.group(2)))
    name = "Python {}.{}".format(*version)
    if version < OLDEST:
        return "", f"{name} is too old"
    if version > NEWEST:
        return "", f"{name} is too new"
    if match.group(3) != "64":
        return "", f"{name} is a {match.group(3)}-bit build; PyTorch needs 64 bits"
    if match.group(4) == "free-threaded":
        return "", f"{name} is a free-threaded build, for which not every package has wheels"
    if match.group(4):
        return "", f"{name} has no venv module; on Debian and Ubuntu: sudo apt install python3-venv"
    return match.group(5).strip(), ""


def python_candidates() -> "Iterator[list[str]]":
    """Commands that may start a fitting Python, the likeliest first; executable and arguments kept apart."""
    yield [sys.executable]
    versions = [f"3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    if WINDOWS:
        launcher = shutil.which("py") or str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "py.exe")
        if Path(launcher).exists():
            for version in versions:
                yield [launcher, "-" + version]
        for place in windows_places(versions):
            yield [str(place)]
    names = [f"python{version}" for version in versions] + ["python3", "python"]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    if not WINDOWS:
        folders += [Path("/usr/local/bin"), Path("/opt/homebrew/bin"), Path("/usr/bin")]
        for pattern in (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin", "*conda3/bin"):
            folders += sorted(Path.home().glob(pattern), reverse=True)
    for name in names:
        for folder in folders:
            path = folder / (name + ".exe" if WINDOWS else name)
            if path.exists():
                yield [str(path)]


def windows_places(versions: "list[str]") -> "Iterator[Path]":
    """Where Windows keeps Pythons: the registry (PEP 514) and the installers' usual folders."""
    if sys.platform == "win32":
        import winreg

        for hive in (winreg.HKEY_CURRENT_USER, winreg.HKEY_LOCAL_MACHINE):
            for key in (f"SOFTWARE\\Python\\PythonCore\\{version}\\InstallPath" for version in versions):
                with contextlib.suppress(OSError):
                    yield Path(winreg.QueryValue(hive, key)) / "python.exe"
    for variable, pattern in (
        ("LOCALAPPDATA", "Programs/Python/Python3*/python.exe"),
        ("PROGRAMFILES", "Python3*/python.exe"),
        ("SYSTEMDRIVE", "/Python3*/python.exe"),
        ("USERPROFILE", ".pyenv/pyenv-win/versions/3*/python.exe"),
        ("APPDATA", "uv/python/cpython-3*/python.exe"),
        ("USERPROFILE", "*conda3/python.exe"),
    ):
        folder = os.environ.get(variable)
        if folder:
            root = Path(folder + "\\") if variable == "SYSTEMDRIVE" else Path(folder)
            yield from sorted(root.glob(pattern.lstrip("/")), reverse=True)


def find_python(chosen: str = "") -> str:
    """The executable of a fitting Python; raises with every candidate's reason if there is none."""
    rejected: dict[str, str] = {}
    for command in [[chosen]] if chosen else python_candidates():
        shown = " ".join(command)
        if shown in rejected:
            continue
        # The placeholder in WindowsApps is not Python: it prints nothing or opens the Store.
        if "\\windowsapps\\" in command[0].lower() and command[0] != sys.executable and not chosen:
            rejected[shown] = "the Microsoft Store placeholder"
            continue
        executable, reason = try_python(command)
        if executable:
            log(f"Python: {executable} (passed over: {rejected})")
            return executable
        rejected[shown] = reason
    found = "\n".join(f"  {shown}: {reason}" for shown, reason in rejected.items())
    if chosen:
        raise SetupError(f"The chosen Python cannot be used:\n{found}\nChoose another: setup --python PATH (or auto)")
    get = (
        "Install Python 3.12 (64 bit) from https://www.python.org/downloads/windows/ and start again."
        if WINDOWS
        else "Install one, for example: sudo apt install python3 python3-venv   (or pyenv install 3.12)"
    )
    raise SetupError(f"Traindeck needs Python 3.11, 3.12 or 3.13, and none was found:\n{found}\n{get}")


# --- which build of torch ------------------------------------------------------------------------------------


class Driver(NamedTuple):
    """What the NVIDIA driver says; version is empty when it is there but does not answer."""

    version: str
    compute_capability: float  # of the best card; 0 when unknown


def nvidia_smi() -> str:
    """The path of nvidia-smi, or nothing. Windows has it in System32, which a trimmed PATH may lack."""
    places = [str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "System32/nvidia-smi.exe")] if WINDOWS else []
    places += ["/usr/lib/wsl/lib/nvidia-smi"]
    return shutil.which("nvidia-smi") or next((place for place in places if Path(place).exists()), "")


def driver_present() -> bool:
    """Whether an NVIDIA driver seems to be there: no process started, for every start asks this."""
    return bool(nvidia_smi()) or Path("/dev/nvidiactl").exists()


def ask_driver() -> "Driver | None":
    """Driver version and best compute capability through nvidia-smi, else the version through NVML."""
    if not driver_present():
        return None
    for fields in ("driver_version,compute_cap", "driver_version"):  # old drivers do not know compute_cap
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [nvidia_smi() or "nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"],
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                timeout=30,
            )
            answer = done.stdout.decode("utf-8", "replace").strip()
            log(f"nvidia-smi: {done.returncode} {answer}")
            rows = re.findall(r"^(\d+(?:\.\d+)+)(?:, *(\d+\.\d+))?\s*$", answer, re.MULTILINE)
            if done.returncode == 0 and rows:
                return Driver(rows[0][0], max(float(row[1] or 0) for row in rows))
    return Driver(nvml_version(), 0.0)


def nvml_version() -> str:
    """The driver's version from its own library, or nothing."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if WINDOWS else "libnvidia-ml.so.1")
        text, count = ctypes.create_string_buffer(96), ctypes.c_uint(0)
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            return ""
        return "" if nvml.nvmlSystemGetDriverVersion(text, 96) else text.value.decode("ascii", "replace")
    except (OSError, AttributeError):
        return ""


def choose_torch(driver: "Driver | None", windows: bool = WINDOWS) -> "tuple[str, str]":
    """The torch build for a driver, and the reason in words.

    Minimum drivers: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html and
    table 2 of the CUDA 12.6 and 13.0 release notes (12.x: Linux 525.60.13, Windows 528.33; 13.x: 580, Linux
    580.65.06). Cards: RELEASE.md of PyTorch (12.6: compute capability 5.0 to 9.0; 13.0: from 7.5 on).
    """
    if driver is None:
        return "cpu", "no NVIDIA driver found"
    if not driver.version:
        return "cpu", "WARNING: an NVIDIA driver is installed but does not answer; try nvidia-smi"
    version = tuple(int(part) for part in driver.version.split("."))
    said = f"driver {driver.version}"
    card = driver.compute_capability
    if version >= ((580,) if windows else (580, 65, 6)) and not 0 < card < 7.5:
        return "cu130", said
    if version >= ((528, 33) if windows else (525, 60, 13)) and (card == 0 or 5 <= card < 10):
        return "cu126", said + (f", compute capability {card}" if 0 < card < 7.5 else "")
    if 0 < card < 5:
        return "cpu", f"WARNING: PyTorch no longer supports this GPU (compute capability {card})"
    needed = "580" if card >= 10 else "528.33" if windows else "525.60.13"
    return "cpu", f"WARNING: {said} is too old for this GPU and PyTorch; install {needed} or newer, then start again"


class Source(NamedTuple):
    """One way to get a torch build: the version to ask pip for, and pip's options for it."""

    label: str
    version: str
    options: "list[str]"
    warning: str = ""


def find_mirror(name: str) -> "Mirror | None":
    """A mirror by its name, or one's own as PYPI_URL[,TORCH_URL]."""
    if not name or name == "none":
        return None
    if name in MIRRORS:
        return MIRRORS[name]
    pypi, _, torch = name.partition(",")
    if not re.match(r"(https?|file)://", pypi):
        raise SetupError(f"Unknown mirror {name!r}: use {', '.join(MIRRORS)}, none, or URL[,TORCH_URL]", 2)
    return Mirror(pypi, torch if not torch or "{tag}" in torch else torch.rstrip("/") + "/{tag}")


def torch_sources(tag: str, version: str, mirror: "Mirror | None", platform: str = sys.platform) -> "list[Source]":
    """Where to look for a torch build, in this order; nothing that would swap CUDA for CPU is in the list."""
    build, linux = f"{version}+{tag}", platform.startswith("linux")
    pypi = ["--index-url", mirror.pypi] if mirror else []
    configured = "the mirror" if mirror else "the sources pip is configured with"
    sources = [Source(configured, build, pypi)]
    if tag == (PYPI_LINUX_TAG if linux else "cpu"):
        sources.append(Source(configured, version, pypi))
    if mirror and mirror.torch:
        place = mirror.torch.replace("{tag}", tag)
        sources.insert(0, Source(place, build, [*pypi, mirror.torch_option, place]))
    sources.append(Source(TORCH_INDEX + tag, build, [*pypi, "--extra-index-url", TORCH_INDEX + tag]))
    if tag == "cpu" and linux:
        big = "No CPU-only build was found; taking the CUDA build, which works too but is several GB."
        sources.append(Source(configured, version, pypi, big))
    return sources


# --- what is installed ---------------------------------------------------------------------------------------


def read_json(path: Path) -> "dict[str, Any]":
    """A JSON object from disk; nothing if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: "dict[str, Any]") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")  # two set-ups may write their choices at once
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def site_packages() -> Path:
    """The folder of .venv's packages (which may not exist)."""
    return next(iter(VENV.glob("[Ll]ib/python3*/site-packages")), VENV / "Lib" / "site-packages")


def installed_torch() -> str:
    """The version with its build tag as torch itself states it, read without importing it; or nothing."""
    try:
        text = (site_packages() / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^__version__ *= *['\"](.+?)['\"]", text, re.MULTILINE)
    return match.group(1) if match else ""


def half_made() -> str:
    """Why the packages in .venv cannot be trusted, or nothing. pip writes INSTALLER after all other files."""
    site = site_packages()
    for info in site.glob("*.dist-info"):
        if not (info / "INSTALLER").exists():
            return f"{info.name} was left half-installed"
    leftover = next(iter(site.glob("~*")), None)
    if leftover:
        return f"an interrupted removal left {leftover.name}"
    whole_pip = next(iter(site.glob("pip-*.dist-info/INSTALLER")), None)  # ensurepip may have been cut off
    return "" if whole_pip else "it has no pip"


def venv_version() -> str:
    """The Python version of .venv, found by running it; empty if it is missing or broken."""
    if Path(sys.prefix) == VENV:
        return "{}.{}".format(*sys.version_info)
    try:
        command = [str(PYTHON), "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        return subprocess.check_output(command, stderr=DEVNULL, timeout=60).decode("ascii").strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""


def make_stamp(choices: "dict[str, str]", python: str) -> str:
    """A fingerprint of everything that a set-up depends on."""
    parts = [python, choices["python"], choices["torch"], str(driver_present())]
    digest = hashlib.sha256("|".join(parts).encode("utf-8"))
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(choices["constraints"] or os.devnull)):
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def why_set_up(choices: "dict[str, str]", dev: bool) -> str:
    """The reason why a set-up is needed, or nothing when everything is as it was left."""
    state = read_json(STATE)
    if not VENV.exists():
        return "this is the first start"
    if not state.get("complete"):
        return "an earlier set-up did not finish"
    if installed_torch() != state.get("torch"):
        return f"PyTorch was changed from {state.get('torch')} to {installed_torch() or 'nothing'} since then"
    if dev and not state.get("dev"):
        return "the tests need their tools"
    if state.get("stamp") != make_stamp(choices, venv_version()):
        return "the requirements, the choices, Python or the driver changed"
    unused_driver = state.get("tag") == "cpu" and driver_present() and not choices["torch"]
    if unused_driver and choose_torch(ask_driver())[0] != "cpu":
        return "the NVIDIA driver can be used now"
    return ""


# --- the set-up ----------------------------------------------------------------------------------------------

# What a known failure looks like in a tool's output, what to tell the person, and the exit code.
EXPLAIN = (
    (r"No space left|Errno 28|WinError 112", "The disk is full: free some GB and start again.", 7),
    (
        r"WinError 126|WinError 1114|vcruntime140|msvcp140",
        "The Microsoft Visual C++ runtime is missing: install https://aka.ms/vs/17/release/vc_redist.x64.exe",
        1,
    ),
    (r"Long Path|path too long", "The folder's path is too long for Windows: move Traindeck nearer to C:\\.", 1),
    (
        r"no kernel image|not compatible with the current PyTorch",
        "This PyTorch build has no code for this GPU: try another one with  setup --torch cu126  or  cu130.",
        6,
    ),
    (r"driver version is insufficient|driver on your system is too old", "Update the NVIDIA driver.", 6),
    (r"Errno 13|WinError 5\b|WinError 32", "Files are in use or protected: close Traindeck and start again.", 1),
    (
        r"Errno -?\d+\] (Temporary failure|Name or service|getaddrinfo)|Connection|timed out|SSLError|ProxyError",
        "The network did not answer: check it (and HTTPS_PROXY), or use a mirror: setup --mirror tsinghua",
        1,
    ),
    (r"No matching distribution|ResolutionImpossible", "The package sources lack something; see the log.", 1),
)


def failure(what: str, output: str, code: int = 1) -> SetupError:
    """An error with the tool's last words and, where the cause is known, what to do."""
    if shutil.disk_usage(str(ROOT)).free < 50_000_000:
        output += "\nNo space left on device"  # ensurepip keeps the reason to itself
    known = [found[1:] for found in EXPLAIN if re.search(found[0], output, re.IGNORECASE)]
    advice, code = known[0] if known else ("", code)
    lines = output.strip().splitlines()
    errors = [line for line in lines if re.match(r"ERROR|\w*Error:", line)]
    last = "\n".join("    " + line for line in (errors or lines)[-4:])
    return SetupError(f"{what}\n{last}\n{advice}\nThe whole story is in {LOG}".replace("\n\n", "\n"), code)


def pip(doing: str, *arguments: str) -> "tuple[int, str]":
    """Run .venv's pip with the person's own sources and proxies, but installing nowhere else than .venv."""
    env = dict(own_env(), PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off")
    command = [str(PYTHON), "-I", "-X", "utf8", "-m", "pip", *arguments]
    return run_logged(command, doing, env=env, cwd=str(ROOT))


def venv_fault(chosen: str) -> str:
    """Why .venv has to be made anew, or nothing."""
    if not venv_version():
        return "its Python does not run"
    if chosen and Path(find_python(chosen)).resolve() != Path(try_python([str(PYTHON)])[0]).resolve():
        return "another Python was chosen"
    return half_made()


def windows_long_paths() -> bool:
    """Whether paths may be longer than 259 characters; always so elsewhere than on Windows."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, "SYSTEM\\CurrentControlSet\\Control\\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:
            return False
    else:
        return True


def too_deep(root: Path, long_paths: bool) -> str:
    """What to say where pip is likely to meet paths that are too long, after minutes of downloads; or nothing."""
    most = 259 - LONGEST_BELOW
    if long_paths or len(str(root)) <= most:
        return ""
    return (
        f"WARNING: the path of this folder has {len(str(root))} characters; over {most} the packages may not fit into "
        "what Windows allows. Should that fail: move Traindeck nearer to C:\\, or enable long paths (LongPathsEnabled)."
    )


def make_venv(chosen: str) -> None:
    """A .venv whose Python runs and whose packages are whole; one that is not is made anew."""
    if VENV.exists():
        fault = venv_fault(chosen)
        if not fault:
            return
        say(f"  .venv is made anew: {fault}")
    python = find_python(chosen)
    if VENV.exists():
        remove_venv()
    deep = too_deep(ROOT, windows_long_paths())
    if deep:
        say(f"  {deep}")
    say(f"  Python: {python}")
    code, output = run_logged([python, "-I", "-m", "venv", "--prompt", "traindeck", str(VENV)], "making .venv")
    if code or not venv_version():
        raise failure(f"Python could not make {VENV}:", output)


def remove_venv() -> None:
    """Delete .venv, also while its own python.exe is the one that runs this (Windows lets it be moved only)."""
    if WINDOWS:
        KEEP.mkdir(exist_ok=True)
        for old in KEEP.glob("old-*.exe"):
            with contextlib.suppress(OSError):
                old.unlink()
        for program in (VENV / "Scripts").glob("python*.exe"):
            program.replace(KEEP / f"old-{os.getpid()}-{program.name}")
    shutil.rmtree(str(VENV))


def write_constraints(extra: str, torch: str) -> str:
    """Write what one installation is bound to: our pins, a person's own before them, and this torch build."""

    def name_of(line: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", line.strip(), maxsplit=1)[0]).lower()

    def lines(path: Path) -> "list[str]":
        return [line for line in path.read_text(encoding="utf-8").splitlines() if name_of(line) not in ("", "torch")]

    own = lines(Path(extra)) if extra else []
    taken = {name_of(line) for line in own}
    ours = [line for line in lines(ROOT / "constraints.txt") if name_of(line) not in taken]
    path = VENV / "constraints.txt"
    path.write_text("\n".join([*ours, *own, torch]) + "\n", encoding="utf-8")
    return str(path)


def torch_pin() -> str:
    """The torch version that constraints.txt asks for, without a build tag."""
    match = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise SetupError("constraints.txt pins no torch version")
    return match.group(1)


def install_torch(tag: str, choices: "dict[str, str]") -> None:
    """Install exactly this build from the first source that has it."""
    answers: dict[str, str] = {}
    tried: list[str] = []
    for source in torch_sources(tag, torch_pin(), find_mirror(choices["mirror"])):
        key = str(source.options)
        if key not in answers:
            # Asking first costs a second and spares the wait for an index that is out of reach.
            question = ("index", "versions", "torch", "--retries=1", "--timeout=15", *source.options)
            answers[key] = pip("looking for PyTorch", *question)[1]
        listed = re.search(r"Available versions: (.+)", answers[key])
        if source.version not in (listed.group(1).split(", ") if listed else []):
            cut_off = re.search(r"Retrying|Could not fetch|timed out", answers[key])
            tried.append(f"  {source.version} from {source.label}: {'no answer' if cut_off else 'not there'}")
            continue
        say(f"  PyTorch {source.version} from {source.label}")
        if source.warning:
            say(f"  WARNING: {source.warning}")
        # === compares text: torch==2.13.0 would also take 2.13.0+cpu, which counts as newer.
        wanted = f"torch==={source.version}"
        constraints = write_constraints(choices["constraints"], wanted)
        again = ["--force-reinstall"] if installed_torch() else []
        code, output = pip("installing PyTorch", "install", wanted, "-c", constraints, *again, *source.options)
        if code:
            raise failure(f"PyTorch {source.version} could not be installed:", output)
        if tag != "cpu" and "+cu" not in installed_torch():
            raise SetupError(f"{source.label} gave a CPU-only PyTorch ({installed_torch()}) instead of {tag}.")
        return
    places = "\n".join(tried)
    without = "" if tag == "cpu" else ", or do without the GPU: setup --torch cpu"
    raise SetupError(
        f"No source has PyTorch {torch_pin()} ({tag}) for this Python:\n{places}\n"
        f"Check the network (and HTTPS_PROXY), or name a mirror: setup --mirror tsinghua{without}"
    )


def install_rest(choices: "dict[str, str]", dev: bool) -> None:
    """Install everything else with the torch build nailed down, and see that it is still the same."""
    import tomllib  # Python 3.11; `main` has seen to that

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: list[str] = project["dependencies"] + (project["optional-dependencies"]["dev"] if dev else [])
    before = installed_torch()
    # By pip's word: PyPI's CUDA build calls itself 2.13.0 there and 2.13.0+cu130 in torch.__version__.
    info = next(iter(site_packages().glob("torch-*.dist-info"))).name
    constraints = write_constraints(choices["constraints"], "torch===" + info[len("torch-") : -len(".dist-info")])
    mirror = find_mirror(choices["mirror"])
    source = ["--index-url", mirror.pypi] if mirror else []
    code, output = pip("installing the other packages", "install", "-c", constraints, *source, *wanted)
    if code:
        raise failure("The packages could not be installed:", output)
    if installed_torch() != before:
        raise SetupError(f"Installing the packages changed PyTorch from {before} to {installed_torch()}.")


VERIFY = """
import sys, torch
if sys.argv[1] != "cpu":
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    print("GPU: " + torch.cuda.get_device_name(0))
print("PyTorch " + torch.__version__)
"""


def verify(tag: str) -> None:
    """Import torch and, with a CUDA build, run a kernel on the GPU."""
    env = {name: value for name, value in child_env().items() if name != "CUDA_VISIBLE_DEVICES"}
    code, output = run_logged([str(PYTHON), "-P", "-c", VERIFY, tag], "trying PyTorch out", env=env)
    if code:
        what = "PyTorch cannot be imported:" if tag == "cpu" else "PyTorch cannot use the GPU:"
        without = "" if tag == "cpu" else "\n(To go on without the GPU: setup --torch cpu)"
        raise failure(what, output + without, 1 if tag == "cpu" else 6)
    say("  " + ", ".join(output.splitlines()[-2:]))


@contextlib.contextmanager
def only_one() -> "Iterator[None]":
    """Hold the set-up lock; the system lets go of it when its owner dies."""
    KEEP.mkdir(exist_ok=True)
    with (KEEP / "lock").open("a+b") as file:
        said = False
        while not try_lock(file.fileno()):
            if not said:
                file.seek(0)
                owner = file.read(20).decode("ascii", "replace").strip()
                say(f"Another set-up is running (process {owner}); waiting for it.")
                said = True
            time.sleep(0.5)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode("ascii"))
        file.flush()
        LOCKED[:] = [] if WINDOWS else [file.fileno()]
        yield
        LOCKED.clear()


def try_lock(descriptor: int) -> bool:
    """Lock a file without waiting. On Windows a byte far behind the end, so that the pid stays readable."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 20, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def set_up(choices: "dict[str, str]", dev: bool) -> None:
    """Make .venv what it should be. Every step can be cut off and run again."""
    started = time.monotonic()
    dev = dev or bool(read_json(STATE).get("dev"))
    if STATE.exists():
        write_json(STATE, dict(read_json(STATE), complete=False))
    make_venv(choices["python"])
    state = dict(read_json(STATE), complete=False, dev=dev)
    write_json(STATE, state)
    tag, reason = choose_torch(ask_driver())
    if choices["torch"]:
        tag, reason = choices["torch"], "chosen"
    say(f"  PyTorch build: {tag} ({reason})")
    if (tag, installed_torch()) != (state.get("tag"), state.get("torch")) or state.get("torch_pin") != torch_pin():
        install_torch(tag, choices)
        state.update(tag=tag, torch=installed_torch(), torch_pin=torch_pin())
        write_json(STATE, state)
    install_rest(choices, dev)
    verify(tag)
    write_json(STATE, dict(state, complete=True, stamp=make_stamp(choices, venv_version())))
    say(f"Set up in {time.monotonic() - started:.0f} s.")


def get_choices(arguments: "list[str] | None") -> "dict[str, str]":
    """The choices of `setup` (then remembered), else of the environment, else of an earlier `setup`."""
    parser = argparse.ArgumentParser("train_gpu setup", description="Set Traindeck up and remember these choices.")
    tags = ("auto", *TORCH_TAGS)
    parser.add_argument("--torch", choices=tags, help="which PyTorch build; auto: by the NVIDIA driver")
    parser.add_argument("--mirror", help=f"{', '.join(MIRRORS)}, none, or PYPI_URL[,TORCH_WHEELS_URL]")
    parser.add_argument("--python", help="the Python (3.11 to 3.13) to build .venv with; auto: search")
    parser.add_argument("--constraints", help="a file of version pins that go before constraints.txt; none: forget")
    parser.add_argument("--dev", action="store_true", help="with the tools that the tests need")
    given = vars(parser.parse_args(arguments or []))
    remembered = read_json(KEEP / "choices.json")
    choices = {}
    for name in CHOICES:
        value = given[name] or os.environ.get("TRAINDECK_" + name.upper()) or remembered.get(name) or ""
        choices[name] = "" if value in ("auto", "none") else str(value)
    if choices["torch"] and choices["torch"] not in TORCH_TAGS:
        raise SetupError(f"There is no PyTorch build {choices['torch']!r}; there are {', '.join(tags)}.", 2)
    if Path(choices["python"]).is_file():
        choices["python"] = str(Path(choices["python"]).absolute())
    if choices["constraints"]:
        choices["constraints"] = str(Path(choices["constraints"]).resolve())
        if not Path(choices["constraints"]).is_file():
            raise SetupError(f"There is no constraints file {choices['constraints']}", 2)
    find_mirror(choices["mirror"])
    if arguments is not None:
        write_json(KEEP / "choices.json", choices)
    return choices


# --- starting ------------------------------------------------------------------------------------------------


def child_env() -> "dict[str, str]":
    """The environment of Traindeck's own processes: UTF-8, and importable from any folder."""
    env = dict(own_env(), PYTHONUTF8="1", PYTHONPATH=str(ROOT))
    if WINDOWS:
        env["USE_LIBUV"] = "0"  # torch's Windows wheels are built without libuv
    return env


def hand_over(command: "list[str]") -> int:
    """Become the command (POSIX), or run it in the foreground and return its exit code (Windows)."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not WINDOWS:
        os.execve(command[0], command, child_env())
    return run_foreground(command)


def run_foreground(command: "list[str]", cwd: "str | None" = None) -> int:
    """Run with our standard streams. Ctrl+C goes to the whole console, so here it is only outwaited."""
    child = subprocess.Popen(command, env=child_env(), cwd=cwd)
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    code = child.wait()
    signal.signal(signal.SIGINT, before)
    return code if code < 2**31 else code - 2**32  # Windows states crashes as large unsigned numbers


# pythonw has no streams, and files as streams at the level of the system fail in some places: so in Python.
WINDOW = """
import faulthandler, runpy, sys
sys.stdout = sys.stderr = open(sys.argv.pop(), "a", encoding="utf-8", buffering=1)
faulthandler.enable(sys.stderr)
runpy.run_module("app", run_name="__main__", alter_sys=True)
"""


def start_window() -> int:
    """Start the window; on Windows detached from the console, once it has outlived its first seconds."""
    if not WINDOWS:
        return hand_over([str(PYTHON), "-P", "-m", "app"])
    words = LOG.with_name("window.log")
    words.write_bytes(b"")
    detached = 0x00000008 | 0x00000200  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    command = [str(PYTHON.with_name("pythonw.exe")), "-P", "-c", WINDOW, str(words)]
    child = subprocess.Popen(
        command, env=child_env(), creationflags=detached, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    say("Traindeck starts; this console closes by itself.")
    try:
        code = child.wait(4)
    except subprocess.TimeoutExpired:
        return 0
    if code:
        last = "\n".join(words.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise SetupError(f"The window could not start (exit code {code}):\n{last}")
    return 0


def run_checks(arguments: "list[str]") -> int:
    """Run every check even if one fails; the exit code is the first failure's."""
    lint_imports = "import sys; from importlinter.cli import lint_imports_command as main; sys.exit(main())"
    checks = {
        "ruff": ["-m", "ruff", "check", "."],
        "mypy": ["-m", "mypy"],
        "import contracts": ["-c", lint_imports],
        "pytest": ["-m", "pytest", *arguments],
    }
    codes = {}
    for name, command in checks.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        codes[name] = run_foreground([str(PYTHON), *command], cwd=str(ROOT))
        if codes[name] in (130, -signal.SIGINT):  # Ctrl+C means all of them
            break
    failed = {name: code for name, code in codes.items() if code}
    words = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
    print(f"== failed: {words}" if failed else "== all checks passed", file=sys.stderr, flush=True)
    return next(iter(failed.values()), 0)


# --- shortcut and removal ------------------------------------------------------------------------------------

if sys.platform == "win32":

    def com_call(thing: ctypes.c_void_p, place: int, *arguments: Any) -> None:
        """Call a method of a COM object by its place in the vtable (shobjidl_core.h); raises OSError if it fails."""
        table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
        kinds = [type(argument) for argument in arguments]
        ctypes.WINFUNCTYPE(ctypes.HRESULT, ctypes.c_void_p, *kinds)(table[place])(thing, *arguments)

    def write_shortcut(link: Path, target: Path, icon: Path) -> None:
        """A .lnk that starts `target` minimised: its console has nothing to say unless something fails."""
        text = ctypes.c_wchar_p
        shell_link, persist_file = (
            ctypes.c_char_p(first + bytes.fromhex("00000000c000000000000046"))
            for first in (b"\xf9\x14\x02\x00", b"\x0b\x01\x00\x00")
        )
        ctypes.windll.ole32.CoInitialize(None)
        thing, file = ctypes.c_void_p(), ctypes.c_void_p()
        clsid = ctypes.c_char_p(b"\x01\x14\x02\x00" + bytes.fromhex("00000000c000000000000046"))
        ctypes.oledll.ole32.CoCreateInstance(clsid, None, 1, shell_link, ctypes.byref(thing))
        com_call(thing, 20, text(str(target)))  # SetPath
        com_call(thing, 9, text(str(target.parent)))  # SetWorkingDirectory
        com_call(thing, 17, text(str(icon)), ctypes.c_int(0))  # SetIconLocation
        com_call(thing, 15, ctypes.c_int(7))  # SetShowCmd: SW_SHOWMINNOACTIVE
        com_call(thing, 0, persist_file, ctypes.pointer(file))  # QueryInterface
        com_call(file, 6, text(str(link)), ctypes.c_int(1))  # Save

    def desktop() -> Path:
        """The folder of the desktop, which OneDrive may have moved."""
        place = ctypes.create_unicode_buffer(260)
        ctypes.oledll.shell32.SHGetFolderPathW(None, 0x10, None, 0, place)  # CSIDL_DESKTOPDIRECTORY
        return Path(place.value)


def make_shortcut() -> int:
    """Put a shortcut on the desktop, and remember it for `uninstall`."""
    if sys.platform == "win32":
        link = desktop() / "Traindeck.lnk"
        write_shortcut(link, ROOT / "train_gpu.bat", ROOT / "assets" / "traindeck.ico")
        write_json(SHORTCUTS, {"made": sorted({str(link), *read_json(SHORTCUTS).get("made", [])})})
        say(f"Made {link}")
        return 0
    raise SetupError("Shortcuts are made on Windows only.", 2)


def uninstall(arguments: "list[str]") -> int:
    """Remove what Traindeck made: .venv, cache, logs, shortcuts; runs only when that is asked for."""
    parser = argparse.ArgumentParser("train_gpu uninstall", description="Remove what was made here, after asking.")
    parser.add_argument("--runs", action="store_true", help="also all runs with their checkpoints")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    asked = parser.parse_args(arguments)
    home = Path(os.environ.get("TRAINDECK_HOME") or ROOT)
    links = [Path(link) for link in read_json(SHORTCUTS).get("made", [])]
    folders = [home / "cache", home / "logs", LOG.parent, *([home / "runs"] if asked.runs else []), VENV, KEEP]
    found = [path for path in dict.fromkeys([*links, *folders]) if path.exists()]
    if not found:
        print("There is nothing to remove.", file=sys.stderr)
        return 0
    print("This is removed:\n" + "\n".join(f"  {path}" for path in found), file=sys.stderr, flush=True)
    if not asked.runs and (home / "runs").exists():
        print(f"Runs are kept: {home / 'runs'}  (uninstall --runs removes them too)", file=sys.stderr, flush=True)
    if not asked.yes and not agreed("Remove? [y/N] "):
        print("Nothing was removed.", file=sys.stderr)
        return 3
    left = [path for path in found if not removed(path)]
    for path in left:  # among them the python.exe that runs this
        print(f"In use, remove it later: {path}", file=sys.stderr)
    print("Traindeck's own folder can be deleted now." if not left else "", file=sys.stderr)
    return 0 if all(path in (VENV, KEEP) for path in left) else 1


def agreed(question: str) -> bool:
    """Whether a person says yes; nobody there means no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def removed(path: Path) -> bool:
    """Delete a file or folder as far as it can be; whether it is gone."""
    if path == VENV:
        with contextlib.suppress(OSError):
            remove_venv()
    elif path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return not path.exists()


def main(argv: "list[str]") -> int:
    """Set up if anything changed, then do what was asked."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a path in Chinese must not break a console of code page 1252
    command = argv[0] if argv else ""
    if command in ("--help", "-h"):
        print((__doc__ or "").split("\n\n")[1] + "\n", flush=True)  # the trainer's own help follows
    try:
        if command == "uninstall":
            return uninstall(argv[1:])
        choices = get_choices(argv[1:] if command == "setup" else None)
        dev = command == "test" or (command == "setup" and "--dev" in argv)
        reason = why_set_up(choices, dev)
        if reason and sys.version_info < OLDEST:
            return hand_over([find_python(choices["python"]), str(Path(__file__).resolve()), *argv])
        if reason:
            with only_one():
                reason = why_set_up(choices, dev)
                if reason:
                    say(f"Setting up Traindeck in {VENV}: {reason}. Details: {LOG}")
                    set_up(choices, dev)
        if command == "setup":
            print(f"Traindeck is ready: PyTorch {installed_torch()}", file=sys.stderr)
            return 0
        if command == "shortcut":
            return make_shortcut()
        if command == "test":
            return run_checks(argv[1:])
        return hand_over([str(PYTHON), "-P", "-m", "trainer_core", *argv]) if argv else start_window()
    except SetupError as error:
        say(f"ERROR: {error}")
        return error.code
    except OSError as error:
        say(f"ERROR: {error}\nTraindeck must be able to write in {ROOT}; is the disk full, or another one running?")
        return 7 if error.errno == 28 else 1
    except KeyboardInterrupt:
        say("\nInterrupted. Start again to go on from here.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
