"""What `attention_backward` refuses: results that are not the forward's, wrong configurations, problems of other kernels."""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape
from kernel_dsl.target import TMA_WGMMA

from ..attention_forward.attention import tma_refusal
from ..attention_forward.problem import ScoredProblem
from ..products.matmul import check_counts
from .order import EIGHT, KEYS, AttentionBackwardConfig
from .scored_sizes import keys_of, padded_dims

NAME = "attention_backward"
ORDERED = 192  # the largest dimension in which the blocks of ragged sequences add to sums in order


def check_results(p: ScoredProblem, dout: Any, out: Any, lse: Any, dlse: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` unless these can be the forward's results and their gradients."""
    if p.dtype in FP8:
        raise BadCallValue(kernel=NAME, what=f"q is {p.dtype}", hint="float8 inputs have no gradients")
    for name, x, wanted, dtype in (
        ("dout", dout, p.out_shape, p.dtype),
        ("out", out, p.out_shape, p.dtype),
        ("lse", lse, p.lse_shape, kd.float32),
        *([("dlse", dlse, p.lse_shape, kd.float32)] if dlse is not None else []),
    ):
        if not isinstance(getattr(x, "shape", None), tuple) or not hasattr(x, "dtype"):
            what = f"{name} is {of_kind(x)}"
            raise BadCallArgument(kernel=NAME, what=what, hint="pass the results of `attention` with `return_lse=True`")
        if tuple(x.shape) != wanted:
            what = f"{name} is {shown(tuple(x.shape))}"
            raise LibraryShape(kernel=NAME, what=what, hint=f"its shape is {wanted}")
        if as_dtype(x.dtype) != dtype:
            raise LibraryDType(kernel=NAME, what=f"{name} is {as_dtype(x.dtype)}", hint=f"it is {dtype}")


def check_config(config: Any, p: ScoredProblem) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a wrong configuration, or one whose parts don't fill a step."""
    if config is None:
        return
    if not isinstance(config, AttentionBackwardConfig):
        what = f"config is {of_kind(config)}"
        raise BadCallArgument(kernel=NAME, what=what, hint="an `AttentionBackwardConfig`, or None to have one chosen")
    check_counts(config, NAME, 1 if config.stays else 2)
    dim, wide = padded_dims(p)[0], keys_of(p) != KEYS
    if wide and (config.apart or config.turns):
        what = f"config.apart={config.apart}, config.turns={config.turns} for a head dimension of {dim}"
        hint = "with a head dimension over 128, consumers do different work and can't take turns"
        raise BadCallValue(kernel=NAME, what=what, hint=hint)
    if wide:
        unit, parts, good = 64, dim // 2, config.block_q == 64
    else:
        unit = 16 if dim == KEYS else 32
        parts, good = config.block_q * 16 // unit, config.block_q % unit == 0
    if not good:
        what = f"config.block_q={config.block_q}"
        hint = (
            "64, for a head dimension beyond 128"
            if unit == 64
            else f"a multiple of {unit}: wgmma takes 16 queries at once"
        )
        raise BadCallValue(kernel=NAME, what=what, hint=hint)
    if parts % (EIGHT * config.dq_parts):
        what = f"config.dq_parts={config.dq_parts} of {parts} columns"
        raise BadCallValue(kernel=NAME, what=what, hint="each part has 8 columns or a multiple of 8")
    if config.dq_slots > config.dq_parts:
        what = f"config.dq_slots={config.dq_slots} for config.dq_parts={config.dq_parts}"
        raise BadCallValue(kernel=NAME, what=what, hint="use at most as many slots as parts")


def refusal(p: ScoredProblem, arrays: dict[str, Any], target: Any, deterministic: bool) -> str:
    """The reason why the fast kernels can't compute a problem; empty if they can."""
    if not target.supports(TMA_WGMMA):
        return f"{target} has no wgmma"
    if p.dtype not in (kd.float16, kd.bfloat16):
        return f"{p.dtype} is not a 16-bit float"
    for dim in (p.dim, p.v_dim):
        if dim % 8 or not 16 <= dim <= 256:
            return f"a head dimension of {dim} is no multiple of 8 from 16 to 256"
    if not p.batch or not p.queries or not p.keys:
        return "there is nothing to compute"
    if p.ragged and deterministic and max(p.dim, p.v_dim) > ORDERED:
        return f"blocks of ragged sequences add in no order beyond a head dimension of {ORDERED}"
    return tma_refusal(arrays)
