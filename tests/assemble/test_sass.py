"""Machine code as text: what nvdisasm says, with the user's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_dsl.runtime.assemble import assemble, find_ptxas
from kernel_dsl.runtime.build import tools
from kernel_dsl.runtime.build.problems import ToolMissing
from kernel_dsl.runtime.build.sass import sass

from .kernels import axpy

PRINTED = """\
	.target	sm_90a
.text.t:
	//## File "{file}", line 2
        /*0030*/                   LDG.E R5, desc[UR4][R2.64] ;
	//## File "/not/there.py", line 14 inlined at "{file}", line 1
        /*0040*/                   STG.E desc[UR4][R2.64+0x4], R5 ;
"""


def test_lines_come_with_their_text(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("def body(x, y):\n    y[...] = x[...] * 2\n")
    (tmp_path / "text").write_text(PRINTED.format(file=source))
    program = tmp_path / "nvdisasm"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path}/text\n")
    program.chmod(0o755)
    lines = sass(b"\x7fELF", nvdisasm=str(program)).splitlines()
    assert lines[2] == f"\t// {source}:2  y[...] = x[...] * 2"
    assert lines[3].strip().startswith("/*0030*/")
    assert lines[4] == f'\t// /not/there.py:14 inlined at "{source}", line 1'


def test_a_refusal_says_what_nvdisasm_said(tmp_path: Path) -> None:
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\ncat >/dev/null\necho 'not an ELF' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match="not an ELF"):
        sass(b"nothing", nvdisasm=str(program))


def test_without_nvdisasm_the_error_says_what_to_install() -> None:
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-nvdisasm"):
        sass(b"\x7fELF", nvdisasm="/nowhere/nvdisasm")


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
@pytest.mark.skipif(tools.find("nvdisasm") is None, reason="no nvdisasm on this machine")
def test_machine_code_of_a_kernel_shows_its_instructions_and_lines() -> None:
    kernel = axpy()
    ptx = kernel.ptx.replace(".visible", '.file 1 "/home/me/model.py"\n.visible')
    ptx = ptx.replace("\tld.global", "\t.loc 1 12 3\n\tld.global")
    text = sass(assemble(type(kernel)(**{**kernel.__dict__, "ptx": ptx})).cubin)
    assert "// /home/me/model.py:12" in text
    for mnemonic in ("LDG.E", "FFMA", "STG.E", "EXIT"):
        assert mnemonic in text
