"""Packed functions of tvm-ffi launch what the runtime launches, on tvm-ffi's stream, and say what does not fit."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import hosting
from kernel_dsl.launch_plan import plan_of
from kernel_dsl.lowering.host import Host
from kernel_dsl.lowering.host_tvm import PREFIX, add_tvm_entry
from kernel_dsl.lowering.llvm import host_addresses
from tests.kernels import CASES

from . import tvm_ffi_c as ffi
from .cuda_host_cases import EXTRA, Recorder, arguments, by_runtime, recorder, same  # noqa: F401
from .dlpack_c import tensor

Spec = kd.ShapeDtypeStruct


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ffi.built(tmp_path_factory.mktemp("tvm"))


def address_of(stages: Any) -> int:
    host = Host(stages.kernel, plan_of(stages.kernel), stages.kernel.ptx.encode())
    add_tvm_entry(host, "kernel", hosting.arguments_of(stages.ir))
    return host_addresses(str(host), [f"{PREFIX}kernel"])[0]


@cache
def several() -> list[Any]:
    names = [n for n in CASES if "sm_90a" in CASES[n].targets][::8]
    return [*EXTRA.values(), scaled_stages(), *(CASES[n].lower("sm_90a") for n in names)]


def packed(stages: Any, arrays: list[Any], scalars: list[Any], objects: bool) -> list[tuple[int, Any]]:
    made: list[tuple[int, Any]] = []
    for argument in hosting.arguments_of(stages.ir):
        if argument.array is not None:
            given = tensor(arrays[argument.array], argument.dtype)
            made.append((ffi.TENSOR, ffi.held(given)) if objects else (ffi.DL_TENSOR, given))
        else:
            value = scalars[argument.scalar or 0]
            made.append((ffi.INT, int(value)) if value.dtype.kind in "iub" else (ffi.FLOAT, float(value)))
    return made


@kd.kernel(out_type=lambda x, *scalars: Spec(x.shape, x.dtype))
def scaled(x: Any, single: Any, double: Any, small: Any, natural: Any, flag: Any, out: Any) -> None:
    out[...] = kd.where(
        flag, x[...] * single + double.astype(kd.float32), small.astype(kd.float32) + natural.astype(kd.float32)
    )


def scaled_stages() -> Any:
    kinds = (kd.float32, kd.float64, kd.int8, kd.uint32, kd.bool_)
    return scaled.lower(Spec((8,), kd.float32), *(k.numpy.type(3) for k in kinds))


@pytest.mark.parametrize("objects", [False, True])
def test_kernels_are_launched_as_by_the_runtime(library: Any, recorder: Recorder, objects: bool) -> None:  # noqa: F811
    for stages in several():
        arrays, scalars = arguments(stages)
        python = recorder.of(lambda: by_runtime(stages, arrays, scalars))  # noqa: B023
        given = packed(stages, arrays, scalars, objects)
        address = address_of(stages)
        host = recorder.of(lambda: check(library, address, given))  # noqa: B023
        same(python, host, stages.kernel)
        assert all(launch.stream == ffi.STREAM for launch in host)


def check(library: Any, address: int, given: list[Any]) -> None:
    assert ffi.call(address, given) == 0, library.raised()


def test_what_does_not_fit_is_raised(library: Any, recorder: Recorder) -> None:  # noqa: F811
    stages = scaled_stages()
    arrays, scalars = arguments(stages)
    address, good = address_of(stages), packed(stages, arrays, scalars, False)
    check(library, address, good)
    recorder.launches.clear()

    def refused(kind: str, place: int, *other: Any) -> str:
        given = [*good[:place], *other, *good[place + 1 :]]
        assert ffi.call(address, given) == -1 and not recorder.launches
        assert library.raised_kind().decode() == kind
        return library.raised().decode()

    assert "scaled: 6 arguments, and the kernel takes 7: inputs, then outputs" in refused("TypeError", 6)
    assert "x is no tensor: its type index is 1" in refused("TypeError", 0, (ffi.INT, 3))
    assert "single is no number: its type index is 7" in refused("TypeError", 1, good[0])
    assert "small is no integer: its type index is 3" in refused("TypeError", 3, (ffi.FLOAT, 3.0))
    assert "small is 128, which int8 has not" in refused("ValueError", 3, (ffi.INT, 128))
    assert "natural is -1, which uint32 has not" in refused("ValueError", 4, (ffi.INT, -1))
    check(library, address, [*good[:3], (ffi.INT, -128), (ffi.INT, 2**32 - 1), (ffi.BOOL, 1), good[6]])
    recorder.launches.clear()
    other = tensor(arrays[0], kd.int32)
    assert "x has a dtype of code 0" in refused("ValueError", 0, (ffi.DL_TENSOR, other))


def test_scalars_that_the_interface_has_not() -> None:
    stages = kd.kernel(lambda x, s, o: o.__setitem__(..., x[...] * s), out_type=Spec((4,), kd.float16)).lower(
        Spec((4,), kd.float16), kd.float16.numpy.type(2)
    )
    with pytest.raises(kd.Error, match="is float16, which tvm-ffi does not have"):
        address_of(stages)
