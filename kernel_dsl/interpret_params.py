"""Options of the interpreter, here so that the language can use them without the runtime."""

from __future__ import annotations

import operator

from .dataclass import dataclass
from .errors import BadArgument
from .hazard_kinds import HazardKind

DEFAULT_STEP_BUDGET = 10_000_000


@dataclass(frozen=True)
class InterpretParams:
    """Options of the interpreter: schedules, and the treatment of hazards.

    `detect_hazards`: look for races, missing fences, uninitialised reads and the like (out-of-bounds accesses,
    deadlocks and malformed instructions are errors always). `on_hazard`: "raise" or "warn". `schedule`: when
    asynchronous operations take effect and which warps run first: "eager", "late" or "random". `seed` replays a
    random schedule. `step_budget`: instructions, each counted once for all warps that execute it together, after
    which the run ends with the hazard kind `step_budget`. `report_unwritten`: also report elements of outputs that
    no store has reached. `ignore`: names of kinds of hazard that are not reported; hazards that end a run
    (`deadlock`, `livelock`, `step_budget`, `trap`, lanes that diverge for good) are always raised. `strict_wgmma`: a
    wait for wgmma orders only the waiting warp's part of the product, see docs/interpreter.md. `devices`: how many
    virtual GPUs there are, for kernels on a mesh, which has at most so many; by default as many as the mesh has.
    `mapped`: groups of devices that map each other's memory, as those of one host do: `((0, 1), (2, 3))`; by default
    all do. `skip_floating_point_ops`: floating-point matrix products (wgmma, mma) are not computed but give
    infinity, as in Pallas. Results are wrong, but hazards are found sooner, as long as no address or branch depends
    on the products.

    Raises `BadArgument` for a value that is none of these.
    """

    detect_hazards: bool = True
    on_hazard: str = "raise"
    schedule: str = "random"
    seed: int = 0
    step_budget: int = DEFAULT_STEP_BUDGET
    report_unwritten: bool = False
    ignore: tuple[str, ...] = ()
    strict_wgmma: bool = False
    devices: int | None = None
    mapped: tuple[tuple[int, ...], ...] | None = None
    skip_floating_point_ops: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("on_hazard", ("raise", "warn")), ("schedule", ("eager", "late", "random"))):
            if getattr(self, name) not in allowed:
                what = f"{name}={getattr(self, name)!r}"
                raise BadArgument(op="InterpretParams", what=what, hint=f"it is one of {', '.join(allowed)}")
        if self.ignore:
            object.__setattr__(self, "ignore", _known_kinds(self.ignore))
        if self.devices is not None and self.devices < 1:
            raise BadArgument(op="InterpretParams", what=f"devices={self.devices!r}", hint="at least one")
        if self.mapped is not None:
            object.__setattr__(self, "mapped", _groups(self.mapped))
        if self.step_budget < 1:
            what = f"step_budget={self.step_budget!r}"
            raise BadArgument(op="InterpretParams", what=what, hint="at least one instruction")


def _groups(given: object) -> tuple[tuple[int, ...], ...]:
    """Groups of devices, each device in one."""
    try:
        groups = tuple(tuple(operator.index(d) for d in group) for group in given)  # type: ignore[attr-defined]
    except TypeError:
        groups = ()
    every = [d for group in groups for d in group]
    if not every or len(set(every)) != len(every) or min(every) < 0:
        hint = "groups of devices' numbers, each in one group: ((0, 1), (2, 3))"
        raise BadArgument(op="InterpretParams", what=f"mapped={given!r}", hint=hint)
    return groups


def _known_kinds(given: object) -> tuple[str, ...]:
    """The kinds of hazard that `ignore` names."""
    known = [str(kind) for kind in HazardKind.__members__.values()]
    names: list[object] = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]  # pyright: ignore
    if not all(isinstance(name, str) and name in known for name in names):
        hint = f"a kind of hazard is one of {', '.join(known)}"
        raise BadArgument(op="InterpretParams", what=f"ignore={given!r}", hint=hint)
    return tuple(known[known.index(str(name))] for name in names)
