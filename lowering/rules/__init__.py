"""One rule for each structural op, in files that mirror `kernel_dsl/ops`; `RULES` is all of them."""

from __future__ import annotations

from kernel_dsl.ir import Op

from ..context import Rule
from . import (
    atomic,
    cast,
    cluster,
    control,
    copy,
    create,
    debug,
    elementwise,
    gather,
    index,
    matrix,
    product,
    reduce,
    ref,
    scan,
    scope,
    shape,
    sorting,
    sync,
    threads,
)

FAMILIES = (
    atomic,
    cast,
    cluster,
    control,
    copy,
    create,
    debug,
    elementwise,
    gather,
    index,
    matrix,
    product,
    reduce,
    ref,
    scan,
    scope,
    shape,
    sorting,
    sync,
    threads,
)


def all_rules() -> dict[type[Op], Rule]:
    """Every op that can be lowered, with its rule: the family's own, else the leaf rule."""
    rules: dict[type[Op], Rule] = {}
    for family in FAMILIES:
        for op, rule in family.RULES.items():
            assert op not in rules, f"{op.op_name} has two rules"
            rules[op] = rule  # pyright: ignore[reportArgumentType]
    for op in Op.registry.values():
        leaf = elementwise.leaf_rule(op)
        if op not in rules and leaf is not None:
            rules[op] = leaf  # pyright: ignore[reportArgumentType]
    return rules
