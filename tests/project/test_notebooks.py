"""The generated notebooks: valid, plain Markdown, the source's own code, and links that lead somewhere."""

import re
import subprocess
import sys

import nbformat
import pytest
import yaml

from tools import address, notebook_markdown, notebooks, sources

# A fence or colon fence with a directive, a role, a target, a substitution, raw LaTeX labels: none may survive.
RAW_MYST = re.compile(
    r"```\s*\{|~~~\s*\{|:::|\{[a-zA-Z][\w:.+-]*\}`|^\([\w-]+\)=\s*$|\{\{|\\label\{|\\eqref\{|\\ref\{", re.MULTILINE
)
REPOSITORY = "somebody/some-book"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All notebooks as a repository with an address publishes them: {name: notebook}."""
    patch = pytest.MonkeyPatch()
    patch.setenv("BOOK_REPOSITORY", REPOSITORY)
    paths = notebooks.write(tmp_path_factory.mktemp("notebooks"))
    patch.undo()
    return {path.stem: nbformat.read(path, as_version=4) for path in paths}


@pytest.fixture(params=[source.name for source in sources.chapters()])
def notebook(request, written):
    return written[request.param]


def source_of(notebook):
    name = notebook.metadata.colab.name.removesuffix(".ipynb")
    (source,) = sources.select([name])
    return source


def prose(notebook):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def without_code(text):
    """Prose without inline code and code blocks, which may show anything."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.DOTALL)


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_every_chapter_has_a_notebook(written):
    assert list(written) == [source.name for source in sources.chapters()]


def test_it_is_valid_has_no_outputs_and_asks_for_python3(notebook):
    nbformat.validate(notebook)
    assert notebook.nbformat == 4 and notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def test_no_raw_directive_or_role_survives(notebook):
    assert not RAW_MYST.findall(without_code(prose(notebook)))
    fences = re.findall(r"^```+\s*\{.*|\{[a-zA-Z][\w:.+-]*\}`[^`]*`", prose(notebook), re.MULTILINE)
    assert not fences


@pytest.mark.parametrize(
    "text", ["```{note}\nx\n```", "{cite}`a`", "{prf:ref}`b`", "(label)=", ":::{tip}", "{glue:text}`x:.2f`"]
)
def test_the_search_finds_what_it_looks_for(text):
    assert RAW_MYST.search(text)


def test_code_cells_are_those_of_the_chapter_behind_the_first(notebook):
    first, *rest = code(notebook)
    written = [cell.source for cell in source_of(notebook).read().cells if cell.cell_type == "code"]
    assert rest == written
    assert first.startswith("# @title Set-up")


def test_the_first_cell_is_pinned_to_this_version_of_the_library(notebook):
    wheel = f"https://raw.githubusercontent.com/{REPOSITORY}/notebooks/wheels/{sources.library_hash()}/"
    version = notebooks.project()["version"]
    assert f'set_up("{version}", "{wheel}lowdim-{version}-py3-none-any.whl")' in code(notebook)[0]


def test_every_link_inside_the_notebook_has_its_target(notebook):
    text = prose(notebook)
    anchors = re.findall(r'<a id="([^"]+)"', text)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(anchors)


def test_every_other_link_is_absolute(notebook):
    targets = re.findall(r"(?<!\!)\[[^\]]*\]\(([^)#][^)]*)\)", without_code(prose(notebook)))
    assert not [target for target in targets if not target.startswith(("https://", "http://", "mailto:"))]


def test_images_are_embedded_or_absolute(notebook):
    images = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", prose(notebook))
    assert not [image[:40] for image in images if not image.startswith(("data:image/", "https://"))]


def test_citations_lead_to_the_list_of_works(notebook):
    text = prose(notebook)
    cited = set(re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", source_of(notebook).path.read_text("utf8")))
    keys = {key.strip() for group in cited for key in group.split(",")}
    works = text.split("## Works cited")[1]
    assert {re.search(r'id="([^"]+)"', line)[1] for line in works.strip().splitlines()} == keys
    assert all(f"](#{key})" in text for key in keys)


def test_equations_carry_the_numbers_by_which_the_text_calls_them(notebook):
    text = prose(notebook)
    numbers = re.findall(r"\\tag\{([^}]+)\}", text)
    assert numbers and len(numbers) == len(set(numbers))
    assert set(re.findall(r"\[\(([\d.]+)\)\]\(#equation-", text)) <= set(numbers)


def test_display_mathematics_stands_on_one_line(notebook):
    for line in prose(notebook).splitlines():
        assert line.count("$$") in (0, 2), line


def test_exercises_are_headings_and_solutions_are_folded(notebook):
    text = prose(notebook)
    source = source_of(notebook).path.read_text("utf8")
    exercises = len(re.findall(r"^[`:]{3,}\{exercise(?:-start)?\}", source, re.MULTILINE))
    solutions = len(re.findall(r"^[`:]{3,}\{solution(?:-start)?\}", source, re.MULTILINE))
    assert len(re.findall(r"^#+ Exercise ", text, re.MULTILINE)) == exercises
    assert text.count("<details>") == text.count("</details>") >= solutions
    # Markdown begins again only behind an empty line.
    assert text.count("</summary>\n\n") == text.count("<details>")


def test_theorems_are_bold_and_quoted(notebook):
    source = source_of(notebook).path.read_text("utf8")
    kinds = re.findall(r"^[`:]{3,}\{prf:(\w+)\}", source, re.MULTILINE)
    text = prose(notebook)
    for kind in set(kinds) - {"proof"}:
        assert len(
            re.findall(rf"^> (?:<a [^>]*></a>)*\*\*{kind.title()} [\d.]+\*\*", text, re.MULTILINE)
        ) == kinds.count(kind)


def test_every_figure_of_a_cell_has_its_caption(notebook):
    cells = [cell for cell in source_of(notebook).read().cells if cell.cell_type == "code"]
    captions = [cell for cell in cells if cell.metadata.get("mystnb", {}).get("figure", {}).get("caption")]
    assert len(re.findall(r"^<small>(?:<a [^>]*></a>)*\*\*Fig\. [\d.]+\.\*\*", prose(notebook), re.MULTILINE)) == len(
        captions
    )


def test_numbers_from_the_run_are_published_or_named(notebook):
    names = re.findall(r"\{glue:text\}`([^`]+)`", source_of(notebook).path.read_text("utf8"))
    text = prose(notebook)
    marked = len(re.findall(rf"<sup>{notebook_markdown.PUBLISHED}</sup>", text))
    named = len([name for name in names if f"(`{name}`)" in text])
    assert marked + named == len(names)


def test_the_same_sources_give_the_same_files(tmp_path):
    name = sources.chapters()[0].name
    (first,) = notebooks.write(tmp_path / "a", [name])
    (second,) = notebooks.write(tmp_path / "b", [name])
    assert first.read_bytes() == second.read_bytes()


@pytest.fixture
def no_address(monkeypatch):
    for variable in ("BOOK_REPOSITORY", "GITHUB_REPOSITORY", "BOOK_SITE"):
        monkeypatch.delenv(variable, raising=False)


def test_without_an_address_there_is_no_dead_link(no_address, tmp_path):
    assert address.repository() is address.site() is address.colab("x") is address.raw("x") is address.page("x") is None
    (path,) = notebooks.write(tmp_path, [sources.chapters()[0].name])
    made = nbformat.read(path, as_version=4)
    assert "None)" in code(made)[0] and "github.io" not in prose(made)


@pytest.mark.parametrize(
    "text", ["one/two", "https://github.com/one/two", "https://github.com/one/two.git", "git@github.com:one/two.git"]
)
def test_a_repository_may_be_given_in_several_forms(no_address, monkeypatch, text):
    monkeypatch.setenv("GITHUB_REPOSITORY", "fork/other")
    assert address.repository() == "fork/other"
    monkeypatch.setenv("BOOK_REPOSITORY", text)
    assert address.repository() == "one/two"
    assert address.site() == "https://one.github.io/two/"
    assert address.colab("a.ipynb") == "https://colab.research.google.com/github/one/two/blob/notebooks/a.ipynb"


def test_a_repository_that_is_none_is_refused(no_address, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "https://example.org/x")
    with pytest.raises(SystemExit, match=r"BOOK_REPOSITORY is 'https://example.org/x'"):
        address.repository()


def test_the_branch_holds_notebooks_wheel_and_what_binder_needs(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOK_REPOSITORY", REPOSITORY)
    command = [sys.executable, "-m", "tools.notebooks", "--publish", str(tmp_path)]
    subprocess.run(command, cwd=sources.ROOT, check=True)
    assert (tmp_path / notebooks.wheel_path()).exists()
    assert f"pip install --no-deps {notebooks.wheel_path()}" in (tmp_path / ".binder" / "postBuild").read_text()
    packages = yaml.safe_load((tmp_path / ".binder" / "environment.yml").read_text())["dependencies"]
    assert {"pytorch-cpu", "numpy", "numba"} <= set(packages) and "torch" not in packages
    assert {path.stem for path in tmp_path.glob("*.ipynb")} == {source.name for source in sources.chapters()}
    readme = (tmp_path / "README.md").read_text()
    assert all(address.colab(f"{source.name}.ipynb") in readme for source in sources.chapters())
