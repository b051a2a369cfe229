"""How to use an export, as commands. No torch."""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from pathlib import Path

from trainer_core.export.job import MODELFILE, Exported


def usage_lines(exported: Exported) -> list[str]:
    """`PROGRAM: COMMAND` of each program that reads the export."""
    folder = exported.folder
    match exported.format:
        case "gguf":
            file, name = exported.gguf_file, ollama_name(folder.name)
            return [
                f"LM Studio: {_command('lms', 'import', file, '--copy', '--user-repo', f'traindeck/{name}')}",
                f"Ollama: {_command('ollama', 'create', name, '-f', folder / MODELFILE)}",
                f"llama.cpp: {_command('llama-cli', '-m', file)}",
            ]
        case "gguf-adapter":
            return [f"llama.cpp: {_command('llama-cli', '-m', 'BASE.gguf', '--lora', exported.gguf_file)}"]
        case "peft":
            return [f"peft: PeftModel.from_pretrained(base_model, {str(folder)!r})"]
        case _:
            return [f"transformers: AutoModelForCausalLM.from_pretrained({str(folder)!r})"]


def ollama_name(name: str) -> str:
    """A name that Ollama and LM Studio accept. A checksum distinguishes names with characters that they do not."""
    accepted = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
    if re.fullmatch(r"[A-Za-z0-9._ -]*", name):
        return accepted
    return f"{accepted}-{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"


def _command(*parts: str | Path) -> str:
    words = [str(part) for part in parts]
    if os.name == "nt":
        return subprocess.list2cmdline(words)
    import shlex

    return shlex.join(words)
