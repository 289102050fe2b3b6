"""The operations of the language, one file a family; an op is defined in it and nowhere else."""

from importlib import import_module
from pkgutil import iter_modules

FAMILIES = tuple(import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
NAMES: frozenset[str] = frozenset(name for family in FAMILIES for name in getattr(family, "__all__", []))
