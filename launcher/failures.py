"""What goes wrong, in words that say what to do."""

import re
import shutil

from launcher import places
from launcher.homes import SHORT_HOME, home


class SetupError(Exception):
    """Something a person has to decide or repair; the message says what happened and what to do."""

    def __init__(self, message: str, code: int = 1, brief: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.brief = brief or message.splitlines()[0].rstrip(":.") + "."  # one sentence


TOO_DEEP = f"The folder's path is too long for Windows: {SHORT_HOME}"

# What a known failure looks like in a tool's output, what to tell the person, and the exit code.
EXPLAIN = (
    (r"No space left|Errno 28|WinError 112", "The disk is full: free some GB and start again.", 7),
    (
        r"WinError 126|WinError 1114|vcruntime140|msvcp140",
        "The Microsoft Visual C++ runtime is missing: install https://aka.ms/vs/17/release/vc_redist.x64.exe",
        1,
    ),
    (r"Long Path|path too long|WinError 206", TOO_DEEP, 1),
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
    (r"No matching distribution|ResolutionImpossible", "The package sources lack something; see logs/setup.log.", 1),
    (r"OSError.*'[A-Z]:[^'\n]{259,}'", TOO_DEEP, 1),  # whatever the system says of such a name
)


def failure(what: str, output: str, code: int = 1) -> SetupError:
    """An error with the tool's last words and, where the cause is known, what to do."""
    if any(shutil.disk_usage(str(place)).free < 50_000_000 for place in (places.ROOT, home()) if place.exists()):
        output += "\nNo space left on device"  # ensurepip keeps the reason to itself
    known = [found[1:] for found in EXPLAIN if re.search(found[0], output, re.IGNORECASE)]
    advice, code = known[0] if known else ("", code)
    lines = output.strip().splitlines()
    errors = [line for line in lines if re.match(r"ERROR|\w*Error:", line)]
    last = "\n".join("    " + line for line in (errors or lines)[-4:])
    words = f"{what}\n{last}\n{advice}\nThe whole story is in {places.LOG}".replace("\n\n", "\n")
    return SetupError(words, code, f"{what} {advice or (errors or lines or ['no words.'])[-1]}")
