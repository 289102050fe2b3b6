"""Targets as sets of features. Nothing compares architecture numbers: wgmma is in sm_90a and not in sm_100a."""

from __future__ import annotations

from enum import Flag, auto

from .dataclass import dataclass


class Feature(Flag):
    """A feature that an instruction needs of its target (PTX ISA, 'Target ISA Notes' of each instruction)."""

    MMA_SYNC = auto()  # mma.sync with bf16 and tf32, ldmatrix
    CP_ASYNC = auto()
    MMA_FP8 = auto()  # mma.sync on e4m3/e5m2, and cvt to and from fp8
    MMA_F64_16 = auto()  # mma.sync on float64 with 16 rows
    MBARRIER = auto()
    MBARRIER_TRY_WAIT = auto()
    CLUSTER = auto()
    DSMEM = auto()
    TMA = auto()
    STMATRIX = auto()
    GRIDDEPCONTROL = auto()
    ATOM_BF16 = auto()  # atom.add.noftz.bf16
    WGMMA = auto()
    SETMAXNREG = auto()
    RED_VECTOR = auto()  # red.global.add of vectors, and of bf16x2
    TENSORMAP = auto()  # tensormap.replace
    MULTIMEM = auto()  # multimem.ld_reduce, multimem.st, multimem.red


TMA_WGMMA = Feature.TMA | Feature.WGMMA  # what the library's fast kernels need


@dataclass(frozen=True)
class Limits:
    """Sizes that a launch must respect. SMEM in bytes a block; registers in 32-bit words."""

    smem_per_block: int
    smem_per_multiprocessor: int
    registers_per_multiprocessor: int = 65536
    threads_per_block: int = 1024
    blocks_per_multiprocessor: int = 32
    warps_per_multiprocessor: int = 64
    multiprocessors: int = 132
    cluster_size: int = 8  # portable; 16 needs the non-portable launch attribute
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Target:
    """An architecture to compile for: its name, features and limits."""

    name: str
    features: Feature
    limits: Limits
    ptx_version: tuple[int, int]

    def supports(self, needed: Feature) -> bool:
        return needed in self.features

    def __str__(self) -> str:
        return self.name


_SM80 = Feature.MMA_SYNC | Feature.CP_ASYNC | Feature.MBARRIER
_SM89 = _SM80 | Feature.MMA_FP8
_SM90 = (
    _SM89
    | Feature.MMA_F64_16
    | Feature.MBARRIER_TRY_WAIT
    | Feature.CLUSTER
    | Feature.DSMEM
    | Feature.TMA
    | Feature.STMATRIX
    | Feature.GRIDDEPCONTROL
    | Feature.ATOM_BF16
    | Feature.RED_VECTOR
    | Feature.MULTIMEM
)
_SM90A = _SM90 | Feature.WGMMA | Feature.SETMAXNREG | Feature.TENSORMAP
_SPECIFIC = Feature.WGMMA | Feature.SETMAXNREG | Feature.TENSORMAP  # of architecture- and family-specific targets
_SM100A = _SM120A = _SM90A & ~Feature.WGMMA

# Sizes: CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'.
SM_80 = Target("sm_80", _SM80, Limits(163 * 1024, 164 * 1024, multiprocessors=108), (8, 0))
SM_89 = Target(
    "sm_89",
    _SM89,
    Limits(99 * 1024, 100 * 1024, blocks_per_multiprocessor=24, warps_per_multiprocessor=48),
    (8, 6),
)
SM_90 = Target("sm_90", _SM90, Limits(227 * 1024, 228 * 1024), (8, 6))
SM_90A = Target("sm_90a", _SM90A, Limits(227 * 1024, 228 * 1024), (8, 6))
SM_100A = Target("sm_100a", _SM100A, Limits(227 * 1024, 228 * 1024, multiprocessors=148), (8, 6))
SM_120A = Target(
    "sm_120a",
    _SM120A,
    Limits(99 * 1024, 100 * 1024, warps_per_multiprocessor=48, multiprocessors=188),
    (8, 7),
)
TARGETS: dict[str, Target] = {t.name: t for t in (SM_80, SM_89, SM_90, SM_90A, SM_100A, SM_120A)}
DEFAULT = SM_90A

# Devices that only the interpreter has: like another one (`as`), with other sizes.
_SM75 = Feature(0)
_DEVICES: dict[str, Target] = {t.name: t for t in (
    Target("sm_75", _SM75, Limits(64 * 1024, 64 * 1024, blocks_per_multiprocessor=16, warps_per_multiprocessor=32,
                                  multiprocessors=72), (6, 3)),
    Target("sm_86", _SM80, Limits(99 * 1024, 100 * 1024, blocks_per_multiprocessor=16, warps_per_multiprocessor=48,
                                  multiprocessors=84), (7, 1)),
    Target("sm_87", _SM80, Limits(163 * 1024, 164 * 1024, blocks_per_multiprocessor=16, warps_per_multiprocessor=48,
                                  multiprocessors=16), (7, 4)),
    Target("sm_103a", _SM100A, SM_100A.limits, (8, 8)),
    Target("sm_110a", _SM100A, Limits(227 * 1024, 228 * 1024, blocks_per_multiprocessor=24, warps_per_multiprocessor=48,
                                      multiprocessors=20), (9, 0)),
    Target("sm_101a", _SM100A, Limits(227 * 1024, 228 * 1024, blocks_per_multiprocessor=24, warps_per_multiprocessor=48,
                                      multiprocessors=20), (8, 6)),  # the name of sm_110a before PTX 9.0
    Target("sm_121a", _SM120A, Limits(99 * 1024, 100 * 1024, warps_per_multiprocessor=48, multiprocessors=48), (8, 8)),
    *TARGETS.values(),
)}  # fmt: skip


def device_target(name: str) -> Target | None:
    """The device that PTX for `name` runs on, "sm_75" to "sm_121a", also without the suffix or with `f`; None for others.

    PTX for a name without a suffix, or for a family, can use the features that all its devices have.
    """
    found = _DEVICES.get(name)
    if found is not None:
        return found
    plain = _DEVICES.get(name.removesuffix("f") + "a") if name[-1:] != "a" else None
    if plain is None:
        return None
    features = plain.features if name.endswith("f") else plain.features & ~_SPECIFIC
    return Target(name, features, plain.limits, plain.ptx_version)
