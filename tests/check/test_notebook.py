"""What notebooks show of layouts and of reports: whole pictures and pages, without scripts, and names escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.check.hazards import Hazard, Side
from kernel_dsl.runtime.check.report import Report
from kernel_dsl.runtime.interpreter.checks.kinds import HazardKind

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;"


class Page(HTMLParser):
    """The tags of a text with their attributes, and all its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def _report() -> Report:
    side = Side(HOSTILE, 3, HOSTILE, 7, HOSTILE, HOSTILE, HOSTILE)
    hazard = Hazard(
        HazardKind.RACE_SHARED, HOSTILE, side, side, HOSTILE, (1, 2), HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, [HOSTILE]
    )
    return Report([hazard], schedules=(HOSTILE,), launches=(HOSTILE,))


def test_a_report_stands_in_a_frame_of_its_own() -> None:
    frame = Page(_report()._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"] and not frame.words.strip()
    attributes = frame.tags[0][1]
    assert attributes["sandbox"] == ""  # no script runs, whatever the page holds
    assert attributes["srcdoc"] == _report().to_html()
    inner = Page(attributes["srcdoc"] or "")
    names = {tag for tag, _ in inner.tags}
    assert {"h1", "article"} <= names and not names & {"script", "img", "link", "iframe"}
    assert not [key for _, given in inner.tags for key in given if key.startswith("on") or key in ("src", "href")]
    assert inner.words.count(HOSTILE) >= 5


@pytest.mark.parametrize("shape", [(64, 8), (64, 32), (128, 64)], ids=str)
def test_a_layout_shows_all_that_it_covers(shape: tuple[int, int]) -> None:
    layout = kd.Layout.WGMMA.of(shape)
    text = layout._repr_svg_()
    assert text is not None and text == layout.to_svg(shape)
    root = ElementTree.fromstring(text)
    assert len(root.findall("{*}rect")) == shape[0] * shape[1]
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "rect", "text"}


RULES = {name: rule for name in dir(kd.Layout) if hasattr(rule := getattr(kd.Layout, name), "of")}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_shows_the_least_value_that_has_it(name: str) -> None:
    for rule in (RULES[name], RULES[name].reduce(0), RULES[name].reduce(1)):
        text = rule._repr_svg_()
        if text is not None:
            assert len(ElementTree.fromstring(text).findall("{*}rect")) in (1, 8, 16, 64, 64 * 8, 64 * 16)
        # in these two a lane holds neighbours along axis 1 together, and no value is without that axis
        assert text or (rule.reduced == (1,) and name in ("WGMMA_8BIT", "WGMMA_UPCAST_2X"))


def test_a_layout_too_large_to_look_at_stays_text() -> None:
    assert kd.Layout.WGMMA.of((128, 128))._repr_svg_() is None
