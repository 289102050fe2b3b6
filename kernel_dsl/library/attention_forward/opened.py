"""Attention for changing batches and lengths: a kernel for the first sizes, then one kernel for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from kernel_dsl.kernel import Kernel

from ..first_sizes import FirstSizes, dim_of, is_later
from ..latest import UNSEEN, seen_call
from .kernel import attention_kernel
from .problem import ScoredProblem
from .sizes import AttentionConfig, AttentionProblem, one_wave, parts_of, together_of

LENGTHS = 2**18, 2**22, 2**24  # the bounds of lengths: a kernel has one of them
PAGES = 2**30
TILES = 2**30  # indices of tiles are 32 bits wide
SMALLEST = 64  # queries of a tile

_first = FirstSizes()


def most_of(*lengths: Any) -> int:
    """The bound of lengths of the kernel that takes these lengths."""
    longest = max(getattr(n, "max", n) for n in lengths)
    return next((most for most in LENGTHS if longest <= most), longest)


def _sizes(p: AttentionProblem | ScoredProblem, unit: int = 1) -> dict[str, Any] | None:
    """Dims for the batch and both lengths, keys in multiples of `unit`; None if 32 bits can't count the tiles."""
    most = most_of(p.queries, p.keys)
    batch = TILES // (most // SMALLEST) // p.heads
    if p.batch > batch or most > LENGTHS[-1]:
        return None
    return {"batch": dim_of("batch", batch), "queries": dim_of("queries", most), "keys": dim_of("keys", most, unit)}


def opened(p: AttentionProblem) -> AttentionProblem | None:
    """The problem with Dims for the batch and both lengths, or None."""
    sizes = _sizes(p)
    return None if sizes is None else replace(p, **sizes)


def scored_opened(
    p: ScoredProblem, *how: Any, first: FirstSizes | None = None, most_keys: int = 0
) -> ScoredProblem | None:
    """The problem with Dims if it came with other sizes before. None for the first sizes, and if no kernel takes any
    sizes.

    `how`: everything besides the problem that decides the kernel. `first`: the memory of first sizes, by default the
    forward's. `most_keys`: the most keys that the kernel shall take, 0 for any number.
    """
    if not (p.batch and p.queries and p.keys) or bool(p.page) != bool(p.pages):
        return None
    # TMA takes rows of a bias without gaps if they are known to be multiples of 16 bytes
    unit = 1 if p.score.bias_tiles is None else 16 // p.score.bias_tiles.itemsize
    unit = unit if p.keys % unit == 0 else 1
    sizes = _sizes(p, unit)
    if sizes is None:
        return None
    sizes |= {"keys": dim_of("keys", most_keys // unit * unit, unit)} if most_keys else {}
    wanted = (p.batch, p.heads, p.queries, p.keys)
    dims = (sizes["batch"], p.heads, sizes["queries"], sizes["keys"])
    paged = {"pages": dim_of("pages", PAGES), "table": dim_of("table", sizes["keys"].max // p.page)} if p.page else {}
    same = dict.fromkeys((*sizes, "pages", "table"), 0)
    kind = replace(p, **same, score=replace(p.score, bias=None)), unit, how
    mine = p.batch, p.queries, p.keys, p.pages, p.table
    shapes = bias_shapes(p.score.bias, wanted, dims)
    again = [(first or _first).comes_again((kind, str(shape)), mine) for shape in shapes]
    if True not in again:
        return None
    return replace(p, **sizes, **paged, score=replace(p.score, bias=shapes[again.index(True)]))


def bias_shapes(bias: Any, wanted: Sequence[int], dims: Sequence[Any]) -> list[Any]:
    """The possible shapes of a bias for any sizes. Each extent is the scores' extent, or 1 in all calls; if both are 1
    now, both are possible.
    """
    found: list[Any] = [()]
    if bias is None:
        return [None]
    for n, size, dim in zip(bias, wanted[4 - len(bias) :], dims[4 - len(bias) :], strict=True):
        choices = [n] if isinstance(dim, int) or n != size else [dim] if n != 1 else [dim, n]
        found = [(*shape, choice) for shape in found for choice in choices]
    return found


def takes_number(p: ScoredProblem) -> bool:
    """Whether a kernel for any lengths takes a number after v: the call's splits, or its `scored_together`."""
    return p.opened and (p.shared or (bool(p.score.causal) and not p.ragged))


def lines_of(p: ScoredProblem) -> Any:
    """The Dim of the lines of a table of ragged tiles."""
    return dim_of("tiles", 2 * TILES // p.heads - 1)


def list_shapes(p: ScoredProblem, names: Sequence[str], mask_by: tuple[bool, bool]) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of a kernel for any lengths `(q, k, *names) -> blocks`."""
    found = declared(p, ["", *names, "blocks"], mask_by)
    return {0: found[0], 1: found[1]} | {n - 2: extents for n, extents in found.items() if n > 3}


def declared(
    p: ScoredProblem, names: Sequence[str], mask_by: tuple[bool, bool] | None = None, first: int | None = None
) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of a kernel for any lengths. Its arrays after q, k and v, or from parameter `first` on, have these
    names.
    """
    by_batch, by_head = mask_by or p.mask_by
    lists = (p.batch if by_batch else 1, p.heads if by_head else 1, dim_of("lines", 2 * TILES))
    found: dict[int, tuple[Any, ...]] = {0: p.shape(p.heads, p.queries, p.dim)}
    found |= {1: p.key_shape(p.dim), 2: p.key_shape(p.v_dim)}
    of: dict[str, tuple[Any, ...]] = {"bias": p.score.bias or (), "dlse": p.lse_shape, "table": (lines_of(p), 2)}
    of |= {name: (dim_of(f"{name}_bounds", TILES),) for name in ("q_seqlens", "kv_seqlens")}
    of |= {f"{name}_scale": (p.batch, None) for name in p.by_batch} | {"page_table": (p.batch, p.table)}
    of |= {"counts": lists, "order": lists, "blocks": (*lists, dim_of("blocks", TILES))}
    of |= {
        name: tuple(dim_of(f"{name}_{axis}", TILES) for axis in range(rank))
        for name, rank in zip(p.score.captured, p.score.captured_ranks, strict=True)
    }
    if first is None:  # a number is between them
        first = 4 if mask_by is None and takes_number(p) else 3
    return found | {first + i: of[name] for i, name in enumerate(names) if name in of}


def gradient_shapes(p: ScoredProblem, names: Sequence[str]) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of a kernel for any lengths `(dout, q, k, v, out, lse, *names)`."""
    found = declared(p, names, first=6)
    inputs = {n + 1: shape for n, shape in found.items() if n < 3} | {0: p.out_shape, 4: p.out_shape, 5: p.lse_shape}
    return inputs | {n: shape for n, shape in found.items() if n > 5}


def at_launch(p: ScoredProblem, q: Any, k: Any, page_table: Any) -> ScoredProblem:
    """In a body: the problem with the sizes of the launch."""
    own = 1 if p.layout == "bshd" else 2
    length = 0 if p.ragged else own
    keys = page_table.shape[1] * p.page if p.page else k.shape[own if p.cache else length]
    bias = p.score.bias and tuple(n if isinstance(n, int) else 2 for n in cast("tuple[Any, ...]", p.score.bias))
    sizes = {"batch": p.batch if p.ragged else q.shape[0], "queries": q.shape[length], "keys": keys}
    return replace(p, **sizes, score=replace(p.score, bias=bias))  # kernels only ask which extents of a bias are 1


@dataclass(frozen=True)
class NumberedPlan:
    """A kernel for any lengths that takes numbers, with these numbers for calls of these shapes."""

    kernel: Any
    numbers: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, q: Any, k: Any, v: Any, **how: Any) -> Any:
        return self.kernel(q, k, v, *self.numbers, **how)

    def lower(self, q: Any, k: Any, v: Any, target: str | None = None) -> Any:
        """The stages of the kernel."""
        return self.kernel.lower(q, k, v, *self.numbers, target=target)

    def seen(self, args: Any, out: Any, stream: Any) -> Any:
        """As `seen_call`, for arrays of these shapes."""
        if tuple(tuple(x.shape) for x in args) != self.shapes:
            return UNSEEN
        return seen_call(self.kernel, [*args, *self.numbers], out, stream)


def plain_plan(p: AttentionProblem, config: AttentionConfig, multiprocessors: int) -> Any:
    """The plan of a problem without options: a kernel for its sizes, or for any sizes if calls came with other sizes
    before.

    Earlier calls may have had another configuration; then a kernel for any sizes is compiled for this one, once. Sizes
    whose tiles all run at once have one with a block for each tile: it neither divides to find its tiles nor looks for
    another one, which took 4 to 6 % of the time of short lengths.
    """
    kind = replace(p, batch=0, queries=0, keys=0, splits=1, lse=False), multiprocessors
    general = opened(p) if _first.comes_again(kind, (p.batch, p.queries, p.keys)) else None
    if general is None:
        return attention_kernel(p, config, multiprocessors)
    if p.shared:
        general = replace(general, splits=dim_of("splits", least=2))
    if not is_later():
        general = replace(general, alone=one_wave(p, config, multiprocessors))
    kernel = attention_kernel(general, config, multiprocessors)
    if not (p.shared or (p.causal and not general.alone)):
        return kernel
    numbers = parts_of(p, config) if p.shared else (np.int32(together_of(p, config, multiprocessors)),)
    keys = p.shape(p.kv_heads, p.keys)
    return NumberedPlan(kernel, numbers, (p.shape(p.heads, p.queries), keys, keys))


def seen_by(plan: Any) -> Any:
    """The function that launches a plan for arrays like earlier ones."""
    return partial(seen_call, plan) if isinstance(plan, Kernel) else plan.seen
