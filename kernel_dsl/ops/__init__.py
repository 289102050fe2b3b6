"""The operations of the language, one file a family; an op is defined in it and nowhere else."""

from importlib import import_module

from ..boundary import OPERATIONS as OPERATIONS
from ..boundary import public as _public

_FILES = """
    access arith associative atomic axes barrier bits branches broadcast cast cluster compare control copy copy_waits create debug
    dense descriptor elementwise gather handles index inline join logic lookup loops math matrix multimem numeric nvshmem
    packed pointwise product random reduce ref remote remote_copy scaled_dot scan scheduling scope semaphore shape
    sorting storage sync table threads ufuncs unrolling
"""  # every file of this folder: a constant, because listing a folder takes time
FAMILIES = tuple(import_module(f"{__name__}.{name}") for name in _FILES.split())
NAMES: frozenset[str] = frozenset(name for family in FAMILIES for name in getattr(family, "__all__", []))
OPERATIONS.update(
    {name: _public(getattr(f, name), name, "kernel_dsl") for f in FAMILIES for name in getattr(f, "__all__", [])}
)
