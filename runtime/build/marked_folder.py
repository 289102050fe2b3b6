"""A folder of this package inside a folder of the user. It holds code that later processes run.

The folder has a marker, belongs to the user, and is closed to writing by others. Each use opens the folder, checks it, and works
on the open folder, so a writer of a parent folder can't replace it. The marker holds a secret that tells our files from those
of others.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

MARKER = "kernel_dsl.marker"
NOTES = "kernel_dsl.sources"
LARGEST = 1 << 26  # bytes of a file; machine code of the largest kernels takes a tenth
ENTRY = re.compile(r"[0-9a-f]{64}\.kd")
UNFINISHED = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}\.part")

_TEXT = "Compiled kernels of kernel_dsl. `python -m kernel_dsl cache clear` removes them, and no other file.\nsecret "
_SECRET = re.compile(re.escape(_TEXT) + r"([0-9a-f]{64})\n")
# Opens must not block, follow a link, take over a terminal, or stay open in child programs.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"))
_ATTEMPTS = 7
_PAUSE = 0.005  # seconds, doubled at each attempt, to outlast a process that removes the folder repeatedly
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class FolderError(Exception):
    """The reason why a folder is not used, as one line."""


class UnmarkedError(FolderError):
    """It has no marker of ours. That may be temporary, while another process removes it."""


class MarkedFolder:
    """The folder `name` in `parent`. `parent` is the user's and is not changed."""

    def __init__(self, parent: Path, name: str) -> None:
        self.parent = parent
        self.path: Path = parent / name

    def make(self) -> None:
        """Make it, with its marker, if it does not exist. Raises FolderError, OSError, ValueError (NUL in a path)."""
        if os.open not in os.supports_dir_fd:
            raise FolderError("this system cannot open files in a folder that is open")
        for attempt in range(_ATTEMPTS):
            with suppress(FileNotFoundError, FileExistsError, UnmarkedError):  # another process may be removing it
                return self._make()
            time.sleep(_PAUSE * (1 << attempt))
        self._make()

    def _make(self) -> None:
        self._check_parent()
        self.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        with self._looked_at() as folder:
            names = folder.names()
            # Ours without a marker are what a removal left that was overtaken by a writer.
            if MARKER not in names and not all(map(_ours, names)):
                raise UnmarkedError(f"{self.path} holds files and no {MARKER}, so that it is somebody else's")
            if folder.secret is None:
                folder.mark()
            if folder.secret is None:
                raise UnmarkedError(f"{self.path / MARKER} is not a marker of ours; remove it")

    def _check_parent(self) -> None:
        """Raise FolderError for a path that can't be the user's folder. A missing one can."""
        with suppress(FileNotFoundError):
            mode = self.parent.stat().st_mode
            if not stat.S_ISDIR(mode):
                raise FolderError(f"{self.parent} is no folder")
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # a sticky folder protects ours
                raise FolderError(f"others can write to {self.parent}; choose a folder that is yours alone")

    @contextmanager
    def open(self) -> Generator[OpenFolder, None, None]:
        """Open the folder. Raises FolderError if it is not ours, OSError, ValueError."""
        self._check_parent()
        with self._looked_at() as folder:
            if folder.secret is None:
                raise UnmarkedError(f"{self.path} has no marker")
            yield folder

    @contextmanager
    def _looked_at(self) -> Generator[OpenFolder, None, None]:
        descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _FLAGS)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise FolderError(f"{self.path} belongs to another user")
            if status.st_mode & _OTHERS:
                raise FolderError(f"others can write to {self.path}; remove it, or choose another folder")
            yield OpenFolder(descriptor)
        finally:
            os.close(descriptor)


class OpenFolder:
    """An open folder. `secret`: its marker's, None if it has no marker of ours. Methods raise OSError."""

    def __init__(self, descriptor: int) -> None:
        self._at = descriptor
        self.secret = self._marked()

    def names(self) -> list[str]:
        return os.listdir(self._at)

    def status(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._at, follow_symlinks=False)

    def read(self, name: str) -> bytes | None:
        """The bytes of a regular file that we own and others can't write; None for anything else."""
        descriptor = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self._at)
        try:
            status = os.fstat(descriptor)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS
            if not ours or status.st_size > LARGEST:
                return None
            parts: list[bytes] = []
            left = LARGEST
            while left and (part := os.read(descriptor, min(left, status.st_size + 1))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Put `data` at `name` in one step, readable and writable by the owner."""
        temporary = unfinished(name[:64] if ENTRY.fullmatch(name) else "0" * 64)
        try:
            self._fill(temporary, data)
            os.replace(temporary, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except BaseException:
            self.remove(temporary)
            raise

    def touch(self, name: str) -> None:
        os.utime(name, dir_fd=self._at, follow_symlinks=False)

    def remove(self, name: str) -> bool:
        """Remove a file. Returns whether it existed."""
        try:
            os.unlink(name, dir_fd=self._at)
        except OSError:
            return False
        return True

    def writable(self) -> bool:
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self._at)

    def mark(self) -> None:
        """Give the folder its marker, or find the one that another process has just written."""
        temporary = unfinished("0" * 64)
        try:
            self._fill(temporary, f"{_TEXT}{os.urandom(32).hex()}\n".encode(), settled=True)
            try:
                os.link(temporary, MARKER, src_dir_fd=self._at, dst_dir_fd=self._at, follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                os.replace(temporary, MARKER, src_dir_fd=self._at, dst_dir_fd=self._at)
        finally:
            self.remove(temporary)
        self.secret = self._marked()

    def _marked(self) -> bytes | None:
        with suppress(OSError):
            found = _SECRET.fullmatch((self.read(MARKER) or b"").decode(errors="replace"))
            return bytes.fromhex(found[1]) if found else None
        return None

    def _fill(self, name: str, data: bytes, settled: bool = False) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self._at)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if settled:  # makes it survive a loss of power
                file.flush()
                os.fsync(descriptor)


def _ours(name: str) -> bool:
    return name == NOTES or bool(ENTRY.fullmatch(name) or UNFINISHED.fullmatch(name))


def unfinished(key: str) -> str:
    """A unique name for a file while it is written."""
    return f"{key}.{os.urandom(8).hex()}.part"
