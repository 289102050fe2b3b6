"""The model of docs/scale.md: it finds what was planted, meets what was measured, and the page has what the script prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import scale

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_a_planted_link_is_found() -> None:
    link = scale.Link(7.5, 321e3)
    found = scale.fit([(x, link.time(x)) for x in (1e6, 3e7, 5e8)])
    assert found.latency == pytest.approx(7.5) and found.bandwidth == pytest.approx(321e3)


@pytest.mark.parametrize("who", [0, 1])
def test_it_meets_what_was_measured(who: int) -> None:
    links = scale.fitted(scale.MEASURED, who, 2)
    for name, row in scale.MEASURED.items():
        for mib, both in row.items():
            assert links[name].time(scale.sent(name, mib * scale.MIB, 2)) == pytest.approx(both[who], rel=0.06)


def test_what_crosses_a_link() -> None:
    """By counting what each GPU reads and writes, of 4 with 12 bytes."""
    reads_of_others = 3 * 12 // 4  # a part of each peer's array
    assert scale.sent("reduce_scatter", 12, 4) == reads_of_others
    assert scale.sent("all_reduce", 12, 4) == 2 * reads_of_others
    assert scale.sent("all_gather", 12, 4) == 3 * 12


def test_several_hosts() -> None:
    links = dict.fromkeys(scale.MEASURED, scale.Link(0.0, 1.0))
    size = 64.0  # 8 GPUs a host, 2 hosts: each GPU sends its eighth of the sum to its like and back
    assert scale.predicted(links, "all_reduce", size, 16, 1.0, 0.0) == 7 * 8 + 2 / 2 * 8 + 7 * 8
    assert scale.predicted(links, "reduce_scatter", size, 16, 1.0, 0.0) == 7 * 8 + 8 / 2
    assert scale.predicted(links, "all_gather", size, 16, 1.0, 0.0) == 64 + 7 * 128
    assert scale.predicted(links, "all_gather", size, 32, 2.0, 5.0) == 3 * 64 / 2 + 2 * 5.0 + 7 * 256
    with pytest.raises(ValueError, match="12 GPUs"):
        scale.predicted(links, "all_gather", size, 12, 1.0, 0.0)


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["scale", *words])
    scale.main()
    return capsys.readouterr().out


def test_the_page_has_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    rows = [line for line in printed(capsys, monkeypatch).splitlines() if line.startswith("|")]
    assert len(rows) > 12 and [row for row in rows if row not in page] == []


def test_other_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    for name in scale.MEASURED:
        for kib in (8, 4096, 65536):
            us = 10 + scale.sent(name, kib * 1024, 4) / 200e3
            lines.append(json.dumps({"row": f"{name}_{kib}_KiB", "devices": 4, "ours_us": us, "nccl_us": 2 * us}))
    path = tmp_path / "figures"
    path.write_text("\n".join(lines))
    out = printed(capsys, monkeypatch, "--measured", str(path))
    assert "fitted on 4 GPUs" in out and "| all_gather | 10.0 | 200.0 | 20.0 | 100.0 | 0.0% |" in out
    path.write_text(lines[0])
    with pytest.raises(SystemExit, match="not two sizes of all_reduce"):
        printed(capsys, monkeypatch, "--measured", str(path))
