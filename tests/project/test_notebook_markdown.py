"""How single constructs of MyST are written in a notebook, tried on a small book of two pages."""

import base64

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from tools.notebook_markdown import CodeCell, NotebookBuilder

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EXTENSIONS = ("myst_nb", "sphinx_proof", "sphinx_exercise", "sphinx_design", "sphinxcontrib.bibtex")
FRONT = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

"""
OTHER = """# Other page

(there)=
## A section

```{glossary}
term one
  Its meaning.
```

```{bibliography}
```
"""
WORKS = "@article{knuth1984, author={Donald E. Knuth}, title={Literate programming}, journal={J}, year=1984}"


def export(work, text, values=None):
    """The cells of a page with this text, in a book with another page."""
    folder = work / "book"
    folder.mkdir(exist_ok=True)
    (folder / "index.md").write_text(FRONT + text, "utf8")
    (folder / "other.md").write_text("---\norphan: true\n---\n" + OTHER, "utf8")
    (folder / "works.bib").write_text(WORKS, "utf8")
    (folder / "dot.png").write_bytes(PIXEL)
    settings = {
        "extensions": [*EXTENSIONS, "tools.notebook_markdown"],
        "myst_enable_extensions": ["amsmath", "colon_fence", "deflist", "dollarmath"],
        "nb_execution_mode": "off",
        "numfig": True,
        "math_eqref_format": "({number})",
        "bibtex_bibfiles": ["works.bib"],
        "bibtex_reference_style": "author_year",
    }
    with patch_docutils(folder), docutils_namespace():
        app = Sphinx(
            folder, None, work / "out", work / "trees", NotebookBuilder.name, settings, status=None, freshenv=True
        )
        app.builder.wanted, app.builder.values = {"index"}, {"index": values or {}}
        app.build(force_all=True)
        return app.builder.pages["index"].cells


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "a/b")
    return lambda text, **options: "\n\n".join(
        str(cell) for cell in export(tmp_path, "# Title\n\n" + text, **options)
    ).removeprefix("# Title\n\n")


def test_a_code_cell_inside_a_solution_keeps_its_place_and_is_folded(tmp_path):
    cells = export(
        tmp_path,
        "# T\n\n````{exercise-start} Do\n:label: e\n````\nTry it.\n````{exercise-end}\n````\n\n"
        "````{solution-start} e\n:class: dropdown\n````\nFirst.\n\n```{code-cell}\nx = 1\n```\n\nThen.\n\n"
        "````{solution-end}\n````\n",
    )
    assert cells[1].startswith("## Exercise 1 (Do)")
    assert cells[1].endswith("First.\n\n</details>") and "<details><summary><b>Solution to Exercise 1 (Do)" in cells[1]
    assert cells[2] == CodeCell(0, folded=True)
    assert "Then.\n\n</details>" in cells[3]


def test_a_sub_section_begins_a_new_cell_and_code_stands_between(tmp_path):
    cells = export(tmp_path, "# T\n\nA.\n\n```{code-cell}\n1\n```\n\nB.\n\n## S\n\nC.\n")
    assert cells == ["# T\n\nA.", CodeCell(0), "B.", "## S\n\nC."]


def test_equations_with_several_lines_and_ams_environments(write):
    text = write("$$\na &= b \\\\\n  &= c\n$$ (one)\n\nSee {eq}`one`.\n\n\\begin{align}\nu &= v\n\\end{align}\n")
    assert "$$ \\begin{aligned} a &= b \\\\ &= c \\end{aligned} \\tag{1} $$" in text
    assert "See [(1)](#equation-one)." in text and '<a id="equation-one" name="equation-one"></a>' in text
    assert "\\begin{aligned} u &= v \\end{aligned}" in text


def test_mathematics_in_tables_has_no_bars_that_end_a_cell(write):
    text = write("| a | b |\n|---|---|\n| $\\lvert x\\rvert$ and $a<b$ | `p` |\n")
    assert text == "| a | b |\n|---|---|\n| $\\lvert x\\rvert$ and $a\\lt b$ | `p` |"


def test_boxes_are_quoted_or_folded(write):
    assert write("```{warning}\nMind $x$.\n\n$$\ny\n$$\n```") == "> **Warning**\n>\n> Mind $x$.\n>\n> $$ y $$"
    folded = write("```{admonition} More $z$\n:class: dropdown\nText.\n```")
    assert folded == "<details><summary><b>More $z$</b></summary>\n\nText.\n\n</details>"
    assert write(":::{dropdown} Open me\nText.\n:::").startswith("<details><summary><b>Open me</b></summary>\n\nText.")


def test_theorems_remarks_and_proofs(write):
    text = write(
        "```{prf:theorem} Name\n:label: t\nSo it is.\n```\n\n```{prf:remark}\n:label: r\n:nonumber:\nWell.\n```\n\n"
        "```{prf:proof}\nClear.\n```\n\nBy {prf:ref}`t`.\n"
    )
    assert '> <a id="t" name="t"></a>**Theorem 1** (Name)\n>\n> So it is.' in text
    assert "> **Remark**\n>\n> Well." in text
    assert "> *Proof.* Clear." in text
    assert text.endswith("By [Theorem 1](#t).")


def test_links_lead_to_the_site_and_terms_are_plain(write, monkeypatch):
    page = "The {term}`term one`, [page](other.md), {ref}`there`, [far](https://example.org/x)."
    assert write(page) == (
        "The term one, [page](https://a.github.io/b/other.html), "
        "[A section](https://a.github.io/b/other.html#there), [far](https://example.org/x)."
    )
    monkeypatch.delenv("BOOK_REPOSITORY")
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert write(page) == "The term one, page, A section, [far](https://example.org/x)."


def test_citations_and_the_list_of_works(write):
    text = write("As {cite}`knuth1984` and {cite:t}`knuth1984`.")
    assert text.startswith(
        "As [[Knuth, 1984](#knuth1984)] and Knuth [[1984](#knuth1984)].\n\n## Works cited\n\n- <a id="
    )
    assert text.count("Literate programming") == 1


def test_images_are_embedded_with_number_and_caption(write):
    text = write("```{figure} dot.png\n:alt: A dot\n:name: dot\nA caption.\n```\n\nSee {numref}`dot`.")
    assert text.startswith(f"![A dot](data:image/png;base64,{base64.b64encode(PIXEL).decode()})")
    assert '<small><a id="dot" name="dot"></a>**Fig. 1.** A caption.</small>' in text
    assert text.endswith("See [Fig. 1](#dot).")


def test_lists_definitions_footnotes_and_code_blocks(write):
    text = write("- a\n\n  b\n- c\n\nword\n: its sense\n\nNote[^1].\n\n[^1]: The note.\n\n```python\nx = 1\n```\n")
    assert text.startswith("- a\n\n  b\n\n- c\n\n- **word:** its sense\n\nNote<sup>[1](#")
    assert "[1] The note." in text and "```python\nx = 1\n```" in text


def test_words_that_look_like_markup_stay_words(write):
    assert write("5 \\* 3 \\_x\\_ \\$4 \\`q\\`, a < b.") == "5 \\* 3 \\_x\\_ \\$4 \\`q\\`, a &lt; b."
    assert write("1\\. is no list") == "1\\. is no list"
    assert write("A ``a`b`` here.") == "A ``a`b`` here."


def test_a_number_of_the_run_is_published_or_named(write):
    assert write("It is {glue:text}`slope:.2f`.", values={"slope": "1.02"}) == "It is 1.02<sup>†</sup>."
    assert write("It is {glue:text}`slope`.") == "It is (`slope`)."


def test_what_has_no_rule_stops_the_export(write):
    with pytest.raises(ValueError, match="index: no rule to write option_list"):
        write("```{eval-rst}\n-a  An option.\n```")
