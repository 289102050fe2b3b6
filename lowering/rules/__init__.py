"""One rule for each structural op, in files that mirror `kernel_dsl/ops`; `RULES` is all of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from kernel_dsl.ir import Op

from ..context import Rule
from .elementwise import leaf_rule

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
FAMILIES = tuple(module for module in _MODULES if hasattr(module, "RULES"))


def all_rules() -> dict[type[Op], Rule]:
    """Every op that can be lowered, with its rule: the family's own, else the leaf rule."""
    rules: dict[type[Op], Rule] = {}
    for family in FAMILIES:
        for op, rule in family.RULES.items():
            assert op not in rules, f"{op.op_name} has two rules"
            rules[op] = rule
    for op in Op.registry.values():
        leaf = leaf_rule(op)
        if op not in rules and leaf is not None:
            rules[op] = leaf  # pyright: ignore[reportArgumentType]
    return rules
