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
from operator import attrgetter
from typing import NamedTuple

from kernel_dsl import rooms
from kernel_dsl.options import environment

from ..disk_cache import DiskCache

# The files of the runtime that decide the contents of an entry. The others only launch it.
_RUNTIME_SOURCES = ("assemble.py", "build/ptxas_log.py", "build/occupancy.py")
_MANY = 16  # the most notes that a folder keeps: one for each installation that shares it
_SETTLED = 2_000_000_000  # ns: two writes within a tick of the file system's clock leave one time
_STATUS = attrgetter("st_mtime_ns", "st_ctime_ns", "st_dev", "st_ino", "st_size")
_NAME = attrgetter("name")
_NOTE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64}) ([0-9a-f]{64})")


class _Files(NamedTuple):
    """Files of a folder and below it. `numbers`: the five numbers of `_STATUS` of each, one after the other.

    Flat lists, since objects for each file would have Python collect garbage.
    """

    folder: str
    names: list[str]
    numbers: list[int]


@functools.cache
def sources_hash() -> str:
    """A SHA-256 over the text of our own compiler, as hex."""
    env = environment()
    if env.cache_off:
        return _digest(looked_at())
    return noted_hash(DiskCache(env.cache_dir), looked_at())


def noted_hash(disk: DiskCache, files: list[_Files]) -> str:
    """The digest of the files as they are, from a note of the folder if it has one for this status; else computed, and noted."""
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


def _digest(folders: Sequence[_Files]) -> str:
    total = hashlib.sha256()
    for folder, names, _ in folders:
        for name in names:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                data = file.read()
            total.update(f"{name} {len(data)}\n".encode())
            total.update(data)
    return total.hexdigest()


def _state(folders: Sequence[_Files]) -> tuple[str, bool]:
    """A digest of the files' status, and whether any later change would give a file another time than its last one has."""
    texts = "\0\0".join(["\0".join((files.folder, *files.names)) for files in folders]).encode(errors="surrogatepass")
    numbers = list(chain.from_iterable(files.numbers for files in folders))
    state = hashlib.sha256(b"%b\0%b" % (texts, struct.pack("qqQQQ" * (len(numbers) // 5), *numbers))).hexdigest()
    return state, time.time_ns() - max(*numbers[::5], *numbers[1::5]) > _SETTLED


@functools.cache
def looked_at() -> list[_Files]:
    """The files of our own compiler at the first look of this process, which importing a library function takes."""
    return _compiler_files()


def _compiler_files() -> list[_Files]:
    """The files of our own compiler; where they lie in a zip file, the zip file."""
    if not os.path.isdir(rooms.HERE):
        archive = rooms.HERE
        while not os.path.isfile(archive):
            archive = os.path.dirname(archive)
        return [_Files(os.path.dirname(archive), [os.path.basename(archive)], [*_STATUS(os.stat(archive))])]
    runtime = rooms.folder_of("runtime")
    numbers = [number for name in _RUNTIME_SOURCES for number in _STATUS(os.stat(os.path.join(runtime, name)))]
    return [
        _modules(rooms.HERE, rooms.PARTS),
        _modules(rooms.folder_of("lowering"), ()),
        _Files(runtime, [*_RUNTIME_SOURCES], numbers),
    ]


def _modules(folder: str, without: Sequence[str]) -> _Files:
    """The Python files in a folder and below it, in order. `without`: its subfolders that are left out.

    They are looked at through descriptors of their folders: by paths, the system would search each path from its root.
    """
    found = _Files(folder, [], [])
    below = [""]
    while below:
        inside = below.pop()
        place = os.open(os.path.join(folder, inside), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(place) as entries:
                for entry in sorted(entries, key=_NAME):
                    name = inside + entry.name
                    if name.endswith(".py"):
                        _note(found, name, entry)
                    elif entry.name != "__pycache__" and name not in without and entry.is_dir():
                        below.append(f"{name}/")
        finally:
            os.close(place)
    return found


def _note(found: _Files, name: str, entry: os.DirEntry[str]) -> None:
    """Enter a file, unless it was removed meanwhile, or is a link to nothing as editors make them to lock a file."""
    try:
        found.numbers.extend(_STATUS(entry.stat()))
    except FileNotFoundError:
        return
    found.names.append(name)
