"""Compiler options, part of every cache key, and the only reader of environment variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .dataclass import dataclass
from .errors import BadArgument, UnknownTarget
from .target import TARGETS

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class CompilerParams:
    """How to compile a kernel.

    `approx_math`: the hardware's approximate division, square root and functions. It does not contract
    a * b + c; `kd.fma_contraction()` does. `bounds`: "mask" GMEM accesses outside their array, or "promise" that there
    are none. `max_registers`: the most registers a lane may have. `target`: such as "sm_90a"; by default the launching
    GPU's own. `profile_space` (the number of events that each warp keeps; it keeps the last ones) and `profile_dir` (a
    folder, made if it is missing) go together: each call is then a `kernel.profile` and writes its trace to a new file
    in the folder. Launches by graphs, by `bind`, by JAX on a GPU and by programs without Python write no trace.

    `reduction_scratch_bytes` (None, or 0 and more) is Pallas' SMEM for reductions over warps; it has no effect here:
    each reduction allocates the SMEM that it needs, and shares it.
    """

    approx_math: bool = False
    bounds: str = "mask"
    max_registers: int | None = None
    target: str | None = None
    profile_space: int = 0
    profile_dir: str = ""
    reduction_scratch_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("profile_space", "reduction_scratch_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise BadArgument(op="CompilerParams", what=f"{name}={getattr(self, name)!r}", hint="it is 0 or more")
        if bool(self.profile_space) != bool(self.profile_dir):
            what = f"profile_space={self.profile_space!r}, profile_dir={self.profile_dir!r}"
            raise BadArgument(op="CompilerParams", what=what, hint="give both, or neither")
        if self.bounds not in ("mask", "promise"):
            hint = 'it is "mask" or "promise"'
            raise BadArgument(op="CompilerParams", what=f"bounds={self.bounds!r}", hint=hint)
        if self.max_registers is not None and not 16 <= self.max_registers <= 255:
            what = f"max_registers={self.max_registers!r}"
            raise BadArgument(op="CompilerParams", what=what, hint="registers a lane go from 16 to 255")
        if self.target is not None and self.target not in TARGETS:
            raise UnknownTarget(name=self.target, names=", ".join(TARGETS))


@dataclass(frozen=True)
class Environment:
    """The settings of environment variables."""

    cache_dir: Path | None  # KERNEL_DSL_CACHE: folder of compiled kernels; None if the user has no home folder
    cache_off: bool  # KERNEL_DSL_CACHE=off: nowhere
    ptxas: str | None  # KERNEL_DSL_PTXAS: the assembler to use
    nvshmem: str | None  # NVSHMEM_LIB_DIR: the folder of NVSHMEM's device library


def environment() -> Environment:
    """The environment's settings."""
    from pathlib import Path  # not needed to import the package

    cache = os.environ.get("KERNEL_DSL_CACHE", "")
    return Environment(
        cache_dir=Path(cache) if cache and cache != "off" else _default_cache(),
        cache_off=cache == "off",
        ptxas=os.environ.get("KERNEL_DSL_PTXAS") or None,
        nvshmem=os.environ.get("NVSHMEM_LIB_DIR") or None,
    )


def toolkits() -> list[Path]:
    """The folders of CUDA toolkits that CUDA_HOME and CUDA_PATH name."""
    from pathlib import Path

    return [Path(folder) for name in ("CUDA_HOME", "CUDA_PATH") if (folder := os.environ.get(name))]


def per_thread_streams() -> bool:
    """Whether cuda-python takes the default stream to be each thread's own."""
    return os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "") not in ("", "0")


def _default_cache() -> Path | None:
    """~/.cache/kernel_dsl. None if the user has no home, or the home of another user, as under sudo."""
    from pathlib import Path

    try:
        home = Path.home()
        owner = home.stat().st_uid if home.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None
    own = owner is None or not hasattr(os, "geteuid") or owner == os.geteuid()
    return home / ".cache" / "kernel_dsl" if own and home.is_absolute() else None


# Settings of glibc's malloc in a child: a heap of huge pages, 64 MiB at a time. Page faults take up to a tenth of the
# assembler's time.
_TUNABLES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864"


def assembler_environment() -> dict[str, str]:
    """The environment of the assembler: this process's, with a cheaper heap.

    The user's own tunables come last and win.
    """
    own = os.environ.get("GLIBC_TUNABLES")
    return {**os.environ, "GLIBC_TUNABLES": f"{_TUNABLES}:{own}" if own else _TUNABLES}
