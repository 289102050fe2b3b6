"""Mathematical functions on scalars as LLVM IR text, without a device library.

`FUNCTIONS` maps keys such as "exp.f32" to what to call and its text; `definitions(keys)` is what a
module appends. Worst errors are 2 ulp in float32 and 4 ulp in float64 (4 and 8 for `pow`), with the
special cases of C99's annex F and subnormals handled; `docs/math-accuracy.md` has the measured
ones. Only IEEE-rounded operations are used, so that every machine gives the same bits. `APPROX`
holds the hardware's own approximations, by the same keys.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .registry import APPROX, FUNCTIONS, MathFunction, definitions, function

__all__ = ["APPROX", "FUNCTIONS", "MathFunction", "definitions", "function"]

for _module in iter_modules(__path__):  # importing a family fills the tables
    import_module(f"{__name__}.{_module.name}")
