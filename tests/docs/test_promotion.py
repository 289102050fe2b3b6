"""The page of promotion is the code's, and the code's is JAX's but for what the page says."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.docs.promotion import DIFFERENCES, NONE, OPERANDS, PAGE, PAIRS, STRONG, ours, page, theirs


def test_page() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.docs.promotion`"


def test_jax_but_for_what_is_said() -> None:
    jax = theirs()
    used = set[int]()
    for a, b in PAIRS:
        why = [n for n, d in enumerate(DIFFERENCES) if d.where(a, b)]
        assert len(why) <= 1, (a, b)
        if why:
            entry = DIFFERENCES[why[0]]
            assert (ours(a, b), jax[f"{a} {b}"]) == (entry.ours(a, b), entry.jax(a, b)), (a, b)
            used.add(why[0])
        else:
            assert ours(a, b) == jax[f"{a} {b}"], (a, b)
    assert used == set(range(len(DIFFERENCES)))


def test_order_and_number_do_not_matter() -> None:
    for three in product(OPERANDS, repeat=3):
        assert len({ours(*order) for order in permutations(three)}) == 1, three
    for a, b, c in product(STRONG, repeat=3):
        if NONE not in (ours(a, b), ours(b, c), ours(a, c)):
            assert ours(ours(a, b), c) == ours(a, b, c), (a, b, c)


@pytest.mark.parametrize("first", OPERANDS)
def test_operations_follow_it(first: str) -> None:
    """Traced: operators, functions, `where`, `concatenate`, and Python's numbers as literals and as arguments."""
    numbers = {"bool*": True, "int*": 1, "float*": 1.0}
    arrays = {d: np.ones(4, kd.dtypes.as_dtype(d).numpy) for d in STRONG}

    def body(refs: dict[str, Any], scalars: Any) -> None:
        def value(name: str, traced: bool) -> Any:
            return refs[name][...] if name in refs else scalars[name] if traced else numbers[name]

        for second, traced in product(OPERANDS, (False, True)):
            x, y = value(first, traced), value(second, traced)
            if ours(first, second) == NONE:
                for operation in (kd.add, kd.where, kd.less):
                    with pytest.raises(kd.Error):
                        operation(*(True,) * (operation is kd.where), x, y)
                continue
            made = [kd.maximum(x, y), kd.where(True, x, y)]
            if first in refs or second in refs:
                made += [x + y, y * x]
            if first in refs and second in refs:
                made.append(kd.concatenate([x, y]))
            for result in made:
                assert f"{result.dtype.name}{'*' * result.weak}" == ours(first, second), (first, second)
            assert kd.less(x, y).dtype == kd.bool_

    kd.kernel(body, out_type=()).lower(arrays, numbers)
