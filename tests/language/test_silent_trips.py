"""No trip through SMEM is silent: what moves a value says so in a note, and what must exchange in its op's docstring.

Walks all ops: the suite's kernels hold every one of them (`tests/architecture/test_ops.py`).
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from kernel_dsl.ir import Op
from kernel_dsl.lowering.context import Context
from kernel_dsl.ops import join, shape
from kernel_dsl.ops.broadcast import ConvertLayout
from tests.kernels import CASES

MOVES = (ConvertLayout, *(op for op in Op.registry.values() if op.__module__ in (join.__name__, shape.__name__)))


def op_of_the_call() -> Op:
    """The op that is being lowered: what the innermost `Context.region` has in hand."""
    frame: Any = inspect.currentframe()
    while frame.f_code is not Context.region.__code__:
        frame = frame.f_back
    return frame.f_locals["op"]


def exchanging(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Op]]:
    """The stages of one of the suite's kernels, and its ops whose rules took space in SMEM."""
    used: dict[int, Op] = {}
    for method in ("exchange", "exchange_whole"):
        plain = getattr(Context, method)

        def watched(ctx: Context, size: int, plain: Any = plain) -> Any:
            op = op_of_the_call()
            used[id(op)] = op
            return plain(ctx, size)

        monkeypatch.setattr(Context, method, watched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        stages = CASES[name].lower(CASES[name].targets[-1])
        assert stages.llvm
    return stages, list(used.values())


@pytest.mark.parametrize("name", CASES)
def test_no_op_goes_through_smem_silently(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, used = exchanging(name, monkeypatch)
    noted = {(note.loc.file, note.loc.line) for note in stages.notes}
    silent = [op for op in used if isinstance(op, MOVES) and (op.loc.file, op.loc.line) not in noted]
    untold = [op for op in used if not isinstance(op, MOVES) and "SMEM" not in (inspect.getdoc(type(op)) or "")]
    assert not silent and not untold, [f"{op.op_name} at {op.loc}" for op in (*silent, *untold)]


SEEN = {"layouts_meet": "convert_layout reduce", "reshapes": "concatenate pick", "semaphores": "atomic_cas atomic_rmw"}


@pytest.mark.parametrize("name", SEEN)
def test_the_walk_sees_who_exchanges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert " ".join(sorted({op.op_name for op in exchanging(name, monkeypatch)[1]})) == SEEN[name]
