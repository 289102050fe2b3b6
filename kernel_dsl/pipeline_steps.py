"""Steps of a pipeline: their number and indices, the buffer of each, and the calls of the user's body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from .boundary import called
from .errors import BadArgument, BodyReturned
from .errors_hopper import PipelineLimit
from .ops.arith import div, multiply, rem
from .ops.control import loop
from .refs import Ref
from .tree import flatten, unflatten


def total_of(grid: Sequence[Any]) -> Any:
    """The number of steps of a grid."""
    if all(isinstance(g, int) for g in grid):
        return prod(grid)
    total: Any = 1
    for extent in grid:
        total = multiply(total, extent)
    return total


def unravel(step: Any, grid: Sequence[Any]) -> tuple[Any, ...]:
    """The index of a step along every axis; the last index changes fastest."""
    out: list[Any] = []
    for extent in reversed(grid[1:]):
        out.insert(0, _rem(step, extent))
        step = _div(step, extent)
    return (step, *out) if grid else ()


def _rem(a: Any, b: Any) -> Any:
    return a % b if isinstance(a, int) and isinstance(b, int) else rem(a, b)


def _div(a: Any, b: Any) -> Any:
    return a // b if isinstance(a, int) and isinstance(b, int) else div(a, b)


def depth_of(steps: Any, wanted: int, delay: int, op: str) -> int:
    """The number of buffers of a stream. Raises `BadArgument`, and `PipelineLimit` if a delayed release leaves none."""
    if wanted < 1:
        raise BadArgument(op=op, what=f"max_concurrent_steps={wanted!r}", hint="a static int, 1 or more")
    depth = min(wanted, max(steps, 1)) if isinstance(steps, int) else wanted
    if delay >= depth and not (isinstance(steps, int) and steps <= depth):
        raise PipelineLimit(
            op=op,
            what=f"delay_release={delay} with {depth} buffers",
            why="every buffer would still be in use when the next load needs one",
            hint="make max_concurrent_steps larger than delay_release",
        )
    return depth


def slot_of(step: Any, depth: int) -> Any:
    """The number of the buffer that a step uses."""
    return _rem(step, depth) if depth > 1 else 0


def given_refs(refs: Sequence[Any], count: int, op: str) -> list[Any]:
    """The Refs of a call, without nests. Raises `BadArgument` unless there is one for each spec."""
    leaves, _ = flatten(tuple(refs), lambda x: isinstance(x, Ref))
    if len(leaves) != count:
        what = f"{len(leaves)} Refs for {count} specs"
        raise BadArgument(op=op, what=what, hint="call the pipeline with one GMEM Ref for each in_spec and out_spec")
    return leaves


def loop_over(steps: Any, one: Callable[[Any, Any], Any], init: Any) -> Any:
    """Call `one(step, carry)` for each step. Returns the last carry; without `init` there is none."""
    if init is None:

        def run(step: Any) -> None:
            one(step, None)

        return loop(0, steps)(run)
    return loop(0, steps, init_carry=init)(one)


def call_body(
    op: str,
    body: Callable[..., Any],
    indices: tuple[Any, ...],
    blocks: Sequence[list[Any]],
    trees: Sequence[Any],
    carry: Any,
    init: Any,
    extra: tuple[Any, ...] = (),
) -> Any:
    """Call the user's body for a step; the result is its carry. `blocks`, `trees`: of inputs, then of outputs.

    Raises `BodyReturned` for a result without an initial carry.
    """
    ins, outs = (unflatten(tree, refs) for tree, refs in zip(trees, blocks, strict=True))
    args = (indices, *as_args(ins), *as_args(outs), *extra, *(() if init is None else (carry,)))
    form = f"body(indices, *refs{', *barriers' if extra else ''}{'' if init is None else ', carry'})"
    result = called(body, args, op, "body", form)
    if init is None and result is not None:
        hint = "write results to the blocks, or give an initial carry"
        raise BodyReturned(what=f"the body of `kd.{op}`", got=type(result).__name__, hint=hint)
    return result


def as_args(tree: Any) -> tuple[Any, ...]:
    """A nest of Refs as arguments of the body: the items of a tuple or list, else one argument."""
    return tuple(cast("Sequence[Any]", tree)) if isinstance(tree, (tuple, list)) else (tree,)
