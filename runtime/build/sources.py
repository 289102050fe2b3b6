"""A digest of our own compiler's files, which is part of each key of the disk cache.

To read some 330 files takes half of a warm process' way to its first launch. The disk cache therefore holds notes: the digest of
the files by their status (path, size, inode, times of the last changes). A file that is written anew has another status.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import struct
import time
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter

from kernel_dsl import rooms
from kernel_dsl.options import environment

from ..disk_cache import DiskCache

# The files of the runtime that decide the contents of an entry. The others only launch it.
_RUNTIME_SOURCES = ("assemble.py", "build/ptxas_log.py", "build/occupancy.py")
_MANY = 16  # the most notes that a folder keeps: one for each installation that shares it
_SETTLED = 2_000_000_000  # ns: two writes within a tick of the file system's clock leave one time
_STATUS = attrgetter("st_mtime_ns", "st_ctime_ns", "st_dev", "st_ino", "st_size")
_TIMES = itemgetter(0, 1)
_NOTE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64}) ([0-9a-f]{64})")


@functools.cache
def sources_hash() -> str:
    """A SHA-256 over the text of our own compiler, as hex."""
    env = environment()
    if env.cache_off:
        return _digest(_compiler_files())
    return noted_hash(DiskCache(env.cache_dir))


def noted_hash(disk: DiskCache) -> str:
    """The digest of the files as they are, from a note of the folder if it has one for this status; else computed, and noted."""
    files = _compiler_files()
    state, settled = _state(files)
    text, secret = disk.notes()
    notes = [found for line in text.splitlines() if (found := _NOTE.fullmatch(line))]
    for found in notes:
        if found[1] == state and hmac.compare_digest(found[3], _seal(found[1], found[2], secret)):
            return found[2]
    digest = _digest(files)
    if settled and _state(_compiler_files())[0] == state:  # nobody wrote a file meanwhile
        kept = [found[0] for found in notes[: _MANY - 1]]
        disk.keep_notes(lambda secret: "\n".join([f"{state} {digest} {_seal(state, digest, secret)}", *kept]) + "\n")
    return digest


def _seal(state: str, digest: str, secret: bytes) -> str:
    """The seal of a note. Only those who can read the folder's secret can make it."""
    return hashlib.blake2b(f"{state} {digest}".encode(), key=secret, digest_size=32).hexdigest()


def _digest(files: Sequence[tuple[str, str]]) -> str:
    total = hashlib.sha256()
    for path, name in files:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        total.update(f"{name} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def _state(files: Sequence[tuple[str, str]]) -> tuple[str, bool]:
    """A digest of the files' status, and whether any later change would give a file another time than its last one has."""
    paths = [path for path, _ in files]
    try:
        rows = list(map(_STATUS, map(os.stat, paths)))
    except OSError:  # the digest says which file is gone
        there = [file for file in files if os.path.exists(file[0])]
        return _state(there) if len(there) < len(files) else ("", False)
    names = "\0".join(chain.from_iterable(files)).encode(errors="surrogatepass")
    numbers = struct.pack("qqQQQ" * len(rows), *chain.from_iterable(rows))
    state = hashlib.sha256(b"%b\0%b" % (names, numbers)).hexdigest()
    return state, time.time_ns() - max(map(max, map(_TIMES, rows)), default=0) > _SETTLED


def _compiler_files() -> list[tuple[str, str]]:
    """Paths and names of the files of our own compiler; where they lie in a zip file, the zip file."""
    if not os.path.isdir(rooms.HERE):
        archive = rooms.HERE
        while not os.path.isfile(archive):
            archive = os.path.dirname(archive)
        return [(archive, "archive")]
    folders = (rooms.HERE, rooms.PARTS), (rooms.folder_of("lowering"), ())
    files = [(path, path[len(folder) :]) for folder, without in folders for path in _modules(folder, without)]
    return files + [(os.path.join(rooms.folder_of("runtime"), name), name) for name in _RUNTIME_SOURCES]


def _modules(folder: str, without: Sequence[str]) -> list[str]:
    """The Python files in a folder and below it, in order. `without`: names of its subfolders that are left out."""
    found: list[str] = []
    below = [folder]
    skipped = {os.path.join(folder, name) for name in without}
    while below:
        with os.scandir(below.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif entry.name != "__pycache__" and entry.path not in skipped and entry.is_dir():
                    below.append(entry.path)
    return sorted(found)
