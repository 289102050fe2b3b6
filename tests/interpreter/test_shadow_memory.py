"""What finding races takes in memory beside the arrays, and the error where a machine has too little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks import global_shadow

from .launching import kernel, launch
from .planted import REGISTERS

COUNT = 1 << 16
HEAD = (
    REGISTERS
    + """ ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; mov.u32 r3, %ntid.x; mad.lo.u32 r2, r2, r3, r1;
 mul.wide.u32 d2, r2, WIDTH; add.s64 d3, d1, d2;
"""
)
STORE = " st.global.u32 [d3], r2; ret;"
BOTH = " ld.global.u32 r4, [d3]; add.u32 r4, r4, 1; st.global.u32 [d3], r4; ret;"
WIDE = " ld.global.v4.u32 {r4, r5, r6, r7}, [d3]; st.global.v4.u32 [d3], {r7, r6, r5, r4}; ret;"


@pytest.mark.parametrize(("body", "width", "most"), [(STORE, 4, 2.5), (BOTH, 4, 5.0), (WIDE, 16, 1.25)])
def test_bytes_of_shadow_a_byte(body: str, width: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[global_shadow.GlobalShadow] = []
    start = global_shadow.GlobalShadow.__init__

    def kept(self: global_shadow.GlobalShadow, *args: Any) -> None:
        start(self, *args)
        made.append(self)

    monkeypatch.setattr(global_shadow.GlobalShadow, "__init__", kept)
    data = np.zeros(COUNT, np.int32)
    launch(
        kernel(".param .u64 a", HEAD.replace("WIDTH", str(width)) + body),
        "k",
        [data],
        grid=data.nbytes // (512 * width),
        block=512,
    )
    (shadow,) = made
    arrays = [v for v in vars(shadow).values() if isinstance(v, np.ndarray) and v.flags.writeable]
    assert sum(a.nbytes for a in arrays) == most * data.nbytes <= 6 * data.nbytes


def test_an_array_whose_shadow_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_shadow, "_SMALL", 1)
    monkeypatch.setattr(global_shadow, "memory_left", lambda: 1000)
    text = kernel(".param .u64 a", HEAD.replace("WIDTH", "4") + STORE)
    with pytest.raises(
        kd.Error, match=r"find races in 'a', of 16384 bytes.*needs 40960 bytes more, and this machine has 1000"
    ):
        kd.check(text, np.zeros(4096, np.int32), grid=8, block=512)


def test_what_this_machine_has_left() -> None:
    left = global_shadow.memory_left()
    assert left is None or 0 < left < 1 << 50
