"""Where a kernel's text stands in its author's file."""

from __future__ import annotations

from pathlib import Path

from kernel_dsl.runtime.custom.body import locate

FILE = '''\
import kernel_dsl as kd

SHARED = """
    int i = threadIdx.x;
    out[i] = x[i];
"""

first = kd.cuda_kernel("first", ["x"], ["out"], "out[0] = x[0] + 1;")

second = kd.cuda_kernel(
    "second",
    ["x"],
    ["out"],
    """
    int i = threadIdx.x;
    out[i] = x[i];
    """,
)

third = kd.cuda_kernel("third", [], ["out"], """int j = 0;

    out[j] = 3;""")
'''
BODY = "\n    int i = threadIdx.x;\n    out[i] = x[i];\n"


def lines(tmp_path: Path, text: str, near: int) -> int | None:
    file = tmp_path / "author.py"
    file.write_text(FILE)
    found = locate(text, str(file), near)
    assert found is None or found.file == str(file)
    return found.line if found else None


def test_nearest_of_several(tmp_path):
    assert lines(tmp_path, BODY, 3) == 3
    assert lines(tmp_path, BODY + "    ", 10) == 14


def test_dedented(tmp_path):
    assert lines(tmp_path, "int i = threadIdx.x;\nout[i] = x[i];", 10) == 15


def test_on_the_line_of_the_call(tmp_path):
    assert lines(tmp_path, "out[0] = x[0] + 1;", 8) == 8
    assert lines(tmp_path, "int j = 0;\n\n    out[j] = 3;", 20) == 20


def test_not_there(tmp_path):
    assert lines(tmp_path, "something else entirely;", 1) is None
    assert lines(tmp_path, "\n  \n", 1) is None
    assert locate("x;", "<stdin>", 1) is None
