"""Every instruction form, run by the machine from PTX text: it computes what `semantics` does.

The kernels are those of the comparison with the GPU, so this also shows that the interpreter runs
each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import GlobalMemory, InterpretParams, parse, run
from kernel_dsl.runtime.interpreter.isa.semantics.table import entries
from kernel_dsl.runtime.interpreter.ptx.module import PtxError
from tests.gpu import differential, tensor_differential, warp_differential

from .launching import kernel, launch


class Machine:
    """The interpreter behind the interface of `tests.gpu.launcher.Gpu`."""

    def load(self, image: bytes) -> Any:
        return parse(image.decode())

    def unload(self, module: Any) -> None:
        pass

    def run(
        self,
        module: Any,
        entry: str,
        inputs: list[np.ndarray],
        output: np.ndarray,
        grid: int,
        block: int,
        scalars: tuple[int, ...] = (),
    ) -> np.ndarray:
        memory = GlobalMemory()
        arrays = [np.ascontiguousarray(a) for a in (*inputs, output)]
        words = [memory.allocate(a, f"a{i}") for i, a in enumerate(arrays)]
        run(
            module,
            entry,
            [int(word).to_bytes(8, "little") for word in (*words, *scalars)],
            grid=(grid, 1, 1),
            block=(block, 1, 1),
            memory=memory,
            params_cfg=InterpretParams(detect_hazards=False),
        )
        return arrays[-1]


FAMILIES = sorted({e.family for e in entries()} - {"compare"})


def chosen(family: str) -> list[Any]:
    return [e for e in entries() if e.family == family]


@pytest.mark.parametrize("family", FAMILIES)
def test_elementwise(family: str) -> None:
    rows = differential.run(Machine(), chosen(family))
    assert not any(row.wrong for row in rows.values()), differential.report(rows)


def test_comparisons() -> None:
    some = [e for i, e in enumerate(chosen("compare")) if i % 7 == 0]
    rows = differential.run(Machine(), some)
    assert not any(row.wrong for row in rows.values()), differential.report(rows)


def test_warp_wide() -> None:
    found = warp_differential.run(Machine())
    assert not any(found.values()), warp_differential.report(found)


def test_mma() -> None:
    table: tensor_differential.Table = {}
    tensor_differential.run_mma(Machine(), table)
    assert not any(entry.unequal for entry in table.values()), tensor_differential.report(table)


def test_mma_of_a_sparse_a() -> None:
    table: tensor_differential.Table = {}
    tensor_differential.run_sparse(Machine(), table)
    assert not any(entry.unequal for entry in table.values()), tensor_differential.report(table)
    for (_, a_type, d_type), entry in table.items():
        assert entry.interpreter <= tensor_differential.bound("mma.sync", a_type, d_type)


def test_wgmma() -> None:
    table: tensor_differential.Table = {}
    some = [case for case in tensor_differential.cases() if case.op.n <= 128][::5]
    tensor_differential.run_wgmma(Machine(), table, some)
    assert not any(entry.unequal for entry in table.values()), tensor_differential.report(table)


def test_a_form_of_a_later_target_is_refused() -> None:
    body = ".reg .b64 %a; mov.b64 %a, 0; add.rn.f32x2 %a, %a, %a; ret;"
    with pytest.raises(PtxError, match="needs sm_100 or later, the module is for sm_90a"):
        launch(kernel("", body), "k", [])
