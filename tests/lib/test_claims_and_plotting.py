"""Claims that can fail, seeds and scales, and the numbers that plots are annotated with."""

import json
import math

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import lowdim
from lowdim import claims, plotting


@pytest.mark.parametrize(
    ("relation", "measured", "theory", "tol", "holds"),
    [
        ("≈", 1.05, 1.0, 0.1, True),
        ("≈", 1.15, 1.0, 0.1, False),
        ("≈", math.inf, math.inf, 0, True),
        ("≈", math.nan, 1.0, 0.1, False),
        ("≤", 0.9, 1.0, 0.0, True),
        ("≤", 1.2, 1.0, 0.1, False),
        ("≤", math.nan, 1.0, 0.1, False),
        ("≥", 1.2, 1.0, 0.0, True),
        ("≥", 0.8, 1.0, 0.1, False),
        ("=", 3, 3, 0, True),
        ("=", 3.0000001, 3, 0, False),
    ],
)
def test_a_claim_holds_or_raises(relation, measured, theory, tol, holds, monkeypatch):
    monkeypatch.delenv("LOWDIM_CLAIMS", raising=False)
    if holds:
        claims.check("a claim", measured, theory, tol, "here", relation=relation)
    else:
        with pytest.raises(claims.ClaimFailed, match="a claim"):
            claims.check("a claim", measured, theory, tol, "here", relation=relation)
    assert claims.recorded()[-1].holds is holds


def test_recording_does_not_raise(monkeypatch):
    monkeypatch.setenv("LOWDIM_CLAIMS", "record")
    claims.check("a false claim", 2.0, 1.0, 0.1, "here")
    assert not claims.recorded()[-1].holds


def test_a_claim_travels_as_metadata_of_its_output():
    claim = claims.Claim("slope <k = 3> & more", math.inf, 1.93, 0.04, 0.2, "≈", "A & B 2021", False)
    data, metadata = claim._repr_mimebundle_()
    row = json.loads(json.dumps(metadata["lowdim"]["claim"], allow_nan=False))
    assert row["verdict"] == "fails" and row["theory"] == "inf" and row["anchor"] == "claim-slope-k-3-more"
    assert (
        "<k" not in data["text/html"] and "&lt;k" in data["text/html"] and f'id="{row["anchor"]}"' in data["text/html"]
    )
    assert "1.93 ± 0.04" in data["text/plain"] and "∞" in data["text/plain"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tol": -1}, "tol is -1"),
        ({"tol": math.nan}, "tol is nan"),
        ({"theory": math.nan}, "theory is nan"),
        ({"relation": "<"}, "relation is '<'"),
        ({"relation": "="}, 'with relation "="'),
        ({"source": " "}, "source is ' '"),
        ({"spread": -0.1}, "spread is -0.1"),
    ],
)
def test_bad_claims_are_named(arguments, words):
    good = {"name": "n", "measured": 1.0, "theory": 1.0, "tol": 0.1, "source": "s"}
    with pytest.raises(ValueError, match=words):
        claims.check(**good | arguments)


def test_seeds_never_meet(monkeypatch):
    seen = set()
    for offset in range(4):
        monkeypatch.setenv("LOWDIM_SEED", str(offset))
        seen |= {lowdim.seed(n) for n in range(1000)}
    assert len(seen) == 4000
    for bad in ("x", "-1"):
        monkeypatch.setenv("LOWDIM_SEED", bad)
        with pytest.raises(ValueError, match="LOWDIM_SEED"):
            lowdim.seed(1)
    with pytest.raises(ValueError, match="number is 1000"):
        lowdim.seed(1000)


def test_scale_reads_the_environment(monkeypatch):
    monkeypatch.delenv("LOWDIM_SCALE", raising=False)
    assert lowdim.scale(quick=1, full=2) == 1
    monkeypatch.setenv("LOWDIM_SCALE", "full")
    assert lowdim.scale(quick=1, full=2) == 2
    monkeypatch.setenv("LOWDIM_SCALE", "huge")
    with pytest.raises(ValueError, match="'huge'"):
        lowdim.scale(quick=1, full=2)


def test_fitted_slope_recovers_a_power_law():
    rng = np.random.default_rng(0)
    x = np.array([10.0, 20, 40, 80])
    runs = [3 * v**1.7 * np.exp(0.3 * rng.standard_normal(400)) for v in x]
    law = plotting.fit_slope(x, runs)
    assert abs(law.slope - 1.7) < 4 * law.error and 0.005 < law.error < 0.05
    assert law(10.0) == pytest.approx(3 * 10**1.7, rel=0.1)


def test_runs_that_never_arrive_count_in_the_median():
    x = [1.0, 2.0]
    runs = [np.array([1, 1, np.inf]), np.array([4, 4, np.inf])]
    assert plotting.fit_slope(x, runs).slope == pytest.approx(2)
    with pytest.raises(ValueError, match="median is infinite"):
        plotting.fit_slope(x, [np.array([1, np.inf, np.inf]), np.array([4.0, 4, 4])])
    with pytest.raises(ValueError, match="at least 2"):
        plotting.fit_slope([1.0], [np.ones(3)])


def test_plots_draw_what_they_are_given():
    fig, ax = plt.subplots()
    law = plotting.power_law(ax, [1.0, 2, 4], [np.full(5, v) for v in (1.0, 2, 4)], label="k = 1: ")
    assert law.slope == pytest.approx(1) and "slope 1.00" in ax.texts[0].get_text()
    median = plotting.band(ax, [1, 2], np.array([[1.0, 5], [2, 6], [9, 7]]))
    np.testing.assert_array_equal(median, [2, 6])
    plt.close(fig)


def test_the_sphere_projects_points_in_front_and_behind():
    fig, ax = plt.subplots()
    project = plotting.sphere(ax)
    screen, front = project(np.array([[0, -1, 0], [0, 1, 0], [1, 0, 0]]))
    assert front.tolist() == [False, True, True] and screen[2].tolist() == [1.0, 0.0]
    plt.close(fig)


def test_names_that_differ_in_signs_only_have_different_places():
    def anchor(name):
        return claims.Claim(name, 1.0, 1.0, None, 0.1, "≈", "here", True).anchor

    assert anchor("overlap with T(y) = y²") == "claim-overlap-with-t-y-y2" != anchor("overlap with T(y) = y")
