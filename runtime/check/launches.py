"""A call to check: an image or a kernel with its arguments, and the launches that it makes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernel_dsl.compiled import LaunchAttributes
from kernel_dsl.diagnostics import shown
from kernel_dsl.target import Target, device_target

from .. import interpreter
from ..arrays.array_view import is_array, view
from ..devices.device import Dims
from ..devices.devices import watching
from ..devices.interpreter_device import InterpreterDevice, Launch, Space, lend
from ..devices.launch import check_attributes
from ..errors import ArgumentTypeError, ArgumentValueError, EntryArgumentError
from ..interpreter import InterpretParams, Module, PtxError
from ..interpreter.ptx.module import Function
from .arguments import Slot, slots
from .host import on_host
from .images import as_image
from .structures import StructureArgument, as_structure, leaves
from .tensor_maps import TensorMapArgument

Run = Callable[[Any, Sequence[Any], Any], Any]


@dataclass
class Call:
    """The arguments of `kd.check`. `run(kernel, args, out)` calls a traced kernel; it is None for an image."""

    image: Any
    args: Sequence[Any]
    grid: Any = None
    block: Any = None
    cluster: Any = None
    smem: Any = None
    entry: Any = None
    target: Any = None
    out: Any = None
    run: Run | None = None
    symbols: Any = None
    programmatic_dependent_launch: bool | None = None
    names: Sequence[str] = ()  # the parameters' names in reports; by default those of the PTX
    options: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = ("grid", "block", "cluster", "smem", "entry", "symbols", "programmatic_dependent_launch")
        self.options = tuple(n for n in names if getattr(self, n) is not None)

    def starting_early(self, early: bool | None) -> Call:
        """The same launch with or without the attribute programmatic_dependent_launch."""
        return replace(self, programmatic_dependent_launch=early)


class Collector(InterpreterDevice):
    """A device that collects launches and runs none. Their arrays lie in one memory."""

    def __init__(self, target: Target | None) -> None:
        super().__init__(InterpretParams(), *(() if target is None else (target,)))
        self.owner: object = object()
        self.launches: list[Launch] = []
        self.memory: Space = Space()

    def space(self) -> Space:
        return self.memory

    def run(self, launch: Launch) -> None:
        self.launches.append(launch)


@dataclass
class Prepared:
    """The launches of some calls, before any has run.

    `outputs`: those of each call; `files`: the name of each launch's PTX.
    """

    launches: list[Launch]
    outputs: list[list[Any]]
    files: list[str]
    space: Space


def prepare(calls: Sequence[Call]) -> Prepared:
    """All calls with their arrays in one memory. Nothing runs.

    Raises PtxError, EntryArgumentError and the errors of arguments.
    """
    hosts: dict[int, Any] = {}
    made = Prepared([], [], [], Space())
    for call in calls:
        before = len(made.launches)
        outputs = _of_kernel(call, made, hosts) if call.run is not None else _of_image(call, made, hosts)
        made.outputs.append(outputs)
        file = "" if call.run is not None else made.files.pop()
        made.files += [file] * (len(made.launches) - before)
    return made


# --- traced kernels -------------------------------------------------------------------------------


def _of_kernel(call: Call, made: Prepared, hosts: dict[int, Any]) -> list[Any]:
    if call.options:
        raise ArgumentTypeError(f"{call.options[0]}= is of images; a traced kernel has its own")
    collector = Collector(None if call.target is None else target_named(call.target))
    collector.memory = made.space
    token = watching.set(collector)
    try:
        assert call.run is not None
        out = None if call.out is None else _leaves(call.out, hosts)
        results = call.run(call.image, [_leaves(a, hosts) for a in call.args], out)
    finally:
        watching.reset(token)
    made.launches += collector.launches
    return list(results)


def _leaves(value: Any, hosts: dict[int, Any]) -> Any:
    """`value` with arrays on a GPU replaced by copies in host memory."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_leaves(v, hosts) for v in value)
    if isinstance(value, dict):
        return {k: _leaves(v, hosts) for k, v in value.items()}
    return on_host(value, hosts) if is_array(value) else value


# --- images ---------------------------------------------------------------------------------------


def _of_image(call: Call, made: Prepared, hosts: dict[int, Any]) -> list[Any]:
    if call.out is not None:
        raise ArgumentTypeError("out= is of traced kernels; an image gets its outputs among its arguments")
    image = as_image(call.image, call.entry, call.target)
    with lend(image.ptx) as module:
        entry = entry_of(module, call.entry)
        if call.target is None and device_target(module.target) is None:
            raise PtxError(f"'{module.target}' is no target: 'sm_75' to 'sm_121a'", *module.target_at)
        target = target_named(module.target if call.target is None else call.target)
        interpreter.check_program(module, entry.name, target.name)
    args = [_host_argument(a, hosts) for a in call.args]
    given = slots(entry, args)
    initial = _initial(module, call.symbols)
    attributes = attributes_of(entry, target, call.grid, call.block, call.cluster, call.smem)
    attributes = replace(attributes, programmatic_dependent_launch=bool(call.programmatic_dependent_launch))
    names = [*call.names, *(p.name for p in entry.params[len(call.names) :])]
    params = [_placed(made.space, slot, name) for slot, name in zip(given, names, strict=False)]
    if not attributes.empty:
        made.launches.append(Launch(image.ptx, entry.name, params, attributes, made.space, target, None, initial))
    made.files.append(image.file)
    return leaves(args)


def _initial(module: Module, symbols: Any) -> dict[str, bytes]:
    """The initial contents of the module's variables: `symbols` has arrays or bytes by name."""
    if symbols is None:
        return {}
    if not isinstance(symbols, dict):
        raise ArgumentTypeError(f"symbols={shown(symbols)} must be a dict from names of variables to arrays or bytes")
    known = {name: v for name, v in module.variables.items() if v.space in ("const", "global") and not v.extern}
    found: dict[str, bytes] = {}
    for name, value in symbols.items():
        if name not in known:
            raise ArgumentValueError(f"the image has no variable {shown(name)}; it has: {', '.join(known) or 'none'}")
        if not isinstance(value, (bytes, bytearray, memoryview, np.ndarray, np.generic)):
            raise ArgumentTypeError(f"symbols[{name!r}] is {shown(value)}: give a NumPy array or bytes")
        data = value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else bytes(value)
        if len(data) > known[name].size:
            raise ArgumentValueError(f"symbols[{name!r}] has {len(data)} bytes, and the variable {known[name].size}")
        found[name] = data.ljust(known[name].size, b"\0")
    return found


def _host_argument(value: Any, hosts: dict[int, Any]) -> Any:
    """`value` with copies in host memory in the place of arrays on a GPU; a structure as `Structure`."""
    if isinstance(value, TensorMapArgument):
        return replace(value, array=on_host(value.array, hosts))
    structure = as_structure(value)
    if structure is not None:
        return structure.mapped(lambda x: _host_argument(x, hosts))
    return on_host(value, hosts) if is_array(value) else value


def _placed(space: Space, slot: Slot, name: str) -> bytes:
    """The bytes of a parameter, with arrays placed in the memory of the check."""
    if isinstance(slot, bytes):
        return slot
    if isinstance(slot, StructureArgument):
        data = bytearray(slot.data)
        for at, own, part in slot.parts:
            found = _placed(space, part, own)
            data[at : at + len(found)] = found
        return bytes(data)
    seen = view(slot.array) if isinstance(slot, TensorMapArgument) else slot
    placed = space.place(seen, name, not seen.readonly, True)
    return slot.encoded(placed) if isinstance(slot, TensorMapArgument) else placed.address.to_bytes(8, "little")


def entry_of(module: Module, name: Any) -> Function:
    """The entry of that name, or the only one. Raises PtxError."""
    entries = [module.functions[n] for n in module.entries if module.functions[n].defined]
    listed = ", ".join(repr(e.name) for e in entries) or "none"
    at = (entries[0].line, entries[0].column) if entries else module.target_at
    if name is None:
        if len(entries) != 1:
            raise PtxError(f"entry= is missing; the entries of the image: {listed}", *at)
        return entries[0]
    if not isinstance(name, str):
        raise ArgumentTypeError(f"entry={shown(name)} must be the name of an entry")
    found = next((e for e in entries if e.name == name), None)
    if found is None:
        raise PtxError(f"there is no entry {name!r}; the entries of the image: {listed}", *at)
    return found


def attributes_of(
    entry: Function, target: Target, grid: Any, block: Any, cluster: Any, smem: Any
) -> LaunchAttributes:  # fmt: skip
    """The launch of an entry. Raises ArgumentTypeError, ArgumentValueError, EntryArgumentError."""
    directives = entry.directives
    found = LaunchAttributes(
        _extents(grid, "grid", None),
        _extents(block, "block", directives.get("reqntid")),
        _extents(cluster, "cluster", directives.get("reqnctapercluster") or (1,)),
        _bytes(smem),
    )
    found = replace(found, empty=0 in found.grid)
    if not found.empty:
        check_attributes(found, target, entry.name)
        _check_directives(entry, found)
    return found


def _check_directives(entry: Function, launch: LaunchAttributes) -> None:
    """Compare a launch with the entry's directives (PTX ISA 11.4 and 11.7)."""

    def wrong(what: str) -> EntryArgumentError:
        return EntryArgumentError(what, line=entry.line, column=entry.column)

    directives = entry.directives
    for key, what, value in (("reqntid", "blocks", launch.block), ("reqnctapercluster", "clusters", launch.cluster)):
        wanted = directives.get(key)
        if wanted and (*wanted, 1, 1)[:3] != value:
            raise wrong(f"entry {entry.name!r} requires {what} of {(*wanted, 1, 1)[:3]}, not {value}")
    most = directives.get("maxntid")
    if most and math.prod(launch.block) > math.prod(most):
        raise wrong(
            f"entry {entry.name!r} allows blocks of at most {math.prod(most)} threads, not {math.prod(launch.block)}"
        )


def _extents(given: Any, name: str, default: tuple[int, ...] | None) -> Dims:
    """`given` as (x, y, z): an int, or one to three of them."""
    if given is None:
        if not default:
            raise ArgumentTypeError(f"{name}= is missing: an int or a tuple of up to three, x first")
        given = default
    values: Sequence[Any] = given if isinstance(given, (tuple, list)) else (given,)
    try:
        numbers = [operator.index(v) for v in values if not isinstance(v, (bool, np.bool_))]
    except TypeError:
        numbers = []
    if len(numbers) != len(values) or not 1 <= len(numbers) <= 3:
        raise ArgumentTypeError(f"{name}={shown(given)} must be an int or a tuple of up to three, x first")
    least = 0 if name == "grid" else 1
    if min(numbers) < least or max(numbers) >= 2**31:
        raise ArgumentValueError(f"{name}={shown(given)} must be between {least} and 2**31 - 1")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _bytes(given: Any) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not hasattr(type(given), "__index__"):
        raise ArgumentTypeError(f"smem={shown(given)} must be an int: bytes of dynamic SMEM")
    if operator.index(given) < 0:
        raise ArgumentValueError(f"smem={shown(given)} is negative")
    return operator.index(given)


def target_named(name: Any) -> Target:
    """The device of that name. Raises ArgumentValueError."""
    found = device_target(name) if isinstance(name, str) else None
    if found is None:
        raise ArgumentValueError(f"target={shown(name)} is no target: 'sm_75' to 'sm_121a'")
    return found
