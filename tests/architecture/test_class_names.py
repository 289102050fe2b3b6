"""A class is found by its name: no two of the package have the same one."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.conftest import ROOT


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for room in ("kernel_dsl", "lowering", "runtime"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
