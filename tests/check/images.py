"""PTX for the tests of the checker."""

from __future__ import annotations

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = (
    " .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f32 %f<9>; .reg .f64 %g<9>;\n"
)


def image(params: str, body: str, head: str = HEAD, before: str = "", name: str = "k") -> str:
    """A module with one entry. Lines: the entry is line 4 after HEAD without `before`, the body begins in line 6."""
    return f"{head}{before}.visible .entry {name}({params}) {{\n{REGISTERS}{body}\n ret;\n}}\n"


# out[tid] = n; parameters in the order of most hand-written kernels
FILL = image(
    ".param .u32 n, .param .u64 out",
    """ ld.param.u32 %r2, [n]; ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
 st.global.u32 [%d3], %r2;""",
)
# every thread writes its number in the grid into out[0]
RACE = FILL.replace("%tid.x;", "%tid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r3, 64, %r1;").replace(
    "[%d3], %r2", "[%d1], %r1"
)
# adds n to out[tid], so that runs of several schedules would add up
ADD = FILL.replace(
    " st.global.u32 [%d3], %r2;", " ld.global.u32 %r3, [%d3]; add.u32 %r3, %r3, %r2; st.global.u32 [%d3], %r3;"
)
