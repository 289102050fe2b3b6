"""A folder of assembled kernels, shared by the processes of one user.

An entry is one file with a checksum inside (`kernel_dsl.serialize`), written beside its place and
moved there, so that readers see all of it or nothing; a damaged one is removed and built again. A
cache of machine code is code: its folder and files are the owner's alone, and one that others can
write to is not used. Trouble with the disk turns the cache off with one line in the log, and never
reaches the caller.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_dsl.compiled import Assembled, SourceLine
from kernel_dsl.serialize import SCHEMA, ArtifactError, UnsavableError, pack, unpack

_log = logging.getLogger("kernel_dsl")
_STALE_SECONDS = 3600.0
DEFAULT_MAX_BYTES = 1 << 30


@dataclass
class Counters:
    """What a cache did in this process."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    stored: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class DiskStats:
    """What a cache folder holds."""

    directory: str
    entries: int
    bytes: int
    max_bytes: int


@dataclass
class _Usage:
    known: bool = False
    bytes: int = 0


@dataclass
class DiskCache:
    """Entries in `directory`, at most `max_bytes` of them: beyond that the least recently used go.

    Safe with any number of threads and processes. No method raises for the state of the disk.
    """

    directory: Path
    max_bytes: int = DEFAULT_MAX_BYTES
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.directory = Path(self.directory).expanduser().absolute()
        self._lock = threading.Lock()
        self._usable: bool | None = None
        self._usage = _Usage()

    # A file's own modification time says when it was last used: access times are often off.

    def get(self, key: str, likely: tuple[SourceLine, ...] = ()) -> tuple[Assembled, tuple[SourceLine, ...]] | None:
        """The entry and the places it was stored with, or None. A damaged entry is removed.

        `likely` are places that it probably has: they are given back where it does, as to read them takes a while.
        """
        path = self._path(key)
        try:
            data = _read_own(path) if self._ready() else None
        except OSError:
            data = None
        if data is None:
            self.counters.misses += 1
            return None
        try:
            value, meta = unpack(data)
            if meta.get("key") != key or not isinstance(value, Assembled):
                raise ArtifactError("filed under another key")
            places = likely if meta["places"] == _places_text(likely) else _places_from(meta["places"])
        except (ArtifactError, KeyError, ValueError) as error:
            _log.warning("removing cache entry %s: %s", path, error)
            self.counters.corrupt += 1
            self.counters.misses += 1
            _remove(path)
            return None
        self.counters.hits += 1
        _touch(path)
        return value, places

    def put(self, key: str, value: Assembled, places: Sequence[SourceLine] = ()) -> None:
        """Store an entry. One that is there is replaced, by the same contents."""
        try:
            data = pack(value, {"key": key, "places": _places_text(places)})
        except UnsavableError as error:
            _log.info("kernel %r is not kept on disk: %s", value.kernel.name, error)
            return
        if len(data) > self.max_bytes or not self._ready():
            return
        try:
            _write(self.directory / "tmp", self._path(key), data)
        except OSError as error:
            self._turn_off(f"cannot write: {error}")
            return
        self.counters.stored += 1
        self._make_room(len(data))

    def stats(self) -> DiskStats:
        """How many entries there are and their bytes, counted now."""
        sizes = [size for _, size, _ in self._entries()]
        return DiskStats(str(self.directory), len(sizes), sum(sizes), self.max_bytes)

    def usable(self) -> bool:
        """Whether entries can be kept: the folder is there, ours, and closed to others."""
        return self._ready()

    def listing(self) -> list[str]:
        """One line an entry, the last used first: when, bytes, kernel, target."""
        lines: list[str] = []
        for path, size, used in sorted(self._entries(), key=lambda entry: -entry[2]):
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
            try:
                kernel = unpack(path.read_bytes())[0]
                name = kernel.kernel if isinstance(kernel, Assembled) else kernel
                lines.append(f"{when} {size:>10} {name.name} {name.target}")
            except (OSError, ArtifactError):
                lines.append(f"{when} {size:>10} (damaged)")
        return lines

    def clear(self) -> int:
        """Remove all entries. Returns how many there were."""
        removed = sum(_remove(path) for path, _, _ in self._entries())
        self._sweep(older_than=0.0)
        with self._lock:
            self._usage = _Usage()
        return removed

    def _path(self, key: str) -> Path:
        return self.directory / f"v{SCHEMA}" / key[:2] / f"{key}.kd"

    def _ready(self) -> bool:
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    self._usable = self._prepare()
        return self._usable

    def _prepare(self) -> bool:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.directory.stat()
            if not _is_own(status):
                _log.warning("no disk cache: %s belongs to another user", self.directory)
                return False
            if status.st_mode & 0o022:
                _log.warning(
                    "no disk cache: others can write to %s; remove it, or choose another folder",
                    self.directory,
                )
                return False
            if status.st_mode & 0o077:
                self.directory.chmod(0o700)
            for folder in (self.directory / "tmp", self.directory / f"v{SCHEMA}"):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            _log.warning("no disk cache: %s", error)
            return False
        return True

    def _turn_off(self, why: str) -> None:
        _log.warning("the disk cache in %s is off for this process: %s", self.directory, why)
        self._usable = False

    def _entries(self) -> list[tuple[Path, int, float]]:
        """Path, bytes and time of last use of each entry."""
        found: list[tuple[Path, int, float]] = []
        for path in (self.directory / f"v{SCHEMA}").glob("??/*.kd"):
            try:
                status = path.stat()
            except OSError:  # another process removed it
                continue
            found.append((path, status.st_size, status.st_mtime))
        return found

    def _make_room(self, added: int) -> None:
        """Count the folder once, then add up our own writes; count again when they pass the cap."""
        with self._lock:
            if self._usage.known and self._usage.bytes + added <= self.max_bytes:
                self._usage.bytes += added
                return
            entries = self._entries()
            total = sum(size for _, size, _ in entries)
            if total > self.max_bytes:
                total = self._evict(entries, total)
            self._usage = _Usage(True, total)
        self._sweep(_STALE_SECONDS)

    def _evict(self, entries: list[tuple[Path, int, float]], total: int) -> int:
        # Down to nine tenths, so that a full cache does not count its folder at every write.
        for path, size, _ in sorted(entries, key=lambda entry: entry[2]):
            if total <= self.max_bytes * 9 // 10:
                break
            if _remove(path):
                self.counters.evicted += 1
            total -= size
        return total

    def _sweep(self, older_than: float) -> None:
        """Remove what processes that died while writing left behind."""
        now = time.time()
        for path in (self.directory / "tmp").glob("*"):
            try:
                if now - path.stat().st_mtime >= older_than:
                    path.unlink()
            except OSError:
                continue


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _read_own(path: Path) -> bytes | None:
    """The bytes of a regular file of ours that others cannot write to; None for anything else."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _is_own(status) or status.st_mode & 0o022:
            return None
        return file.read()


def _write(folder: Path, path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step, readable and writable by the owner."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # evicted by another process since we read it
        return


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _places_text(places: Sequence[SourceLine]) -> str:
    rows = {id(p): f"{p.line}\t{p.function}\t{p.file}" for p in {id(p): p for p in places}.values()}
    return "\n".join([rows[id(p)] for p in places])


def _places_from(text: str) -> tuple[SourceLine, ...]:
    rows = [row for row in text.split("\n") if row]
    made: dict[str, SourceLine] = {}  # most ops share their line with others
    for row in set(rows):
        line, function, file = row.split("\t", 2)
        made[row] = SourceLine(file, int(line), function)
    return tuple([made[row] for row in rows])
