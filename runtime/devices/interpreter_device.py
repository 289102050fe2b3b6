"""The CPU as a device: kernels run as PTX in the interpreter, on host memory, in place."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernel_dsl.compiled import Assembled, CompiledKernel, LaunchAttributes, ReportNames, TensorMapParam
from kernel_dsl.dtypes import uint8
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.target import DEFAULT, TARGETS, Target

from .. import interpreter
from ..arrays.array_view import CPU, ArrayView, row_major
from ..errors import ArgumentTypeError, DeviceError, LoadError
from ..interpreter import Module
from ..interpreter.machine.memory import SLOT_BITS
from ..interpreter.machine.tensor_map import encode_tensor_map
from ..plan import recording
from ..plan.args import ParamLayout
from . import memory
from .device import Dims
from .launch import check_attributes
from .tensormap import TensorMapPlan, array_of, plan

# The first bytes of what is not PTX: an ELF file (cubin) and the two wrappings of a fat binary.
_BINARIES = {
    b"\x7fELF": "a cubin",
    b"\x50\xed\x55\xba": "a fat binary",
    b"\xb1\x43\x62\x46": "a fat binary",
}


class InterpreterDevice:
    """The PTX interpreter. `params`: its InterpretParams."""

    kind = "interpreter"
    index = 0

    def __init__(self, params: InterpretParams | None = None) -> None:
        self.params: InterpretParams = params or InterpretParams()
        self.target: Target = DEFAULT

    def __repr__(self) -> str:
        return f"<InterpreterDevice {self.params}>"

    def load(self, kernel: CompiledKernel | Assembled) -> InterpreterLoaded:
        """Parse a kernel's PTX.

        Raises LoadError where it is not PTX that an assembler would take.
        """
        compiled = kernel.kernel if isinstance(kernel, Assembled) else kernel
        target = TARGETS.get(compiled.target, self.target)
        if not compiled.launch.empty:
            check_attributes(compiled.launch, target, compiled.name)
        return InterpreterLoaded(self, compiled, target)

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


class _Parsed:
    """Parsed PTX, kept by its text and lent to one run at a time: compiled code hangs on it."""

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


class InterpreterLoaded:
    """A compiled kernel whose PTX parses."""

    def __init__(self, device: InterpreterDevice, kernel: CompiledKernel, target: Target) -> None:
        self.device = device
        self.kernel = kernel
        self.target = target
        self.layout: ParamLayout = ParamLayout(kernel.params)
        with _parsed.lend(kernel.ptx):
            pass

    def launch(
        self,
        arrays: Sequence[ArrayView],
        scalars: Sequence[Any],
        stream: int | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        """Run the kernel to its end on host arrays.

        Raises what the interpreter finds (`kd.HazardError`).
        """
        kernel = self.kernel
        if kernel.launch.empty:
            return
        space = _Space()
        assumed = list(enumerate(kernel.arrays))
        placed = [
            space.place(
                view,
                name=kernel.arrays[i].name or f"array {i}",
                # In place, an input and an output are one allocation.
                writable=any(a.written and arrays[j].same_memory(view) for j, a in assumed),
                initialised=i not in fresh,
            )
            for i, view in enumerate(arrays)
        ]
        placed += [space.workspace(w.bytes, w.zeroed, f"workspace {i}") for i, w in enumerate(kernel.workspaces)]
        values = self.layout.values(placed, scalars, functools.partial(_encode, kernel))
        blobs = self.layout.split(values)
        _run(kernel.ptx, kernel.entry, blobs, kernel.launch, space, self.target, self.device.params, kernel)


class InterpreterImage:
    """One entry of a raw PTX text, parsed. `param_sizes`: bytes of each parameter."""

    def __init__(self, device: InterpreterDevice, ptx: str, entry: str) -> None:
        self.device = device
        self.entry = entry
        self.ptx = ptx
        try:
            with _parsed.lend(ptx) as module:
                entries = {name: f for name, f in module.functions.items() if f.entry}
        except interpreter.PtxError as error:
            raise self._refused(error) from error
        if entry not in entries:
            listed = ", ".join(map(repr, entries)) or "it has none"
            raise LoadError(f"the image has no entry {entry!r}; its entries: {listed}")
        self.param_sizes: list[int] = [p.size for p in entries[entry].params]
        # The narrowest compare-and-swap has 16 bits: 8-bit atomics made of it reach past the end of an odd number of
        # bytes, where every allocation of a GPU has some left.
        self._roomy = re.search(r"\batom(?:\.\w+)*\.b16\b", ptx) is not None

    def _refused(self, error: Exception) -> LoadError:
        """What an assembler would refuse, as the error that a GPU's driver would give."""
        return LoadError(f"the image of {self.entry!r} does not load: {str(error).partition('] ')[2]}")

    def launch(
        self,
        params: Sequence[ArrayView | bytes],
        *,
        grid: Dims,
        block: Dims,
        cluster: Dims = (1, 1, 1),
        dynamic_smem: int = 0,
        stream: int | None = None,
        names: Sequence[str] = (),
        fresh: Sequence[int] = (),
    ) -> None:
        """Run the entry to its end.

        Arrays lie in host memory; what it may write is not known, so all of it. `names` and
        `fresh`: see `LoadedImage.launch`.
        """
        if 0 in grid:
            return
        attributes = LaunchAttributes(grid, block, cluster, dynamic_smem)
        check_attributes(attributes, self.device.target, self.entry)
        sink = recording.sink()
        if sink is not None:
            sink.image(self, params, attributes)
            return
        space = _Space()
        blobs: list[bytes] = []
        for i, param in enumerate(params):
            if isinstance(param, ArrayView):
                name = names[i] if i < len(names) else f"parameter {i}"
                placed = space.place(param, name, not param.readonly, i not in fresh, self._roomy)
                param = placed.address.to_bytes(8, "little")
            blobs.append(bytes(param))
        sizes = [len(b) for b in blobs]
        if sizes != self.param_sizes:
            raise ArgumentTypeError(
                f"entry {self.entry!r} takes {len(self.param_sizes)} parameters of {self.param_sizes} bytes, and got "
                f"{len(sizes)} of {sizes}"
            )
        device = self.device
        try:
            _run(self.ptx, self.entry, blobs, attributes, space, device.target, device.params, None)
        except interpreter.PtxError as error:
            raise self._refused(error) from error
        space.copy_back()


class _Thread(threading.local):
    """What the launches of a thread hand on from one to the next: they follow one another as in a stream."""

    def __init__(self) -> None:
        self.launches = interpreter.Launches()


_thread = _Thread()


def _run(
    ptx: str,
    entry: str,
    params: list[bytes],
    attributes: LaunchAttributes,
    space: _Space,
    target: Target,
    config: InterpretParams,
    kernel: CompiledKernel | None,
) -> None:
    with _parsed.lend(ptx) as module:
        report = interpreter.run(
            module,
            entry,
            params,
            grid=attributes.grid,
            block=attributes.block,
            cluster=attributes.cluster,
            dynamic_smem=attributes.dynamic_smem,
            memory=space.memory,
            target=target.name,
            params_cfg=config,
            names=kernel.names if kernel else ReportNames(),
            lines=dict(kernel.lines) if kernel else {},
            kernel_name=kernel.name if kernel else entry,
            launches=_thread.launches,
            overlaps=attributes.programmatic_dependent_launch,
        )
    if report.output:  # what the kernel printed
        print(report.output, end="", flush=True)


class _Space:
    """The interpreter's global memory for one launch, and which host arrays it stands for."""

    def __init__(self) -> None:
        self.memory = interpreter.GlobalMemory()
        self._placed: list[tuple[ArrayView, ArrayView]] = []
        self._copies: list[tuple[Any, Any]] = []

    def place(self, view: ArrayView, name: str, writable: bool, initialised: bool, roomy: bool = False) -> ArrayView:
        """`view` at an address of the interpreter's; with a byte more if it is `roomy` and has an odd number of them.

        The same array twice is at one address, others lie apart.
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
        """Bring what was placed with more room back to its own memory."""
        for own, roomy in self._copies:
            own[...] = roomy[:-1]

    def workspace(self, nbytes: int, zeroed: bool, name: str) -> ArrayView:
        """Hidden memory of the kernel's."""
        data = np.zeros(nbytes, np.uint8)
        address = self.memory.allocate(data, name, zeroed, True)
        return ArrayView(address, (nbytes,), row_major((nbytes,)), uint8, CPU, "numpy", False, data)


def _encode(kernel: CompiledKernel, param: TensorMapParam, view: ArrayView) -> bytes:
    fields = plan(param, view, array_of(param, kernel))
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
