"""`kd.bench`: times functions and their peers in turn, beside the bounds of the hardware."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, cast

from kernel_dsl.boundary import checks_itself
from kernel_dsl.diagnostics import shown
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.source import misfit

from ..devices import driver
from ..devices.devices import cuda_device
from ..devices.streams import stream_handle
from ..timing import Run, Timing, device_times, host_times

_TENSOR_FLOPS = {"sm_90": 4096}  # flops in a clock of one multiprocessor, on dense 16-bit operands
_QUERY = "name,clocks.sm,clocks.mem,power.draw,temperature.gpu"


@dataclass(frozen=True)
class BenchRow:
    """One function: its times, or the reason why it has none. `ratio`: its median over that of the first function."""

    name: str
    timing: Timing | None
    ratio: float | None
    failed: str = ""


@dataclass(frozen=True)
class BenchResult:
    """A measurement of `kd.bench`.

    `str()` and notebooks show a table; `.plot()` and `.roofline()` draw, `.to_json()` saves. `clock`: "GPU time" or
    "wall time". `machine`: the GPU's name, clocks, power and temperature before and after; empty without a GPU.
    `flops`, `bytes`: of one call; `peak_flops`, `bandwidth`: of the machine, a second; None if unknown.
    """

    rows: tuple[BenchRow, ...]
    clock: str
    machine: tuple[str, ...]
    rounds: int
    flops: float | None = None
    bytes: float | None = None
    peak_flops: float | None = None
    bandwidth: float | None = None
    _cells: tuple[str, ...] = field(default=("name", "median us", "25 % to 75 %", "ratio"), repr=False)

    @property
    def floors(self) -> dict[str, float]:
        """Lower bounds of a call's seconds, by "bytes" and "flops", if amount and peak are known."""
        pairs = {"bytes": (self.bytes, self.bandwidth), "flops": (self.flops, self.peak_flops)}
        return {name: amount / peak for name, (amount, peak) in pairs.items() if amount and peak}

    def __getitem__(self, name: str) -> Timing:
        """The times of a function by its name. Raises KeyError, also for one that failed."""
        return {r.name: r.timing for r in self.rows if r.timing is not None}[name]

    def _table(self) -> list[tuple[str, ...]]:
        floors = self.floors
        share = ("of the floor",) if floors else ()
        out = [(*self._cells, *share)]
        for r in self.rows:
            if r.timing is None:
                out.append((r.name, "-", r.failed, "-", *("-" for _ in share)))
                continue
            low, high = r.timing.quartiles
            cells = (f"{r.timing.median * 1e6:.2f}", f"{low * 1e6:.2f} to {high * 1e6:.2f}", f"{r.ratio:.3f}")
            out.append((r.name, *cells, *(f"{max(floors.values()) / r.timing.median:.1%}" for _ in share)))
        return out

    def _notes(self) -> list[str]:
        floors = [f"floor by {name}: {seconds * 1e6:.2f} us" for name, seconds in self.floors.items()]
        what = (
            "events around each call, L2 cleared before" if self.clock == "GPU time" else "no GPU: not a kernel's speed"
        )
        return [f"{self.clock} ({what}), {self.rounds} rounds in turn", *floors, *dict.fromkeys(self.machine)]

    def __str__(self) -> str:
        table = self._table()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        cells = "".join(f"<th>{escape(c)}</th>" for c in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        notes = "<br>".join(map(escape, self._notes()))
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table><p>{notes}</p>"

    def as_dict(self) -> dict[str, Any]:
        """The measurement as data for JSON: seconds, flops and bytes."""
        rows = [
            {
                "name": r.name,
                "samples": list(r.timing.samples) if r.timing else [],
                "ratio": r.ratio,
                "failed": r.failed,
            }
            for r in self.rows
        ]
        kept = {name: getattr(self, name) for name in ("clock", "rounds", "flops", "bytes", "peak_flops", "bandwidth")}
        return {**kept, "machine": list(self.machine), "floors": self.floors, "rows": rows}

    def to_json(self, path: Any = None) -> str:
        """The measurement as JSON text, also written to `path` if one is given. Raises `BadArgument`."""
        text = json.dumps(self.as_dict(), indent=1)
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except (OSError, TypeError, ValueError) as error:
                raise BadArgument(op="to_json", what=f"path={shown(path)}: {error}", hint="a file's name") from None
        return text

    def plot(self, ax: Any = None) -> Any:
        """Draw bars of the medians with quartiles, and a line for each floor.

        Returns matplotlib's axes, new ones without `ax`. Raises `BadArgument` without matplotlib, and `BadArgumentType`.
        """
        axes = _axes("plot", ax)
        timed = [(r.name, r.timing) for r in self.rows if r.timing is not None]
        medians = [t.median * 1e6 for _, t in timed]
        spread = [[abs(t.median - t.quartiles[i]) * 1e6 for _, t in timed] for i in (0, 1)]
        axes.bar([name for name, _ in timed], medians, yerr=spread, capsize=3)
        for style, (name, seconds) in zip(("--", ":"), self.floors.items(), strict=False):
            axes.axhline(seconds * 1e6, linestyle=style, color="black", linewidth=1, label=f"floor by {name}")
        if self.floors:
            axes.legend()  # the floors may be near each other, where words beside them would overlap
        axes.set_ylabel(f"us ({self.clock})")
        return axes

    def roofline(self, ax: Any = None) -> Any:
        """Draw flops a second over flops a byte, below the two floors.

        Returns matplotlib's axes, new ones without `ax`. Raises `BadArgument` without matplotlib, and if `flops`,
        `bytes`, `peak_flops` or `bandwidth` is unknown, and `BadArgumentType`.
        """
        needed = {n: getattr(self, n) for n in ("flops", "bytes", "peak_flops", "bandwidth")}
        missing = [name for name, value in needed.items() if not value]
        if missing:
            raise BadArgument(op="roofline", what=f"no {', '.join(missing)}", hint="give it to `kd.bench`")
        flops, amount, peak, bandwidth = cast("list[float]", list(needed.values()))
        axes = _axes("roofline", ax)
        at, ridge = flops / amount, peak / bandwidth
        ends = [min(at, ridge) / 8, ridge, max(at, ridge) * 8]
        axes.loglog(ends, [min(peak, x * bandwidth) for x in ends], color="black")
        for r in self.rows:
            if r.timing is not None:
                axes.plot([at], [flops / r.timing.median], "o", label=r.name)
        axes.set_xlabel("flops a byte")
        axes.set_ylabel("flops a second")
        axes.legend()
        return axes


def _axes(op: str, ax: Any) -> Any:
    if hasattr(ax, "loglog"):
        return ax
    if ax is not None:
        hint = "axes of matplotlib; the result's `.figure.savefig(path)` writes a file"
        raise BadArgumentType(op=op, what=f"ax={shown(ax)}", hint=hint)
    from importlib import import_module

    try:
        return import_module("matplotlib.figure").Figure().subplots()
    except ImportError:
        hint = "`pip install matplotlib`, or read `as_dict()`"
        raise BadArgument(op=op, what="matplotlib is not installed", hint=hint) from None


def machine() -> str:
    """The GPU's present name, clocks, power and temperature, from nvidia-smi; empty without a GPU."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _peaks(peak: float | None, bandwidth: float | None) -> tuple[float | None, float | None]:
    """The GPU's rates a second if the user gives none: dense 16-bit flops of tensor cores, and bytes of DRAM."""
    device = cuda_device()

    def attribute(name: str) -> int:
        return driver.attribute(device.device, name)

    a_clock = _TENSOR_FLOPS.get(device.target.name.rstrip("af"))
    if peak is None and a_clock is not None:
        peak = a_clock * attribute("MULTIPROCESSOR_COUNT") * attribute("CLOCK_RATE") * 1e3
    if bandwidth is None:
        bandwidth = 2e3 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return peak or None, bandwidth or None


MOST_ROUNDS = 1_000_000


@checks_itself("fn", "peers", "check", "rounds", "warmup", "flops", "bytes", "peak_flops", "bandwidth", "stream")
def bench(
    fn: Any,
    *args: Any,
    peers: Any = None,
    rounds: int = 25,
    warmup: int = 3,
    check: Any = None,
    flops: float | None = None,
    bytes: float | None = None,
    peak_flops: float | None = None,
    bandwidth: float | None = None,
    stream: Any = None,
    wall: bool = False,
) -> BenchResult:
    """Time `fn(*args)` beside `peers`, functions of the same arguments by name, or a list of them; a `BenchResult`.

    They are called in turn, `rounds` times after `warmup` calls. On a GPU the time is between two events of `stream`
    (by default the legacy default stream) around each call, with L2 overwritten before it; without a GPU, or with
    `wall=True`, it is the host's, which says little about a kernel. `check(result)` is called with each function's
    result before the timing, and raises an error for a wrong one. The error of a peer is in its row; errors of `fn`,
    and of `check` on its result, are raised.

    `flops`, `bytes`: of one call, for the floors: the least time by the machine's `peak_flops` and `bandwidth` a
    second, on a GPU by default those of dense 16-bit tensor cores, if known, and of its memory. Raises `BadArgument`,
    `BadArgumentType`.
    """
    variants = _variants(fn, peers)
    for name, count, least in (("rounds", rounds, 1), ("warmup", warmup, 0)):
        if type(count) is not int or not least <= count <= MOST_ROUNDS:
            raise BadArgument(op="bench", what=f"{name}={shown(count)}", hint=f"an int from {least} to {MOST_ROUNDS:,}")
    amounts = {"flops": flops, "bytes": bytes, "peak_flops": peak_flops, "bandwidth": bandwidth}
    for name, amount in amounts.items():
        if amount is not None and not (isinstance(amount, (int, float)) and 0 < amount < float("inf")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArgument(op="bench", what=f"{name}={shown(amount)}", hint="a number greater than 0")
    if check is not None and not callable(check):
        raise BadArgumentType(op="bench", what=f"check={shown(check)}", hint="a function of a result, which raises")
    on_gpu = not wall and bool(driver.available())
    runs: dict[str, Run] = {}
    failed: dict[str, str] = {}
    for number, (name, function) in enumerate(variants.items()):
        # a kernel, and other things that wrap a function, need not take its arguments
        why = misfit(function, *args) if number == 0 and not hasattr(function, "__wrapped__") else ""
        if why:
            raise _misfitting(name, why)
        try:
            result = function(*args) if number else _answer(name, function, args)
            if check is not None:
                _ = check(result) if number else _answer("check", check, (result,))
        except Exception as error:
            if number == 0:
                raise
            failed[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        runs[name] = _called(function, args)
    logged = [machine()] if on_gpu else []
    if on_gpu:
        peak_flops, bandwidth = _peaks(peak_flops, bandwidth)
        times = device_times(runs, rounds=rounds, warmup=warmup, stream=0 if stream is None else stream_handle(stream))
        logged.append(machine())
    else:
        times = host_times(runs, rounds=rounds, warmup=warmup, calls=1)
    base = times[next(iter(runs))].median
    rows = tuple(
        BenchRow(
            name, times.get(name), times[name].median / base if name in times and base else None, failed.get(name, "")
        )
        for name in variants
    )
    return BenchResult(
        rows,
        "GPU time" if on_gpu else "wall time",
        tuple(filter(None, logged)),
        rounds,
        flops,
        bytes,
        peak_flops,
        bandwidth,
    )


def _misfitting(name: str, why: str) -> BadArgument:
    return BadArgument(op="bench", what=f"`{name}` can't be called so: {why}", hint="give it the arguments it takes")


def _answer(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result of a call. Functions of C may have no signature, so their refusals come from the call."""
    try:
        return function(*args)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise _misfitting(name, str(error)) from None


def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> Run:
    return lambda: function(*args)


def _variants(fn: Any, peers: Any) -> dict[str, Callable[..., Any]]:
    """The functions by their names, `fn` first."""
    listed: list[tuple[Any, Any]] = [(_name(fn), fn)]
    if isinstance(peers, Mapping):
        listed += cast("Mapping[Any, Any]", peers).items()
    elif isinstance(peers, (list, tuple)):
        listed += [(_name(p), p) for p in cast("list[Any]", peers)]
    elif callable(peers):
        listed.append((_name(peers), peers))
    elif peers is not None:
        raise BadArgumentType(op="bench", what=f"peers={shown(peers)}", hint="functions by name, or a list of them")
    made: dict[str, Callable[..., Any]] = {}
    for name, function in listed:
        if not callable(function) or not isinstance(name, str):
            raise BadArgumentType(op="bench", what=f"{shown(function)} is no function", hint="functions of `args`")
        if name in made:
            raise BadArgument(op="bench", what=f"two functions named {name!r}", hint="give `peers` as {name: function}")
        made[name] = function
    return made


def _name(function: Any) -> str:
    return str(getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__)
