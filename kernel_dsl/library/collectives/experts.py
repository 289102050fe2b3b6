"""`expert_dispatch` and `expert_combine`: tokens go to the devices of their experts, and the sums of their results come
back.

There are three kernels. The first counts, for each expert, the tokens of its own device, and numbers them. The second
reads the counts of all devices and computes where its own rows begin. It loads each token of its experts once, and
stores it for each of these experts. The third reads the results in place and adds them up in the order of a token's
experts, so calls give the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.arguments import an_int
from kernel_dsl.boundary import public
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, is_symmetric, made_like, overlap

from .by_rank import Launched, by_rank
from .expert_kernels import adding_kernel, counting_kernel, fetching_kernel
from .parts import described


@partial(public, name="expert_dispatch")
@by_rank
def expert_dispatch(
    x: Any,
    experts: Any,
    mesh: Mesh,
    *,
    num_experts: int,
    rows: int | None = None,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> tuple[Any, Any, Any]:
    """Send each device's tokens to the devices of their experts: `(received, counts, places)`.

    `x`: floats (tokens, width) a device. `experts`: int32 (tokens, k) a device, from 0 to num_experts - 1; each device
    has num_experts / n of them, in order. They are read on the GPU. A choice of another number, such as -1, has no
    expert: it is not sent, and its place is `rows`. A device receives rows by expert, within an expert by rank, and
    within a rank by token: `counts`, int32 (num_experts / n,), has the number of rows of each expert, as
    `kd.library.grouped_matmul` takes them. The rows of `received`, (rows, width), after these are uninitialised.
    `places`, int32 (tokens, k): the row of each choice there, for `expert_combine`. `rows`: by default n * tokens * k,
    the most that can arrive; rows that do not fit are dropped. `out`: (received, counts, places), preallocated.
    `timeout`: seconds that a device waits for its peers.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. It is the exchange of expert
    parallelism (Lepikhin et al., 2020), by loads and stores at system scope (PTX ISA 8).
    """
    op = "expert_dispatch"
    shape, dtype, k = _tokens(x, experts, mesh, num_experts, op)
    if out is not None and any(overlap(a, row) for a in (x, experts) for row in out):
        raise BadArgument(op=op, what="out= shares memory with x or experts", hint="give arrays in other memory")
    most = mesh.size * shape[0] * k if rows is None else an_int(rows, op, "rows", low=0)
    choices: Any = max(shape[0] * k, 1)
    known = None
    if isinstance(x, OfRank):  # peers read x, and `expert_combine` reads the received rows on peers
        x = _reachable(x, shape, dtype, mesh)
        sizes = (("numbers", choices), ("experts", choices), ("counts", num_experts))
        known = tuple(made_like(x, (size,), kd.int32, mesh, f"expert {name}") for name, size in sizes)
        if out is None:
            others = [((num_experts // mesh.size,), kd.int32), ((shape[0], k), kd.int32)]
            out = (made_like(x, (most, shape[1]), dtype, mesh), *(_plain(x, *other) for other in others))
    known = counting_kernel(shape[0] * k, k, num_experts, mesh)(experts, out=known, interpret=interpret)
    fetch = fetching_kernel(shape, dtype, k, num_experts, most, mesh, timeout)
    received, mine, places = fetch(x, *known, out=out, interpret=interpret)
    return received, mine, places


def _reachable(x: OfRank, shape: tuple[int, int], dtype: DType, mesh: Mesh) -> OfRank:
    """This rank's rows in memory that peers can read; they are copied if necessary."""
    if is_symmetric(x[0]):
        return x
    there: Any = made_like(x, shape, dtype, mesh, "expert rows")
    there[0][...] = x[0]
    return there


def _plain(x: OfRank, shape: tuple[int, ...], dtype: DType) -> OfRank:
    """A new array of this rank, in memory that peers can't reach."""
    return OfRank(made_like([x[0]], shape, dtype, None), x.mesh)


@partial(public, name="expert_combine")
@by_rank
def expert_combine(
    y: Any,
    experts: Any,
    places: Any,
    weights: Any,
    mesh: Mesh,
    *,
    num_experts: int,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """Bring the rows of `expert_dispatch` back: token t is the sum over j of weights[t, j] * the row of its choice j.

    `y`: floats (rows, width) a device, the results for its received rows; `experts` and `places` are those of the
    dispatch; `weights`: float32 (tokens, k). Sums are float32, rounded once to y's dtype, or float64 for float64. A
    choice whose row was dropped, or that has no expert, adds nothing. `out`: (tokens, width), in y's dtype. `timeout`:
    seconds that a device waits for its peers. Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a
    mesh.
    """
    op = "expert_combine"
    shape, dtype, _ = _tokens(y, None, mesh, num_experts, op)
    (ids, id_dtype), (at, at_dtype), (w, w_dtype) = (described(a, mesh, op, 2) for a in (experts, places, weights))
    if ids != at or ids != w or len(ids) != 2 or id_dtype != kd.int32 or at_dtype != kd.int32 or w_dtype != kd.float32:
        what = f"experts is {id_dtype}{list(ids)}, places {at_dtype}{list(at)}, weights {w_dtype}{list(w)}"
        raise BadArgument(op=op, what=what, hint="int32, int32 and float32, all (tokens, k)")
    if out is not None and any(overlap(a, out) for a in (y, experts, places, weights)):
        raise BadArgument(op=op, what="out= shares memory with an input", hint="give an array in other memory")
    return Launched(adding_kernel(shape, dtype, ids, num_experts, mesh, timeout), (y, experts, places, weights), out)


def _tokens(x: Any, experts: Any, mesh: Mesh, num_experts: Any, op: str) -> tuple[tuple[int, int], DType, int]:
    """The shape and dtype of a device's rows, and the choices of a token. Raises `BadArgument`, `BadArgumentType`."""
    shape, dtype = described(x, mesh, op)
    if len(shape) != 2 or not dtype.is_float:
        raise BadArgumentType(op=op, what=f"rows are {dtype}{list(shape)}", hint="pass floats of shape (rows, width)")
    if an_int(num_experts, op, "num_experts", low=1) % mesh.size:
        what = f"num_experts={num_experts}, for {mesh.size} devices"
        raise BadArgument(op=op, what=what, hint="all devices must have the same number of experts")
    if experts is None:
        return (shape[0], shape[1]), dtype, 0
    ids, kind = described(experts, mesh, op)
    if kind != kd.int32 or len(ids) != 2 or ids[0] != shape[0]:
        what = f"experts is {kind}{list(ids)}, for {shape[0]} tokens"
        raise BadArgument(op=op, what=what, hint="int32, (tokens, k)")
    return (shape[0], shape[1]), dtype, ids[1]
