"""Readers change things: the dimension, the target, the scale. What follows is a result or a clear message.

Each row edits one place of a chapter and runs the edited cell with the earlier cells that it needs. RUNS: it works, and
without a warning. Otherwise the reader meets a ValueError (or a claim that does not hold) whose text matches the row;
an error from deep inside, such as a KeyError of the library, fails the test.
"""

import ast
import os
from dataclasses import dataclass

import matplotlib
import matplotlib.pyplot as plt
import pytest

from lowdim.claims import ClaimFailed
from tools import sources

RUNS = None


@dataclass(frozen=True)
class Edit:
    """In `chapter` the reader writes `new` where `old` stands; `expected` is RUNS or the pattern of the message."""

    chapter: str
    old: str
    new: str
    expected: str | None

    def __str__(self):
        return f"{self.chapter}: {self.new}"


EDITS = [
    Edit(
        "information_exponent",
        "d, n = 256, scale(quick=50_000",
        "d, n = 64, scale(quick=50_000",
        "(?s)✗ noise of the gradient.*LOWDIM_CLAIMS",
    ),
    Edit("information_exponent", "d, chain, ode, vectors = 256,", "d, chain, ode, vectors = 40,", RUNS),
    Edit(
        "information_exponent",
        "d, chain, ode, vectors = 256,",
        "d, chain, ode, vectors = 40.5,",
        "d is 40.5; it must be a whole number",
    ),
    Edit(
        "information_exponent",
        "d, chain, ode, vectors = 256,",
        "d, chain, ode, vectors = 1,",
        "d is 1; target 'h1' needs d ≥ 2",
    ),
    Edit(
        "information_exponent",
        'standard_normal((800, 100))\nz, y = x[:, 0], targets.get("h3")',
        'standard_normal((800, 100))\nz, y = x[:, 0], targets.get("sin")',
        RUNS,
    ),
    Edit(
        "information_exponent",
        '["tanh", "abs", "He3", "bump"]',
        '["tanh", "abs", "He3", "cosh"]',
        "target is 'cosh'; known targets: h1",
    ),
    Edit(
        "information_exponent",
        '["tanh", "abs", "He3", "bump"]',
        '["tanh", "abs", "He3", "parity2"]',
        r"here 'parity2'\) takes 2 directions; here it must take 1",
    ),
    Edit(
        "information_exponent",
        "plotting.use()\n",
        'import os\nos.environ["LOWDIM_SCALE"] = "medium"\nplotting.use()\n',
        "LOWDIM_SCALE is 'medium'; allowed: quick, full",
    ),
    Edit(
        "information_exponent",
        "plotting.use()\n",
        'import os\nos.environ["LOWDIM_SEED"] = "three"\nplotting.use()\n',
        "LOWDIM_SEED is 'three'; it must be a whole number",
    ),
    Edit(
        "information_exponent",
        "lambda h: h[..., 0] + he3(h[..., 0]) * h[..., 1], directions=2",
        "lambda h: h + he3(h), directions=2",
        "returns shape .* it must return shape",
    ),
    Edit(
        "information_exponent",
        "lambda h: h[..., 0] + he3(h[..., 0]) * h[..., 1], directions=2",
        "lambda h: h[..., 0] ** 2 - h[..., 1], directions=2",
        RUNS,
    ),
    Edit("information_exponent", '"student": "relu"', '"student": "rellu"', "student is 'rellu'; did you mean 'relu'"),
    Edit("information_exponent", '"h2", 3000, 0.2)', '"h2", 3000, 0.0)', r"lr is 0\.0; it must be a finite number > 0"),
    Edit(
        "information_exponent", "    d=[64, 256],\n", "    d=[64, 0],\n", r"draw\(link=.*d=0\) raised ZeroDivisionError"
    ),
    Edit(
        "information_exponent",
        '    link=["tanh (k = 1)", "abs (k = 2)", "h3 (k = 3)", "h4 (k = 4)"],',
        '    link=["sine (k = 1)"],',
        "target is 'sine'; did you mean 'sin'",
    ),
    Edit("information_exponent", "    c=[0.1, 1.0],\n", "    c=0.1,\n", "c is 0.1; it must be a list of values"),
    Edit("lazy_barrier", 'sign = targets.get("noisy_sign")', 'sign = targets.get("sign")', RUNS),
    Edit("lazy_barrier", "rng.standard_normal((16, 200, 20))", "rng.standard_normal((16, 60, 20))", RUNS),
    Edit(
        "lazy_barrier",
        'fit = kernels.kernel_ridge(x, y, "arc-cosine", ridges=lambdas)',
        'fit = kernels.kernel_ridge(x, y, "arccosine", ridges=lambdas)',
        "kernel is 'arccosine'; .*arc-cosine",
    ),
    Edit(
        "lazy_barrier",
        'fit = kernels.kernel_ridge(x, y, "arc-cosine", ridges=lambdas)',
        'fit = kernels.kernel_ridge(x, y, "arc-cosine", ridges=-lambdas)',
        "(?s)ridges is .* it must be a number > 0",
    ),
    Edit(
        "lazy_barrier",
        'nets.two_layer(20, int(N), "relu"',
        'nets.two_layer(30, int(N), "relu"',
        "x has dimension 20; the network takes inputs of dimension 30",
    ),
    Edit(
        "statistical_queries",
        'queries.Oracle("h3", d, 1e-12, answers="random"',
        'queries.Oracle("h33", d, 1e-12, answers="random"',
        "target is 'h33'; did you mean 'h3'",
    ),
    Edit("statistical_queries", "d, powers_of_d = 256,", "d, powers_of_d = 64,", RUNS),
    Edit("statistical_queries", "d, powers_of_d = 256,", "d, powers_of_d = 0,", "d is 0; it must be"),
    Edit("statistical_queries", '    "He4": "He4",\n', '    "He4": "square",\n', RUNS),
    Edit(
        "statistical_queries",
        "g20 = queries.superorthogonal(2, 2)",
        "g20 = queries.superorthogonal(5, 5)",
        "I is 5",
    ),
    Edit("reused_batches", "    d=[16, 64, 256, 1024],\n", "    d=[32],\n", RUNS),
    Edit(
        "reused_batches",
        '"two steps, $|z|$": ("two steps",',
        '"two steps, $|z|$": ("two-steps",',
        "variant is 'two-steps'; .*two steps",
    ),
    Edit(
        "reused_batches",
        "d, alpha, seeds = scale(quick=5000, full=20_000), 3, 64",
        "d, alpha, seeds = 0, 3, 64",
        "d is 0",
    ),
    Edit("spiked_data", "d, thetas = 200, np.array(", "d, thetas = 60, np.array(", RUNS),
    Edit(
        "spiked_data",
        "d, thetas = 200, np.array([0.25,",
        "d, thetas = 200, np.array([-0.25,",
        r"theta is .*-0\.25.*; it must be",
    ),
    Edit(
        "spiked_data",
        'law = {"target": "h3", "d": 200, "theta": 200**0.5',
        'law = {"target": "tanh", "d": 50, "theta": 50**0.5',
        RUNS,
    ),
    Edit(
        "spiked_data",
        '    "spherical": flow.spiked(**law, dynamics="spherical"),\n',
        '    "spherical": flow.spiked(**law, dynamics="sphere"),\n',
        "dynamics is 'sphere'; allowed: 'spherical', 'normalized'",
    ),
    Edit(
        "spiked_data", "    gamma1=[0.0, 0.2, 0.35, 0.5],\n", "    gamma1=[0.35, -0.2],\n", "alignment is .*must lie in"
    ),
    Edit("additive_models", "d, M, n = 128, 4, 60_000", "d, M, n = 48, 4, 10_000", RUNS),
    Edit(
        "additive_models",
        'race = sgd.train_additive(network, targets.additive("h3", M)',
        'race = sgd.train_additive(network, targets.additive(["h3", "h4", "tanh", "h3"], M, [1, 2, 1, 1])',
        RUNS,
    ),
    Edit(
        "additive_models",
        "d8, M8, n8 = 64, 8, int(1.5 * 8 * 64**2)",
        "d8, M8, n8 = 64, 64, int(1.5 * 8 * 64**2)",
        "d is 64; target 'additive, 64 tasks' needs d ≥ 65",
    ),
    Edit(
        "additive_models",
        "counts = [1, 4, 16, 64, 256, 1024, 4096]",
        "counts = [1, 2, 16]",
        "tasks is 2; it must be 1 or ≥ 4",
    ),
    Edit(
        "additive_models",
        "d, M, n = 128, 4, 60_000",
        "d, M, n = 128, 4, 0",
        "samples is",
    ),
    Edit("icl_transformers", "d, short = 16, (4, 8", "d, short = 10, (4, 8", RUNS),
    Edit("icl_transformers", 'icl.tasks("h1", d, d,', 'icl.tasks("h1", d, 20,', "r is 20; it must be at most d = 16"),
    Edit(
        "icl_transformers", 'linear = icl.tasks("h1"', 'linear = icl.tasks("h11"', "target is 'h11'; did you mean 'h1'"
    ),
    Edit(
        "icl_transformers",
        'small, paper = icl.preset("small", 8, 16)',
        'small, paper = icl.preset("tiny", 8, 16)',
        "name is 'tiny'; allowed: 'small', 'paper'",
    ),
    Edit(
        "icl_transformers",
        'tasks = icl.tasks("h2", 8, 2, seed=seed(10))',
        'tasks = icl.tasks("h2", 12, 2, seed=seed(10))',
        "features read inputs of dimension 8; the tasks have d = 12",
    ),
    Edit("amp_classification", "runs, d, alpha, steps = 16, 400, 3, 10", "runs, d, alpha, steps = 4, 60, 2, 6", RUNS),
    Edit(
        "amp_classification",
        'examples = ("linear", "noisy_sign",',
        'examples = ("linaer", "noisy_sign",',
        "target is 'linaer'; did you mean 'linear'",
    ),
    Edit(
        "amp_classification",
        "d, options = scale(quick=100, full=500)",
        "d, options = scale(quick=3, full=500)",
        "d is 3; it must be a whole number ≥ 4",
    ),
    Edit(
        "amp_classification",
        "alphas = [5.0, 10.0, 20.0]",
        "alphas = [0.0, 10.0, 20.0]",
        r"alpha is 0\.0; it must be a finite number > 0",
    ),
    Edit(
        "depth",
        "tree = targets.tree(36, seed=seed(0))",
        'tree = targets.tree(36, seed=seed(0), link="sin")',
        "✗ tree target by hand",
    ),
    Edit("depth", "sizes = [1, 2, 3, 4, 6, 8, 12], {36: 16, 100: 8, 400: 1}", "sizes = [2, 6], {49: 2}", RUNS),
    Edit(
        "depth",
        "sizes = [1, 2, 3, 4, 6, 8, 12], {36: 16, 100: 8, 400: 1}",
        "sizes = [2], {0: 2}",
        "d is 0; it must be a whole number ≥ 1",
    ),
    Edit(
        "depth",
        "plan = {36: [1.5, 1.75, 2.0, 2.25], 64: [1.5, 1.75, 2.0]}",
        "plan = {36: [0.3]}",
        "n is 3; it must be a whole number ≥ 5",
    ),
]


def code_cells(chapter):
    (source,) = sources.select([chapter])
    return [cell.source for cell in source.read().cells if cell.cell_type == "code"]


def names_in(node):
    """The names that a statement defines, and those that it needs from statements before it."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = {node.name}
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    else:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    inner = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    inner |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    loaded = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return names, loaded - inner


def names_of(cell):
    """What a cell defines, and what it needs from earlier cells."""
    defined, free = set(), set()
    for statement in ast.parse(cell).body:
        names, loaded = names_in(statement)
        free |= loaded - defined
        defined |= names
    return defined, free


def needed(cells, last):
    """The cells up to number `last` that its names depend on, in order."""
    wanted, chosen = names_of(cells[last])[1], [last]
    for number in range(last - 1, -1, -1):
        defined, free = names_of(cells[number])
        if defined & wanted:
            wanted = wanted - defined | free
            chosen.insert(0, number)
    return [cells[number] for number in chosen]


def run_after(edit):
    """Run the edited cell. A setting in the first cell is met by the first cell behind it that asks for it."""
    cells = code_cells(edit.chapter)
    places = [number for number, cell in enumerate(cells) if edit.old in cell]
    assert len(places) == 1 and cells[places[0]].count(edit.old) == 1, f"{edit.old!r} is not once in {edit.chapter}"
    edited = [cell.replace(edit.old, edit.new) for cell in cells]
    last = places[0]
    if "LOWDIM_" in edit.new:
        last = next(i for i, cell in enumerate(cells) if ("scale(" if "SCALE" in edit.new else "seed(") in cell)
    space = {"__name__": "__main__"}
    for cell in needed(edited, last):
        exec(compile(cell, "cell", "exec"), space)


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_gives_a_result_or_a_clear_message(edit, monkeypatch):
    for name in sources.SETTINGS:
        monkeypatch.setenv(name, sources.SETTINGS[name])  # restored afterwards, whatever the cell does to it
    monkeypatch.setattr(os, "environ", os.environ.copy())
    matplotlib.use("Agg")
    try:
        if edit.expected is RUNS:
            run_after(edit)
        else:
            with pytest.raises((ValueError, ClaimFailed), match=edit.expected):
                run_after(edit)
    finally:
        plt.close("all")
