"""Kernels of the elementwise ops of `tests/table.py`, several rows a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kernel_dsl as kd
from tests import table

Made = tuple[str, Any, tuple[kd.ShapeDtypeStruct, ...]]


def _elementwise(rows: tuple[table.Row, ...], dtype: str) -> Made:
    """Operands of every arity, and one output a row."""
    outs = tuple(kd.ShapeDtypeStruct((3, 50), table.result_dtype(row, dtype)) for row in rows)

    def body(*refs: Any) -> None:
        values = [ref[...] for ref in refs[:3]]
        for row, out in zip(rows, refs[3:], strict=True):
            assert row.function is not None
            out[...] = row.function(*values[: row.arity])

    name = f"{dtype}_{rows[0].name}_to_{rows[-1].name}"
    return name, kd.kernel(body, name=name, out_type=outs), (kd.ShapeDtypeStruct((3, 50), dtype),) * 3


def kernels() -> Iterator[Made]:
    """The name, the kernel and the specs of each."""
    for dtype in ("float32", "int32"):
        rows = [r for r in table.ROWS if dtype in r.dtypes and (dtype == "float32" or "float32" not in r.dtypes)]
        for start in range(0, len(rows), 8):
            yield _elementwise(tuple(rows[start : start + 8]), dtype)
    # what other widths do otherwise: conversions, shifts, and the few instructions that narrow floats have
    for dtype in ("float16", "bfloat16", *table.FP8, "int64", "uint64", "int8"):
        known = "float16" if dtype in table.FP8 else dtype
        yield _elementwise(tuple(r for r in table.ROWS if known in r.dtypes and not r.ulps and r.arity > 1), dtype)
