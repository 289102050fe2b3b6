"""Every exhibit is found, silent when mended, taken by ptxas, and on the page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernel_dsl.__main__ import main
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.check.gallery import EXHIBITS, Exhibit
from tests.conftest import ROOT


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda e: e.name)
def test_exhibit(exhibit: Exhibit) -> None:
    bad, good = exhibit.check(False, ("eager", "late", "random:2")), exhibit.check(True, ("eager", "late", "random:2"))
    assert exhibit.as_told(bad, good), f"{bad}\n{good}"
    assert len({s for h in bad.hazards for s in h.schedules}) == 4, "each schedule finds it"


def test_an_assembler_takes_them(tmp_path: Path) -> None:
    for exhibit in EXHIBITS:
        for mended in (False, True):
            (tmp_path / "a.ptx").write_text(exhibit.image(mended))
            command = [str(find_ptxas()), "-arch=sm_90a", str(tmp_path / "a.ptx"), "-o", str(tmp_path / "a.cubin")]
            assert subprocess.run(command, capture_output=True, check=False).returncode == 0, exhibit.name


def test_the_page_has_each() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert len(EXHIBITS) >= 12 and len({e.thread for e in EXHIBITS}) == len(EXHIBITS)
    assert all(e.thread in page and f"`{e.name}`" in page for e in EXHIBITS)


def test_the_command(capsys: Any) -> None:
    assert main(["gallery", "cuml-block-gemv", "--show"]) == 0
    said = capsys.readouterr().out
    assert "race_shared; mended: silent" in said and "cuml/pull/6578" in said and ".entry k" in said
    assert main(["gallery", "nothing"]) == 2
