"""Checks of a cross-entropy's arguments: errors at the caller's line, before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, cast

import numpy as np

import kernel_dsl as kd
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype

from ..refusals import Refusals, floated, kind_and_shape, on_host
from .kernels import KINDS, CrossEntropy

NAME, COMBINE, BACKWARD = "linear_cross_entropy", "linear_cross_entropy_combine", "linear_cross_entropy_backward"
DTYPES = (kd.float16, kd.bfloat16, kd.float32)
REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class CrossEntropyCall(Refusals):
    """The options of a call of the function `kernel`."""

    kernel: str
    ignore_index: Any
    label_smoothing: Any
    reduction: Any
    vocab_start: Any
    vocab: Any = None

    def integer(self, name: str, x: Any, least: int | None) -> None:
        """Check an int of at least `least`."""
        if isinstance(x, bool) or not isinstance(x, Integral):
            raise self.argument(f"{name}={shown(x)}", "an int")
        number = int(x)
        if (least is not None and number < least) or not -(1 << 31) <= number < 1 << 31:
            raise self.value(f"{name}={shown(x)}", "an int of 32 bits" if least is None else f"an int from {least} on")

    def check(self) -> None:
        """Check options alone."""
        self.integer("ignore_index", self.ignore_index, None)
        for name, least in (("vocab_start", 0), ("vocab", 1)):
            if getattr(self, name) is not None:
                self.integer(name, getattr(self, name), least)
        if isinstance(self.label_smoothing, bool) or not isinstance(self.label_smoothing, Real):
            raise self.argument(f"label_smoothing={shown(self.label_smoothing)}", "a number from 0 to 1")
        if not 0 <= cast("Any", self.label_smoothing) <= 1:
            raise self.value(f"label_smoothing={shown(self.label_smoothing)}", "a number from 0 to 1")
        if not isinstance(self.reduction, str) or self.reduction not in REDUCTIONS:
            raise self.value(f"reduction={shown(self.reduction)}", "one of " + ", ".join(map(repr, REDUCTIONS)))

    def array(self, name: str, x: Any, rank: int, axes: str, dtypes: tuple[Any, ...]) -> tuple[int, ...]:
        """The shape of an array of one of some dtypes."""
        shape = getattr(x, "shape", None)
        hint = f"{name} is {axes}, {', '.join(map(str, dtypes[:-1]))}{' or ' * (len(dtypes) > 1)}{dtypes[-1]}"
        if not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(shape) != rank:
            raise self.argument(f"{name} is {kind_and_shape(x)}", hint)
        if as_dtype(x.dtype) not in dtypes:
            raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", hint)
        return tuple(shape)

    def problem(self, **more: Any) -> CrossEntropy:
        """The problem with these options."""
        return CrossEntropy(
            ignore=int(self.ignore_index), smoothing=float(self.label_smoothing), mean=self.reduction == "mean",
            rows=self.reduction == "none", **more,
        )  # fmt: skip

    def chunk(self, chunk: Any, p: CrossEntropy, usual: int) -> int:
        """The number of classes at once."""
        if chunk is None:
            return min(max(usual, 1024), p.V)
        self.integer("chunk", chunk, 1)
        return min(int(chunk), p.V)


def problem_of(x: Any, weight: Any, targets: Any, bias: Any, call: CrossEntropyCall) -> CrossEntropy:
    """The problem of a call. Raises `BadCallArgument`, `BadCallValue`."""
    call.check()
    M, H = call.array("x", x, 2, "(M, H)", DTYPES)
    V, depth = call.array("weight", weight, 2, "(V, H)", DTYPES)
    dtype = as_dtype(x.dtype)
    if as_dtype(weight.dtype) != dtype:
        raise call.bad_dtype(f"x is {dtype} and weight is {as_dtype(weight.dtype)}", "convert one to the other's dtype")
    if depth != H or not V:
        raise call.bad_shape(
            f"x is {(M, H)} and weight is {(V, depth)}", "x is (M, H), weight (V, H), with a class or more"
        )
    rows = call.array("targets", targets, 1, "(M,)", (kd.int32, kd.int64))
    if rows != (M,):
        raise call.bad_shape(f"targets is {rows}", f"its shape is {(M,)}")
    if bias is not None and call.array("bias", bias, 1, "(V,)", DTYPES) != (V,):
        raise call.bad_shape(f"bias is {tuple(bias.shape)}", f"its shape is {(V,)}")
    start, vocab = call.vocab_start, call.vocab
    if start is None:
        if vocab is not None and vocab != V:
            raise call.value(f"vocab={vocab} beside a weight of {V} classes", "give `vocab_start` for a part of it")
        vocab = V
    elif vocab is not None and start + V > vocab:
        raise call.value(
            f"classes {start} to {start + V} of vocab={vocab}", "a part ends at the end of the vocabulary or before"
        )
    elif vocab is None and call.label_smoothing and call.kernel == BACKWARD:
        raise call.value("label_smoothing beside vocab_start", "give the number of all classes: `vocab`")
    return call.problem(
        M=M, V=V, H=H, dtype=dtype, targets=as_dtype(targets.dtype), start=int(start or 0),
        vocab=None if vocab is None else int(vocab), bias=bias is not None,
    )  # fmt: skip


def check_targets(p: CrossEntropy, targets: Any, call: CrossEntropyCall) -> None:
    """Raise `BadCallValue` for targets that are no class, if the host can read them."""
    held = on_host(targets)
    if held is None:
        return
    odd = (held != p.ignore) & ((held < 0) | (held >= (p.vocab or 1 << 31)))
    if odd.any():
        limit = f"to {p.vocab - 1}, or" if p.vocab else "on, or"
        raise call.value(f"targets has {held[odd][0]}", f"classes are numbered from 0 {limit} ignore_index={p.ignore}")


def check_partials(partials: Any, targets: Any, call: CrossEntropyCall) -> CrossEntropy:
    """The problem of a combination. Raises `BadCallArgument`, `BadCallValue`."""
    call.check()
    ranks, kinds, M = call.array("partials", partials, 3, f"(ranks, {KINDS}, M)", (kd.float32,))
    if kinds != KINDS or not ranks:
        raise call.bad_shape(
            f"partials is {(ranks, kinds, M)}", f"its shape is (ranks, {KINDS}, M), with a rank or more"
        )
    if call.array("targets", targets, 1, "(M,)", (kd.int32, kd.int64)) != (M,):
        raise call.bad_shape(f"targets is {tuple(targets.shape)}", f"its shape is {(M,)}")
    if call.label_smoothing and call.vocab is None:
        raise call.value("label_smoothing without vocab", "give the number of classes in all parts")
    vocab = None if call.vocab is None else int(call.vocab)
    return call.problem(M=M, V=0, H=0, dtype=kd.float32, targets=as_dtype(targets.dtype), vocab=vocab)


def check_gradient(dloss: Any, lse: Any, p: CrossEntropy, call: CrossEntropyCall) -> Any:
    """The gradient of the loss in the kernel's form. Raises `BadCallArgument`, `BadCallValue`."""
    if call.array("lse", lse, 1, "(M,)", (kd.float32,)) != (p.M,):
        raise call.bad_shape(f"lse is {tuple(lse.shape)}", f"its shape is {(p.M,)}")
    if p.rows:
        if call.array("dloss", dloss, 1, "(M,)", DTYPES) != (p.M,):
            raise call.bad_shape(f"dloss is {tuple(dloss.shape)}", f"its shape is {(p.M,)}")
        return dloss
    if isinstance(dloss, (int, float, np.generic)):
        number = floated(dloss) if isinstance(dloss, int) else float(dloss)
        if isinstance(dloss, bool) or not isinstance(number, float) or not isfinite(number):
            raise call.value(f"dloss={shown(dloss)}", "a number")
        return number
    shape = getattr(dloss, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(dloss, "dtype") or as_dtype(dloss.dtype) not in DTYPES:
        raise call.argument(f"dloss is {of_kind(dloss)}", "a number, or an array of one")
    if any(n != 1 for n in shape):
        raise call.value(f"dloss is {shown(shape)}", "a number, or an array of one")
    return dloss.reshape(()) if shape else dloss
