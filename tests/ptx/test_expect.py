"""What lines of kernels become, said on the lines themselves (see `expect.py`)."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd
from tests.ptx.expect import check, expectations

f32, bf16, i32 = kd.float32, kd.bfloat16, kd.int32
Spec = kd.ShapeDtypeStruct
KERNELS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []


def kernel(*specs: Any, **options: Any) -> Any:
    def enter(body: Any) -> Any:
        KERNELS.append((body, specs, options))
        return body

    return enter


@kernel(Spec((4096,), f32), out_type=Spec((4096,), f32), grid=(8,))
def whole_vectors(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 512, 512)
    v = x[part]  # any: "ld.global.nc.v4.b32"; not "setp"
    out[part] = v  # any: "st.global.v4.b32"; not "@"


@kernel(Spec((4095,), f32), out_type=Spec((4095,), f32), grid=(8,))
def masked_at_the_end(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 512, 512)
    v = x[part]  # any: "ld.global.nc.v4.b32" x1; "@%p"
    out[part] = v  # any: "st.global"; "@%p"


@kernel(Spec((4095,), f32), out_type=Spec((4095,), f32), grid=(8,), compiler_params=kd.CompilerParams(bounds="promise"))
def promised(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 512, 512)
    v = x[part]  # any: not "setp"; "ld.global.nc.v4.b32"
    out[part] = v  # any: not "@%p"


@kernel(Spec((1024,), bf16), out_type=Spec((1024,), bf16))
def eight_halves(x: Any, out: Any) -> None:
    v = x[...]  # any: "ld.global.nc.v4.b32" x1
    out[...] = v  # any: "st.global.v4.b32" x1


@kernel(Spec((64, 128), bf16), out_type=Spec((64, 128), bf16))
def masked_rows(x: Any, out: Any) -> None:
    rows = kd.arange(64)[:, None] < 37
    v = kd.load(x, ..., mask=rows)  # any: "ld.global.nc.v4.b32"; "@%p"; not "ld.global.nc.b16"
    kd.store(out, ..., v, mask=rows)  # any: "st.global.v4.b32"; "@%p"; not "st.global.b16"


@kernel(Spec((64, 128), bf16), out_type=Spec((64, 128), bf16))
def masked_elements(x: Any, out: Any) -> None:
    v = x[...]
    columns = kd.broadcasted_iota(kd.int32, (64, 128), 1)
    kd.store(out, ..., v, mask=columns < 37)  # any: "st.global.b16"; not "st.global.v"


@kernel(Spec((1024,), f32), out_type=Spec((1024,), f32))
def outputs_are_not_read_only(x: Any, out: Any) -> None:
    out[...] = x[...]
    v = out[...]  # any: "ld.global"; not ".nc"
    out[...] = v + 1.0  # any: "add.rn.f32" x8


@kernel(Spec((512,), f32), Spec((512,), f32), out_type=Spec((512,), f32))
def roundings(x: Any, y: Any, out: Any) -> None:
    a, b = x[...], y[...]
    product = a * b  # any: "mul.rn.f32" x4; not "fma"
    total = product + a  # any: "add.rn.f32" x4; not "fma"
    fused = kd.fma(total, a, b)  # any: "fma.rn.f32" x4
    out[...] = fused / b  # any: "div.rn.f32" x4; not "approx"


@kernel(Spec((512,), f32), out_type=Spec((512,), f32), compiler_params=kd.CompilerParams(approx_math=True))
def approximate(x: Any, out: Any) -> None:
    v = x[...]
    e = kd.exp(v)  # any: "ex2.approx"
    out[...] = 1.0 / e  # any: not "div.rn"


@kernel(Spec((128,), f32), out_type=(Spec((), f32), Spec((), f32)))
def reductions(x: Any, total: Any, largest: Any) -> None:
    v = x[...]
    total[...] = v.sum()  # any: "shfl.sync.bfly.b32" x5
    largest[...] = v.max()  # any: "max.NaN.f32"; "shfl.sync.bfly"


@kernel(Spec((64, 64), f32), out_type=Spec((64, 64), f32), scratch_types=[kd.SMEM((64, 64), f32)])
def shared(x: Any, out: Any, buffer: Any) -> None:
    buffer[...] = x[...]  # any: "st.shared.v4.b32"
    out[...] = buffer[...]  # any: "ld.shared.v4.b32"; "st.global.v4.b32"


@kernel(Spec((16,), i32), out_type=Spec((16,), i32, init=0))
def atomics(x: Any, out: Any) -> None:
    v = x[...]
    kd.atomic_add(out, v)  # any: "relaxed.gpu"; "global"; "add"
    kd.atomic_add(out, v, order="acq_rel", scope="sys")  # any: "acq_rel.sys"


@kernel(
    Spec((128,), f32),
    out_type=Spec((128,), f32),
    scratch_types=[kd.Barrier(num_arrivals=2)],
    num_threads=2,
    thread_name="w",
)
def barriers(x: Any, out: Any, barrier: Any) -> None:
    kd.barrier_arrive(barrier)  # any: "mbarrier.arrive"
    kd.barrier_wait(barrier)  # sm_90a: "mbarrier.try_wait.parity" # sm_80: "mbarrier.test_wait"

    @kd.when(kd.axis_index("w") == 0)
    def _() -> None:
        out[...] = x[...]  # any: "st.global"


@kernel(Spec((1000,), i32), out_type=Spec((1000,), i32))
def constants_fold(x: Any, out: Any) -> None:
    v = x[...]
    w = v // 8  # any: not "div"
    out[...] = w % 16  # any: not "rem"


@kernel(Spec((2**20, 2**12), bf16), out_type=Spec((), bf16), grid=(2**20,))
def wide_indices(x: Any, out: Any) -> None:
    row = x[kd.program_id(0), :128]  # any: "64"
    out[...] = row.max()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("body", "specs", "options"), KERNELS, ids=[k[0].__name__ for k in KERNELS])
def test_lines(body: Any, specs: tuple[Any, ...], options: dict[str, Any], target: str) -> None:
    params = options.get("compiler_params", kd.CompilerParams())
    stages = kd.kernel(body, **{**options, "compiler_params": params}).lower(*specs, target=target)
    assert expectations(body)
    assert check(body, stages) > 0


def test_a_wrong_expectation_fails() -> None:
    @kd.kernel(out_type=Spec((128,), f32))
    def body(x: Any, out: Any) -> None:
        out[...] = x[...]  # any: "wgmma"

    with pytest.raises(AssertionError, match="wgmma"):
        check(body.__wrapped__, body.lower(Spec((128,), f32)))
