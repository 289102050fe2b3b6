"""Tuned results as lines of text: how they are written, read and put together, and the file of this user.

The first line of a file names the format. Each other line is a JSON object: one configuration for one key of one kernel on one
GPU, with its time or why it was dropped. Lines of one (GPU, kernel, key) come from one run, as times of two runs don't compare:
of two runs the later one stays.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import numpy as np

from . import forking
from .diagnostics import shown
from .dtypes import DType
from .lazy import once
from .options import environment

FORMAT = 1
NAME = "kernel_dsl.tuned.jsonl"  # beside the folder of compiled kernels
HEADER = "kernel_dsl tuning"
LARGEST = 1 << 26  # bytes of a file
_log = logging.getLogger("kernel_dsl")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST = 64  # levels of a nest; a deeper one probably contains itself


class BadFile(Exception):
    """A file that is not used: its defect, and the remedy."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what: str = what
        self.hint: str = hint


@dataclass(frozen=True)
class TunedLine:
    """A configuration that was tried. `seconds`: the median time; None if it was dropped for the reason `dropped`.
    `key`, `config`: texts of `written`. `source`: a digest of the function's text and its space. `when`: UTC.
    `version`: of kernel_dsl; `assembler`: the tool that made the machine code.
    """

    gpu: str
    kernel: str
    source: str
    key: str
    config: str
    seconds: float | None
    dropped: str
    when: str
    version: str
    assembler: str

    @property
    def place(self) -> Place:
        return self.gpu, self.kernel, self.source, self.key


Place = tuple[str, str, str, str]  # GPU, kernel, source, key
Results = dict[Place, tuple[TunedLine, ...]]


# --- text ----------------------------------------------------------------------------------------


def brief(value: Any) -> str:
    """The text of `written` for an instance of a dataclass, without fields at their defaults."""
    return written(value, whole=False)


def written(value: Any, depth: int = 0, whole: bool = True) -> str:
    """A key or a configuration as text that is the same in every process.

    Raises ValueError for an object without such text.
    """
    if depth > _MOST:
        raise ValueError("it holds itself")
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, DType):
        return value.name

    def inner(x: Any) -> str:
        return written(x, depth + 1, whole)

    if is_dataclass(value) and not isinstance(value, type):
        named = [f for f in fields(value) if whole or getattr(value, f.name) != f.default]
        return f"{type(value).__name__}({', '.join(f'{f.name}={inner(getattr(value, f.name))}' for f in named)})"
    if isinstance(value, (tuple, list)):
        items = [inner(x) for x in cast("list[Any]", value)]
        comma = "," if isinstance(value, tuple) and len(items) == 1 else ""
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)}{comma})"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return "{" + ", ".join(sorted(f"{inner(k)}: {inner(v)}" for k, v in pairs)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(inner(x) for x in cast("set[Any]", value))) + "}"
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, (type, np.dtype)) or (callable(value) and hasattr(value, "__qualname__")):
        text = str(value) if isinstance(value, np.dtype) else f"{value.__module__}.{value.__qualname__}"
    else:
        text = repr(value)
    if _ADDRESS.search(text) or "\n" in text or "<lambda>" in text:
        raise ValueError(f"{type(value).__name__!r} has no text that another process would find it by")
    return text


def line_of(text: str) -> TunedLine:
    """A parsed line of a file. Raises ValueError with the reason if it is wrong."""
    try:
        data = json.loads(text)
    except ValueError:
        raise ValueError("it is no JSON object") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    given = cast("dict[str, Any]", data)
    seconds = given.get("seconds")
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise ValueError(f"its seconds are {shown(seconds)}")
        seconds = float(seconds)
    texts: dict[str, str] = {}
    for name in (field.name for field in fields(TunedLine) if field.name != "seconds"):
        value = given.get(name)
        if not isinstance(value, str):
            raise ValueError(f"its {name!r} is no text")
        texts[name] = value
    if (seconds is None) != bool(texts["dropped"]):
        raise ValueError("it has neither a time nor a reason, or both")
    return TunedLine(seconds=seconds, **texts)


def text_of(results: Results) -> str:
    """A file's text."""
    lines = [json.dumps({HEADER: FORMAT})]
    for place in sorted(results):
        lines += [json.dumps(asdict(line)) for line in results[place]]
    return "\n".join(lines) + "\n"


def results_of(text: str, bad: Callable[[int, str], object] | None = None) -> Results:
    """The results in a file's text. `bad(number, why)` is called for wrong lines; without it they raise `BadFile`."""
    first, *rest = text.splitlines() or [""]
    try:
        header = json.loads(first)
        version = header[HEADER]
    except (ValueError, KeyError, TypeError):
        raise BadFile("it is no file of tuned results", "pass one that `kd.tuning.save` wrote") from None
    if version != FORMAT:
        what = f"it has version {version!r} of the format, and this kernel_dsl reads version {FORMAT}"
        raise BadFile(what, "tune again, or read it with the kernel_dsl that wrote it")
    found: dict[Place, list[TunedLine]] = {}
    for number, line in enumerate(rest, 2):
        if not line.strip():
            continue
        try:
            made = line_of(line)
        except (ValueError, RecursionError) as error:
            if bad is None:
                raise BadFile(f"line {number} is damaged: {error}", "remove the line, or tune again") from None
            bad(number, str(error))
            continue
        found.setdefault(made.place, []).append(made)
    return merged({}, {place: tuple(lines) for place, lines in found.items()})


def merged(one: Results, other: Results) -> Results:
    """The results of both: for a key, all configurations of the later run."""
    out = dict(one)
    for place, lines in other.items():
        known = out.get(place, ())
        latest = max(line.when for line in (*known, *lines))
        both = sorted((line for line in (*known, *lines) if line.when == latest), key=repr)
        kept = {line.config: line for line in both}
        out[place] = tuple(
            sorted(kept.values(), key=lambda line: (line.seconds is None, line.seconds or 0, line.config))
        )
    return out


# --- files ---------------------------------------------------------------------------------------


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Lock a file against other writers, in this process and others, if the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError, and `BadFile` for a file that is too large or no text."""
    if path.stat().st_size > LARGEST:
        raise BadFile(f"it has over {LARGEST} bytes", "no file of tuned results is as large")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadFile("it is no text", "pass one that `kd.tuning.save` wrote") from None


def merge_into(path: Path, results: Results, lenient: bool) -> Results:
    """Add results to a file in one step.

    Returns all of its results. `lenient`: damaged lines are left out. Raises OSError, and `BadFile` unless `lenient`.
    """
    with _alone(path):
        there: Results = {}
        with suppress(FileNotFoundError):
            there = _read(path, lenient)
        whole = merged(there, results)
        part = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
        try:
            with open(part, "x", encoding="utf-8") as file:
                file.write(text_of(whole))
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    return whole


def _read(path: Path, lenient: bool) -> Results:
    if not lenient:
        return results_of(read_text(path))
    try:
        return results_of(read_text(path), lambda n, why: _log.warning("%s: line %d is left out: %s", path, n, why))
    except BadFile as error:
        _log.warning("%s is not used: %s", path, error.what)
        return {}


class TunedResults:
    """All results that a process knows: from its user's file, from loaded files, and its own."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: Results = {}
        self._stamp: Any = None  # of the file when it was last read
        self._lock = forking.lock()
        self.generation: int = 0  # the number of times that results were added

    def find(self, place: Place) -> tuple[TunedLine, ...]:
        """The lines of the latest run, the fastest first; those without a time last."""
        self._look()
        return self._known.get(place, ())

    def has(self, kernel: str) -> bool:
        """Whether there are results for a kernel on any GPU."""
        self._look()
        return any(place[1] == kernel for place in self._known)

    def everything(self) -> Results:
        """All results."""
        self._look()
        return dict(self._known)

    def add(self, results: Results, keep: bool = True) -> None:
        """Add results, with `keep` also to the user's file. Errors of the disk go to the log."""
        with self._lock:
            self._known = merged(self._known, results)
            self.generation += 1
            if keep and self.path is not None:
                try:
                    self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._known = merged(self._known, merge_into(self.path, results, lenient=True))
                    self._stamp = _stamp(self.path)
                except OSError as error:
                    _log.warning("tuned results are not kept in %s: %s", self.path, error)
        choose_anew()

    def _look(self) -> None:
        """Read the user's file if it has changed."""
        if self.path is None:
            return
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        with self._lock:
            if stamp is not None:
                try:
                    self._known = merged(self._known, _read(self.path, lenient=True))
                except OSError as error:
                    _log.warning("tuned results in %s can't be read: %s", self.path, error)
            self._stamp = stamp


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@once
def tuned_results() -> TunedResults:
    """The results of this process."""
    env = environment()
    return TunedResults(None if env.cache_off or env.cache_dir is None else env.cache_dir / NAME)


_LISTENERS: list[Callable[[], object]] = []  # the library's caches, for the life of the process


def when_tuned(listener: Callable[[], object]) -> None:
    """Call `listener` whenever results are added: choices from earlier results may change."""
    _LISTENERS.append(listener)


def choose_anew() -> None:
    """Let the library forget its choices of kernels."""
    for listener in list(_LISTENERS):
        listener()


def fastest(lines: Iterable[TunedLine], known: Mapping[str, Any]) -> str | None:
    """The fastest configuration, as text, that still exists."""
    return next((line.config for line in lines if line.seconds is not None and line.config in known), None)
