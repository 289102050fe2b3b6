"""What `kd.tune` asks of a call before any kernel: its specs, its key, and the configurations in the order of predictions."""

from __future__ import annotations

import hashlib
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from .boundary import called
from .diagnostics import shown
from .dtypes import as_dtype
from .errors_tuning import TuneType, TuningKey, TuningSpace
from .memory import ShapeDtypeStruct
from .source import misfit
from .tree import flatten
from .tuning_file import written
from .tuning_options import listed
from .tuning_table import TuningRow


def likeness(args: tuple[Any, ...]) -> Any:
    """A stand-in for a call's key: shapes, dtypes and devices of arrays, and numbers. None for other arguments."""
    try:
        like = tuple(
            [
                (x.shape, x.dtype, getattr(x, "device", None))
                if hasattr(x, "shape") and not isinstance(x, np.generic)
                else (type(x), x)
                for x in args
            ]
        )
        hash(like)
    except Exception:  # nests, and objects whose properties raise
        return None
    return like


def spec_of(x: Any) -> Any:
    """An argument in the form that `key` and `predict` get."""
    if isinstance(x, (ShapeDtypeStruct, np.generic)) or not isinstance(getattr(x, "shape", None), tuple):
        return x
    if not hasattr(x, "dtype"):
        return x
    return ShapeDtypeStruct(tuple(x.shape), as_dtype(x.dtype))


def _named(spec: Any) -> str:
    """An array's dtype and shape, or a scalar's type, as in a key."""
    return f"{spec.dtype}{list(spec.shape)}" if isinstance(spec, ShapeDtypeStruct) else type(spec).__name__


def key_of(key: Callable[..., Any] | None, specs: Sequence[Any], name: str) -> Any:
    """The key of a call. Raises `TuningKey`."""
    if key is None:
        return " ".join([_named(x) for x in flatten(tuple(specs))[0]])
    made = called(key, tuple(specs), name, "key", "key(*specs)")
    try:
        hash(made)
    except TypeError:
        what = f"the key {shown(made)} can't be hashed"
        raise TuningKey(name=name, what=what, hint="return a tuple of ints, texts and dtypes") from None
    return made


def ranked(space: Any, predict: Callable[..., float] | None, specs: Sequence[Any], name: str) -> list[TuningRow[Any]]:
    """The space's configurations, the best predicted first."""
    if callable(space):
        why = misfit(space, *specs)
        if why and misfit(space):
            what, hint = f"space can't be called: {why}", "it is called as `space(*specs)`, or as `space()`"
            raise TuningSpace(name=name, what=what, hint=hint)
        space = listed(space() if why else space(*specs), name)
    rows = [TuningRow(config, written(config)) for config in space]
    if predict is None:
        return rows
    rows = [replace(row, predicted=_predicted(predict, row.config, specs, name)) for row in rows]
    never = [replace(r, dropped=f"predict gives {r.predicted}") for r in rows if not math.isfinite(r.predicted or 0)]
    return sorted((r for r in rows if math.isfinite(r.predicted or 0)), key=lambda r: r.predicted or 0.0) + never


def _predicted(predict: Callable[..., float], config: Any, specs: Sequence[Any], name: str) -> float:
    value = called(predict, (config, *specs), name, "predict", "predict(config, *specs)")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.generic)):
        what = f"predict gives {shown(value)} for {written(config)}"
        raise TuneType(name=name, what=what, hint="return a number; the smallest is the fastest")
    return float(value)


def source_of(make: Callable[..., Any], rows: Sequence[TuningRow[Any]]) -> str:
    """A digest of a function's text (empty if it has none) and its space: results of other functions are not used."""
    try:
        text = textwrap.dedent(inspect.getsource(make))
    except (OSError, TypeError):
        text = ""
    return hashlib.sha256(
        "\n".join([text, *sorted(row.text for row in rows)]).encode(errors="surrogatepass")
    ).hexdigest()[:16]
