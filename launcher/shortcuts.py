"""Command `shortcut`: on Windows through COM objects of the shell, on Linux a desktop entry."""

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any

from launcher import places
from launcher.messages import SetupError, message, print_and_log
from launcher.places import WINDOWS

if sys.platform == "win32":

    def com_call(interface: ctypes.c_void_p, index: int, *arguments: Any) -> None:
        """Call a method of a COM object by its index in the vtable (shobjidl_core.h). Raises OSError."""
        table = ctypes.cast(interface, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
        kinds = [type(argument) for argument in arguments]
        ctypes.WINFUNCTYPE(ctypes.HRESULT, ctypes.c_void_p, *kinds)(table[index])(interface, *arguments)

    def write_shortcut(link: Path, target: Path, icon: Path) -> None:
        """Write a .lnk file that starts `target` minimized."""
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
        """Folder of the desktop; OneDrive may have moved it."""
        place = ctypes.create_unicode_buffer(260)
        ctypes.oledll.shell32.SHGetFolderPathW(None, 0x10, None, 0, place)  # CSIDL_DESKTOPDIRECTORY
        return Path(place.value)


def exec_line(program: Path) -> str:
    """Line of a desktop entry that starts a shell script, which need not be executable.

    Quotes an argument, then escapes the string, as specifications.freedesktop.org/desktop-entry-spec says.
    """
    quoted = re.sub(r'(["`$\\])', r"\\\1", str(program)).replace("%", "%%")
    return f'Exec=/bin/sh "{escape_string(quoted)}"'


def escape_string(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def desktop_entry() -> bytes:
    """Return the desktop entry of the wheel, with the paths of this copy of Traindeck."""
    text = (places.ROOT / "assets" / "traindeck.desktop").read_text(encoding="utf-8")
    icon = escape_string(str(places.ROOT / "assets" / "traindeck.png"))
    lines = {"Exec": exec_line(places.ROOT / "train_gpu.sh"), "Icon": f"Icon={icon}"}
    changed = "".join(lines.get(line.split("=")[0], line) + "\n" for line in text.splitlines())
    return changed.encode("utf-8", "surrogateescape")


def shortcut_path() -> Path:
    """The shortcut on the desktop of Windows, or in the menu of Linux."""
    if sys.platform == "win32":
        return desktop() / "Traindeck.lnk"
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "applications" / "traindeck.desktop"


def is_own_shortcut() -> bool:
    """Whether there is a shortcut that starts this copy of Traindeck: another copy may have replaced it."""
    line = exec_line(places.ROOT / "train_gpu.sh").encode("utf-8", "surrogateescape") + b"\n"
    try:
        return (str(places.ROOT).encode("utf-16-le") if WINDOWS else line) in shortcut_path().read_bytes()
    except OSError:
        return False


def make_shortcut() -> int:
    """Create the shortcut."""
    path = shortcut_path()
    if sys.platform == "win32":
        write_shortcut(path, places.ROOT / "train_gpu.bat", places.ROOT / "assets" / "traindeck.ico")
    elif sys.platform == "linux":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(desktop_entry())
    else:
        raise SetupError(message("launcher.shortcut_unsupported"), 2)
    print_and_log(message("launcher.shortcut_created", path=path))
    return 0
