"""`call` and `bind` on the interpreter, with hand-written PTX and every framework that lives on a
CPU.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import weakref
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import runtime
from kernel_dsl.compiled import LaunchAttributes, OutputSpec, Workspace
from kernel_dsl.dtypes import bfloat16, float32
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.runtime import interpreter
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import interpreter_device, pick_device
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError, DeviceError, OutOfMemoryError
from kernel_dsl.runtime.plan.dispatch import MISS, FastCalls, signature_of

from .gpu.support import tile_kernel
from .kernels import STRIDES, scale, scale_ptx

X = np.random.default_rng(0).standard_normal(32).astype(np.float32)
EMPTY = LaunchAttributes((0, 1, 1), (32, 1, 1), empty=True)

# out[i] = s * x[i], with the strides (elements) of x and out as the fourth and fifth parameter
STRIDED = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(
  .param .u64 p0, .param .u64 p1, .param .f32 p2, .param .u64 p3, .param .u64 p4
)
{
  .reg .b32 %r<3>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.param.f32 %f1, [p2];
  ld.param.u64 %rd6, [p3];
  ld.param.u64 %rd7, [p4];
  mov.u32 %r1, %tid.x;
  cvt.u64.u32 %rd3, %r1;
  mul.lo.s64 %rd8, %rd3, %rd6;
  mul.lo.s64 %rd9, %rd3, %rd7;
  shl.b64 %rd10, %rd8, 2;
  shl.b64 %rd11, %rd9, 2;
  add.s64 %rd4, %rd1, %rd10;
  add.s64 %rd5, %rd2, %rd11;
  ld.global.f32 %f2, [%rd4];
  mul.rn.f32 %f3, %f2, %f1;
  st.global.f32 [%rd5], %f3;
  ret;
}
"""


def run(kernel: Any, *inputs: Any, scalars: Any = (2.0,), out: Any = None) -> Any:
    return runtime.call(interpreter_device().load(kernel), inputs, scalars, out)[0]


def test_numpy() -> None:
    kernel = scale()
    out = run(kernel, X)
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, X * 2)
    mine = np.zeros(32, np.float32)
    assert run(kernel, X, out=[mine]) is mine
    np.testing.assert_array_equal(mine, X * 2)


@dataclasses.dataclass
class Scaled:
    """A body that is an object, and can't be hashed."""

    by: float

    def __call__(self, x: Any, /, factor: Any, out: Any) -> None:
        out[...] = x[...] * factor * self.by


@pytest.mark.parametrize("static", [False, True])
def test_outputs_and_scratch_have_no_names_in_a_call(static: bool) -> None:
    x = np.arange(4, dtype=np.float32)
    made = kd.ShapeDtypeStruct((4,), kd.float32)

    @kd.kernel(
        out_type=(made, made) if static else lambda x, y: (x, y),
        scratch_types=[kd.SMEM((4,), kd.float32)],
        input_output_aliases={0: 0},
        interpret=True,
    )
    def body(x: Any, y: Any, first: Any, second: Any, tile: Any) -> None:
        tile[...] = x[...]
        second[...] = tile[...] + y[...]

    assert body(y=x, x=x)[1].tolist() == [0, 2, 4, 6]
    for name in ("first", "tile"):
        with pytest.raises(kd.Error, match=f"(?s)'{name}' is not one of its inputs.*its inputs are x, y.*by `out=`"):
            body(x, x, **{name: x})


def test_inputs_by_name() -> None:
    """Bodies of every kind take inputs by name, and a kernel keeps no body alive."""
    made = kd.ShapeDtypeStruct((4,), kd.float32)
    x = np.arange(4, dtype=np.float32)
    kernel = kd.kernel(Scaled(2.0), out_type=made, name="scaled", interpret=True)
    for result in (kernel(x, factor=3.0), kernel(factor=3.0, x=x), kernel.bind(x, factor=3.0)()):
        assert result.tolist() == [0, 6, 12, 18]
    assert kernel.profile(x, factor=3.0).result.tolist() == [0, 6, 12, 18]
    for args, named, words in (
        ((x,), {"x": x}, "'x' is given twice"),
        ((x,), {"fact": 2.0}, "(?s)'fact' is not one of its inputs.*did you mean `factor`"),
        ((x, 2.0), {"out_": x}, "did you mean `out`"),
        ((), {"factor": 2.0}, "the input 'x' is missing"),
    ):
        with pytest.raises(kd.Error, match=words):
            kernel(*args, **named)
    body = Scaled(1.0)
    alive = weakref.ref(body)
    kd.kernel(body, out_type=made, name="scaled", interpret=True).lower(x, factor=3.0)
    del body
    gc.collect()
    assert alive() is None


def test_in_place_and_alias() -> None:
    mine = X.copy()
    run(scale(overlaps=((0, 1),)), mine, out=[mine])
    np.testing.assert_array_equal(mine, X * 2)
    np.testing.assert_array_equal(run(scale(alias=0, launch=EMPTY), X), X)
    other = np.zeros(32, np.float32)
    run(scale(alias=0, launch=EMPTY), X, out=[other])
    np.testing.assert_array_equal(other, X)
    mine = X.copy()
    run(scale(alias=0), mine, out=[mine])
    np.testing.assert_array_equal(mine, X * 2)


def test_strided_arrays_in_place_in_memory() -> None:
    kernel = dataclasses.replace(scale(contiguous=False, strides=STRIDES), ptx=STRIDED)
    base = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    for source in (base[::2], base[::-2], np.broadcast_to(base[3], (32,)), base[:32]):
        held = np.full(64, 7, np.float32)
        run(kernel, source, out=[held[1::2]])
        np.testing.assert_array_equal(held[1::2], source * 2)
        assert (held[::2] == 7).all()
        backwards = np.zeros(64, np.float32)
        run(kernel, source, out=[backwards[::-2]])
        np.testing.assert_array_equal(backwards[::-2], source * 2)


def test_fills_and_empty_grids() -> None:
    kernel = scale(fill=1.5, launch=EMPTY)
    assert (run(kernel, X) == 1.5).all()
    mine = np.zeros(32, np.float32)
    run(kernel, X, out=[mine])
    assert (mine == 1.5).all()
    assert run(scale((0, 3), launch=EMPTY), np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_workspaces() -> None:
    kernel = scale(workspaces=(Workspace(64, zeroed=True),))
    np.testing.assert_array_equal(run(kernel, X), X * 2)


def test_no_arrays_returns_numpy() -> None:
    kernel = scale(fill=0, launch=EMPTY)
    kernel = dataclasses.replace(kernel, arrays=kernel.arrays[1:], inputs=0)
    out = runtime.call(interpreter_device().load(kernel), [], [1.0])[0]
    assert isinstance(out, np.ndarray) and not out.any()


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    out = run(scale(), x)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, x * 2, rtol=0, atol=0)
    mine = torch.zeros(32)
    assert run(scale(), x, out=[mine]) is mine
    torch.testing.assert_close(mine, x * 2, rtol=0, atol=0)
    filled = run(scale(dtype=bfloat16, fill=2, launch=EMPTY), x.bfloat16())
    assert filled.dtype == torch.bfloat16 and (filled == 2).all()


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    out = run(scale(), x)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(np.asarray(out), X * 2)
    with pytest.raises(ArgumentValueError, match="read-only"):
        run(scale(), x, out=[jax.numpy.zeros(32)])
    for name in ("float64", "int64", "bfloat16", "float8_e4m3fn", "bool"):
        spec = getattr(__import__("kernel_dsl.dtypes", fromlist=["x"]), name if name != "bool" else "bool_")
        kernel = scale(launch=EMPTY)
        kernel = dataclasses.replace(
            kernel,
            arrays=(kernel.arrays[0], dataclasses.replace(kernel.arrays[1], dtype=spec)),
            outputs=(OutputSpec((32,), spec, 1),),
        )
        filled = run(kernel, x)
        assert filled.dtype == spec.numpy and (np.asarray(filled).astype(float) == 1).all()


def test_dlpack_strangers_give_numpy() -> None:
    class Stranger:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    out = run(scale(), Stranger())
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, X * 2)


def test_frameworks_do_not_mix() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentTypeError, match=r"numpy \(array 0\) and torch \(array 1\).*kernels\.py:12"):
        run(scale(), X, out=[torch.zeros(32)])
    with pytest.raises(ArgumentTypeError, match="out= holds 2 arrays"):
        run(scale(), X, out=[X, X])


def test_bad_arrays_touch_nothing() -> None:
    base = np.zeros(64, np.float32)
    kernel = scale(fill=3.0)
    for x, out in ((base[:32], base[16:48]), (base[:32], base[:32])):
        with pytest.raises(ArgumentValueError, match="memory"):
            run(kernel, x, out=[out])
    with pytest.raises(ArgumentValueError, match="shape"):
        run(kernel, base, out=[base[:32]])
    assert not base.any()
    with pytest.raises(ArgumentValueError, match="does not fit"):
        run(
            dataclasses.replace(kernel, params=(*kernel.params[:2], _int_scalar())),
            X,
            scalars=[2**40],
        )


def _int_scalar() -> Any:
    from kernel_dsl.compiled import ScalarParam
    from kernel_dsl.dtypes import int32

    return ScalarParam(0, int32)


def test_two_fresh_outputs() -> None:
    one = scale()
    two = dataclasses.replace(
        one,
        arrays=(*one.arrays, one.arrays[1]),
        outputs=(*one.outputs, OutputSpec((32,), float32, 4)),
    )
    loaded = interpreter_device().load(two)
    first, second = runtime.call(loaded, [X], [2.0])
    np.testing.assert_array_equal(first, X * 2)
    assert (second == 4).all()


def test_bind() -> None:
    kernel = scale()
    data = X.copy()
    bound = runtime.bind(interpreter_device().load(kernel), [data], [3.0], structure=lambda outs: outs[0])
    out = bound()
    np.testing.assert_array_equal(out, X * 3)
    data += 1
    assert bound() is out
    np.testing.assert_array_equal(out, (X + 1) * 3)
    with pytest.raises(ArgumentValueError, match="memory"):
        runtime.bind(interpreter_device().load(kernel), [data], [3.0], out=[data])


def test_bound_jax_arrays_are_new_each_time() -> None:
    jax = pytest.importorskip("jax")
    kernel = scale()
    bound = runtime.bind(interpreter_device().load(kernel), [jax.numpy.asarray(X)], [3.0])
    (first,), (second,) = bound(), bound()
    assert isinstance(first, jax.Array) and first is not second
    np.testing.assert_array_equal(np.asarray(second), X * 3)


def test_images() -> None:
    image = interpreter_device().load_image(scale_ptx().encode(), "scale")
    out = np.zeros(32, np.float32)
    image.launch([view(X), view(out), np.float32(2).tobytes()], grid=(1, 1, 1), block=(32, 1, 1))
    np.testing.assert_array_equal(out, X * 2)
    for data, kind in ((b"\x7fELF....", "a cubin"), (b"\x50\xed\x55\xba....", "a fat binary")):
        with pytest.raises(DeviceError, match=f"is {kind}.*only a GPU runs"):
            interpreter_device().load_image(data, "scale")
    with pytest.raises(ArgumentValueError, match="2048"):
        image.launch([view(X)], grid=(1, 1, 1), block=(2048, 1, 1))


@pytest.mark.parametrize("schedule", ["eager", "late", "random"])
def test_tensor_maps(schedule: str) -> None:
    device = interpreter_device(InterpretParams(schedule=schedule))
    x = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    kernel = tile_kernel(64, 128)
    for part in (x[:, :128].copy(), x[:, 128:]):
        (out,) = runtime.call(device.load(kernel), [part], [])
        np.testing.assert_array_equal(out, part[8:16, 16:48].reshape(-1))
    short = tile_kernel(12, 40)
    small = x[:12, :40].copy()
    padded = np.zeros((8, 32), np.float32)
    padded[:4, :24] = small[8:, 16:]
    np.testing.assert_array_equal(runtime.call(device.load(short), [small], [])[0], padded.reshape(-1))


def test_hazards_are_named() -> None:
    kernel = scale(launch=LaunchAttributes((1, 1, 1), (64, 1, 1)))
    with pytest.raises(interpreter.HazardError) as caught:
        run(kernel, X)
    assert "x_ref" in str(caught.value)


def test_uninitialised_outputs_are_seen() -> None:
    kernel = scale()
    swapped = dataclasses.replace(kernel, params=(kernel.params[1], kernel.params[1], kernel.params[2]))
    with pytest.raises(interpreter.HazardError, match=r"(?s)o_ref"):
        run(swapped, X)
    given = np.ones(32, np.float32)
    run(swapped, X, out=[given])
    assert (given == 2).all(), "a given out= holds what the caller put there"


needs_no_gpu = pytest.mark.skipif(bool(driver.available()), reason="there is a GPU")


@needs_no_gpu
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_no_memory_for_an_output_names_it(framework: str) -> None:
    """The framework's own error is another one in each, and names nothing."""

    @kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct((2**50,), x.dtype), interpret=True, name="vast")
    def vast(x: Any, out: Any) -> None:
        out[0] = x[0]

    x = pytest.importorskip("torch").ones(3) if framework == "torch" else np.ones(3, np.float32)
    with pytest.raises(MemoryError) as caught:
        vast(x)
    assert isinstance(caught.value, OutOfMemoryError) and caught.value.context_survives
    assert caught.value.__cause__ is not None, "what the framework said itself"
    for words in ("output 'out' of kernel 'vast'", "float32[1125899906842624]", "input 'x': float32[3]", __file__):
        assert words in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_device_choice_without_a_gpu(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tool of the suite may have switched loggers off.
    monkeypatch.setattr(logging.getLogger("kernel_dsl"), "disabled", False)
    with pytest.raises(DeviceError, match="interpret=False asks for a GPU"):
        pick_device(False)
    from kernel_dsl.runtime.devices import devices

    devices._say_no_gpu.cache_clear()
    with caplog.at_level(logging.INFO, logger="kernel_dsl"):
        assert pick_device(None).kind == "interpreter"
        pick_device(None)
    assert len(caplog.records) == 1 and "no GPU" in caplog.text
    with pytest.raises(DeviceError, match="no GPU can be used"):
        driver.api()
    assert driver.device_count() == 0 and driver.available().reason


def test_forced_interpreter() -> None:
    assert pick_device(True).kind == "interpreter"
    params = InterpretParams(schedule="late", seed=4)
    chosen = pick_device(params)
    assert chosen.kind == "interpreter" and chosen.params == params  # type: ignore[attr-defined]
    assert chosen.target.name == "sm_90a" and chosen.target.limits.multiprocessors == 132


def test_arrays_on_two_gpus_are_refused() -> None:
    first, second = view(X), view(X)
    first.device, second.device = ("cuda", 0), ("cuda", 1)
    with pytest.raises(ArgumentValueError, match="two GPUs, cuda:0 and cuda:1"):
        pick_device(None, [first, second])


def test_signatures() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros(8, 8)
    same = signature_of((t, 1.0, X))
    assert same == signature_of((t, 2.0, X)) and hash(same) == hash(signature_of((t, 3.0, X)))
    others = [(t.T, 1.0, X), (t, 1, X), (t[:4], 1.0, X), (t.int(), 1.0, X), (t, np.float32(1), X)]
    keys = {signature_of(args) for args in others} | {same}
    assert len(keys) == len(others) + 1
    assert signature_of(([t],)) is None and signature_of((None,)) is None
    assert signature_of((torch.zeros(3, requires_grad=True),)) is None
    frozen = X.copy()
    frozen.flags.writeable = False
    assert signature_of((frozen,)) != signature_of((X,))


def test_interpreted_calls_have_no_fast_way() -> None:
    fast = FastCalls()
    fast.learn((X, 2.0), None, interpreter_device().load(scale()))
    assert fast((X, 2.0)) is MISS
    assert float32.itemsize == 4


@pytest.mark.parametrize(
    ("built", "here", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_89", True),
        ("sm_89", "sm_80", False),
        ("sm_80", "sm_90a", False),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_100a", False),
        ("sm_100a", "sm_120a", False),
    ],
)
def test_machine_code_runs_within_its_major_version(built: str, here: str, runs: bool) -> None:
    """What does not run is compiled from its PTX by the driver."""
    from kernel_dsl.runtime.devices.cuda_device import _runs

    assert _runs(built, here) is runs


@pytest.mark.parametrize("dtype", [">f4", ">i8", "M8[s]", "O", "V4", np.complex128])
def test_an_out_that_no_kernel_can_write_is_told_as_an_output(dtype: Any) -> None:
    @kd.kernel(out_type=lambda x: x)
    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    with pytest.raises(BadCallArgument, match=r"`copy`: output 0 of out= of dtype .* can't be an argument"):
        copy(X, out=np.empty(X.shape, dtype))
