"""Launcher: selection of Python and of the torch build, setup, start."""

import ast
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import train_gpu
from launcher import (
    choices,
    messages,
    packages,
    places,
    processes,
    pythons,
    running,
    setting_up,
    sources,
    uv,
)
from launcher.environment import Environment, current_environment
from launcher.messages import message

ROOT = Path(__file__).resolve().parents[2]
requires_posix = pytest.mark.skipif(os.name == "nt", reason="the fake interpreters are shell scripts")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder as the folder of the launcher."""
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (tmp_path / "constraints.txt").write_text("# Pins\ntorch==2.13.0\nnumpy==2.4.6\nRich==15.0.0\n", encoding="utf-8")
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "STATE_FOLDER", tmp_path / ".venv-setup")
    monkeypatch.setattr(places, "LOG", tmp_path / "logs" / "setup.log")
    monkeypatch.setattr(places, "WINDOWS", False)
    monkeypatch.setattr(places, "DOWNLOADS", tmp_path / ".venv-setup" / "downloads")
    monkeypatch.setattr(places, "PACKED_WHEELS", tmp_path / "wheels")
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    monkeypatch.setenv("TRAINDECK_UV", "none")
    for name in (*choices.CHOICE_NAMES, "home"):
        monkeypatch.delenv("TRAINDECK_" + name.upper(), raising=False)
    return tmp_path


@pytest.fixture
def fake_python(tmp_path: Path) -> Callable[..., str]:
    """Write an executable that runs Python after the statements `change`, or the shell code `instead`."""

    def write(name: str, change: str = "pass", instead: str = "") -> str:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        command = f'exec "{sys.executable}" -c "import sys; {change}; exec(sys.argv[1])" "$2"'
        path.write_text(f"#!/bin/sh\n{instead or command}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return write


def set_candidates(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    monkeypatch.setattr(pythons, "python_candidates", lambda: iter(paths))


# --- Python --------------------------------------------------------------------------------------------


LAUNCHER = [ROOT / "train_gpu.py", *(ROOT / "launcher").glob("*.py")]


def test_the_launcher_parses_under_python_3_6_and_imports_only_the_standard_library() -> None:
    for file in LAUNCHER:
        tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 6))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "launcher"}, file


@requires_posix
def test_the_first_usable_python_is_selected(fake_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken_shim = fake_python("python3.13", instead="echo 'pyenv: python3.13: command not found' >&2; exit 127")
    silent = fake_python("python3.12", instead="exit 0")
    working = fake_python("python3.11")
    set_candidates(monkeypatch, broken_shim, silent, working)
    assert Path(pythons.find_python()).samefile(getattr(sys, "_base_executable", sys.executable))


@requires_posix
def test_each_rejected_python_is_listed_with_reason_and_remedy(
    fake_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_candidates(
        monkeypatch,
        fake_python("old", "sys.version_info = (3, 10, 4)"),
        fake_python("new", "sys.version_info = (3, 14, 0)"),
        fake_python("bare", "sys.modules['ensurepip'] = None"),
        fake_python("narrow", "import struct; struct.calcsize = lambda _: 4"),
        fake_python("broken", instead="exit 1"),
        "/nowhere/python",
    )
    with pytest.raises(messages.SetupError) as error:
        pythons.find_python()
    text = str(error.value)
    for line in (
        "old: Python 3.10 (64-bit) is not supported",
        "new: Python 3.14 (64-bit) is not supported",
        "bare: Python 3.11 has no venv module. On Debian and Ubuntu: sudo apt install python3-venv".replace(
            "3.11", "{}.{}".format(*sys.version_info)
        ),
        "(32-bit) is not supported",
        "broken: does not run",
        "/nowhere/python: does not run",
        "Install",
    ):
        assert line in text


@requires_posix
def test_every_python_on_the_path_is_a_candidate_but_those_of_the_microsoft_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "Microsoft" / "WindowsApps", tmp_path / "b"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "python3").touch()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    assert list(pythons.python_candidates()) == [
        sys.executable,
        str(folders[0] / "python3"),
        str(folders[2] / "python3"),
    ]


def test_a_chosen_python_that_is_not_supported_is_an_error() -> None:
    with pytest.raises(messages.SetupError, match="setup --python"):
        pythons.find_python("/nowhere/python3.12")


# --- torch build ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "capability", "windows", "tag"),
    [
        ("581.29", 8.9, True, "cu130"),
        ("580.88", 0.0, True, "cu130"),
        ("580.65.06", 9.0, False, "cu130"),
        ("580.60.01", 9.0, False, "cu126"),  # before the first 13.0 driver on Linux
        ("610.10", 12.0, True, "cu130"),
        ("581.29", 6.1, True, "cu126"),  # CUDA 13 does not support Pascal
        ("566.36", 8.6, True, "cu126"),
        ("528.33", 7.5, True, "cu126"),
        ("528.24", 7.5, True, "cpu"),
        ("525.60.13", 8.0, False, "cu126"),
        ("525.60.11", 8.0, False, "cpu"),
        ("571.96", 12.0, True, "cpu"),  # Blackwell needs CUDA 13, which needs a newer driver
        ("470.256.02", 3.5, False, "cpu"),
        ("581.29", 3.5, True, "cpu"),
    ],
)
def test_the_torch_build_depends_on_the_driver_and_the_gpu(
    driver: str, capability: float, windows: bool, tag: str
) -> None:
    chosen, reason = sources.choose_torch(sources.Driver(driver, capability), windows)
    assert chosen == tag
    assert reason.startswith("WARNING") == (tag == "cpu")


def test_only_an_unresponsive_driver_warns_about_the_cpu_build() -> None:
    assert sources.choose_torch(None) == ("cpu", message("launcher.driver.none"))
    tag, reason = sources.choose_torch(sources.Driver("", 0.0))
    assert tag == "cpu"
    assert reason.startswith("WARNING")


@requires_posix
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '581.29, 8.6'; echo '581.29, 12.0'", ("581.29", 12.0)),
        ("case $1 in *compute_cap*) echo 'Field is not valid'; exit 2;; esac; echo 470.82.01", ("470.82.01", 0.0)),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ("", 0.0)),
        ("echo 'No devices were found'", ("", 0.0)),
    ],
)
def test_nvidia_smi_reports_the_driver(
    fake_python: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    expected: tuple[str, float],
) -> None:
    path = fake_python("nvidia-smi", instead=script)
    monkeypatch.setenv("PATH", str(Path(path).parent) + os.pathsep + os.environ["PATH"])
    assert sources.query_driver() == expected


def test_configured_sources_precede_the_torch_index() -> None:
    for platform in ("linux", "win32"):
        for tag in ("cpu", "cu126", "cu130"):
            found = sources.torch_sources(tag, "2.13.0", None, platform)
            assert found[0] == sources.TorchSource(message("launcher.source.configured"), "2.13.0+" + tag, [])
            assert any("download.pytorch.org/whl/" + tag in source.label for source in found)


def test_a_torch_without_a_build_tag_is_used_only_if_it_is_the_required_build() -> None:
    def has_plain(tag: str, platform: str) -> bool:
        return any(found.version == "2.13.0" for found in sources.torch_sources(tag, "2.13.0", None, platform))

    assert has_plain("cpu", "win32")
    assert has_plain("cu130", "linux")
    for tag, platform in (("cu130", "win32"), ("cu126", "linux"), ("cpu", "linux")):
        assert not has_plain(tag, platform)


def test_of_several_kept_builds_of_torch_the_required_one_is_installed(tmp_path: Path) -> None:
    for build in ("2.12.0+cpu", "2.13.0", "2.13.0+cpu", "2.13.0+cu126"):
        (tmp_path / f"torch-{build}-cp312-cp312-win_amd64.whl").touch()
    for tag in ("cpu", "cu126"):
        found = packages.folder_source("kept", tmp_path, tag)
        assert found == sources.TorchSource("kept", f"2.13.0+{tag}", ["--no-index", "--find-links", str(tmp_path)])


def test_a_mirror_replaces_pypi_and_precedes_the_torch_index() -> None:
    for name, mirror in sources.MIRRORS.items():
        found = sources.torch_sources("cu126", "2.13.0", sources.find_mirror(name), "win32")
        assert mirror.torch.replace("{tag}", "cu126") in found[0].options
        assert all(["--index-url", mirror.pypi] == source.options[:2] for source in found)


def test_a_mirror_is_a_name_or_urls_for_pypi_and_torch() -> None:
    assert sources.find_mirror("") is None
    assert sources.find_mirror("https://pypi.lab/simple") == sources.Mirror("https://pypi.lab/simple", "")
    mirror = sources.find_mirror("https://pypi.lab/simple,https://wheels.lab/whl/")
    assert mirror is not None
    assert mirror.torch == "https://wheels.lab/whl/{tag}"
    for name in ("tsingua", "https://a b/simple", "https://a/simple,https://b c/whl"):
        with pytest.raises(messages.SetupError, match="tsinghua"):
            sources.find_mirror(name)


# --- setup --------------------------------------------------------------------------------------

NO_CHOICES = dict.fromkeys(choices.CHOICE_NAMES, "")


def test_the_reason_for_a_setup_names_what_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text("numpy==1.26.4\n", encoding="utf-8")
    monkeypatch.setattr(choices, "has_driver", lambda: False)
    environment = Environment(tmp_path)

    def reason(**changed: str) -> str:
        """Why another setup is needed, for these changes of its options."""
        wanted = {**NO_CHOICES, **changed}
        found = choices.setup_reason(environment, wanted, dev=False) or ""
        environment.update_state(complete=True, torch="", inputs=choices.setup_inputs(wanted, ""))
        return found

    assert reason() == "the previous setup did not finish"
    assert reason() == reason(mirror="nju") == ""
    assert reason(torch="cu126") == "another PyTorch build was chosen"
    reason()
    assert reason(python="/opt/python") == "another Python was chosen"
    reason()
    assert reason(constraints=str(tmp_path / "pins.txt")) == "the requirements changed"
    reason()
    for name in ("constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text("# changed", encoding="utf-8")
        assert reason() == "the requirements changed"
    monkeypatch.setattr(choices, "has_driver", lambda: True)
    assert reason() == "the NVIDIA driver was installed or removed"


def test_a_package_without_the_installer_file_is_incomplete(tmp_path: Path) -> None:
    site = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("pip-24.0.dist-info", "numpy-2.4.6.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "pip-24.0.dist-info" / "INSTALLER").touch()
    assert current_environment().installed_versions() == {"pip": "24.0"}
    current_environment().remove_damaged_packages(set())
    assert [path.name for path in site.iterdir()] == ["pip-24.0.dist-info"]


def test_packages_whose_files_are_missing_or_of_another_size_are_damaged(tmp_path: Path) -> None:
    site = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("whole", "short", "gone"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "INSTALLER").touch()
        (site / f"{name}.py").write_text("#" * (2 if name == "short" else 3), encoding="utf-8")
        record = f"{name}.py,sha256=x,3\nshared.py,sha256=x,{len(name)}\n{info.name}/RECORD,,\n{name}.pyc,,\n"
        (info / "RECORD").write_text(record, encoding="utf-8")
    (site / "shared.py").write_text("#" * 5, encoding="utf-8")
    (site / "gone.py").unlink()
    assert {path.name for path in current_environment().damaged_packages()} == {
        "short-1.0.dist-info",
        "gone-1.0.dist-info",
    }


def test_user_constraints_override_those_of_the_project(tmp_path: Path) -> None:
    user_file = tmp_path / "user.txt"
    user_file.write_text("# user\nNumPy==1.26.4\ntorch==2.11.0\n", encoding="utf-8")
    own = {"constraints": str(user_file)}
    assert packages.pins(own) == ["Rich==15.0.0", "NumPy==1.26.4", "torch==2.11.0"]
    assert packages.pinned_versions(own) == {"rich": "15.0.0", "numpy": "1.26.4", "torch": "2.11.0"}
    assert packages.torch_pin() == "2.13.0"


def test_the_disk_space_fits_the_cpu_build_and_the_cuda_libraries() -> None:
    assert 1.76e9 < setting_up.unpacked_size(446_000_000) < 1.9e9
    assert 7e9 < setting_up.unpacked_size(2_750_000_000) < 8e9


def test_constraints_may_begin_with_a_mark_and_are_not_stored_unless_they_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("numpy==1.26.4\n", encoding="utf-8-sig")
    found = choices.get_choices(choices.parse_options(["--constraints", str(file)]))
    assert "numpy==1.26.4" in packages.pins(found)
    file.with_name("latin.txt").write_bytes(b"numpy==1.26.4\n# caf\xe9\n")
    for name in ("latin.txt", "missing.txt"):
        with pytest.raises(messages.SetupError, match=name):
            choices.get_choices(choices.parse_options(["--constraints", str(tmp_path / name)]))
    assert choices.get_choices() == found


def test_options_of_setup_are_stored_and_environment_variables_override_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices.get_choices(choices.parse_options(["--torch", "cu126", "--mirror", "aliyun"]))
    assert choices.get_choices() == {**NO_CHOICES, "torch": "cu126", "mirror": "aliyun"}
    monkeypatch.setenv("TRAINDECK_TORCH", "cpu")
    assert choices.get_choices()["torch"] == "cpu"
    assert choices.get_choices(choices.parse_options(["--mirror", "nju"]))["torch"] == "cpu"
    monkeypatch.delenv("TRAINDECK_TORCH")
    assert choices.get_choices() == {**NO_CHOICES, "torch": "cu126", "mirror": "nju"}
    choices.get_choices(choices.parse_options(["--torch", "auto", "--mirror", "none"]))
    assert choices.get_choices() == NO_CHOICES


@pytest.mark.parametrize(
    ("output", "advice", "code"),
    [
        ("OSError: [WinError 126] The specified module could not be found. c10.dll", "vc_redist", 1),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "--torch cu126", 6),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040)", "Update the NVIDIA", 6),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full", 7),
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", "--mirror", 1),
        ("OSError: [WinError 32] The process cannot access the file", "Close Traindeck", 1),
        (f"ERROR: an OSError: [WinError 3] No such path: 'C:\\\\{'a' * 258}\\\\licence'", "closer to C:", 1),
        (f"ERROR: an OSError: [WinError 3] No such path: 'C:\\\\{'a' * 100}\\\\licence'", "Full log", 1),
    ],
)
def test_known_failures_have_advice_and_an_exit_code(output: str, advice: str, code: int) -> None:
    error = messages.tool_error("It failed:", output)
    assert advice in str(error)
    assert output in str(error)
    assert error.code == code


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Windows without long paths. Returns the folder for packages below LOCALAPPDATA."""
    monkeypatch.setattr(places, "WINDOWS", True)
    monkeypatch.setattr(places, "windows_long_paths", lambda: False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    return tmp_path / "Traindeck"


def deep_folder(below: Path, monkeypatch: pytest.MonkeyPatch, length: int = 200) -> Path:
    """Use a project folder whose path has `length` characters."""
    root = below / ("a" * (length - len(str(below)) - 1))
    root.mkdir()
    monkeypatch.setattr(places, "ROOT", root)
    monkeypatch.setattr(places, "STATE_FOLDER", root / ".venv-setup")
    return root


def test_packages_are_stored_elsewhere_if_windows_paths_are_too_long(
    tmp_path: Path, windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = deep_folder(tmp_path, monkeypatch)
    assert current_environment().folder.parent.parent == windows
    other = deep_folder(tmp_path, monkeypatch, 201)
    assert current_environment().folder.parent.parent == windows
    assert (
        len({places.ROOT / ".venv", root / ".venv", other / ".venv", current_environment().folder}) == 3
    )  # each copy has its own
    monkeypatch.setattr(places, "windows_long_paths", lambda: True)
    assert current_environment().folder == other / ".venv"


@pytest.mark.usefixtures("windows")
def test_a_working_or_chosen_package_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = deep_folder(tmp_path, monkeypatch)
    elsewhere = current_environment().folder
    places.write_json(root / ".venv" / "traindeck.json", {"complete": False})
    assert current_environment().folder == elsewhere
    places.write_json(root / ".venv" / "traindeck.json", {"complete": True})
    assert current_environment().folder == root / ".venv"
    choices.get_choices(choices.parse_options(["--environment", str(tmp_path / "mine")]))
    assert current_environment().folder.parent.parent == tmp_path / "mine"
    choices.get_choices(choices.parse_options(["--environment", "auto"]))
    assert current_environment().folder == root / ".venv"
    monkeypatch.setenv("TRAINDECK_ENVIRONMENT", str(tmp_path / "yours"))
    assert current_environment().folder.parent.parent == tmp_path / "yours"


@pytest.mark.usefixtures("windows")
def test_long_windows_paths_are_reported_before_any_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ROOT", Path("C:/" + "a" * 60))
    monkeypatch.setenv("LOCALAPPDATA", "C:/Users/Somebody/AppData/Local")
    assert setting_up.location_notes() == []
    deep_folder(tmp_path, monkeypatch)
    packages_note, runs_note = setting_up.location_notes()
    assert str(current_environment().folder.parent) in packages_note
    assert f"Runs: {Path.home() / 'Traindeck'} " in runs_note
    monkeypatch.setenv("TRAINDECK_ENVIRONMENT", "here")
    assert "200 characters. Above 63, package files may" in setting_up.location_notes()[1]


@pytest.mark.usefixtures("windows")
def test_runs_are_stored_elsewhere_unless_the_project_folder_has_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = deep_folder(tmp_path, monkeypatch)
    assert processes.child_env()["TRAINDECK_HOME"] == str(Path.home() / "Traindeck")
    (root / "runs").mkdir()
    assert "TRAINDECK_HOME" not in processes.child_env()
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "mine"))
    assert processes.child_env()["TRAINDECK_HOME"] == str(tmp_path / "mine")


def test_the_setup_lock_is_exclusive() -> None:
    with running.setup_lock(), (places.STATE_FOLDER / "lock").open("a+b") as other:
        assert not running.try_lock(other.fileno())
    with (places.STATE_FOLDER / "lock").open("a+b") as other:
        assert running.try_lock(other.fileno())


# --- start ------------------------------------------------------------------------------------------------


def test_child_environments_exclude_foreign_python_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONHOME", "/else")
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.lab/simple")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    env = processes.child_env()
    assert env["PYTHONPATH"] == str(tmp_path)
    assert env["PYTHONUTF8"] == "1"
    assert env["PIP_INDEX_URL"] == "https://pypi.lab/simple"
    assert not {"PYTHONHOME", "PIP_TARGET"} & set(env)


def test_the_batch_file_is_ascii_with_crlf_and_stores_the_working_directory() -> None:
    raw = (ROOT / "train_gpu.bat").read_bytes()
    lines = raw.decode("ascii").split("\r\n")
    assert raw.count(b"\n") == raw.count(b"\r\n")
    first = [line for line in lines if not line.startswith("rem")][1:4]
    assert first == ["setlocal DisableDelayedExpansion", 'set "TRAINDECK_CALLED_FROM=%CD%"', 'cd /d "%~dp0"']


def test_the_launcher_restores_the_working_directory_of_the_batch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRAINDECK_CALLED_FROM", str(tmp_path))
    monkeypatch.setattr(train_gpu, "uninstall", lambda _: folders.append(Path.cwd()) or 0)
    assert train_gpu.main(["uninstall"]) == 0
    assert folders == [tmp_path]
    assert "TRAINDECK_CALLED_FROM" not in os.environ


def test_help_lists_the_commands_of_the_launcher_and_the_trainer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(train_gpu, "ensure_environment", lambda *_, **__: None)
    monkeypatch.setattr(train_gpu, "exec_command", lambda command: commands.append(command) or 0)
    for windows, script in ((True, "train_gpu.bat"), (False, "./train_gpu.sh")):
        monkeypatch.setattr(places, "WINDOWS", windows)
        assert train_gpu.main(["--help"]) == 0
        output = capsys.readouterr().out
        assert all(f"    {script} {command}" in output for command in ("setup", "test"))
        assert commands[-1][-1] == "--help"


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (sources.Driver("591.10", 12.0), "another PyTorch build fits this GPU and driver"),  # a new RTX 50
        (sources.Driver("566.36", 8.6), ""),  # the same GPU
        (sources.Driver("", 0.0), ""),  # the driver does not respond
        (None, ""),
    ],
)
def test_setup_changes_the_torch_build_for_a_new_gpu_unless_it_was_chosen(
    driver: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(tmp_path)
    monkeypatch.setattr(choices, "query_driver", lambda: driver)

    def found(torch: str, requested: bool = True) -> str:
        wanted = {**NO_CHOICES, "torch": torch}
        inputs = choices.setup_inputs(wanted, "")
        environment.update_state(complete=True, torch="", tag="cu126", inputs=inputs)
        return choices.setup_reason(environment, wanted, dev=False, requested=requested) or ""

    assert found("") == reason
    assert found("cu126") == "", "a chosen build is kept"
    assert found("", requested=False) == "", "it takes too long for every start"


def test_one_version_of_uv_is_used_everywhere() -> None:
    batch = (ROOT / "train_gpu.bat").read_text(encoding="ascii")
    assert set(re.findall(r"uv-(\d[\d.]*\d)", batch)) == {uv.UV_VERSION}
    for file in ("pyproject.toml", "constraints.txt"):
        assert re.findall(r"\buv==([\d.]+)", (ROOT / file).read_text(encoding="utf-8")) == [uv.UV_VERSION]


# --- sources of uv ----------------------------------------------------------------------------------------


def test_settings_of_pip_become_those_of_uv(tmp_path: Path) -> None:
    listed = (
        "global.index-url='https://user:pass@pypi.lab/simple'\nglobal.trusted-host='pypi.lab other.lab:8080'\n"
        f"install.find-links={f'{tmp_path} /nowhere'!r}\n:env:.index-url='https://mine/simple'\n"
        "global.cert='/ca.pem'\r\nglobal.proxy='http://proxy:3128'\nglobal.timeout='60'\n"
    )
    settings = uv.pip_settings(listed)
    assert settings["cert"] == "/ca.pem"
    assert settings["proxy"] == "http://proxy:3128"
    assert uv.translate(settings) == [
        *("--default-index", "https://mine/simple"),
        *("--find-links", str(tmp_path)),  # pip ignores the missing folder, uv would fail
        *("--allow-insecure-host", "pypi.lab"),
        *("--allow-insecure-host", "other.lab:8080"),
    ]
    assert uv.translate({"no-index": "true"}) == ["--no-index"]


def test_a_pip_that_an_interrupted_setup_left_is_not_asked_for_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "pip"
    broken.mkdir()
    (broken / "__main__.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.setattr(
        uv, "pip_commands", lambda: iter([[sys.executable, str(broken)], [sys.executable, "-m", "pip"]])
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.lab/simple")
    uv.configured_sources.cache_clear()
    assert "https://pypi.lab/simple" in uv.configured_sources()
    monkeypatch.setattr(uv, "pip_commands", lambda: iter([[sys.executable, str(broken)]]))
    uv.configured_sources.cache_clear()
    assert "https://pypi.lab/simple" in uv.configured_sources()
    uv.configured_sources.cache_clear()
