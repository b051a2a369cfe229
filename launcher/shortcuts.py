"""Command `shortcut`: a desktop shortcut, through COM objects of the Windows shell."""

import ctypes
import sys
from pathlib import Path
from typing import Any

from launcher import places
from launcher.failures import SetupError
from launcher.messages import message, print_and_log
from launcher.places import read_json, write_json

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


def make_shortcut() -> int:
    """Create a desktop shortcut and record it for `uninstall`."""
    if sys.platform == "win32":
        link = desktop() / "Traindeck.lnk"
        write_shortcut(link, places.ROOT / "train_gpu.bat", places.ROOT / "assets" / "traindeck.ico")
        write_json(places.SHORTCUTS, {"made": sorted({str(link), *read_json(places.SHORTCUTS).get("made", [])})})
        print_and_log(message("launcher.shortcut_created", path=link))
        return 0
    raise SetupError(message("launcher.shortcut_windows_only"), 2)
