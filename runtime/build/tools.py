"""Finds and runs the programs of the CUDA toolkit: ptxas, nvdisasm, cuobjdump.

Looked for in this order: the path the caller gives, NVIDIA's wheels beside our own packages, a toolkit in the customary
folders, PATH, and Triton's wheel, which carries copies of its own. Nothing is run to find them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .problems import ToolFailed

_TOOLKITS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
_WHEELS = ("nvidia/cu13/bin", "nvidia/cuda_nvcc/bin")
_TRITON = "triton/backends/nvidia/bin"
_SCRIPT_BYTES = 1 << 16  # a smaller file is a script around the real program, wherever that lies
_VERSION_SECONDS = 10.0
_MOST_BYTES = 1 << 28  # bytes of a program's output
_PIPE = 1 << 16


def _executable(path: Path | str) -> bool:
    try:
        return os.access(path, os.X_OK) and os.path.isfile(path)
    except ValueError:  # no path can have a NUL
        return False


def _in_wheels(folders: tuple[str, ...], name: str) -> Path | None:
    for root in filter(None, sys.path):
        for folder in folders:
            path = os.path.join(root, folder, name)
            if _executable(path):
                return Path(path)
    return None


@functools.lru_cache(maxsize=64)
def find(name: str, override: str | None = None) -> Path | None:
    """The program `name`, or None.

    `override` is a path to it, or to its folder; if it is given, no other place is searched.
    """
    if override:
        path = Path(override)
        path = path / name if os.path.isdir(path) else path
        return path if _executable(path) else None
    path = _in_wheels(_WHEELS, name)
    if path is not None:
        return path
    for root in _TOOLKITS:
        if _executable(path := os.path.join(root, "bin", name)):
            return Path(path)
    on_path = shutil.which(name)
    return Path(on_path) if on_path else _in_wheels((_TRITON,), name)


@functools.lru_cache(maxsize=64)
def version(path: Path) -> str:
    """The release that the program reports, such as '13.0.88'; '' if it reports none."""
    try:
        done = run([path, "--version"], seconds=_VERSION_SECONDS)
    except ToolFailed:
        return ""
    for word in done.output.decode(errors="replace").replace(",", " ").split():
        if word[:1] == "V" and word[1:2].isdigit():
            return word[1:]
    return ""


@functools.lru_cache(maxsize=64)
def identity(path: Path) -> str:
    """A text that differs between two builds of the program, for cache keys.

    Running `--version` costs milliseconds in every process, so the text has the file's size and time. Only a script
    around the real program is run.
    """
    try:
        status = path.stat()
    except OSError:  # the file is gone; running it will raise the error
        return f"{path.name} gone"
    if status.st_size < _SCRIPT_BYTES:
        return f"{path.name} {version(path)}"
    stamp = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    return f"{path.name} {hashlib.sha256(stamp.encode(errors='surrogateescape')).hexdigest()[:16]}"


# --- running them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A program that has ended. `words`: its output."""

    status: int
    output: bytes
    words: str


def run(
    command: Sequence[str | Path],
    *,
    seconds: float,
    given: bytes | IO[bytes] = b"",
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a program on `given`, bytes that go through a pipe or a file.

    Raises ToolFailed if it does not start, does not end within `seconds`, is ended by a signal, or writes more than 256
    MiB. It and its child processes are then ended.
    """
    try:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE if isinstance(given, bytes) else given, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, process_group=0,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ToolFailed(f"{command[0]} cannot be run: {error}") from None
    with process:
        try:
            output, words = _exchange(process, given if isinstance(given, bytes) else b"", time.monotonic() + seconds)
        except BaseException as error:
            _end(process)
            if isinstance(error, TimeoutError):
                raise ToolFailed(f"{command[0]} had not ended after {seconds:.0f} seconds, and was stopped") from None
            if isinstance(error, OverflowError):
                raise ToolFailed(f"{command[0]} said more than {_MOST_BYTES >> 20} MiB, and was stopped") from None
            raise
    if process.returncode < 0:
        raise ToolFailed(f"{command[0]} was ended by {_signal(-process.returncode)}")
    return Finished(process.returncode, output, words.decode(errors="replace"))


def _exchange(process: subprocess.Popen[bytes], given: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Give a program its input, and read its output. Raises TimeoutError, OverflowError."""
    assert process.stdout is not None and process.stderr is not None
    taken: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    rest = memoryview(given)
    with selectors.DefaultSelector() as ready:
        for pipe in taken:
            ready.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            ready.register(process.stdin, selectors.EVENT_WRITE)
            os.set_blocking(process.stdin.fileno(), False)
        while ready.get_map():
            for key, _ in ready.select(_left(deadline)):
                if key.fileobj is process.stdin:
                    rest = rest[_written(key.fd, rest) :]
                    more = bool(rest)
                else:
                    data = os.read(key.fd, _PIPE)
                    taken[key.fileobj] += data
                    more = bool(data)
                if not more:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            if sum(map(len, taken.values())) > _MOST_BYTES:
                raise OverflowError
    try:
        process.wait(_left(deadline))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(taken[process.stdout]), bytes(taken[process.stderr])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _written(pipe: int, data: memoryview) -> int:
    """The number of bytes that a program has taken; all, if it has closed its input."""
    try:
        return os.write(pipe, data[:_PIPE]) if data else 0
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its child processes.

    `process.wait` takes a lock, and an interrupt in an earlier wait may have left it locked.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with suppress(ChildProcessError):  # the earlier wait has seen its end
            os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGKILL


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name}, for example because memory ran out" if name == "SIGKILL" else name
