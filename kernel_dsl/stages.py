"""The stages of a kernel between its body and its machine code, as Python values. None of them needs a GPU."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .blocks import settle
from .boundary import checks_itself, public
from .clone import clone
from .compiled import Assembled, CompiledKernel, Resources
from .diagnostics import CostNote
from .ir import KernelIR
from .lazy import lazy
from .options import CompilerParams, environment
from .target import DEFAULT, TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_dsl.lowering import CallSpec

    from .body_trace import Traced


def target_named(name: str | None) -> Target:
    """The target of that name, or the default one. Raises `UnknownTarget`."""
    if name is None:
        return DEFAULT
    found = TARGETS.get(name) if type(name) is str else None
    if found is None:
        from .errors import UnknownTarget

        raise UnknownTarget(name=name, names=", ".join(TARGETS))
    return found


@public
class Stages:
    """A kernel traced for one signature and one target: `.ir`, `.llvm`, `.ptx`, and `.compile()` for machine code."""

    def __init__(
        self,
        traced: Traced,
        target: Target,
        params: CompilerParams,
        overlaps: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.traced = traced
        self.target = target
        self.params = params
        self.overlaps = overlaps
        self._ends = False  # not checked yet

    def __repr__(self) -> str:
        ir = self.traced.ir
        grid = "x".join(map(str, self.traced.sizes.grid)) or "1"
        args = ", ".join(str(v.type) for v in ir.params)
        return f"<kernel {ir.name}({args}) grid {grid}, {ir.threads} warpgroups, for {self.target}>"

    def __str__(self) -> str:
        return _show(self.traced.ir, words=True)

    def _repr_html_(self) -> str:
        """IR, PTX and machine code beside each line of the source, for notebooks, without scripts and other files."""
        from .side_by_side import frame

        return frame(self, lambda: Compiled(self, self.assembled()).sass)

    @property
    def name(self) -> str:
        return self.traced.ir.name

    @property
    def ir(self) -> KernelIR:
        """The IR as it was traced; `str(stages)` shows it."""
        return self.traced.ir

    @lazy
    def ir_text(self) -> str:
        """The IR's text form, with locations. `str(stages)` is the same with words for extents that each launch gives."""
        return _show(self.traced.ir)

    @lazy
    def key_text(self) -> str:
        """The IR's text form without locations, which is the key of caches."""
        return _show(self.traced.ir, locations=False)

    @lazy
    def _lowered(self) -> Any:
        from kernel_dsl.lowering import to_llvm

        # passes change a kernel in place, so they get a copy
        return to_llvm(clone(self.traced.ir), self.target, self._spec)

    @lazy
    def _spec(self) -> CallSpec:
        from kernel_dsl.lowering import CallSpec

        t = self.traced
        return CallSpec(t.outputs, t.output_tree, self.overlaps, self.params.max_registers, t.conditions)

    @property
    def notes(self) -> tuple[CostNote, ...]:
        """Work that tracing added, such as layout conversions, each with the lines that it comes from."""
        return self.traced.notes

    def after_passes(self) -> dict[str, str]:
        """The IR's text after each pass of the lowering, by the pass's name."""
        from kernel_dsl.lowering import run_passes

        texts: dict[str, str] = {}
        run_passes(clone(self.traced.ir), self.target, lambda name, ir: texts.update({name: _show(ir)}))
        return texts

    @property
    @public
    def llvm(self) -> str:
        """The LLVM module as text, before LLVM's own passes."""
        return self._lowered.text

    @lazy
    @public
    def kernel(self) -> CompiledKernel:
        """The compiled kernel for the sizes of the call. Raises the errors of lowering at the user's line."""
        sizes = self.traced.sizes
        if sizes.sampled:  # examples of Dims' values: each launch has its own
            return self.for_any
        return settle(self.for_any, sizes.shapes, sizes.grid)

    @lazy
    def for_any(self) -> CompiledKernel:
        """The compiled kernel for all calls that meet its conditions: sizes that come from the launch are `ANY`."""
        from kernel_dsl.lowering import compile_kernel

        return compile_kernel(self.traced.ir, self.target, self._spec, self._lowered)

    @property
    @public
    def ptx(self) -> str:
        self._check_for_gpu()
        return self.kernel.ptx

    def _check_for_gpu(self) -> None:
        """Raise an error for kernels that would hang a GPU. The interpreter reports these while it runs them."""
        from kernel_dsl.lowering import check_for_gpu

        if not self._ends:
            check_for_gpu(self.traced.ir)
            self._ends = True

    def compile(self) -> Compiled:
        """Assemble.

        The assembler's remarks become Python warnings at the user's lines. Raises ToolMissing if there is neither ptxas
        nor a GPU.
        """
        assembled = self.assembled()
        warn_of_remarks(assembled)
        return Compiled(self, assembled)

    @checks_itself("mutates_args")
    def export(
        self, name: str, *, folder: Any = ".", c: bool = False, tvm_ffi: bool = False, torch_op: str | None = None,
        mutates_args: Any = (),
    ) -> tuple[Path, ...]:  # fmt: skip
        """Compile if needed, and write files for programs that lack this one's source. Returns their paths.

        `folder/name.kd`, which `kd.load_compiled` reads; with `c=True` `name.o` and `name.h`, of a C function
        `int name(CUstream, const DLTensor *...)` that takes the inputs and then the outputs, checks them, and needs
        only the driver; with `tvm_ffi=True`, too, that file has `__tvm_ffi_name`, which `tvm_ffi.load_module` finds in a
        library made of it; with `torch_op="namespace::op"` such a library, once loaded, gives PyTorch's op of that
        name this kernel for GPUs, which writes the inputs named in `mutates_args` in place, as `as_torch_op` does.
        Raises BadArgument for a name that is no C identifier, NoHostCode, FileError, ToolMissing.
        """
        compiled = self.compile()
        return compiled.export(name, folder=folder, c=c, tvm_ffi=tvm_ffi, torch_op=torch_op, mutates_args=mutates_args)

    def as_tvm_ffi(self) -> Any:
        """A `tvm_ffi.Function` of the inputs and then the outputs, tensors of any framework with DLPack.

        No Python runs in a call; the stream is that of tvm-ffi's environment. Raises BadArgument if the package tvm_ffi
        is not installed, NoHostCode, ToolMissing. The function raises ValueError, TypeError or RuntimeError.
        """
        return self.compile().as_tvm_ffi()

    def assembled(self) -> Assembled:
        """The machine code, without a warning, for the sizes of the call."""
        return replace(self.assembled_for_any(), kernel=self.kernel)

    def assembled_for_any(self) -> Assembled:
        """The machine code for all calls that meet its conditions."""
        from kernel_dsl.runtime.assemble import AssemblerOptions, Library, assemble

        from .ops.nvshmem import FUNCTIONS, MORE

        self._check_for_gpu()
        options = AssemblerOptions(ptxas=environment().ptxas)
        return assemble(self.for_any, options=options, library=Library((*FUNCTIONS, *MORE), _definitions))


@public
class Compiled:
    """A kernel's machine code: `.cubin`, `.sass`, `.resources`, `.remarks`; `.save(path)` keeps it."""

    def __init__(self, stages: Stages, assembled: Assembled) -> None:
        self.stages = stages
        self.assembled = assembled

    def __repr__(self) -> str:
        r = self.resources
        return (
            f"<compiled {self.stages.name} for {self.stages.target}: {r.registers} registers, {r.spills} bytes of "
            f"spills, {r.shared_bytes} bytes of SMEM, {len(self.cubin)} bytes of code>"
        )

    def _repr_html_(self) -> str:
        """As that of its stages."""
        from .side_by_side import frame

        return frame(self.stages, lambda: self.sass)

    @property
    @public
    def ptx(self) -> str:
        return self.assembled.kernel.ptx

    @property
    @public
    def cubin(self) -> bytes:
        return self.assembled.cubin

    @property
    def resources(self) -> Resources:
        return self.assembled.resources

    @property
    def remarks(self) -> tuple[Any, ...]:
        """The assembler's remarks, each with the user's line if it is known."""
        return self.assembled.remarks

    @lazy
    @public
    def sass(self) -> str:
        """The machine code as text, with the user's lines. Raises ToolMissing without nvdisasm or cuobjdump."""
        from kernel_dsl.runtime.build.sass import sass

        return sass(self.assembled)

    def save(self, path: Any) -> None:
        """Write it to a file that `kd.load_compiled` reads."""
        from kernel_dsl.runtime.build.aot import save

        save(self.assembled, path)

    @checks_itself("mutates_args")
    def export(
        self, name: str, *, folder: Any = ".", c: bool = False, tvm_ffi: bool = False, torch_op: str | None = None,
        mutates_args: Any = (),
    ) -> tuple[Path, ...]:  # fmt: skip
        """Write files for programs that lack this one's source, as `Stages.export` does. Returns their paths."""
        from .hosting import export

        return export(self.stages.ir, self.assembled, name, folder, c, tvm_ffi, torch_op, mutates_args)

    def as_tvm_ffi(self) -> Any:
        """A `tvm_ffi.Function`, as `Stages.as_tvm_ffi` makes it."""
        from .hosting import tvm_function

        return tvm_function(self.stages.ir, self.assembled)


def _definitions(path: Path, functions: Sequence[str], target: str) -> str:
    """PTX of a device library's functions."""
    from kernel_dsl.lowering import library_ptx

    return library_ptx(path.read_bytes(), functions, TARGETS[target])


def _show(ir: KernelIR, *, locations: bool = True, words: bool = False) -> str:
    from .text import show  # at first use: it brings json in

    return show(ir, locations=locations, words=words)


def warn_of_remarks(assembled: Assembled) -> None:
    """Warn of the assembler's remarks at the user's lines.

    Even an "info" of ptxas, such as C7510, can cost half the speed.
    """
    for remark in assembled.remarks:
        if remark.line is None:
            warnings.warn(remark.text, RuntimeWarning, stacklevel=3)
        else:
            warnings.warn_explicit(remark.text, RuntimeWarning, remark.line.file, remark.line.line)


def print_stages(stages: Stages) -> None:
    """Print the stages, for `debug=True`."""
    print(stages)
    for name, text in stages.after_passes().items():
        print(f"--- after {name}\n{text}")
    for note in stages.notes:
        print(note)
    print(stages.ptx)
    try:
        print(stages.compile())
    except Exception as error:
        print(f"not assembled: {error}")
