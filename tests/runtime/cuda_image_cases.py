"""Repeated calls of custom kernels on a driver without a GPU: see `cuda_cases.py`.

What the fast path launches is compared with what the slow path launched for the same call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

from kernel_dsl.runtime.custom import body, calls, image, source
from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
from kernel_dsl.runtime.custom.metal import metal
from kernel_dsl.runtime.custom.metal.metal import metal_kernel
from kernel_dsl.runtime.custom.seen_calls import SeenCalls
from kernel_dsl.runtime.custom.source import cuda_kernel
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError, LaunchError, OutOfMemoryError
from kernel_dsl.runtime.plan import recording

from .cuda_fast_cases import memory_left, torch
from .fake import LIB, Launch, Player, player
from .kernels import scale_ptx

__all__ = ["memory_left", "player", "torch"]
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)
PTX = scale_ptx().encode()


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that took the slow path, by name; nothing is known from the tests before."""
    slow: list[str] = []

    def launch(device: Any, image: Any, call: Any, parameters: Any) -> Any:
        slow.append(call.name)
        return calls.launch(device, image, call, parameters)

    for module in (image, source, metal):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(image, "_SEEN", SeenCalls())
    return slow


def scale(x: Any, factor: Any = 2.0, **change: Any) -> list[Any]:
    arguments: dict[str, Any] = {
        "name": "scale",
        "compiled_source": PTX,
        "inputs": [x],
        "output_shapes": [(32,)],
        "output_dtypes": ["float32"],
        "scalars": [factor],
        "grid": (32, 1, 1),
        "threadgroup": (32, 1, 1),
    }
    return precompiled_cuda_kernel(**(arguments | change))


def learned(torch: Any, long: list[str], **change: Any) -> Any:
    """A tensor whose `scale` has a fast path now."""
    x = torch.from_numpy(X.copy())
    for _ in range(2):
        scale(x, **change)
    before = len(long)
    scale(x, **change)
    assert len(long) == before
    long.clear()
    return x


def test_a_call_that_comes_again_takes_the_fast_path(player: Player, torch: Any, long: list[str]) -> None:
    x = torch.from_numpy(X.copy())
    for _ in range(3):
        scale(x)
    assert len(long) == 2, "twice the slow path"
    (out,) = scale(x, 3.0)
    np.testing.assert_array_equal(out.numpy(), X * 3)
    assert isinstance(out, torch.Tensor) and out.shape == (32,) and player.launches[-1].stream == 11
    other = torch.from_numpy(X + 1)
    (again,) = scale(other, 5.0, inputs=(other,), grid=[32, 1, 1], output_shapes=[other.shape], stream=4)
    np.testing.assert_array_equal(again.numpy(), (X + 1) * 5)
    assert again.data_ptr() != out.data_ptr()
    assert player.launches[-1].stream == 4
    assert len(long) == 2
    assert (player.launches[-1].grid, player.launches[-1].block) == ((1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"grid": (32.0, 1, 1)}, ArgumentTypeError),
        ({"threadgroup": (32, 1.0, 1)}, ArgumentTypeError),
        ({"output_shapes": [(32.0,)]}, ArgumentTypeError),
        ({"shared_memory": False}, ArgumentTypeError),
        ({"shared_memory": 0.0}, ArgumentTypeError),
        ({"scalars": [2]}, None),  # an int32 in place of a float32 is as long
        ({"scalars": [True]}, ArgumentTypeError),
        ({"scalars": [np.float64(2)]}, ArgumentTypeError),
        ({"scalars": [2.0, 1]}, ArgumentTypeError),
        ({"scalars": 2.0}, ArgumentTypeError),
        ({"scalars": ["2"]}, ArgumentTypeError),
        ({"inputs": "x"}, ArgumentTypeError),
        ({"compiled_source": PTX.decode()}, ArgumentTypeError),
        ({"compiled_source": bytearray(PTX)}, None),
        ({"compiled_source": memoryview(bytearray(PTX))}, None),
        ({"stream": True}, ArgumentTypeError),
        ({"init_value": "1"}, ArgumentTypeError),
        ({"init_value": float("nan")}, None),
        ({"name": "scales"}, Exception),
    ],
)
def test_calls_that_only_look_alike(player: Player, torch: Any, long: list[str], change: Any, error: Any) -> None:
    x = learned(torch, long)
    launches = len(player.launches)
    if error is None:
        scale(x, **change)
        assert long == ["scale"]
    else:
        with pytest.raises(error):
            scale(x, **change)
        assert len(player.launches) == launches


def test_the_split_of_inputs_and_scalars_is_part_of_a_call(player: Player, torch: Any, long: list[str]) -> None:
    x = learned(torch, long)
    with pytest.raises(ArgumentTypeError, match="parameters of"):  # a scalar among the inputs is an array
        scale(x, inputs=[x, 2.0], scalars=[])
    rows = torch.from_numpy(X.copy()).reshape(1, 32)
    with pytest.raises(ArgumentTypeError, match="must be a list"):
        scale(x, inputs=rows)


def test_scalars_that_do_not_fit(player: Player, torch: Any, long: list[str]) -> None:
    x = learned(torch, long, scalars=[7])
    scale(x, scalars=[-(2**31)])
    assert player.launches[-1].params[2] == (2**31).to_bytes(4, "little") and long == []
    with pytest.raises(ArgumentValueError, match=r"np\.int64"):
        scale(x, scalars=[2**31])
    x = learned(torch, long)
    scale(x, 1e300)
    assert long == ["scale"] and np.frombuffer(player.launches[-1].params[2], np.float32)[0] == np.inf


def test_arrays_that_take_more_than_a_launch(player: Player, torch: Any, long: list[str]) -> None:
    for name, given in (("gaps", torch.zeros(64)[::2]), ("misaligned", torch.zeros(33)[1:])):
        for _ in range(3):
            scale(given, ensure_row_contiguous=True)
        if name == "gaps":
            assert len(long) == 3, "a copy comes first"
        long.clear()
    wide = torch.from_numpy(np.stack([X, X], 1).copy())
    for _ in range(3):
        scale(wide[:, 0])
        assert player.launches[-1].params[0] == wide.data_ptr().to_bytes(8, "little")
    assert len(long) == 2, "as it is, an array with gaps is passed like any other"
    watched = learned(torch, long, grid=(31, 1, 1)).requires_grad_()
    with pytest.raises(ArgumentValueError, match="grad"):
        scale(watched, grid=(31, 1, 1))


def test_an_extent_that_changes_in_place(player: Player, torch: Any, long: list[str]) -> None:
    x, extent = torch.from_numpy(X.copy()), torch.tensor(32)
    for _ in range(3):
        scale(x, grid=(extent, 1, 1), threadgroup=(8, 1, 1))
        assert player.launches[-1].grid == (4, 1, 1)
    extent += 32
    scale(x, grid=(extent, 1, 1), threadgroup=(8, 1, 1))
    assert player.launches[-1].grid == (8, 1, 1)


@pytest.mark.parametrize("value", [0, 2.5, True, -0.0])
def test_fills_are_made_each_time(player: Player, torch: Any, long: list[str], value: Any) -> None:
    x = learned(torch, long, init_value=value)
    found: list[bytes] = []
    play = type(player).__call__

    def look(self: Player, *got: Any) -> int:
        address = int.from_bytes(Launch(*got).params[1], "little")
        found.append(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 128).from_address(address)).tobytes())
        return play(self, *got)

    type(player).__call__ = look
    try:
        scale(x, init_value=value)
    finally:
        type(player).__call__ = play
    assert found == [np.full(32, value, np.float32).tobytes()] and long == []
    scale(x, init_value=5)
    assert long == ["scale"]


def test_a_graph_that_records_takes_the_call(player: Player, torch: Any, long: list[str]) -> None:
    x = learned(torch, long)
    taken: list[Any] = []

    class Recorder:
        def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

        def launch(self, pending: Any) -> list[Any]:
            taken.append(pending)
            return []

    launches = len(player.launches)
    with recording.recording(Recorder()):
        scale(x)
    assert len(taken) == 1 and len(player.launches) == launches


def test_a_launch_that_fails_says_the_same(player: Player, torch: Any, long: list[str]) -> None:
    x = learned(torch, long)
    launches = len(player.launches)
    LIB.fake_fail(701)
    with pytest.raises(LaunchError) as short:
        scale(x)
    LIB.fake_fail(0)
    assert long == [] and len(player.launches) == launches
    assert "kernel 'scale' failed" in str(short.value) and "float32[32]" in str(short.value)
    scale(x)
    assert len(player.launches) == launches + 1


def test_what_is_kept_has_a_bound(player: Player, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeenCalls, "CAPACITY", 4)
    x = torch.from_numpy(X.copy())
    for extent in (*range(32, 42), 32, 32, 32):
        np.testing.assert_array_equal(scale(x, grid=(extent, 1, 1))[0].numpy(), X * 2)
    assert len(image._SEEN._known) <= 4


# --- generated signatures -------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were compiled: to PTX with the parameters of the text's entry, and no more."""
    texts: list[str] = []
    sizes = {"Shape": 40, "Strides": 80, "PerAxis<int>": 40, "PerAxis<int64_t>": 80, "Bounds": 16, "int": 4}

    def compile(self: Any, text: str, *more: Any) -> bytes:
        texts.append(text)
        head = text.split('extern "C" __global__ void ')[1].split(" {")[0]
        entry, _, listed = head.partition("(")
        params: list[str] = []
        for part in listed.rstrip(")").split(", "):
            kind = part.removeprefix("const ").removeprefix("__grid_constant__ ").rpartition(" ")[0]
            nbytes = 8 if kind.endswith("*") else sizes.get(kind, 24)
            params.append(f".param .align 8 .b8 p{len(params)}[{nbytes}]")
        return f".version 8.0\n.target sm_90a\n.visible .entry {entry}({', '.join(params)})\n{{ ret; }}\n".encode()

    monkeypatch.setattr(body.CustomBody, "compile", compile)
    return texts


def same_launches(player: Player, call: Callable[[], Any], outputs: list[int]) -> None:
    """The slow path twice, and then the fast path: all that the driver is told is the same, but for the outputs."""
    told: list[Any] = []
    for _ in range(4):
        call()
        last = player.launches[-1]
        params = [None if i in outputs else p for i, p in enumerate(last.params)]
        told.append((last.name, params, last.grid, last.block, last.smem, last.stream))
    assert all(each == told[0] for each in told)


def test_cuda_kernels(player: Player, torch: Any, long: list[str], compiled: list[str]) -> None:
    text = "o[0] = x[0] + x_shape[0] + y_strides[1] + x_ndim;"
    kernel = cuda_kernel("sum", ["x", "y"], ["o", "p"], text, shared_memory=512)
    x, y = torch.zeros(4, 5), torch.zeros(8, 6)

    def call(**change: Any) -> list[Any]:
        arguments: dict[str, Any] = {
            "inputs": [x, y],
            "output_shapes": [(32,), (2, 3)],
            "output_dtypes": [np.float32, torch.int64],
            "grid": (70, 2, 1),
            "threadgroup": (32, 1, 1),
            "template": [("T", torch.float32), ("N", 1)],
        }
        return kernel(**(arguments | change))

    same_launches(player, call, [5, 6])
    assert len(long) == 2 and len(compiled) == 1
    first, second = call()
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((32,), torch.float32, (2, 3), torch.int64)
    call(template=[("T", torch.float32), ("N", True)])
    assert len(compiled) == 2, "True is not 1"
    long.clear()
    same_launches(player, lambda: call(exact_grid=True), [5, 6])
    assert len(long) == 2 and len(compiled) == 3
    long.clear()
    call(inputs=[x.double(), y])
    assert len(compiled) == 4 and len(long) == 1
    long.clear()
    z = torch.zeros(9, 5)[:4]
    same_launches(player, lambda: call(inputs=[z, y], template={"T": "int8"}), [5, 6])
    assert len(long) == 2
    long.clear()
    with pytest.raises(ArgumentValueError):
        call(template=[("T", torch.float32), ("N", 1.0)])


def watched(monkeypatch: pytest.MonkeyPatch, sizes: dict[int, int]) -> list[list[bytes]]:
    """For each launch, what lies at the addresses that are its parameters: so many bytes for each number of one."""
    found: list[list[bytes]] = []
    play = Player.__call__

    def look(self: Player, *got: Any) -> int:
        params = Launch(*got).params
        found.append([ctypes.string_at(int.from_bytes(params[i], "little"), n) for i, n in sizes.items()])
        return play(self, *got)

    monkeypatch.setattr(Player, "__call__", look)
    return found


SCALARS: list[tuple[Any, Any, Any, type]] = [  # a value, others of its type, its like that differs in type, the dtype
    (True, [False, True], 1, np.bool_),
    (7, [-1, 0, 2**31 - 1, -(2**31)], 7.0, np.int32),
    (2**31, [-(2**31) - 1, 2**63 - 1], np.int64(5), np.int64),
    (2.5, [0.0, -0.0, float("inf"), 1e-300], 2, np.float32),
    (1 + 2j, [0j, complex(-0.0, 3)], 1.0, np.complex64),
    (np.float64(2.5), [np.float64(1e300)], 2.5, np.float64),
    (np.uint8(3), [np.uint8(255)], np.int8(3), np.uint8),
    (np.float16(3), [np.float16(-1)], np.uint16(3), np.float16),
    (np.complex64(3j), [np.complex64(1)], 3j, np.complex64),
]


@pytest.mark.parametrize("make", [cuda_kernel, metal_kernel])
@pytest.mark.parametrize(
    ("value", "others", "unlike", "dtype"), SCALARS, ids=lambda v: str(v) if np.isscalar(v) else ""
)
def test_scalars_among_the_inputs(
    player: Player,
    torch: Any,
    long: list[str],
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    value: Any,
    others: list[Any],
    unlike: Any,
    dtype: Any,
) -> None:
    if make is metal_kernel and dtype is np.float64:
        pytest.skip("Metal has no double")
    kernel = make("both", ["x", "s", "t"], ["o"], "o[0] = x[0] + s + t;")
    x = torch.zeros(32)
    size = np.dtype(dtype).itemsize
    found = watched(monkeypatch, {1: size, 2: 4})

    def call(given: Any, stream: Any = None) -> Any:
        return kernel(
            inputs=[x, given, 0.5],
            output_shapes=[(32,)],
            output_dtypes=["float32"],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            stream=stream,
        )

    same_launches(player, lambda: call(value), [1, 2, 3])
    assert len(long) == 2 and len(compiled) == 1
    for other in [*others, value]:
        call(other)
        call(other, stream=5)
        wanted = [np.array(other).astype(dtype).tobytes(), np.float32(0.5).tobytes()]
        assert found[-2:] == [wanted] * 2, "each call has its own value"
        assert player.launches[-1].stream == 5
    assert len(long) == 2, "another value is no other call"
    for _ in range(3):
        call(unlike)
    assert len(long) == 3, "another type is, and then it is known too"
    call(value)
    assert len(long) == 3


def test_ints_that_change_their_width(
    player: Player, torch: Any, long: list[str], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = cuda_kernel("wide", ["x", "n"], ["o"], "o[0] = x[0] + n[0];")
    x = torch.zeros(32)
    found = watched(monkeypatch, {1: 8})

    def call(n: int) -> None:
        kernel(inputs=[x, n], output_shapes=[(32,)], output_dtypes=["float32"], grid=(32, 1, 1), threadgroup=(32, 1, 1))

    for _ in range(2):
        call(1), call(2**40)
    assert len(compiled) == 2, "int32 and int64"
    long.clear()
    for n in (5, 2**41, -6, -(2**42)):
        call(n)
        size = 4 if abs(n) < 2**31 else 8
        assert found[-1][0][:size] == n.to_bytes(size, "little", signed=True)
    assert (long, len(compiled)) == ([], 2)
    with pytest.raises(ArgumentValueError, match="64 bits"):
        call(2**63)


def test_a_value_that_takes_the_long_way_teaches_nothing(
    player: Player, torch: Any, long: list[str], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = cuda_kernel("far", ["x", "s"], ["o"], "o[0] = x[0] + s[0];")
    x = torch.zeros(32)
    found = watched(monkeypatch, {1: 4})

    def call(s: float) -> None:
        kernel(inputs=[x, s], output_shapes=[(32,)], output_dtypes=["float32"], grid=(32, 1, 1), threadgroup=(32, 1, 1))

    for _ in range(4):
        call(1e300)
    assert len(long) == 4 and found[-1] == [np.float32("inf").tobytes()]
    (fast,) = kernel._seen._known.values()
    assert not fast._known, "no function was made that would never be used"
    call(2.5), call(2.5)
    assert len(long) == 5


def test_no_memory_for_the_scalars_among_the_inputs(
    player: Player, torch: Any, long: list[str], compiled: list[str], memory_left: list[Any]
) -> None:
    kernel = cuda_kernel("add", ["x", "s"], ["o"], "o[0] = x[0] + s[0];")
    arguments: dict[str, Any] = {
        "inputs": [torch.zeros(32), 2.5],
        "output_dtypes": ["float32"],
        "grid": (32, 1, 1),
        "threadgroup": (32, 1, 1),
    }
    for _ in range(3):
        kernel(output_shapes=[(32,)], **arguments)
    assert len(long) == 2
    (fast,) = kernel._seen._known.values()
    (run,) = fast._recent
    names: dict[str, Any] = run.__globals__
    memory_left.append(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(OutOfMemoryError, match=r"no memory for output 0 of kernel 'add': float32\[32\]"):
        kernel(output_shapes=[(32,)], **arguments)
    names["new_o0"] = lambda: torch.empty(32)
    with pytest.raises(OutOfMemoryError, match=r"no memory for scalars among the inputs of kernel 'add'"):
        kernel(output_shapes=[(32,)], **arguments)
    memory_left.clear()
    LIB.fake_fail(2)
    with pytest.raises(OutOfMemoryError, match="preparing kernel"):
        kernel(output_shapes=[(32,)], **arguments)
    LIB.fake_fail(0)
    kernel(output_shapes=[(32,)], **arguments)
    assert len(long) == 2


def test_rank_0_tensors_on_the_gpu_are_arrays(player: Player, torch: Any, long: list[str], compiled: list[str]) -> None:
    kernel = cuda_kernel("sum", ["x", "s"], ["o"], "o[0] = x[0] + s[0];")
    x = torch.zeros(32)
    for value in (1.0, 2.0, 3.0, 4.0):
        s = torch.tensor(value)
        kernel(inputs=[x, s], output_shapes=[(32,)], output_dtypes=["float32"], grid=(32, 1, 1), threadgroup=(32, 1, 1))
        assert player.launches[-1].params[1] == s.data_ptr().to_bytes(8, "little")
    assert len(long) == 2


def test_cuda_kernels_tell_what_they_compile(player: Player, torch: Any, compiled: list[str], capsys: Any) -> None:
    kernel = cuda_kernel("one", ["x"], ["o"], "o[0] = x[0];")
    for _ in range(3):
        kernel(
            inputs=[torch.zeros(4)],
            output_shapes=[(4,)],
            output_dtypes=["float32"],
            grid=(4, 1, 1),
            threadgroup=(4, 1, 1),
            verbose=True,
        )
    assert capsys.readouterr().out.count("Generated source") == 3


def test_metal_kernels(player: Player, torch: Any, long: list[str], compiled: list[str]) -> None:
    text = "uint i = thread_position_in_grid.x; o[i] = x[i] + y[i] + x_strides[0];"
    kernel = metal_kernel("add", ["x", "y"], ["o"], text)
    x, y = torch.zeros(4, 8), torch.zeros(32)

    def call(**change: Any) -> list[Any]:
        arguments: dict[str, Any] = {
            "inputs": [x, y],
            "output_shapes": [(32,)],
            "output_dtypes": [np.float32],
            "grid": (32, 1, 1),
            "threadgroup": (8, 1, 1),
        }
        return kernel(**(arguments | change))

    same_launches(player, call, [3])
    assert len(long) == 2
    long.clear()
    same_launches(player, lambda: call(grid=(33, 1, 1)), [3])
    same_launches(player, lambda: call(inputs=[x.T, y], ensure_row_contiguous=False), [3])
    assert len(long) == 4
    long.clear()
    for _ in range(3):
        call(inputs=[x.T, y])
    assert len(long) == 3, "a copy comes first"
    named = {"output_shapes": {"o": (32,)}, "output_dtypes": {"o": np.float32}}
    assert list(call(inputs={"x": x, "y": y}, **named)) == ["o"]
