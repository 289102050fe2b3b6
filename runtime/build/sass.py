"""Machine code as text, with the user's lines between the instructions."""

from __future__ import annotations

import linecache
import re
import tempfile

from kernel_dsl.compiled import Assembled

from ..errors import ArgumentValueError
from . import tools
from .problems import ToolFailed, ToolMissing

_SECONDS = 120.0
_LINE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)(.*)$')


def sass(code: Assembled | bytes, *, nvdisasm: str | None = None) -> str:
    """The output of nvdisasm for a kernel or a cubin, with `file:line` and the line's text before its code.

    Raises:
        ToolMissing: there is no nvdisasm; ptxas' wheel and many slim toolkits come without.
        ToolFailed: it did not end, or is another program.
        ArgumentValueError: nvdisasm does not take the bytes.
    """
    cubin = code.cubin if isinstance(code, Assembled) else code
    program = tools.find("nvdisasm", nvdisasm)
    if program is None:
        raise ToolMissing(
            "Machine code cannot be shown as text: there is no nvdisasm in NVIDIA's wheels, in a "
            "CUDA toolkit or on PATH. Install it: pip install nvidia-cuda-nvdisasm. The cubin "
            "itself is there without it."
        )
    try:
        with tempfile.TemporaryFile() as image:  # nvdisasm seeks, which a pipe cannot
            image.write(cubin)
            image.seek(0)
            done = tools.run([program, "-c", "-g", "/dev/stdin"], seconds=_SECONDS, given=image)
    except OSError as error:
        raise ToolFailed(f"there is no room for {len(cubin)} bytes of machine code in a file: {error}") from None
    if done.status != 0:
        raise ArgumentValueError(f"{program} refused {len(cubin)} bytes that should be a cubin: {done.words.strip()}")
    text = done.output.decode(errors="replace")
    return "\n".join(_with_source(line) for line in text.splitlines()) + "\n"


def _with_source(line: str) -> str:
    found = _LINE.match(line)
    if found is None:
        return line
    file, number, rest = found.group(1), int(found.group(2)), found.group(3)
    return f"\t// {file}:{number}{rest}  {linecache.getline(file, number).strip()}".rstrip()
