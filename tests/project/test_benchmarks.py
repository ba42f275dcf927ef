"""The baselines of the benchmarks do the same work as the library, or their ratios would mean nothing."""

from scipy.stats import ks_2samp

from benchmarks import __main__ as bench
from benchmarks.baselines import loop_over_samples
from lowdim import sgd


def test_the_loop_over_samples_has_the_law_of_the_library():
    settings = {"d": 12, "steps": 150, "lr": 0.05, "runs": 400}
    slow = loop_over_samples(**settings, seed=1)
    fast = sgd.online_sgd("h3", **settings, seed=2).overlaps[:, -1]
    assert ks_2samp(slow, fast).pvalue > 1e-3


def test_a_demand_is_met_or_missed_in_its_own_direction():
    assert bench.row("a", "b", 60, "≥", 50)["met"] and not bench.row("a", "b", 40, "≥", 50)["met"]
    assert bench.row("a", "b", 1.1, "≤", 1.3)["met"] and not bench.row("a", "b", 1.4, "≤", 1.3)["met"]
