"""What tests of extents share."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_dsl import body_trace


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that are traced meanwhile: nothing is compiled without a trace or an entry of this process."""
    found: list[str] = []
    once = body_trace._trace_once

    def counted(definition: Any, *args: Any) -> Any:
        found.append(definition.name)
        return once(definition, *args)

    monkeypatch.setattr(body_trace, "_trace_once", counted)
    return found
