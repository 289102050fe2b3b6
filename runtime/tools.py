"""Finds the programs of the CUDA toolkit: ptxas, nvdisasm, cuobjdump.

Looked for in this order: the path the caller gives, NVIDIA's wheels beside our own packages, a
toolkit in the customary folders, PATH, and Triton's wheel, which carries copies of its own. Nothing
is run to find them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_TOOLKITS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
_WHEELS = ("nvidia/cu13/bin", "nvidia/cuda_nvcc/bin")
_TRITON = "triton/backends/nvidia/bin"
_SCRIPT_BYTES = 1 << 16  # a smaller file is a script around the real program, wherever that lies


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _in_wheels(folders: tuple[str, ...], name: str) -> Path | None:
    for root in filter(None, sys.path):
        for folder in folders:
            path = Path(root) / folder / name
            if _executable(path):
                return path
    return None


@functools.lru_cache(maxsize=64)
def find(name: str, override: str | None = None) -> Path | None:
    """The program `name`, or None.

    `override` is a path to it, or to the folder that holds it; it is never passed over.
    """
    if override:
        path = Path(override)
        path = path / name if path.is_dir() else path
        return path if _executable(path) else None
    path = _in_wheels(_WHEELS, name)
    if path is not None:
        return path
    for root in _TOOLKITS:
        if _executable(Path(root) / "bin" / name):
            return Path(root) / "bin" / name
    on_path = shutil.which(name)
    return Path(on_path) if on_path else _in_wheels((_TRITON,), name)


@functools.lru_cache(maxsize=64)
def version(path: Path) -> str:
    """The release that the program calls itself, such as '13.0.88'; '' if it does not say."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=30, check=False)
    except OSError:
        return ""
    for word in done.stdout.decode(errors="replace").replace(",", " ").split():
        if word[:1] == "V" and word[1:2].isdigit():
            return word[1:]
    return ""


@functools.lru_cache(maxsize=64)
def identity(path: Path) -> str:
    """A text that differs between two builds of the program, for cache keys.

    Running `--version` costs milliseconds in every process, so the file's size and time stand for
    it; a script in front of the real program is asked.
    """
    status = path.stat()
    if status.st_size < _SCRIPT_BYTES:
        return f"{path.name} {version(path)}"
    stamp = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    return f"{path.name} {hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
