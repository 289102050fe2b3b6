"""Checks of this machine for kernel_dsl, with a remedy for each problem."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kernel_dsl.options import environment

from ..assemble import AssemblerOptions, find_ptxas
from ..custom import nvrtc
from ..custom.nvrtc import NvrtcUnavailableError
from ..devices import driver
from ..disk_cache import DiskCache
from . import tools
from .problems import ToolMissing

OK, ABSENT, BROKEN = "ok", "--", "!!"


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the report. `state`: OK, ABSENT (something optional) or BROKEN."""

    state: str
    name: str
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.state}  {self.name:<12} {self.detail}"
        return line + (f"\n{'':>17}-> {self.advice}" if self.advice else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[DoctorFinding]:
    yield DoctorFinding(OK, "Python", f"{platform.python_version()} on {platform.platform()}")
    llvmlite = _version("llvmlite")
    if llvmlite is None:
        advice = "pip install 'llvmlite>=0.50,<0.51'; without it only saved kernels and kernels from elsewhere run"
        yield DoctorFinding(BROKEN, "llvmlite", "not installed", advice)
    elif not llvmlite.startswith("0.50."):
        yield DoctorFinding(BROKEN, "llvmlite", llvmlite, "pip install 'llvmlite>=0.50,<0.51'")
    else:
        yield DoctorFinding(OK, "llvmlite", llvmlite)
    for package in ("numpy", "ml_dtypes"):
        yield DoctorFinding(OK, package, _version(package) or "installed")
    bindings = _version("cuda-bindings")
    if bindings is None:
        yield DoctorFinding(
            ABSENT, "cuda-python", "not installed", "pip install cuda-python; without it no GPU is used"
        )
    else:
        yield DoctorFinding(OK, "cuda-python", bindings)
    for package in ("torch", "cupy", "jax"):
        names = (package, "cupy-cuda13x", "cupy-cuda12x") if package == "cupy" else (package,)
        version = next((v for v in map(_version, names) if v), None)
        detail = version or "not installed; kernels take its arrays if it is installed"
        yield DoctorFinding(OK if version else ABSENT, package, detail)


def _gpus() -> Iterator[DoctorFinding]:
    state = driver.available()
    if not state:
        advice = "kernels run in the interpreter, on the CPU. For a GPU: install NVIDIA's driver, 580 or newer"
        if _version("cuda-bindings") is None:
            advice = "kernels run in the interpreter, on the CPU. For a GPU: pip install cuda-python"
        yield DoctorFinding(ABSENT, "GPU", state.reason, advice)
        return
    from ..devices.devices import cuda_device

    version = int(driver.check(driver.api().cuDriverGetVersion()))
    detail = f"CUDA {version // 1000}.{version % 1000 // 10}"
    yield (
        DoctorFinding(OK, "driver", detail)
        if version >= 13000
        else DoctorFinding(BROKEN, "driver", detail, "install a driver for CUDA 13, 580 or newer")
    )
    for index in range(state.devices):
        try:
            device = cuda_device(index)
        except Exception as error:
            yield DoctorFinding(BROKEN, "GPU", f"{index}: {error}")
            continue
        limits = device.target.limits
        major, minor = device.capability
        yield DoctorFinding(
            OK,
            "GPU",
            f"{index}: {device.name}, compute capability {major}.{minor}, compiled for as {device.target}, "
            f"{limits.multiprocessors} multiprocessors, {limits.smem_per_block // 1024} KiB of SMEM a block",
        )


def _tools() -> Iterator[DoctorFinding]:
    try:
        ptxas = find_ptxas(AssemblerOptions(ptxas=environment().ptxas))
    except ToolMissing as error:
        yield DoctorFinding(BROKEN, "ptxas", error.fields["message"])
    else:
        if ptxas is not None:
            yield DoctorFinding(OK, "ptxas", f"{tools.version(ptxas)} ({ptxas})")
        else:
            advice = "pip install nvidia-cuda-nvcc; without it the driver compiles, more slowly to start and unseen"
            yield DoctorFinding(ABSENT, "ptxas", "not found", advice)
    nvdisasm = tools.find("nvdisasm")
    if nvdisasm is not None:
        yield DoctorFinding(OK, "nvdisasm", f"{tools.version(nvdisasm)} ({nvdisasm})")
    else:
        advice = "pip install nvidia-cuda-nvdisasm, to see machine code (.sass)"
        yield DoctorFinding(ABSENT, "nvdisasm", "not found", advice)
    try:
        found = nvrtc.toolchain()
    except NvrtcUnavailableError as error:
        advice = "pip install 'kernel-dsl[nvrtc]', for kd.cuda_kernel and kd.metal_kernel"
        yield DoctorFinding(
            ABSENT, "NVRTC", str(error.fields["message"]).partition(nvrtc.INSTALL_HINT)[0].strip(), advice
        )
    else:
        yield DoctorFinding(OK, "NVRTC", f"{found.version[0]}.{found.version[1]} (headers in {found.include_dirs[0]})")


def _cache() -> Iterator[DoctorFinding]:
    settings = environment()
    if settings.cache_off:
        yield DoctorFinding(
            ABSENT, "disk cache", "off: KERNEL_DSL_CACHE=off", "unset it to compile once and not in every process"
        )
        return
    disk = DiskCache(settings.cache_dir)
    if not disk.usable():
        advice = "make it a folder that is yours alone, or name another in KERNEL_DSL_CACHE"
        yield DoctorFinding(BROKEN, "disk cache", f"{settings.cache_dir or 'a home folder'} cannot be used", advice)
        return
    found = disk.stats()
    yield DoctorFinding(OK, "disk cache", f"{found.directory}: {found.entries} kernels, {_size(found.bytes)}")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _trials(trials: Iterable[tuple[str, Callable[[], str]]]) -> Iterator[DoctorFinding]:
    for name, trial in trials:
        try:
            yield DoctorFinding(OK, name, trial())
        except ToolMissing as error:
            yield DoctorFinding(ABSENT, name, "cannot be tried here", str(error).splitlines()[0])
        except Exception as error:
            yield DoctorFinding(BROKEN, name, f"{type(error).__name__}: {error}")


def findings(trials: Iterable[tuple[str, Callable[[], str]]] = ()) -> Iterator[DoctorFinding]:
    """The whole report, line by line. `trials`: functions to try, by name; each returns a detail or raises."""
    for part in (_packages(), _gpus(), _tools(), _cache(), _trials(trials)):
        yield from part
