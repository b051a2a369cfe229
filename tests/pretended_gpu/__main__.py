"""`python -m tests.pretended_gpu COMMAND …`: run a command as on a machine with an NVIDIA card."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_SOURCES: Final = ("card.h", "runtime.cpp", "driver.cpp", "nvml.c", "__main__.py")
_BLAS: Final = ("cublas", "cublasLt")
# Those of cuBLAS that must give something; all others do nothing, and say that it went well.
_GIVEN: Final = {
    "cublasCreate_v2": "(void** out) { static long one; *out = &one; return 0; }",
    "cublasLtCreate": "(void** out) { static long one; *out = &one; return 0; }",
    "cublasGetMathMode": "(void* handle, int* mode) { *mode = 0; return 0; }",
    "cublasGetPointerMode_v2": "(void* handle, int* mode) { *mode = 0; return 0; }",
    "cublasLtMatmulDescCreate": "(void** out) { static long one[64]; *out = one; return 0; }",
    "cublasLtMatmulPreferenceCreate": "(void** out) { static long one[64]; *out = one; return 0; }",
    "cublasLtMatrixLayoutCreate": "(void** out) { static long one[64]; *out = one; return 0; }",
}
_UNSUPPORTED: Final = 801  # cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED


def main(command: list[str]) -> int:
    if not command:
        sys.exit(__doc__)
    libraries = build()
    environment = dict(os.environ)
    preload = [str(path) for path in sorted(libraries.glob("libcu[db]*.so.13"))]
    for name, values in {
        "LD_PRELOAD": preload,
        "LD_LIBRARY_PATH": [str(libraries)],
        "PYTHONPATH": [str(HERE / "site"), str(HERE.parents[1])],
    }.items():
        environment[name] = os.pathsep.join(filter(None, [*values, environment.get(name)]))
    environment |= {
        "TRITON_LIBCUDA_PATH": str(libraries),
        "TORCHINDUCTOR_GRAPH_PARTITION": "0",  # a graph is replaced as a whole; see `site/card_compiled.py`
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # what is replaced cannot be kept
    }
    return subprocess.run(command, env=environment, check=False).returncode


def build() -> Path:
    """The folder of the libraries, made anew when their source or torch is newer."""
    torch = _packages() / "torch" / "lib" / "libtorch_cuda.so"
    if not torch.exists():
        sys.exit("A CUDA build of torch is needed: install one in an environment of its own, and use its Python.")
    folder = Path(tempfile.gettempdir()) / f"traindeck-card-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    newest = max((HERE / name).stat().st_mtime for name in _SOURCES)
    done = folder / "done"
    if not done.exists() or done.stat().st_mtime < max(newest, torch.stat().st_mtime):
        _build(folder)
        done.touch()
    return folder


def _build(folder: Path) -> None:
    needed = set(_needed())
    _library(folder, "libcudart.so.13", "runtime.cpp", lambda own: _refusing(needed - own), versioned=True)
    header = (_headers() / "cuda.h").read_text(encoding="utf-8")
    named = set(re.findall(r"CUresult CUDAAPI (cu\w+)\(", header)) | set(re.findall(r"#define +cu\w+ +(cu\w+)", header))
    _library(folder, "libcuda.so.1", "driver.cpp", lambda own: _driver(named, own))
    link = folder / "libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to("libcuda.so.1")
    _library(folder, "libnvidia-ml.so.1", "nvml.c", lambda own: iter(()))
    for name in _BLAS:
        real = _cuda() / "lib" / f"lib{name}.so.13"
        exported = {symbol for symbol in _symbols(real, "--defined-only") if symbol.startswith("cublas")}
        _library(folder, real.name, None, lambda own, exported=exported: _doing_nothing(exported), versioned=True)


def _library(folder: Path, name: str, source: str | None, rest, *, versioned: bool = False) -> None:
    """Our own functions, and the rest of what others look for in it."""
    objects, own = [], set()
    if source is not None:
        made = folder / f"{source}.o"
        flags = ["-std=c++17"] if source.endswith("cpp") else []
        _run("g++" if flags else "gcc", "-O1", "-fPIC", "-w", *flags, f"-I{_headers()}", "-c",
             str(HERE / source), "-o", str(made))  # fmt: skip
        own = set(_symbols(made, "--defined-only", dynamic=False))
        objects.append(made)
    others = folder / f"{name}.rest.c"
    others.write_text("\n".join(["extern void card_note(const char*);", *rest(own)]) + "\n", encoding="utf-8")
    _run("gcc", "-O1", "-fPIC", "-w", "-c", str(others), "-o", f"{others}.o")
    script = folder / f"{name}.map"
    script.write_text(f"{name} {{ global: *; }};\n", encoding="utf-8")
    versions = [f"-Wl,--version-script={script}"] if versioned else []
    _run("g++", "-shared", f"-Wl,-soname,{name}", *versions, "-o", str(folder / name), *map(str, objects),
         f"{others}.o", "-ldl")  # fmt: skip


def _refusing(names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        yield f'int {name}() {{ card_note("refused {name}"); return {_UNSUPPORTED}; }}'


def _driver(named: set[str], own: set[str]) -> Iterator[str]:
    """`cuX_v2` is ours where cuX is."""
    for name in sorted(named - own):
        plain = re.sub(r"_v\d$", "", name)
        if plain != name and plain in own:
            yield f'extern int {plain}(); __asm__(".globl {name}\\n.set {name}, {plain}");'
        else:
            yield f"int {name}() {{ return {_UNSUPPORTED}; }}"


def _doing_nothing(names: set[str]) -> Iterator[str]:
    yield "#include <string.h>"
    for name in sorted(names):
        if name == "cublasLtMatmulAlgoGetHeuristic":
            yield (
                f"int {name}(void* a, void* b, void* c, void* d, void* e, void* f, void* g, int h, void* out, int* n)"
                " { memset(out, 0, 96); *n = 1; return 0; }"
            )
        else:
            yield f"int {name}{_GIVEN.get(name, '() { return 0; }')}"


def _needed() -> Iterator[str]:
    """Functions of CUDA's runtime that torch calls."""
    for path in (_packages() / "torch" / "lib").glob("*.so"):
        yield from (
            name.partition("@")[0]
            for name in _symbols(path, "--undefined-only", versions=True)
            if "@libcudart.so" in name
        )


def _symbols(path: Path, which: str, *, dynamic: bool = True, versions: bool = False) -> Iterator[str]:
    done = subprocess.run(
        ["nm", *(["-D"] if dynamic else []), which, str(path)], capture_output=True, encoding="utf-8", check=True
    )
    names = (line.split()[-1] for line in done.stdout.splitlines() if line.strip())
    return names if versions else (name.partition("@")[0] for name in names)


def _packages() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        sys.exit("torch is not installed for this Python.")
    return Path(found.origin).parents[1]


def _cuda() -> Path:
    return _packages() / "nvidia" / "cu13"


def _headers() -> Path:
    """Triton's: with the packages of CUDA some are missing."""
    return _packages() / "triton" / "backends" / "nvidia" / "include"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
