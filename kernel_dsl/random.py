"""`kd.random`: random numbers from counters (Philox-4x32-10), the same in every layout, grid and device."""

from __future__ import annotations

from .boundary import public
from .ops.random import bernoulli, bits, normal, uniform

__all__ = ["bernoulli", "bits", "normal", "uniform"]

for _name in __all__:
    globals()[_name] = public(globals()[_name], f"random.{_name}", __name__)
