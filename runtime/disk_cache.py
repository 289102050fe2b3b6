"""A folder of assembled kernels, shared by the processes of one user.

An entry is one file (`kernel_dsl.serialize`). It is written under another name and then moved, so readers see all of it
or nothing. A damaged entry is removed and built again. The folder's secret seals entries: an entry from a process that
could not read the folder is never run, even if its checksum is right. An error of the disk turns the cache off with one
line in the log, and does not reach the caller.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernel_dsl import forking
from kernel_dsl.compiled import Assembled, SourceLine
from kernel_dsl.serialize import UNSEALED, ArtifactError, UnsavableError, pack, seal, seal_of, unpack
from kernel_dsl.well_formed import problem

from .build.marked_folder import ENTRY, LARGEST, NOTES, UNFINISHED, FolderError, MarkedFolder, OpenFolder, UnmarkedError

T = TypeVar("T")

_log = logging.getLogger("kernel_dsl")
_STALE_SECONDS = 3600.0
DEFAULT_MAX_BYTES = 1 << 30
FOLDER = "kernel_dsl.cache"  # our folder inside the user's

_PLAIN_KEY = re.compile(r"[0-9a-f]{64}")
_TROUBLE = (OSError, ValueError, FolderError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of one entry: another process removed it, or a folder has its name. The next entry may work.
_PASSING = (errno.ENOENT, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)


@dataclass
class Counters:
    """The operations of a cache in this process, counted."""

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


@dataclass(frozen=True)
class _File:
    name: str
    bytes: int
    used: float  # its modification time, because many systems do not record access times


class DiskCache:
    """Entries in our folder inside `directory`, at most `max_bytes`; beyond that the least recently used are removed.
    `directory` is the user's; it may begin with `~`, and None means that there is no cache. Safe with any number of
    threads and processes. No method raises an error of the disk.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.counters: Counters = Counters()
        self._lock = forking.lock()
        self._usable: bool | None = None  # None: not tried yet
        self._keeps = True  # whether new entries are stored
        self._bytes: int | None = None  # bytes of all entries, as far as this process knows
        self._trouble = ""
        self.directory: Path = self._absolute(directory)
        self._folder = MarkedFolder(self.directory, FOLDER)

    def _absolute(self, directory: str | os.PathLike[str] | None) -> Path:
        if directory is None:
            self._trouble = "no home folder of this user is known; name a folder in KERNEL_DSL_CACHE"
            return Path()
        path = Path(directory)
        try:
            return path.expanduser().absolute()
        except (OSError, RuntimeError, ValueError) as error:  # `~nosuch`; a working directory that is gone
            self._trouble = f"{path}: {error}"
            return path

    # --- entries ----------------------------------------------------------------------------------

    def get(self, key: str, likely: tuple[SourceLine, ...] = ()) -> tuple[Assembled, tuple[SourceLine, ...]] | None:
        """The entry and the places it was stored with, or None. A damaged entry is removed.

        `likely` are locations that it probably has: if so, they are returned, because parsing them takes time.
        """
        found = None
        if self._usable is not False:  # a folder that is missing is made for the first entry
            found = self._inside(lambda folder: self._read(folder, key, likely), None)
        if found is None:
            self.counters.misses += 1
        else:
            self.counters.hits += 1
        return found

    def _read(
        self, folder: OpenFolder, key: str, likely: tuple[SourceLine, ...]
    ) -> tuple[Assembled, tuple[SourceLine, ...]] | None:
        name = _name(key)
        data = folder.read(name)
        if data is None:
            return None
        try:
            value, meta = unpack(data)
            if meta.get("seal") != seal_of(data, folder.secret or b""):
                raise ArtifactError("it was not stored by this cache")
            if meta.get("key") != key or not isinstance(value, Assembled):
                raise ArtifactError("it is filed under another key")
            if problem(value):
                raise ArtifactError(problem(value))
            places = likely if meta["places"] == _places_text(likely) else _places_from(meta["places"])
        except (ArtifactError, KeyError, ValueError) as error:
            why = error.fields["message"] if isinstance(error, ArtifactError) else repr(error)
            _log.warning("removing cache entry %s: %s", self._path(key), why)
            self.counters.corrupt += 1
            folder.remove(name)
            return None
        with suppress(OSError):  # another process has removed it, or the disk is read-only
            folder.touch(name)
        return value, places

    def put(self, key: str, value: Assembled, places: Sequence[SourceLine] = ()) -> None:
        """Store an entry. An existing one is replaced."""
        if not self._ready() or not self._keeps:
            return
        try:
            data = pack(value, {"seal": UNSEALED, "key": key, "places": _places_text(places)})
        except (UnsavableError, UnicodeEncodeError) as error:  # half of a surrogate pair in one of the user's names
            _log.info("kernel %r is not kept on disk: %s", value.kernel.name, error)
            return
        if len(data) > min(self.max_bytes, LARGEST):
            return
        try:
            self._write(_name(key), data)
        except _TROUBLE as error:
            if not isinstance(error, UnmarkedError) and getattr(error, "errno", 0) not in _PASSING:
                self._keeps = False
                why = "the disk is full" if getattr(error, "errno", 0) in _FULL else str(error)
                _log.warning("the disk cache in %s keeps no more kernels of this process: %s", self._folder.path, why)
            return
        self.counters.stored += 1
        self._make_room(len(data))

    def _write(self, name: str, data: bytes) -> None:
        try:
            with self._folder.open() as folder:
                folder.write(name, seal(data, folder.secret or b""))
        except (FileNotFoundError, UnmarkedError):  # another process has removed the folder or its contents
            self._folder.make()
            with self._folder.open() as folder:
                folder.write(name, seal(data, folder.secret or b""))

    # --- notes ------------------------------------------------------------------------------------

    def notes(self) -> tuple[str, bytes]:
        """The text beside the entries, and the folder's secret; both empty if there is no such text."""

        def read(folder: OpenFolder) -> tuple[str, bytes]:
            return (folder.read(NOTES) or b"").decode(errors="replace"), folder.secret or b""

        return self._inside(read, ("", b""))

    def keep_notes(self, make: Callable[[bytes], str]) -> None:
        """Put the text `make(secret)` beside the entries, with the folder's secret. Does nothing if the folder can't be used."""
        if self._ready() and self._keeps:
            with suppress(*_TROUBLE), self._folder.open() as folder:
                folder.write(NOTES, make(folder.secret or b"").encode())

    def _path(self, key: str) -> Path:
        return self._folder.path / _name(key)

    # --- the folder -------------------------------------------------------------------------------

    def usable(self) -> bool:
        """Whether entries can be stored: the folder exists or was made, it is ours, closed to others and writable."""
        if not self._ready() or not self._keeps:
            return False
        with suppress(*_TROUBLE):
            self._folder.make()  # makes it again if it was removed
        return self._inside(lambda folder: folder.writable(), False)

    def stats(self) -> DiskStats:
        """The number of entries and their bytes, counted now. Makes no folder."""
        sizes = [entry.bytes for entry in self._files(ENTRY)]
        return DiskStats(str(self.directory), len(sizes), sum(sizes), self.max_bytes)

    def listing(self) -> list[str]:
        """One line for each entry, the last used first: time, bytes, kernel, target."""
        lines: list[str] = []
        for entry in sorted(self._files(ENTRY), key=lambda entry: -entry.used):
            data = self._inside(lambda folder, name=entry.name: folder.read(name), None)
            try:
                value = unpack(data or b"")[0]
                kernel = value.kernel if isinstance(value, Assembled) else value
                what = f"{kernel.name} {kernel.target}"
            except ArtifactError:
                what = "(damaged)"
            lines.append(f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.used))} {entry.bytes:>10} {what}")
        return lines

    def clear(self) -> int:
        """Remove all entries, and unfinished files of dead writers.

        Returns the number of entries. Only files with our names in the folder with our marker are removed.
        """
        removed = sum(self._remove(entry) for entry in self._files(ENTRY))
        self._inside(lambda folder: folder.remove(NOTES), False)
        self._sweep()
        self._bytes = None
        return removed

    def _ready(self) -> bool:
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    self._usable = self._prepare()
        return self._usable

    def _prepare(self) -> bool:
        try:
            if self._trouble:
                raise FolderError(self._trouble)
            self._folder.make()
        except _TROUBLE as error:
            _log.warning("no disk cache: %s", error)
            return False
        return True

    def _inside(self, use: Callable[[OpenFolder], T], otherwise: T) -> T:
        """The result of `use` on our folder, or `otherwise` if the folder can't be used now."""
        try:
            if not self._trouble:
                with self._folder.open() as folder:
                    return use(folder)
        except _TROUBLE:
            pass
        return otherwise

    def _files(self, names: re.Pattern[str]) -> list[_File]:
        """The files of our folder with such names; folders are not ours."""

        def look(folder: OpenFolder) -> list[_File]:
            found: list[_File] = []
            for name in filter(names.fullmatch, folder.names()):
                with suppress(OSError):  # another process removed it
                    status = folder.status(name)
                    if not stat.S_ISDIR(status.st_mode):
                        found.append(_File(name, status.st_size, status.st_mtime))
            return found

        return self._inside(look, [])

    def _remove(self, entry: _File) -> bool:
        return self._inside(lambda folder: folder.remove(entry.name), False)

    def _make_room(self, added: int) -> None:
        """Count the folder once, then add this process' writes; count again when the sum exceeds the limit."""
        with self._lock:
            if self._bytes is not None and self._bytes + added <= self.max_bytes:
                self._bytes += added
                return
            entries = self._files(ENTRY)
            total = sum(entry.bytes for entry in entries)
            if total > self.max_bytes:
                total = self._evict(entries, total)
            self._bytes = total
        self._sweep()

    def _evict(self, entries: list[_File], total: int) -> int:
        # Remove down to nine tenths, so that a full cache does not count its folder at every write.
        for entry in sorted(entries, key=lambda entry: entry.used):
            if total <= self.max_bytes * 9 // 10:
                break
            if self._remove(entry):
                self.counters.evicted += 1
            total -= entry.bytes
        return total

    def _sweep(self) -> None:
        """Remove unfinished files of processes that died."""
        for left in self._files(UNFINISHED):
            if time.time() - left.used >= _STALE_SECONDS:
                self._remove(left)


def _name(key: str) -> str:
    """The file of a key. Our keys are 64 hex digits; others, which could be paths, are hashed."""
    if not _PLAIN_KEY.fullmatch(key):
        key = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{key}.kd"


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
