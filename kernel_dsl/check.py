"""`kd.check`: PTX, images and traced kernels in the interpreter, under many schedules, with a report of every hazard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .boundary import checks_itself, public
from .diagnostics import of_kind
from .named import Named

if TYPE_CHECKING:
    from kernel_dsl.runtime.check import Call, Report

_SCHEDULES = ("eager", "late", "random:8")
_OWN = (
    "image",
    "grid",
    "block",
    "cluster",
    "smem",
    "entry",
    "target",
    "schedules",
    "ignore",
    "out",
    "symbols",
    "launches",
)


@public
class Check(Named):
    """Run a kernel on the CPU under each of `schedules`, and report every hazard. No GPU is needed.

    `image`: PTX (text, bytes or a path), a fat binary or cubin that holds PTX, or a `@kd.kernel`; `args`: an argument for
    each parameter of the entry, in its order. `kd.check.launch`, `.sequence`, `.triton` and `.tensor_map` are beside it.
    """

    _called = "check"

    @checks_itself(*_OWN)
    def __call__(
        self,
        image: Any,
        *args: Any,
        grid: Any = None,
        block: Any = None,
        cluster: Any = None,
        smem: Any = None,
        entry: Any = None,
        target: Any = None,
        schedules: Any = _SCHEDULES,
        ignore: Any = (),
        out: Any = None,
        symbols: Any = None,
        step_budget: int | None = None,
    ) -> Report:
        """Run a kernel on the CPU under each of `schedules`, and report every hazard. No GPU is needed.

        `image`: PTX (text, bytes or a path), a cubin or fat binary that holds PTX, or a `@kd.kernel`. `args` of an
        image are one for each parameter of `entry` (by default the only one), in its order: arrays, which are changed
        in place (those on a GPU are copied), Python ints and floats in the parameter's declared type, NumPy scalars,
        bytes for a by-value structure, tuples, dictionaries, dataclasses, ctypes structures and NumPy records for one with
        arrays inside, `kd.check.tensor_map(...)`, None for a null pointer. `grid` counts blocks;
        `block` and `cluster` are an int or a tuple, `smem` bytes of dynamic SMEM. A traced kernel takes its inputs, has
        a launch of its own, and may be given `out=` arrays. `symbols`: the initial contents of `__constant__` and
        `__device__` variables, as arrays or bytes by name. `target`: the device, such as "sm_80"; by default the
        image's.

        `schedules`: "eager", "late", "random", "random:N" for N seeds. `ignore`: kinds of hazard to leave out of the
        report. `step_budget`: the number of instructions, each counted once for all warps that execute it together,
        after which a run ends with the hazard `step_budget`. By default it ends after 10,000,000 instructions, or after
        64,000 in a row without a sign that it will end (docs/checker.md).

        Hazards are in the report and raise nothing. Before anything runs, it raises `PtxError` (a `ValueError`), with
        line and column, for PTX that an assembler, a linker or the target refuses, and a `TypeError` or `ValueError`
        for wrong arguments.
        """
        from kernel_dsl.runtime.check import check_calls

        call = _call(image, args, grid, block, cluster, smem, entry, target, out, symbols)
        return check_calls([call], schedules, ignore, step_budget)

    @checks_itself(*_OWN)
    def launch(
        self,
        image: Any,
        *args: Any,
        grid: Any = None,
        block: Any = None,
        cluster: Any = None,
        smem: Any = None,
        entry: Any = None,
        target: Any = None,
        out: Any = None,
        symbols: Any = None,
        programmatic_dependent_launch: bool | None = None,
    ) -> Call:
        """One launch for `kd.check.sequence`; the arguments of `kd.check`. Nothing runs.

        `programmatic_dependent_launch`, for an image: this launch has the CUDA launch attribute of that name. It may
        start once the launch before it has executed `griddepcontrol.launch_dependents`; the two overlap until this one
        executes `griddepcontrol.wait`. A traced kernel has the attribute if its body uses these instructions.
        """
        call = _call(image, args, grid, block, cluster, smem, entry, target, out, symbols)
        return call.starting_early(programmatic_dependent_launch)

    @checks_itself(*_OWN)
    def sequence(
        self,
        launches: Any,
        *,
        schedules: Any = _SCHEDULES,
        ignore: Any = (),
        step_budget: int | None = None,
    ) -> Report:
        """Launches that follow one another in a stream, as one check: an array that two of them name is one memory.

        `launches`: `kd.check.launch(...)`s, or tuples `(image, *args)` and `(image, *args, {"grid": ..., ...})`, whose
        last item holds keywords of `kd.check.launch`. `Report.outputs` is a list, an entry for each launch.
        """
        from kernel_dsl.runtime.check import check_calls

        from .errors import BadArgumentType

        if not isinstance(launches, (list, tuple)):
            what = f"launches is {of_kind(launches)}"
            raise BadArgumentType(op="sequence", what=what, hint="a list of `kd.check.launch(...)`")
        return check_calls([self._as_call(x) for x in launches], schedules, ignore, step_budget, several=True)

    def _as_call(self, x: Any) -> Call:
        from kernel_dsl.runtime.check import Call

        from .errors import BadArgumentType

        if isinstance(x, Call):
            return x
        if isinstance(x, (tuple, list)) and x:
            options = x[-1] if isinstance(x[-1], dict) and len(x) > 1 else {}
            return self.launch(*(x[:-1] if options else x), **options)
        what = f"a launch is {type(x).__name__}"
        raise BadArgumentType(op="sequence", what=what, hint="`kd.check.launch(image, *args, grid=, block=)`")

    @checks_itself(*_OWN)
    def triton(
        self, target: Any = "sm_90a", *, schedules: Any = _SCHEDULES, ignore: Any = (), step_budget: int | None = None
    ) -> Any:
        """A context in which Triton's launches run in the interpreter.

        The installed Triton compiles them for `target`, without a GPU. Kernels take NumPy arrays and CPU tensors, and
        change them in place. The context's value has `reports`, with one `Report` for each launch, and
        `raise_for_hazards()`. Raises `DeviceError` where Triton is not installed.
        """
        from kernel_dsl.runtime.check.triton import launches

        return launches(target, schedules, ignore, step_budget)

    @checks_itself("array", "box", "swizzle")
    def tensor_map(self, array: Any, box: Any, *, swizzle: Any = 0, fill_nan: bool = False) -> Any:
        """A TMA descriptor over `array`, for a parameter `.align 64 .b8 [128]`: what cuTensorMapEncodeTiled makes.

        `box`: the box's extents in elements, outermost first, one for each axis; `swizzle`: 0, 32, 64 or 128 bytes;
        `fill_nan`: loads outside of the array give NaN and not zero. Elements of bool are those of UINT8, and of complex64
        those of UINT64: the driver has no types of their own.

        Raises:
            ArgumentTypeError: for what is no array, and for extents that are no ints.
            ArgumentValueError: if the driver would refuse the map, for example of an empty array.
        """
        from kernel_dsl.runtime.check.tensor_maps import tensor_map

        return tensor_map(array, box, swizzle, fill_nan)

    @checks_itself("array", "pixels", "channels", "lower", "upper", "strides", "swizzle")
    def im2col_map(
        self,
        array: Any,
        pixels: Any,
        channels: Any,
        *,
        lower: Any = 0,
        upper: Any = 0,
        strides: Any = 1,
        swizzle: Any = 0,
        fill_nan: bool = False,
    ) -> Any:
        """A TMA descriptor of im2col mode over `array`: what cuTensorMapEncodeIm2col makes, for tensor copies with `.im2col`.

        `array`: (N, ..., C) with one to three axes between. A copy brings `channels` elements of each of `pixels` pixels.
        `lower`, `upper`, `strides`: ints, one for each axis between, or one for all: the bounding box begins at `lower`, and
        ends `upper` elements after the end of the array (a convolution with padding p and a filter of k has -p and p - k + 1);
        pixels are `strides` apart. `swizzle` and `fill_nan` are those of `tensor_map`.
        """
        from kernel_dsl.runtime.check.tensor_maps import im2col_map

        return im2col_map(array, pixels, channels, lower, upper, strides, swizzle, fill_nan)


def _call(
    image: Any,
    args: tuple[Any, ...],
    grid: Any,
    block: Any,
    cluster: Any,
    smem: Any,
    entry: Any,
    target: Any,
    out: Any,
    symbols: Any,
) -> Call:
    from kernel_dsl.runtime.check import Call

    from .kernel import Kernel

    run = _run_kernel if isinstance(image, Kernel) else None
    return Call(image, args, grid, block, cluster, smem, entry, target, out, run, symbols)


def _run_kernel(kernel: Any, args: Sequence[Any], out: Any) -> Sequence[Any]:
    """Call a traced kernel on the checking device. Returns its outputs, leaf by leaf."""
    return kernel._check_call(tuple(args), out)


check: Check = Check()
