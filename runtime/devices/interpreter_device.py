"""The CPU as a device: kernels run as PTX in the interpreter, on host memory, in place."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernel_dsl.compiled import Assembled, CompiledKernel, LaunchAttributes, PointerParam, ReportNames, TensorMapParam
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.launch_plan import LaunchPlan, LaunchStep, OffsetParam, ScratchSpec, plan_of, slot, target_of
from kernel_dsl.target import DEFAULT, TARGETS, Target

from .. import interpreter
from ..arrays.array_view import CPU, ArrayView
from ..errors import ArgumentTypeError, DeviceError, LoadError, OutOfMemoryError
from ..interpreter import Launches, Module, RunReport
from ..interpreter.machine.memory import SLOT_BITS
from ..interpreter.machine.tensor_map import encode_tensor_map
from . import memory
from .device import LoadedImage
from .launch import check_attributes
from .params import ParamLayout
from .tensormap import TensorMapPlan, array_of, plan

# The first bytes of images that are not PTX: an ELF file (cubin) and the two wrappings of a fat binary.
_BINARIES = {
    b"\x7fELF": "a cubin",
    b"\x50\xed\x55\xba": "a fat binary",
    b"\xb1\x43\x62\x46": "a fat binary",
}


class InterpreterDevice:
    """The PTX interpreter. `params`: its InterpretParams."""

    kind = "interpreter"
    index = 0

    def __init__(self, params: InterpretParams | None = None, target: Target = DEFAULT) -> None:
        self.params: InterpretParams = params or InterpretParams()
        self.target: Target = target

    def __repr__(self) -> str:
        return f"<InterpreterDevice {self.params}>"

    def load(self, kernel: CompiledKernel | Assembled) -> InterpreterLoaded:
        """Parse a kernel's PTX. Raises LoadError for PTX that an assembler would refuse."""
        compiled = kernel.kernel if isinstance(kernel, Assembled) else kernel
        target = TARGETS.get(compiled.target, self.target)
        if not compiled.launch.empty:
            check_attributes(compiled.launch, target, compiled.name)
        with lend(compiled.ptx):
            pass
        return InterpreterLoaded(self, plan_of(compiled), target, compiled)

    def load_image(self, image: bytes | str, entry: str) -> InterpreterImage:
        """One entry of a PTX text.

        Cubins and fat binaries hold machine code, which only a GPU runs.
        """
        if isinstance(image, (bytes, bytearray)):
            kind = _BINARIES.get(bytes(image[:4]))
            if kind:
                raise DeviceError(
                    f"the image of {entry!r} is {kind}: machine code, which only a GPU runs. "
                    "The interpreter takes PTX; pass the PTX text, or run on a GPU with "
                    "interpret=False"
                )
            try:
                image = bytes(image).rstrip(b"\0").decode()
            except UnicodeDecodeError:
                raise LoadError(f"the image of {entry!r} is neither PTX text nor a cubin") from None
        return InterpreterImage(self, image, entry)

    def space(self) -> Space:
        """The memory of a launch. In this class no launches share it."""
        return Space()

    def run(self, launch: Launch) -> None:
        """Run a launch to its end, and print its output. Raises the interpreter's hazards."""
        report = launch.run(self.params, launches=_thread.launches)
        if report.output:
            print(report.output, end="", flush=True)


class _Parsed:
    """Parsed PTX by its text. One run at a time uses a module, because the module owns compiled code."""

    CAPACITY = 64  # texts

    def __init__(self) -> None:
        self._idle: dict[str, list[Module]] = {}

    @contextmanager
    def lend(self, ptx: str) -> Generator[Module]:
        """A module of this text that no other thread runs."""
        idle = self._idle.get(ptx)
        module = idle.pop() if idle else interpreter.parse(ptx)
        try:
            yield module
        finally:
            if ptx not in self._idle and len(self._idle) >= self.CAPACITY:
                self._idle.clear()
            self._idle.setdefault(ptx, []).append(module)


_parsed = _Parsed()
lend: Callable[[str], AbstractContextManager[Module]] = _parsed.lend


class InterpreterLoaded:
    """A launch plan with parsed PTX.

    `kernel`: the compiled kernel; for a custom kernel None, and `image` is its image.
    """

    def __init__(
        self,
        device: InterpreterDevice,
        plan: LaunchPlan,
        target: Target,
        kernel: CompiledKernel | None,
        image: InterpreterImage | None = None,
    ) -> None:
        self.device = device
        self.plan = plan
        self.target = target
        self.kernel = kernel
        self.image = image
        self.layout: ParamLayout = ParamLayout(plan.launch.params if plan.launch else ())

    def changed(self, step: LaunchStep) -> InterpreterLoaded:
        """The same code, launched otherwise."""
        plan = dataclasses.replace(self.plan, steps=(*self.plan.steps[:-1], step))
        return InterpreterLoaded(self.device, plan, self.target, self.kernel, self.image)

    def launch(
        self,
        arrays: Sequence[ArrayView],
        scalars: Sequence[Any],
        stream: int | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        """Run the kernel to its end on host arrays. Raises `kd.HazardError` for hazards."""
        plan, step = self.plan, self.plan.launch
        if step is None:
            return
        everything = [*arrays, *map(_host_scratch, plan.scratch)]
        for earlier in plan.then:
            memory.take(earlier, everything, scalars, 0)
        made = set(map(target_of, plan.then))
        unset = {*fresh, *range(len(arrays), len(everything))} - made
        space = self.device.space()
        placed = self._place(space, step, everything, unset)
        values = self.layout.values(placed, scalars, functools.partial(encode, plan))
        self._run(step, self.layout.split(values), space)
        space.copy_back()

    def _place(
        self, space: Space, step: LaunchStep, arrays: list[ArrayView], unset: Collection[int]
    ) -> list[ArrayView]:
        """Put the arrays into the interpreter's memory: all of a traced kernel's, or those that a custom kernel gets."""
        plan, placed = self.plan, list(arrays)
        # An input and an output that share memory are one allocation.
        written = [view for view, yes in zip(arrays, plan.written, strict=True) if yes]
        names = [*(a.name for a in plan.arrays), *(s.name for s in plan.scratch)]
        order = [(i, i) for i in range(len(arrays))] if plan.traced else _pointers(step)
        for place, i in order:
            view = arrays[i]
            writable = any(w.same_memory(view) for w in written) if plan.guarded else not view.readonly
            name = names[i] or f"{'array' if plan.traced else 'parameter'} {place}"
            roomy = self.image is not None and self.image.roomy
            placed[i] = space.place(view, name, writable, i not in unset, roomy)
        return placed

    def _run(self, step: LaunchStep, params: list[bytes], space: Space) -> None:
        kernel, image = self.kernel, self.image
        ptx = kernel.ptx if kernel else image.ptx if image else ""
        try:
            self.device.run(Launch(ptx, step.entry, params, step.attributes, space, self.target, kernel))
        except interpreter.PtxError as error:
            if image is None:
                raise
            raise image.refused(error) from error


@dataclass(frozen=True)
class Launch:
    """An entry and all that it needs to run: `params` as bytes, with addresses of arrays in `space`."""

    ptx: str
    entry: str
    params: list[bytes]
    attributes: LaunchAttributes
    space: Space
    target: Target
    kernel: CompiledKernel | None = None
    initial: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # initial contents of the module's variables
    others: Sequence[list[bytes]] = ()  # parameters on further devices

    @property
    def name(self) -> str:
        return self.kernel.name if self.kernel else self.entry

    def is_ordered(self) -> bool:
        """Whether every schedule gives the same results and reports."""
        with lend(self.ptx) as module:
            return interpreter.is_ordered(module, self.entry)

    def run(
        self,
        config: InterpretParams,
        report: RunReport | None = None,
        patience: int = 0,
        launches: Launches | None = None,
    ) -> RunReport:
        """Run it once. `report`, `patience` and `launches`: see `interpreter.run`."""
        kernel, attributes = self.kernel, self.attributes
        with lend(self.ptx) as module, _memory():
            return interpreter.run(
                module,
                self.entry,
                self.params,
                grid=attributes.grid,
                block=attributes.block,
                cluster=attributes.cluster,
                dynamic_smem=attributes.dynamic_smem,
                memory=self.space.memory,
                target=self.target.name,
                params_cfg=config,
                names=kernel.names if kernel else ReportNames(),
                lines=kernel.lines if kernel else {},
                kernel_name=self.name,
                launches=launches,
                overlaps=attributes.programmatic_dependent_launch,
                report=report,
                patience=patience,
                initial=self.initial,
                others=self.others,
            )


@contextmanager
def _memory() -> Generator[None]:
    """Turn a MemoryError of the interpreter into an error of this project."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(str(error) or "the interpreter has no memory left") from None


class _Thread(threading.local):
    """State from one launch of a thread to its next: they run in order, as in a stream."""

    def __init__(self) -> None:
        self.launches = interpreter.Launches()


_thread = _Thread()


def _pointers(step: LaunchStep) -> list[tuple[int, int]]:
    """(number of the parameter, array) for each parameter that is or contains an address."""
    kinds = (PointerParam, OffsetParam, TensorMapParam)
    return [(n, p.array) for n, p in enumerate(step.params) if isinstance(p, kinds)]


def _host_scratch(spec: ScratchSpec) -> ArrayView:
    return memory.host_view(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)


class InterpreterImage(LoadedImage):
    """One entry of a raw PTX text, parsed. `param_sizes`: bytes of each parameter."""

    def __init__(self, device: InterpreterDevice, ptx: str, entry: str) -> None:
        self.device = device
        self.entry = entry
        self.ptx = ptx
        try:
            with lend(ptx) as module:
                entries = {name: f for name, f in module.functions.items() if f.entry}
        except interpreter.PtxError as error:
            raise self.refused(error) from error
        if entry not in entries:
            listed = ", ".join(map(repr, entries)) or "it has none"
            raise LoadError(f"the image has no entry {entry!r}; its entries: {listed}")
        self.param_sizes: list[int] = [p.size for p in entries[entry].params]
        # The narrowest compare-and-swap has 16 bits, so 8-bit atomics reach past the end of an odd number of bytes. GPU
        # allocations have room there.
        self.roomy: bool = re.search(r"\batom(?:\.\w+)*\.b16\b", ptx) is not None

    def refused(self, error: Exception) -> LoadError:
        """An assembler's error in the form of the error that a GPU's driver would give."""
        return LoadError(f"the image of {self.entry!r} does not load: {str(error).partition('] ')[2]}")

    def prepare(self, plan: LaunchPlan) -> InterpreterLoaded:
        """See `LoadedImage.prepare`."""
        step = plan.launch
        if step is not None:
            check_attributes(step.attributes, self.device.target, self.entry)
            sizes = [slot(param)[0] for param in step.params]
            if sizes != self.param_sizes:
                raise ArgumentTypeError(
                    f"entry {self.entry!r} takes {len(self.param_sizes)} parameters of {self.param_sizes} bytes, "
                    f"and got {len(sizes)} of {sizes}"
                )
        return InterpreterLoaded(self.device, plan, self.device.target, None, self)


class Space:
    """The interpreter's global memory for one launch, and the host arrays in it."""

    def __init__(self) -> None:
        self.memory: interpreter.GlobalMemory = interpreter.GlobalMemory()
        self._placed: list[tuple[ArrayView, ArrayView]] = []
        self._copies: list[tuple[Any, Any]] = []

    def place(self, view: ArrayView, name: str, writable: bool, initialised: bool, roomy: bool = False) -> ArrayView:
        """Give `view` an address; with one more byte if it is `roomy` and has an odd number of bytes.

        The same array gets the same address; others do not overlap.
        """
        if view.device != CPU:
            where = f"{view.device[0]}:{view.device[1]}"
            raise DeviceError(f"the interpreter reads host memory, and {name} lies on {where}")
        for known, placed in self._placed:
            if known.size and known.same_memory(view):
                return placed
        host = memory.host_array(view)
        odd = roomy and writable and view.contiguous and view.nbytes % 2 == 1
        address = self.memory.allocate(host, name, initialised, writable)
        if odd:
            buffer = self.memory.buffers[address >> SLOT_BITS]
            own, buffer.bytes = buffer.bytes, np.append(buffer.bytes, np.uint8(0))
            self._copies.append((own, buffer.bytes))
        placed = dataclasses.replace(view, address=address)
        self._placed.append((view, placed))
        return placed

    def copy_back(self) -> None:
        """Copy arrays with extra room back to their own memory."""
        for own, roomy in self._copies:
            own[...] = roomy[:-1]


def encode(launch: LaunchPlan, param: TensorMapParam, view: ArrayView) -> bytes:
    """The descriptor of a parameter."""
    fields = plan(param, view, array_of(param, launch))
    return bytes(128) if fields is None else encode_interpreter(fields)


def encode_interpreter(fields: TensorMapPlan) -> bytes:
    """The descriptor in the interpreter's own encoding."""
    return encode_tensor_map(
        fields.address,
        fields.dtype,
        fields.extents,
        fields.strides,
        fields.box,
        (1,) * len(fields.extents),
        fields.swizzle,
        fields.oob_fill,
    )
