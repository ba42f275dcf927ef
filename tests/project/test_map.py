"""The map of the book: chapters stand below what they build on, and mistakes in the front matter are named."""

import importlib.util
import re

import pytest
from sphinx.errors import ExtensionError

from tools import sources

spec = importlib.util.spec_from_file_location("lowdim_map", sources.ROOT / "book" / "_ext" / "lowdim_map.py")
lowdim_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lowdim_map)

CHAPTERS = {
    "c/a": ("A", "Why?", []),
    "c/b": ("B", "When?", ["c/a"]),
    "c/c": ("C <really>", "How?", ["c/a", "c/b"]),
    "c/d": ("D", "Where?", ["c/a"]),
}


def test_a_chapter_stands_below_everything_it_builds_on():
    assert lowdim_map.levels(CHAPTERS) == [["c/a"], ["c/b", "c/d"], ["c/c"]]


def test_a_circle_is_named():
    with pytest.raises(ExtensionError, match="c/x → c/y → c/x"):
        lowdim_map.levels({"c/x": ("X", "?", ["c/y"]), "c/y": ("Y", "?", ["c/x"])})


def test_the_drawing_has_a_box_for_each_chapter_and_an_arrow_for_each_need():
    svg = lowdim_map.drawing(CHAPTERS, lambda docname: f"{docname}.html")
    # C builds on A and B, but B on A already: that arrow is implied.
    assert len(re.findall("<rect", svg)) == 4 and len(re.findall('class="edge"', svg)) == 3
    width = float(re.search(r'viewBox="0 0 (\S+)', svg)[1])
    for x in re.findall(r'<rect x="(\S+)"', svg):
        assert 0 <= float(x) <= width - lowdim_map.NODE_WIDTH
    assert "C &lt;really&gt;" in svg


@pytest.mark.parametrize("source", sources.chapters(), ids=lambda source: source.name)
def test_every_chapter_asks_a_question_and_builds_on_chapters_that_exist(source):
    entries = sources.front_matter(source.path)
    assert entries["question"].strip().endswith("?")
    assert set(entries["builds_on"]) <= {other.name for other in sources.chapters()} - {source.name}
