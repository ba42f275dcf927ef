"""Measure the trainers against their baselines and write _build/bench/results.json.

    python -m benchmarks [--out DIR] [--strict]

Every row is a ratio of two times (or two amounts of memory) from the same run on the same machine, so that it means the
same on a slow machine and on a fast one. With --strict, a row that misses its demand makes the exit status 1; the
book's build, which may share its machine, only shows it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import depth as depth_benchmarks
from benchmarks import icl as icl_benchmarks
from benchmarks.baselines import loop_over_samples
from lowdim import amp, exact, sgd
from tools import sources

RUNS = 64
REPEATS = 5


def seconds(*works):
    """For each piece of work the shortest of a few timings, taken in turns so that all meet the same disturbances."""
    best = [float("inf")] * len(works)
    for _ in range(REPEATS):
        for i, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[i] = min(best[i], time.perf_counter() - began)
    return best


def row(what, baseline, ratio, relation, demand, note=""):
    """One line of the table. `demand` is the ratio asked for, `relation` how the measured one must compare."""
    met = ratio >= demand if relation == "≥" else ratio <= demand
    return {"what": what, "baseline": baseline, "ratio": ratio, "relation": relation, "demand": demand} | {
        "met": bool(met),
        "note": note,
    }


def against_loop(name, baseline, demand, trainer, d, steps):
    """Time per step and run of a trainer with 64 runs against the loop over samples, in dimension d."""
    lr, few, short = 0.2 / d**1.5, 4, 1000
    fast, loop = seconds(
        lambda: trainer("h3", d, steps, lr, runs=RUNS, seed=1), lambda: loop_over_samples(d, short, lr, few, seed=1)
    )
    return row(name, baseline, (loop / (short * few)) / (fast / (steps * RUNS)), "≥", demand, "times faster")


def chain_against_loop():
    """The exact chain at d = 1024."""
    baseline = "NumPy, one sample and run at a time"
    return against_loop("exact chain, d = 1024, 64 runs", baseline, 50, exact.online_sgd, 1024, 20_000)


def vectors_against_loop():
    """The batched d-dimensional trainer at d = 128."""
    return against_loop("batched SGD, d = 128, 64 runs", "NumPy, one run at a time", 10, sgd.online_sgd, 128, 4000)


def chain_in_dimension():
    """Time of the exact chain at d = 10⁶ against d = 10³, for the same steps."""

    def chain(d):
        return lambda: exact.online_sgd("h2", d, 20_000, 0.2 / d, runs=RUNS, seed=1)

    large, small = seconds(chain(10**6), chain(10**3))
    return row("exact chain, d = 10⁶", "the same at d = 10³", large / small, "≤", 1.3, "times as long")


PEAK = """
import resource
from lowdim import exact
exact.online_sgd("h2", {d}, 20_000, 0.2 / {d}, runs=64, seed=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_memory(d):
    """Peak memory of a fresh process that runs the chain in dimension d."""
    done = subprocess.run([sys.executable, "-c", PEAK.format(d=d)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def memory_in_dimension():
    """Peak memory of the exact chain at d = 10⁶ against d = 10³, each in a process of its own."""
    ratio = peak_memory(10**6) / peak_memory(10**3)
    return row("exact chain, peak memory at d = 10⁶", "the same at d = 10³", ratio, "≤", 1.1, "times as much")


def million_dimensions():
    """A run at d = 10⁶ with k = 2 to recovery, in units of the loop over samples (extrapolated from 200 steps)."""
    d, runs = 10**6, 4
    began = time.perf_counter()
    hits = exact.online_sgd("h2", d, 40 * d, 0.5 / d, runs=runs, seed=1, stop_at=0.5).samples_to_reach(0.5)
    chain = time.perf_counter() - began
    if not np.isfinite(hits).all():
        raise RuntimeError("a run at d = 10⁶ did not recover the direction within 40 d samples")
    loop = seconds(lambda: loop_over_samples(d, 5, 0.5 / d, 1, seed=1))[0] / 5 * hits.sum()
    return row(
        "exact chain to recovery, d = 10⁶, k = 2, 4 runs",
        "NumPy, one sample at a time (extrapolated)",
        loop / chain,
        "≥",
        1000,
        f"times faster; {hits.mean() / d:.1f} d samples a run, {chain:.0f} s in all here",
    )


def transformer_against_loop():
    """The GPT of the chapter on in-context learning."""
    return icl_benchmarks.transformer_against_loop(seconds, row)


def amp_in_batches():
    """Bayes-AMP on sign(h_1 h_2) with 64 runs at once, against one run at a time (8 of them, in proportion)."""
    settings = {"alpha": 3.0, "d": 100, "iterations": 40, "tol": 0.0}
    few = 8
    together, alone = seconds(
        lambda: amp.run("parity2", runs=RUNS, seed=1, **settings),
        lambda: [amp.run("parity2", runs=1, seed=s, **settings) for s in range(few)],
    )
    ratio = (alone / few) / (together / RUNS)
    return row("Bayes-AMP, d = 100, 64 runs", "the same, one run at a time", ratio, "≥", 5, "times faster")


def layers_against_loop():
    """The three-layer network of the chapter on depth."""
    return depth_benchmarks.layerwise_against_loop(row)


BENCHMARKS = (
    chain_against_loop,
    chain_in_dimension,
    memory_in_dimension,
    vectors_against_loop,
    million_dimensions,
    transformer_against_loop,
    amp_in_batches,
    layers_against_loop,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("_build/bench"), help="folder for results.json")
    parser.add_argument("--strict", action="store_true", help="fail when a demand is missed")
    options = parser.parse_args()
    folder = options.out
    os.environ["LOWDIM_PROGRESS"] = "0"
    exact.online_sgd("h3", 10, 10, 0.01, runs=2)
    sgd.online_sgd("h3", 10, 10, 0.01, runs=2)
    rows = []
    for benchmark in BENCHMARKS:
        rows.append(benchmark())
        r = rows[-1]
        mark = "✓" if r["met"] else "✗"
        print(
            f"{mark} {r['what']}: {r['ratio']:.3g} {r['note']} (demand {r['relation']} {r['demand']}; {r['baseline']})"
        )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"library": sources.library_hash(), "machine": machine, "rows": rows}
    (folder / "results.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return int(options.strict and not all(r["met"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
