"""Assembled kernels by key: in memory for this process, on disk for later processes.

The key is a SHA-256 of everything that determines the machine code: the IR's text without locations,
target, options, our own sources, llvmlite and the assembler.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernel_dsl import forking
from kernel_dsl.compiled import Assembled, CompiledKernel, ReportNames, SourceLine
from kernel_dsl.dataclass import changed
from kernel_dsl.serialize import SCHEMA

from ..disk_cache import Counters, DiskCache
from .sources import sources_hash


@functools.cache
def _llvmlite_version() -> str:
    """A text that differs between llvmlite's releases: its file of versions, found 10 times as fast as metadata."""
    for folder in sys.path:
        with suppress(OSError), open(os.path.join(folder, "llvmlite", "_version.py")) as file:
            return file.read()
    return _version_elsewhere()


def _version_elsewhere() -> str:
    from importlib import metadata, util  # these take 20 ms

    spec = util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return "none"
    try:
        return (Path(spec.origin).parent / "_version.py").read_text()
    except OSError:
        return metadata.version("llvmlite")


def cache_key(ir_text: str, *, target: str, options: str, assembler: str) -> str:
    """The key of a kernel, as 64 hex digits.

    Args:
        ir_text: the IR's text without locations.
        target: the target's name.
        options: all options that decide the code, as a text such as a frozen dataclass' repr.
        assembler: `assemble.assembler_identity(...)`.
    """
    total = hashlib.sha256()
    parts = (
        str(SCHEMA), sources_hash(), _llvmlite_version(), assembler, target, options, ir_text,
    )  # fmt: skip
    for part in parts:
        data = part.encode()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


_Entry = tuple[Assembled, tuple[SourceLine, ...]]


def relocate(assembled: Assembled, old: Sequence[SourceLine], new: Sequence[SourceLine]) -> Assembled:
    """The same kernel with the locations of a fresh trace.

    The key has no locations, so a kernel from the cache has the lines of the day it was stored, even if its file has
    moved or changed above it. `old` and `new` are the locations of the IR's ops, in order, then and now; equal keys
    make them equally long.
    """
    if old is new or len(old) != len(new) or list(old) == list(new):
        return assembled
    moved: dict[tuple[str, int], SourceLine] = {}
    for before, after in zip(old, new, strict=True):
        moved.setdefault((before.file, before.line), after)  # the first of several ops on a line

    def to(line: SourceLine) -> SourceLine:
        after = moved.get((line.file, line.line))
        if after is None:
            return line
        return SourceLine(after.file, after.line, after.function if line.function else "")

    def at(line: SourceLine | None) -> SourceLine | None:
        return None if line is None else to(line)

    kernel = assembled.kernel
    there = {number: to(line) for number, line in {id(line): line for line in kernel.lines.values()}.items()}
    names: ReportNames = changed(kernel.names, smem=tuple([changed(r, line=at(r.line)) for r in kernel.names.smem]))
    placed: CompiledKernel = changed(
        kernel,
        lines={number: there[id(line)] for number, line in kernel.lines.items()},
        source=at(kernel.source),
        names=names,
    )
    remarks = tuple([changed(remark, line=at(remark.line)) for remark in assembled.remarks])
    return changed(assembled, kernel=placed, remarks=remarks)


class KernelCache:
    """Assembled kernels by key: a bounded number in memory, in front of a folder.

    `disk` is None if the disk cache is off. Two threads that need the same kernel build it once.
    """

    def __init__(self, disk: DiskCache | None = None, *, capacity: int = 256) -> None:
        self.disk = disk
        self.capacity = capacity
        self.counters: Counters = Counters()
        self._kernels: OrderedDict[str, _Entry] = OrderedDict()
        self._from_disk: set[str] = set()
        self._building: dict[str, Any] = {}
        self._lock = forking.lock()

    def get_or_build(self, key: str, build: Callable[[], Assembled], places: Sequence[SourceLine] = ()) -> Assembled:
        """The kernel for `key`, from memory, disk or `build()`, in that order.

        `places` are the locations of the ops of the fresh trace, in order: a kernel from the cache gets them in place
        of its stored ones. An error of `build` is passed on, and nothing is kept.
        """
        places = tuple(places)
        entry = self._recent(key)
        if entry is None:
            with self._lock:
                turn = self._building.setdefault(key, forking.lock())
            with turn:
                try:
                    # Another thread may have built it while this one waited.
                    entry = self._recent(key) or self._load_or_build(key, build, places)
                finally:
                    with self._lock:
                        self._building.pop(key, None)
        return relocate(*entry, places)

    def known(self, key: str, places: Sequence[SourceLine]) -> Assembled | None:
        """The kernel for `key` if it is in memory or on disk, else None. The call does not keep it under that key."""
        entry = self._recent(key)
        if entry is None and self.disk is not None:
            entry = self.disk.get(key, tuple(places))
        return None if entry is None else relocate(*entry, places)

    def rebuild(self, key: str, build: Callable[[], Assembled], places: Sequence[SourceLine] = ()) -> Assembled | None:
        """The kernel for `key` from `build()`, in place of one from the disk that no device takes; None without one."""
        with self._lock:
            if key not in self._from_disk:
                return None
            self._forget(key)
        made = build()
        self._keep(key, (made, tuple(places)))
        return made

    def clear(self) -> None:
        """Forget the kernels in memory. The folder stays: see `DiskCache.clear`."""
        with self._lock:
            self._kernels.clear()
            self._from_disk.clear()

    def __len__(self) -> int:
        return len(self._kernels)

    def _recent(self, key: str) -> _Entry | None:
        with self._lock:
            entry = self._kernels.get(key)
            if entry is not None:
                self._kernels.move_to_end(key)
                self.counters.hits += 1
        return entry

    def _load_or_build(self, key: str, build: Callable[[], Assembled], places: tuple[SourceLine, ...]) -> _Entry:
        self.counters.misses += 1
        entry = self.disk.get(key, places) if self.disk is not None else None
        return self._keep(key, entry or (build(), places), from_disk=entry is not None)

    def _keep(self, key: str, entry: _Entry, from_disk: bool = False) -> _Entry:
        if self.disk is not None and not from_disk:
            self.disk.put(key, *entry)
        with self._lock:
            self._kernels[key] = entry
            if from_disk:
                self._from_disk.add(key)
            self.counters.stored += 1
            while len(self._kernels) > self.capacity:
                self._forget(next(iter(self._kernels)))
                self.counters.evicted += 1
        return entry

    def _forget(self, key: str) -> None:
        self._kernels.pop(key, None)
        self._from_disk.discard(key)
