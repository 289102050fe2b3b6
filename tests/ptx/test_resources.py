"""Every kernel of the suite, assembled for each of its targets; registers, spills and SMEM in `resources.txt`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import pytest

from kernel_dsl.runtime.assemble import find_ptxas, ptxas_version
from tests.kernels import CASES, lowered

GOLDEN = Path(__file__).with_name("resources.txt")
PINNED = "13.0"

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas: install the test extra")


def _measure(place: tuple[str, str]) -> tuple[tuple[str, str], str, int]:
    name, target = place
    compiled = lowered(name, target).compile()
    r = compiled.resources
    return place, f"{r.registers:4} {r.spills:6} {r.shared_bytes:6} {r.barriers:3}", r.spills


def _more(now: list[str], before: list[str]) -> bool:
    """Noticeably more of anything: the assembler's choice moves by some registers."""
    registers, *rest = map(int, now)
    old, *old_rest = map(int, before)
    return registers > old + max(8, old // 6) or any(n > o for n, o in zip(rest, old_rest, strict=True))


@needs_ptxas
def test_every_kernel_assembles_for_one_of_its_targets() -> None:
    check(
        [(name, case.targets[crc32(name.encode()) % len(case.targets)]) for name, case in CASES.items()], update=False
    )


@pytest.mark.slow
@needs_ptxas
def test_every_kernel_assembles_for_each_of_its_targets(update: bool) -> None:
    check([(name, target) for name, case in CASES.items() for target in case.targets], update)


def check(places: list[tuple[str, str]], update: bool) -> None:
    for name, target in places:  # lowering is Python: here, once
        _ = lowered(name, target).ptx
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(_measure, places))
    spilled = [place for place, _, spills in rows if spills]
    assert spilled == []
    if PINNED not in (ptxas_version() or ""):
        pytest.skip(f"assembled; the recorded registers are those of ptxas {PINNED}")
    lines = [f"{name:46} {target:8} {text}" for (name, target), text, _ in rows]
    head = f"{'kernel':46} {'target':8} regs spills   smem bar"
    if update:
        GOLDEN.write_text("\n".join([head, *lines]) + "\n")
        return
    recorded = {tuple(r.split()[:2]): r.split()[2:] for r in GOLDEN.read_text().splitlines()[1:]}
    worse: list[str] = []
    for line in lines:
        name, target, *now = line.split()
        before = recorded.get((name, target))
        if before is None:
            worse.append(f"{name} for {target} is not recorded")
        elif _more(now, before):
            worse.append(f"{name} for {target}: {before} became {now} (registers, spills, SMEM, barriers)")
    assert worse == [], "if this is meant, run pytest with --slow --update"


def test_ptx_is_compact() -> None:
    """Lines of PTX a kernel; a jump means that something is no longer simplified away."""
    limits = {"vector_add": 80, "copy_wide": 60, "softmax": 330, "through_smem": 420, "atomics": 160}
    for name, limit in limits.items():
        lines = [
            line for line in lowered(name).ptx.splitlines() if line.strip() and not line.strip().startswith((".", "//"))
        ]
        assert len(lines) <= limit, f"{name}: {len(lines)} lines"
