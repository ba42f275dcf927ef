"""In-context learning: gradients against autograd, solvers against dense algebra, floors against simulation."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowdim import hermite, icl, links
from lowdim.gpt import rate
from tools import pretrained as tool

MIXED = links.polynomial([0, math.sqrt(0.5), math.sqrt(0.5)])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def doubled(features):
    return icl.Features(features.weights.double(), features.biases.double())


# --- Tasks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("link", "r"), [("h2", 2), ("h3", 3), ("tanh", 2), (MIXED, 2), ("h4", 3)])
def test_the_floor_is_the_risk_of_the_prior_mean(link, r):
    """E(f − E_θ f)² = E f² − E[f f'] for two tasks on one input: the second mean by simulation."""
    tasks = icl.tasks(link, 6, r, seed=1)
    x = torch.randn(20_000, 6, generator=rng(1))
    a, b = (tasks.target(x @ tasks.directions(100, rng(k)).T) for k in (2, 3))
    shared = float((a.mean(1) * b.mean(1)).mean())
    energy = hermite.coefficients(lambda z: tasks.target(z) ** 2, 0)[0]
    assert abs(energy - shared - icl.prior_floor(link, r)) < 0.06


def test_the_floor_of_h2_is_one_minus_one_over_r():
    assert [icl.prior_floor("h2", r) for r in (1, 2, 5)] == pytest.approx([0, 0.5, 0.8], abs=1e-9)
    assert icl.prior_floor("h3", 4) == pytest.approx(1)


def test_moments_of_the_sphere():
    """On a circle E cos^k; on the sphere in R³ a coordinate is uniform in [−1, 1]: E u^k = 1/(k + 1)."""
    angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    for k in (0, 2, 4, 6, 8):
        assert icl.sphere_moment(k, 2) == pytest.approx(np.mean(np.cos(angle) ** k))
        assert icl.sphere_moment(k, 3) == pytest.approx(1 / (k + 1))
        assert icl.sphere_moment(k, 1) == 1 and icl.sphere_moment(k + 1, 2) == 0


def test_directions_lie_where_they_should():
    tasks = icl.tasks("h2", 10, 3, seed=2)
    for angle, inside in ((0.0, 1.0), (0.7, math.cos(0.7) ** 2), (math.pi / 2, 0.0)):
        theta = tasks.directions(50, rng(), angle=angle)
        torch.testing.assert_close(theta.norm(dim=1), torch.ones(50))
        torch.testing.assert_close((theta @ tasks.subspace).square().sum(1), torch.full((50,), inside))


def test_labels_are_the_link_of_the_projection_and_coordinates_are_cut():
    tasks = icl.tasks("h2", 7, 2, seed=3)
    p = tasks.draw(4, 5, rng(), coordinates=3, scale=2.0)
    assert (p.x[..., 3:] == 0).all() and (p.x[..., :3] != 0).all()
    z = (p.x * p.theta[:, None]).sum(-1)
    torch.testing.assert_close(p.y, (z**2 - 1) / math.sqrt(2))


# --- Linear attention ---------------------------------------------------------------------------------------------


def test_the_closed_form_of_linear_attention_is_where_the_gradient_vanishes():
    """Moments by simulation: E[x xᵀ Γ c cᵀ] = E[y x cᵀ] at the closed form, with an anisotropic covariance."""
    n, count = 6, 400_000
    covariance = np.diag([2.0, 1.0, 0.5])
    root = torch.as_tensor(np.sqrt(covariance))
    x = torch.randn(count, n + 1, 3, generator=rng(4), dtype=torch.float64) @ root
    y = (x * torch.randn(count, 1, 3, generator=rng(5), dtype=torch.float64)).sum(-1)
    c = (y[:, :n, None] * x[:, :n]).mean(1)
    left, right = x[:, n].mT @ x[:, n] / count, c.mT @ c / count
    best = torch.linalg.inv(left) @ (x[:, n].mT @ (y[:, n, None] * c) / count) @ torch.linalg.inv(right)
    np.testing.assert_allclose(best.numpy(), icl.linear_attention_gamma(covariance, n), atol=0.02)
    assert icl.linear_attention_gamma(np.eye(4), 5)[0, 0] == pytest.approx(0.5)
    assert icl.linear_attention_risk(4, 5) == pytest.approx(0.5)


# --- Algorithm 2 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", ["last", "all"])
def test_the_first_layer_gradient_is_autograd_s(queries):
    features, diagonal = icl.start(6, 5, gamma=0.7, seed=2)
    features, diagonal = doubled(features), diagonal.double()
    x = torch.randn(4, 8, 6, generator=rng(1), dtype=torch.float64)
    y = torch.randn(4, 8, generator=rng(2), dtype=torch.float64)
    w = features.weights.clone().requires_grad_(True)
    loss = 0.0
    for t in range(4):
        asked = [7] if queries == "last" else range(8)
        for q in asked:
            rest = [i for i in range(8) if i != q]
            phi = torch.relu(x[t] @ w.T + features.biases)
            f = phi[q] @ torch.diag(diagonal) @ (y[t, rest] @ phi[rest]) / 7
            loss = loss + (y[t, q] - f) ** 2 / (4 * len(asked))
    expected = torch.autograd.grad(loss, w)[0]
    torch.testing.assert_close(icl.first_layer_gradient(features, diagonal, x, y, queries), expected)


@pytest.mark.parametrize("link", ["h1", "h2", MIXED])
def test_the_mean_gradient_points_into_the_subspace_as_predicted(link):
    tasks = icl.tasks(link, 8, 2, seed=1)
    features, diagonal = icl.start(8, 24, gamma=0.01, seed=1)
    found = icl.mean_gradient(tasks, features, diagonal, 20_000, 64, rng(3))
    expected = icl.expected_gradient(link, features, diagonal, tasks.subspace).float()
    w = features.weights
    clean = [g - (g * w).sum(1, keepdim=True) * w for g in (found, expected)]  # the part along w is not predicted
    cosine = (clean[0] * clean[1]).sum() / (clean[0].norm() * clean[1].norm())
    assert cosine > 0.97
    assert abs(float((clean[0] * clean[1]).sum() / clean[1].square().sum()) - 1) < 0.1


def test_both_choices_of_the_query_have_the_same_mean_and_one_has_less_noise():
    tasks = icl.tasks("h2", 8, 2, seed=1)
    features, diagonal = icl.start(8, 16, gamma=0.01, seed=1)
    expected = icl.mean_gradient(tasks, features, diagonal, 20_000, 64, rng(9))
    gaps = {}
    for queries in ("last", "all"):
        runs = [icl.mean_gradient(tasks, features, diagonal, 4000, 32, rng(k), queries) for k in range(6)]
        gaps[queries] = torch.stack([(g - expected).square().sum() for g in runs]).mean()
        mean = torch.stack(runs).mean(0)
        assert (mean * expected).sum() / expected.square().sum() == pytest.approx(1, abs=0.35)
    assert gaps["all"] < gaps["last"] / 4


def test_one_step_finds_the_subspace_and_random_rows_do_not():
    tasks = icl.tasks("h2", 16, 2, seed=5)
    step = icl.one_step(tasks, 48, 3000, 128, seed=1)
    assert icl.alignment(step.weights, tasks.subspace).min() > 0.95
    assert float(step.weights.square().sum(1).mean()) == pytest.approx(1, abs=1e-4)
    assert icl.alignment(icl.random_features(tasks, 48).weights, tasks.subspace).min() < 0.7
    inside = icl.random_features(tasks, 48, inside=True)
    assert icl.alignment(inside.weights, tasks.subspace).min() > 0.999


def test_conjugate_gradients_agree_with_the_dense_solution():
    tasks = icl.tasks("h2", 6, 2, seed=1)
    features = icl.random_features(tasks, 7, inside=True, seed=2)
    seen = icl.summarise(tasks, features, 300, (9,), rng(1))
    seen = icl.Summaries(seen.query.double(), seen.context.double(), seen.labels.double(), seen.lengths)
    ridges = np.array([1e-3, 1e-1])
    found, residuals = icl.conjugate_gradients(seen, ridges, 60)
    assert float(residuals.max()) < 1e-8
    big = torch.einsum("ti,tj->tij", seen.query, seen.context[0]).reshape(300, 49)
    unit = seen.query.square().sum() / 300 * seen.context[0].square().sum() / 300 / 7
    for gamma, ridge in zip(found, ridges, strict=True):
        dense = torch.linalg.solve(
            big.T @ big / 300 + ridge * unit * torch.eye(49, dtype=torch.float64), big.T @ seen.labels / 300
        )
        torch.testing.assert_close(gamma.reshape(49), dense, rtol=1e-5, atol=1e-7)


def test_summaries_are_the_means_they_are_said_to_be():
    tasks = icl.tasks("h2", 5, 2, seed=1)
    features = icl.random_features(tasks, 6, seed=2)
    seen = icl.summarise(tasks, features, 40, (2, 5, 9), rng(3))
    p = tasks.draw(40, 10, rng(3))
    for n, c in zip(seen.lengths, seen.context, strict=True):
        torch.testing.assert_close(c, (p.y[:, :n, None] * features(p.x[:, :n])).mean(1))
    torch.testing.assert_close(seen.query, features(p.x[:, -1]))


class Largest(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.entries = max(self.entries, value.numel())
        return result


def test_phase_two_never_forms_the_products_of_features():
    tasks, width, count = icl.tasks("h2", 6, 2, seed=1), 64, 3000
    features = icl.random_features(tasks, width, seed=1)
    seen = icl.summarise(tasks, features, count, (8,), rng(1))
    with Largest() as largest:
        icl.conjugate_gradients(seen, np.array([1e-3]), 5)
    assert largest.entries <= max(width**2, count * width) < count * width**2 / 10


def test_algorithm_two_beats_the_floor_and_a_random_first_layer_does_not():
    tasks = icl.tasks("h2", 16, 2, seed=5)
    lengths = (8, 64)
    step = icl.fit_attention(tasks, icl.one_step(tasks, 48, 3000, 128, spread=0.5, seed=1), 4000, lengths, seed=2)
    control = icl.fit_attention(tasks, icl.random_features(tasks, 48, spread=0.5, seed=1), 4000, lengths, seed=2)
    assert step.risks(tasks, 1000, seed=3).mean(0)[1] < 0.3
    assert control.risks(tasks, 1000, seed=3).mean(0)[1] > 0.7
    assert step.risks(tasks, 50, trained_at=64, lengths=(8, 16)).shape == (50, 2)
    with pytest.raises(ValueError, match="no Γ was fitted at length 5"):
        step.risks(tasks, 10, trained_at=5)


# --- Learners on the prompt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", icl.LEARNERS)
def test_learners_on_the_prompt_learn_an_easy_task(learner):
    tasks = icl.tasks("h1", 4, 4, seed=1)
    few, many = icl.prompt_risks(learner, tasks, 12, (3, 60), seed=1).mean(0)
    assert many < 0.25 and many < few


def test_knowing_the_subspace_helps_the_kernel():
    tasks = icl.tasks("h2", 16, 2, seed=1)
    blind, told = (
        icl.prompt_risks("kernel ridge", tasks, 20, (24,), known_subspace=known, seed=1).mean()
        for known in (False, True)
    )
    assert told < 0.2 < 0.7 < blind


# --- The transformer ----------------------------------------------------------------------------------------------

TINY = icl.Settings(3, 5, layers=2, width=8, heads=2)


def explicit(model, x, y):
    """The same network written out: explicit softmax, one token after the other, all blocks in full."""
    s, (b, n, d) = model.settings, x.shape
    tokens = torch.zeros(b, 2 * n - 1, d)
    tokens[:, ::2] = x
    tokens[:, 1::2, 0] = y[:, :-1]
    h = model.read_in(tokens) + model.positions[: 2 * n - 1]
    for block in model.blocks:
        q, k, v = block.qkv(block.before_attention(h)).chunk(3, dim=-1)
        heads = []
        for part in range(s.heads):
            cut = slice(part * s.width // s.heads, (part + 1) * s.width // s.heads)
            scores = q[..., cut] @ k[..., cut].mT / math.sqrt(s.width // s.heads)
            later = torch.ones(2 * n - 1, 2 * n - 1).triu(1).bool()
            heads.append(torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v[..., cut])
        h = h + block.out(torch.cat(heads, -1))
        h = h + block.down(torch.nn.functional.gelu(block.up(block.before_mlp(h)), approximate="tanh"))
    return model.read_out(model.last_norm(h))[:, ::2, 0]


def test_the_transformer_is_the_one_written_out():
    model, p = icl.GPT(TINY, seed=1), icl.tasks("h2", 3, 2).draw(4, 5, rng())
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=rng(weight.numel()))
        torch.testing.assert_close(model(p.x, p.y), explicit(model, p.x, p.y), rtol=1e-4, atol=1e-5)


def test_a_prediction_sees_only_what_stands_before_it():
    model, p = icl.GPT(TINY, seed=1), icl.tasks("h2", 3, 2).draw(4, 5, rng())
    with torch.no_grad():
        before = model(p.x, p.y)
        x, y = p.x.clone(), p.y.clone()
        x[:, 4], y[:, 3:] = 7.0, 7.0
        after = model(x, y)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


@pytest.mark.parametrize("settings", [TINY, icl.preset("small", 8, 24), icl.Settings(4, 6, 3, 12, 3)])
def test_parameters_are_counted_right(settings):
    model = icl.GPT(settings, device="meta")
    assert sum(p.numel() for p in model.parameters()) == settings.parameter_count()


def test_the_size_of_the_papers():
    """12 layers of width 256, with GPT-2's table of embeddings: the 22.4 million of Garg et al."""
    paper = icl.preset("paper", 20, 101)
    assert round(paper.parameter_count(50_257) / 1e6, 1) == 22.4 and round(paper.parameter_count() / 1e6, 1) == 9.5


def test_training_learns_and_resumes_to_the_same_bits(tmp_path):
    tasks = icl.tasks("h1", 3, 1, seed=1)
    run = {"batch": 16, "lr": 3e-3, "curriculum": icl.Curriculum(2, 3, 0.5), "seed": 4}
    whole = icl.train(tasks, TINY, 120, **run)
    file = tmp_path / "run.pt"
    icl.train(tasks, TINY, 120, **run, checkpoint=file, save_every=25, stop_after=55)
    resumed = icl.train(tasks, TINY, 120, **run, checkpoint=file)
    np.testing.assert_array_equal(whole.losses, resumed.losses)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    steps, losses = whole.curve(4)
    assert len(steps) == 4 and np.isfinite(losses).all() and losses[-1] < 1
    with pytest.raises(ValueError, match=r"another run .*lr = 0\.003"):
        icl.train(tasks, TINY, 120, **run | {"lr": 1e-3}, checkpoint=file)


def test_a_checkpoint_of_other_tasks_is_refused(tmp_path):
    file = tmp_path / "run.pt"
    icl.train(icl.tasks("h1", 3, 1, seed=1), TINY, 4, batch=2, checkpoint=file)
    with pytest.raises(ValueError, match="another hidden subspace"):
        icl.train(icl.tasks("h1", 3, 1, seed=2), TINY, 4, batch=2, checkpoint=file)
    with pytest.raises(ValueError, match="link = 'h1'"):
        icl.train(icl.tasks("h2", 3, 1, seed=1), TINY, 4, batch=2, checkpoint=file)


def test_initial_weights_have_the_size_they_are_said_to_have():
    model = icl.GPT(icl.Settings(16, 40, layers=2, width=64, heads=4, init=0.1), seed=3)
    block = model.blocks[1]
    sizes = {block.qkv.weight: 0.1, block.up.weight: 0.1, block.out.weight: 0.05, block.down.weight: 0.05,
             model.read_in.weight: 0.25, model.read_out.weight: 0.02, model.positions: 0.02}  # fmt: skip
    for weight, size in sizes.items():
        assert float(weight.detach().std()) == pytest.approx(size, rel=4 / math.sqrt(2 * weight.numel()))
    assert not block.up.bias.any() and (model.last_norm.weight == 1).all()


def test_the_rate_rises_and_falls_and_the_losses_are_those_of_the_batches():
    factors = [rate(step, 100, 0.1) for step in range(100)]
    assert max(factors) == factors[9] == 1 and factors[0] == pytest.approx(0.1) and factors[-1] == pytest.approx(1 / 90)
    tasks = icl.tasks("h1", 3, 1, seed=1)
    result = icl.train(tasks, TINY, 1, batch=16, seed=4)
    model, p = icl.GPT(TINY, seed=4), tasks.draw(16, 5, rng(4))
    np.testing.assert_allclose(result.losses[0], icl.risks(model, p).mean(0), rtol=1e-5)


def test_a_run_that_diverges_says_so():
    tasks = icl.tasks(lambda z: 1e30 * z, 3, 1)
    with pytest.raises(FloatingPointError, match="diverged"):
        icl.train(tasks, TINY, 3, batch=4)


def test_the_curriculum_grows_to_the_full_size():
    plan = icl.Curriculum(2, 3, 0.5)
    sizes = [plan.size(step, 100, TINY) for step in range(100)]
    assert sizes[0] == (2, 3) and sizes[50] == sizes[-1] == (3, 5)
    assert all(a <= b for a, b in pairwise(sizes))


def test_the_shipped_transformer_is_safe_small_and_trained():
    shipped = icl.pretrained()
    assert icl.SHIPPED.stat().st_size < 5e6 and shipped.recipe == icl.RECIPE
    floor = icl.prior_floor(shipped.tasks.target, shipped.tasks.r)
    errors = icl.risks(shipped.model, shipped.tasks.draw(500, 32, rng(1))).mean(0)
    assert abs(errors[0] - floor) < 0.25 and errors[16:].mean() < 0.05
    again = icl.tasks(shipped.tasks.target, shipped.tasks.d, shipped.tasks.r, seed=shipped.recipe["seed"])
    torch.testing.assert_close(again.subspace, shipped.tasks.subspace)
    query, examples = icl.sensitivities(shipped.model, shipped.tasks, 20, 20)
    assert min(icl.share_inside(v, shipped.tasks.subspace) for v in (query, examples)) > 0.98
    assert icl.share_inside(icl.first_layer_maps(shipped.model)["values"], shipped.tasks.subspace) > 0.9
    assert tool.OUT == icl.SHIPPED


def test_the_recipe_trains_writes_and_loads(tmp_path):
    icl.pretrain_gpt(steps=3, out=tmp_path / "w.pt")
    assert icl.pretrained(tmp_path / "w.pt").recipe["steps"] == 3


# --- Devices and bad input ----------------------------------------------------------------------------------------


class NoHostReads(TorchDispatchMode):
    """Rejects operations that mix devices or read a meta tensor's values on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [v for v in torch.utils._pytree.tree_leaves((args, kwargs or {})) if isinstance(v, torch.Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default and any(v.is_meta for v in tensors):
            raise AssertionError(f"host read: {func}")
        places = {v.device.type for v in tensors if v.dim() > 0}
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") is not None:
            places = {torch.device(kwargs["device"]).type}
        if len(places) > 1:
            raise AssertionError(f"{func} mixes devices {places}")
        return func(*args, **(kwargs or {}))


def test_all_trainers_stay_on_their_device():
    tasks = icl.tasks("h2", 6, 2, device="meta")
    with NoHostReads():
        features = icl.one_step(tasks, 5, 20, 7)
        fit = icl.fit_attention(tasks, features, 20, (3, 6), iterations=2)
        assert fit.risks(tasks, 4).device.type == "meta"
        found = icl.train(tasks, icl.Settings(6, 5, width=8, heads=2), 2, batch=3, curriculum=icl.Curriculum(2, 3))
        assert found.losses.device.type == "meta"
    with pytest.raises(AssertionError, match="host read"), NoHostReads():
        float(torch.zeros(1, device="meta"))


BAD = {
    "r is 9; it must be at most d = 4": lambda: icl.tasks("h2", 4, 9),
    "d is 0": lambda: icl.tasks("h2", 0, 1),
    "did you mean 'h2'": lambda: icl.tasks("h22", 4, 1),
    "one direction, without noise": lambda: icl.tasks("parity2", 4, 2),
    "multiple of heads": lambda: icl.Settings(3, 4, width=10, heads=3),
    "init is 0": lambda: icl.Settings(3, 4, width=10, heads=2, init=0),
    "name is 'huge'": lambda: icl.preset("huge", 3, 4),
    "settings.d is 3; the tasks have dimension 4": lambda: icl.train(icl.tasks("h2", 4, 1), TINY, 5),
    "steps is 0": lambda: icl.train(icl.tasks("h2", 3, 1), TINY, 0),
    "lr is nan": lambda: icl.train(icl.tasks("h2", 3, 1), TINY, 5, lr=math.nan),
    "precision is 'int8'": lambda: icl.train(icl.tasks("h2", 3, 1), TINY, 5, precision="int8"),
    "n ≤ 5": lambda: icl.GPT(TINY)(torch.zeros(2, 9, 3), torch.zeros(2, 9)),
    "queries is 'first'": lambda: icl.one_step(icl.tasks("h2", 4, 1), 4, 5, 5, queries="first"),
    "lengths is": lambda: icl.fit_attention(
        icl.tasks("h2", 4, 1), icl.random_features(icl.tasks("h2", 4, 1), 3), 9, (8, 4)
    ),
    "ridges is": lambda: icl.fit_attention(
        icl.tasks("h2", 4, 1), icl.random_features(icl.tasks("h2", 4, 1), 3), 9, (4,), ridges=0.0
    ),
    "learner is 'forest'": lambda: icl.prompt_risks("forest", icl.tasks("h2", 4, 1), 3, (4,)),
    "no such file": lambda: icl.pretrained("nowhere.pt"),
    "until is 2": lambda: icl.Curriculum(until=2),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_named(words):
    with pytest.raises(ValueError, match=words):
        BAD[words]()
