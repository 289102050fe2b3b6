"""A GPU: its target, modules loaded into its primary context, and launches."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import weakref
from collections.abc import Sequence
from typing import Any

from kernel_dsl import forking
from kernel_dsl.compiled import Assembled, CompiledKernel, LaunchAttributes
from kernel_dsl.launch_plan import CopyStep, LaunchPlan, LaunchStep, MemoryStep, plan_of
from kernel_dsl.target import SM_80, SM_89, SM_90A, SM_100A, SM_120A, Limits, Target

from ..arrays.array_view import ArrayView
from ..build import elf, fatbin
from ..errors import ArgumentTypeError, ArgumentValueError, DeviceError, LoadError
from . import driver, memory, nvshmem
from .device import Dims, LoadedImage
from .failures import launch_error, where
from .gather import gather
from .launch import Launcher, ParamBuffer, check_attributes
from .params import ParamLayout
from .tensormap import TensorMaps, encode_cuda

# The target of each compute capability. Others get the newest target that they can run.
_TARGETS = {(8, 0): SM_80, (8, 9): SM_89, (9, 0): SM_90A, (10, 0): SM_100A, (12, 0): SM_120A}
_LOG_BYTES = 16 * 1024
_UNLOAD_AT = 16


class CudaDevice:
    """One GPU, in its primary context, which torch, CuPy and JAX use too."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        cu = driver.api()
        count = driver.device_count()
        if not 0 <= index < count:
            raise DeviceError(f"there is no GPU {index}: this process sees {count}")
        self.index = index
        self.device: Any = driver.check(cu.cuDeviceGet(index))
        self.context: Any = driver.check(cu.cuDevicePrimaryCtxRetain(self.device))
        self.name: str = driver.check(cu.cuDeviceGetName(128, self.device)).split(b"\0")[0].decode()
        self.capability: tuple[int, int] = (
            driver.attribute(self.device, "COMPUTE_CAPABILITY_MAJOR"),
            driver.attribute(self.device, "COMPUTE_CAPABILITY_MINOR"),
        )
        self.target: Target = self._target()
        self.tensor_maps: TensorMaps = TensorMaps(self._encode)
        self._images: weakref.WeakValueDictionary[tuple[bytes, str], CudaImage]
        self._images = weakref.WeakValueDictionary()
        self._dropped: list[Any] = []
        self._lock = forking.lock()

    def __repr__(self) -> str:
        return f"<CudaDevice {self.index}: {self.name}, {self.target}>"

    def _target(self) -> Target:
        base = _TARGETS.get(self.capability)
        if base is None:
            if self.capability < (8, 0):
                raise DeviceError(f"{self.name} has compute capability {self.capability}; 8.0 or higher is supported")
            base = SM_89 if self.capability > (8, 9) else SM_80

        def ask(name: str) -> int:
            return driver.attribute(self.device, name)

        limits = Limits(
            smem_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            smem_per_multiprocessor=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_multiprocessor=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            threads_per_block=ask("MAX_THREADS_PER_BLOCK"),
            blocks_per_multiprocessor=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            warps_per_multiprocessor=ask("MAX_THREADS_PER_MULTIPROCESSOR") // 32,
            multiprocessors=ask("MULTIPROCESSOR_COUNT"),
            cluster_size=base.limits.cluster_size,
            grid=(ask("MAX_GRID_DIM_X"), ask("MAX_GRID_DIM_Y"), ask("MAX_GRID_DIM_Z")),
        )
        return dataclasses.replace(base, limits=limits)

    def _encode(self, plan: Any, address: int) -> bytes:
        with driver.current(self.context):
            return encode_cuda(plan, address)

    def load(self, kernel: CompiledKernel | Assembled) -> CudaLoaded:
        """Load a kernel's cubin, or let the driver compile its PTX, which may be for an older architecture.

        Raises LoadError with the driver's log.
        """
        compiled, image = (kernel.kernel, kernel.cubin) if isinstance(kernel, Assembled) else (kernel, b"")
        if not compiled.launch.empty:
            check_attributes(compiled.launch, self.target, compiled.name)
        if not _runs(compiled.target, self.target.name):
            image = b""
        module = self.load_module(image or compiled.ptx, compiled.name, compiled)
        function = module.function(compiled.entry)
        launcher = None
        if not compiled.launch.empty:
            with driver.current(self.context):
                launcher = Launcher(function, compiled.launch)
        return CudaLoaded(self, plan_of(compiled), module, function, launcher, compiled)

    def load_image(self, image: bytes | str, entry: str) -> CudaImage:
        """One entry of a PTX, cubin or fatbin image. The same image is loaded once."""
        data = image.encode() if isinstance(image, str) else bytes(image)
        key = (hashlib.sha256(data).digest(), entry)
        with self._lock:
            found = self._images.get(key)
            if found is None:
                found = self._images[key] = CudaImage(self, self.load_module(data, entry, None), entry)
        return found

    def load_module(self, image: bytes | str, name: str, kernel: CompiledKernel | None) -> CudaModule:
        """The driver's module for an image. The call also unloads unused modules."""
        cu = driver.api()
        data = image.encode() if isinstance(image, str) else image
        wrong = elf.problem(data) if data.startswith(elf.MAGIC) else fatbin.problem(data)
        if wrong:  # the driver would read past its end
            raise LoadError(f"kernel {name!r} does not load: its machine code is damaged: {wrong}{where(kernel)}")
        option = cu.CUjit_option
        errors = bytearray(_LOG_BYTES)
        options: list[Any] = [
            option.CU_JIT_ERROR_LOG_BUFFER,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]
        values: list[Any] = [errors, _LOG_BYTES]
        with driver.current(self.context), driver.relaxed_capture():
            self._unload_dropped()
            # PTX is text and must end in NUL; binaries contain their size, and another NUL is harmless.
            result = cu.cuModuleLoadDataEx(data + b"\0", len(options), options, values)
        if int(result[0]) != 0:
            self._refuse(driver.error_of(result[0]), bytes(errors), name, kernel)
        module = CudaModule(self, result[1])
        if nvshmem.in_image(data):
            with driver.current(self.context):
                nvshmem.initialise(module.handle, name)
        return module

    def _refuse(self, error: driver.CudaError, log: bytes, name: str, kernel: CompiledKernel | None) -> None:
        text = log.split(b"\0")[0].decode(errors="replace").strip()
        target = f" compiled for {kernel.target}" if kernel else ""
        message = f"kernel {name!r}{target} does not load on {self.name} ({self.target}): {error.name}: {error.meaning}"
        raise LoadError(message + where(kernel) + (f"\n{text}" if text else "")) from error

    def drop(self, module: Any) -> None:
        """Unload a module later: a finalizer may run at any moment, also while a stream is being captured."""
        self._dropped.append(module)

    def _unload_dropped(self) -> None:
        if len(self._dropped) >= _UNLOAD_AT:  # unloading waits for the GPU, so not at every load
            cu = driver.api()
            while self._dropped:
                module = self._dropped.pop()
                nvshmem.forget(module)
                cu.cuModuleUnload(module)

    def allocate(self, nbytes: int, stream: int = 0) -> memory.DeviceMemory:
        """Memory from this GPU's pool, ordered by `stream`."""
        with driver.current(self.context):
            return memory.DeviceMemory(self.context, nbytes, stream)

    def synchronize(self, stream: int) -> None:
        """Wait for a stream. Nothing waits for a whole GPU, because other parts of the program use it, too."""
        cu = driver.api()
        with driver.current(self.context):
            driver.check(cu.cuStreamSynchronize(stream))


class CudaModule:
    """A loaded module. It is unloaded some time after its last reference is gone."""

    def __init__(self, device: CudaDevice, handle: Any) -> None:
        self.device = device
        self.handle = handle
        finalizer = weakref.finalize(self, device.drop, handle)
        finalizer.atexit = False

    def function(self, entry: str) -> Any:
        """The `CUfunction` called `entry`. Raises LoadError if the image has none."""
        cu = driver.api()
        with driver.current(self.device.context), driver.relaxed_capture():
            result = cu.cuModuleGetFunction(self.handle, entry.encode())
        if int(result[0]) != 0:
            error = driver.error_of(result[0])
            raise LoadError(f"the image has no entry {entry!r}: {error.name}") from error
        return result[1]


class CudaLoaded:
    """A launch plan whose code is in a GPU's memory. `kernel`: the compiled kernel, or None for a custom one."""

    def __init__(
        self,
        device: CudaDevice,
        plan: LaunchPlan,
        code: CudaModule,
        function: Any,
        launcher: Launcher | None,
        kernel: CompiledKernel | None = None,
    ) -> None:
        self.device = device
        self.plan = plan
        self.function = function
        self.launcher = launcher
        self.kernel = kernel
        self.layout: ParamLayout = ParamLayout(plan.launch.params if plan.launch else ())
        self._code = code  # keeps it loaded

    def encode(self, param: Any, view: ArrayView) -> bytes:
        """The TMA descriptor of `view`."""
        return self.device.tensor_maps.get(param, view, self.plan)

    def changed(self, step: LaunchStep) -> CudaLoaded:
        """The same code with another launch. Raises LaunchError if the driver refuses that."""
        plan = dataclasses.replace(self.plan, steps=(*self.plan.steps[:-1], step))
        try:
            with driver.current(self.device.context):
                launcher = Launcher(self.function, step.attributes)
        except driver.CudaError as error:
            raise self.failure(error, (), "changing") from error
        return CudaLoaded(self.device, plan, self._code, self.function, launcher, self.kernel)

    def settled(self, kernel: CompiledKernel) -> CudaLoaded:
        """The same code, for a call with other sizes."""
        if kernel is self.kernel:
            return self
        launcher = None
        if not kernel.launch.empty:
            check_attributes(kernel.launch, self.device.target, kernel.name)
            with driver.current(self.device.context):
                launcher = Launcher(self.function, kernel.launch)
        return CudaLoaded(self.device, plan_of(kernel), self._code, self.function, launcher, kernel)

    def scratch(self, stream: int) -> list[ArrayView]:
        """The plan's scratch, allocated in `stream`'s order; the views own it. The context must be current."""
        made: list[ArrayView] = []
        for spec in self.plan.scratch:
            nbytes = math.prod(spec.shape) * spec.dtype.itemsize
            block = memory.DeviceMemory(self.device.context, nbytes, stream)
            made.append(block.view(spec.shape, spec.dtype, self.device.index))
        return made

    def take(self, step: MemoryStep, arrays: Sequence[ArrayView], scalars: Sequence[Any], stream: int) -> None:
        """Take one step on scratch. The context must be current."""
        if isinstance(step, CopyStep):
            gather(self.device, arrays[step.target], arrays[step.source], stream)
        else:
            memory.take(step, arrays, scalars, stream)

    def launch(
        self,
        arrays: Sequence[ArrayView],
        scalars: Sequence[Any],
        stream: int | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        """Issue the kernel to `stream` (the legacy default stream if None).

        All arrays lie on this GPU.
        """
        if self.launcher is None:
            return
        handle = stream or 0
        try:
            with driver.current(self.device.context):
                hidden = self.scratch(handle) if self.plan.scratch else []
                everything = [*arrays, *hidden]
                for step in self.plan.then:
                    self.take(step, everything, scalars, handle)
                values = self.layout.values(everything, scalars, self.encode)
                params = ParamBuffer(self.layout.offsets, self.layout.nbytes)
                self.layout.pack(params.buffer, params.shift, *values)
                driver.check(self.launcher.launch(handle, params.address))
                for view in hidden:
                    view.owner.close()
        except driver.CudaError as error:
            raise self.failure(error, arrays) from error

    def failure(self, error: driver.CudaError, arrays: Sequence[ArrayView], doing: str = "launching") -> Exception:
        """The exception for a driver error met while `doing` something for this kernel."""
        return launch_error(error, self.plan.name, self.plan, arrays, doing)


class CudaImage(LoadedImage):
    """One entry of a raw image. `param_sizes`: bytes of each parameter, if the driver reports them (12.4 and later)."""

    def __init__(self, device: CudaDevice, module: CudaModule, entry: str) -> None:
        self.device = device
        self.module = module
        self.entry = entry
        self.function: Any = module.function(entry)
        with driver.current(device.context):
            self.param_sizes: list[int] | None = _param_sizes(self.function)
            self.max_threads: int = _function_attribute(self.function, "MAX_THREADS_PER_BLOCK")
            self.static_smem: int = _function_attribute(self.function, "SHARED_SIZE_BYTES")
        self._launchers: dict[LaunchAttributes, Launcher] = {}

    def prepare(self, plan: LaunchPlan) -> CudaLoaded:
        """See `LoadedImage.prepare`. Raises LaunchError if the driver refuses the launch's geometry."""
        loaded = CudaLoaded(self.device, plan, self.module, self.function, None)
        if plan.launch is not None:
            attributes = plan.launch.attributes
            self._check(loaded.layout.sizes, attributes.block, attributes.dynamic_smem)
            loaded.launcher = self._launchers.get(attributes)
            if loaded.launcher is None:
                try:
                    with driver.current(self.device.context):
                        loaded.launcher = self._launcher(attributes)
                except driver.CudaError as error:
                    raise loaded.failure(error, ()) from error
        return loaded

    def _check(self, sizes: list[int], block: Dims, dynamic_smem: int) -> None:
        if self.param_sizes is not None and sizes != self.param_sizes:
            raise ArgumentTypeError(
                f"entry {self.entry!r} takes {len(self.param_sizes)} parameters of "
                f"{self.param_sizes} bytes, and got "
                f"{len(sizes)} of {sizes}"
            )
        threads = block[0] * block[1] * block[2]
        if threads > self.max_threads:
            raise ArgumentValueError(
                f"entry {self.entry!r} runs at most {self.max_threads} threads a block (its "
                "registers or .maxntid say so), "
                f"and was asked for {threads}"
            )
        limit = self.device.target.limits.smem_per_block
        if dynamic_smem + self.static_smem > limit:
            raise ArgumentValueError(
                f"entry {self.entry!r} has {self.static_smem} bytes of static SMEM; "
                f"{dynamic_smem} dynamic ones more are "
                f"over the {limit} that a block can have"
            )

    def _launcher(self, attributes: LaunchAttributes) -> Launcher:
        """A new geometry of this entry, checked and kept. The context must be current."""
        check_attributes(attributes, self.device.target, self.entry)
        made = Launcher(self.function, attributes)
        if len(self._launchers) >= 64:
            self._launchers.clear()
        self._launchers[attributes] = made
        return made


def _param_sizes(function: Any) -> list[int] | None:
    cu = driver.api()
    if not hasattr(cu, "cuFuncGetParamInfo"):
        return None
    sizes: list[int] = []
    while True:
        result = cu.cuFuncGetParamInfo(function, len(sizes))
        if int(result[0]) == int(cu.CUresult.CUDA_ERROR_INVALID_VALUE):
            return sizes  # past the last
        if int(result[0]) != 0:
            return None  # a driver older than 12.4
        sizes.append(int(result[2]))


def _function_attribute(function: Any, name: str) -> int:
    cu = driver.api()
    key = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    return int(driver.check(cu.cuFuncGetAttribute(key, function)))


def _runs(built: str, here: str) -> bool:
    """Whether machine code for one architecture runs on another: the same major version, no older minor one.

    CUDA C++ Programming Guide, 'Binary Compatibility'. Code whose name ends in 'a' runs only on its own architecture.
    """
    if built.endswith("a"):
        return built == here
    have, want = (int(name.removeprefix("sm_").rstrip("a")) for name in (here, built))
    return have // 10 == want // 10 and have >= want
