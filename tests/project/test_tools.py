"""The build's decisions: what counts as a chapter, what makes it run again, what a page may not show."""

import nbformat.v4 as v4
import pytest

from tools import build_book, execute, logo, pdf, seeds, sources


def notebook(*cells):
    return v4.new_notebook(cells=[v4.new_code_cell(text) for text in cells])


def run_with(*outputs):
    made = notebook("work()")
    made.cells[0].outputs = list(outputs)
    return execute.Run(sources.Source("chapters/sample"), made)


def test_toc_is_read_in_reading_order_at_every_depth():
    toc = {
        "root": "a",
        "parts": [{"chapters": [{"file": "b", "sections": [{"file": "c"}]}]}, {"chapters": [{"file": "d"}]}],
    }
    assert sources.toc_files(toc) == ["a", "b", "c", "d"]


def test_library_hash_sees_content_names_and_order(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LIBRARY", tmp_path)
    (tmp_path / "one.py").write_text("x = 1")
    hashes = [sources.library_hash()]
    (tmp_path / "one.py").write_text("x = 2")
    hashes.append(sources.library_hash())
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    hashes.append(sources.library_hash())
    (tmp_path / "notes.txt").write_text("not code")
    assert len(set(hashes)) == 3
    assert sources.library_hash() == hashes[-1]


@pytest.mark.parametrize(("name", "value"), [("LOWDIM_SEED", "7"), ("LOWDIM_SCALE", "full"), ("LOWDIM_DEVICE", "cuda")])
def test_execution_key_depends_on_the_settings(monkeypatch, name, value):
    monkeypatch.delenv(name, raising=False)
    before = sources.execution_key()
    monkeypatch.setenv(name, sources.SETTINGS[name])
    assert sources.execution_key() == before, "the default, said aloud, is still the default"
    monkeypatch.setenv(name, value)
    assert sources.execution_key() != before


def test_code_hash_ignores_prose_and_keeps_cells_apart():
    plain = notebook("a = 1", "b = 2")
    wordy = notebook("a = 1", "b = 2")
    wordy.cells.insert(1, v4.new_markdown_cell("Words."))
    assert sources.code_hash(plain) == sources.code_hash(wordy)
    assert sources.code_hash(plain) != sources.code_hash(notebook("a = 1b = 2"))


def test_unknown_chapter_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit) as refusal:
        sources.select(["no_such_chapter"])
    assert all(source.name in str(refusal.value) for source in sources.chapters())


@pytest.mark.parametrize(
    "output",
    [
        v4.new_output("stream", name="stderr", text="anything at all"),
        v4.new_output("stream", name="stdout", text="cell.py:3: RuntimeWarning: overflow\n"),
        v4.new_output("display_data", data={"text/plain": "UserWarning: careful"}),
    ],
)
def test_a_cell_that_warns_is_named(output):
    assert "code cell 1 of chapters/sample.md" in execute.noise(run_with(output))


def test_ordinary_output_is_no_noise():
    assert execute.noise(run_with(v4.new_output("stream", name="stdout", text="Warning signs are yellow.\n"))) is None


def test_claims_are_collected_in_order_from_output_metadata():
    rows = [{"name": "first"}, {"name": "second"}]
    outputs = [v4.new_output("display_data", data={}, metadata={"lowdim": {"claim": row}}) for row in rows]
    outputs.insert(1, v4.new_output("stream", text="between"))
    assert sources.claim_rows(run_with(*outputs).notebook) == rows


def claim(name, verdict="holds"):
    row = {"name": name, "verdict": verdict, "anchor": f"claim-{name.lower()}"}
    return v4.new_output("display_data", data={}, metadata={"lowdim": {"claim": row}})


def claiming(source, *outputs):
    made = notebook(source)
    made.cells[0].outputs = list(outputs)
    return sources.claim_problems(made)


def test_a_ledger_is_whole_when_every_stated_claim_ran_and_holds():
    assert claiming("claims.check(1)\nclaims.check(2)", claim("a"), claim("b")) == []
    assert claiming("for k in ks:\n    claims.check(k)", claim("a"), claim("b"), claim("c")) == []
    assert claiming("def helper():\n    claims.check(1)\nclaims.check(2)", claim("a")) == []


@pytest.mark.parametrize(
    ("source", "outputs", "problem"),
    [
        ("for k in []:\n    claims.check(k)\nclaims.check(1)", [claim("a")], "states 2 claims, but 1 of them ran"),
        ("claims.check(1)", [claim("a", "fails")], "“a” does not hold"),
        ("for k in ks:\n    claims.check(k)", [claim("a"), claim("A")], "“a” has the same place"),
        ("x = 1", [], "no claim at all"),
    ],
)
def test_a_missing_failed_or_repeated_claim_is_named(source, outputs, problem):
    assert any(problem in line for line in claiming(source, *outputs))


def test_a_chapter_is_printed_again_only_when_its_page_changed(tmp_path):
    source = sources.Source("chapters/sample")
    page = tmp_path / "html" / "chapters" / "sample.html"
    page.parent.mkdir(parents=True)
    page.write_text("one")
    site = tmp_path / "html"
    [(_, target, stamp)] = pdf.outdated(site, [source])
    target.parent.mkdir()
    target.write_bytes(b"%PDF")
    pdf.stamps(site).mkdir()
    (pdf.stamps(site) / source.name).write_text(stamp)
    assert not list(pdf.outdated(site, [source]))
    page.write_text("two")
    assert list(pdf.outdated(site, [source]))


def test_logo_and_favicon_are_what_the_code_draws():
    assert (logo.STATIC / "logo.svg").read_text("utf8") == logo.logo()
    assert (logo.STATIC / "favicon.svg").read_text("utf8") == logo.favicon()


def test_chapter_build_leaves_the_other_chapters_and_empty_parts_out(monkeypatch):
    monkeypatch.setattr(sources, "chapters", lambda: [sources.Source("chapters/one"), sources.Source("chapters/two")])
    toc = {
        "root": "book/intro",
        "parts": [
            {"caption": "A", "chapters": [{"file": "chapters/one"}]},
            {"caption": "B", "chapters": [{"file": "chapters/two"}, {"file": "book/claims"}]},
        ],
    }
    assert sources.toc_files(build_book.without_other_chapters(toc, "one")) == [
        "book/intro",
        "chapters/one",
        "book/claims",
    ]
    assert [part["caption"] for part in build_book.without_other_chapters(toc, "two")["parts"]] == ["B"]


@pytest.mark.parametrize(("relation", "expected"), [("≈", 3.0), ("≤", 1.5), ("≥", 0.5)])
def test_worst_value_lies_on_the_wrong_side(relation, expected):
    measured = {"≈": [0.5, 3.0], "≤": [0.0, 1.5], "≥": [0.5, 9.0]}[relation]
    rows = [{"relation": relation, "measured": value, "theory": 1.0, "verdict": "holds"} for value in measured]
    assert seeds.worst(rows) == expected


def test_frame_hash_sees_a_style_but_not_compiled_python(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "TOC", tmp_path / "_toc.yml")
    for name in ("_toc.yml", "_config.yml", "book/_static/a.css", "book/_ext/__pycache__/b.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = sources.frame_hash()
    (tmp_path / "book/_ext/__pycache__/b.pyc").write_text("2")
    assert sources.frame_hash() == before
    (tmp_path / "book/_static/a.css").write_text("2")
    assert sources.frame_hash() != before
