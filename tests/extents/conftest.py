"""What tests of extents share."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_dsl import body_trace
from kernel_dsl.specialisations import Specialisation, Table


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that are traced meanwhile, and of those that a call takes first: a process of its own would
    compile these.

    Earlier tests of this process may have had the same kernel. Nothing is compiled without a trace or an entry of this
    process.
    """
    found: list[str] = []
    taken: set[Specialisation] = set()
    trace_once, find, add = body_trace._trace_once, Table.find, Table.add

    def traced(definition: Any, *args: Any) -> Any:
        found.append(definition.name)
        return trace_once(definition, *args)

    def finding(table: Table, *args: Any) -> Specialisation | None:
        made = find(table, *args)
        if made is not None and made not in taken:
            taken.add(made)
            found.append(made.name)
        return made

    def adding(table: Table, signature: Any, made: Specialisation) -> None:
        taken.add(made)
        add(table, signature, made)

    monkeypatch.setattr(body_trace, "_trace_once", traced)
    monkeypatch.setattr(Table, "find", finding)
    monkeypatch.setattr(Table, "add", adding)
    return found
