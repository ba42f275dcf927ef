"""Compute the cover picture of the README and the landing page: book/_static/cover.png.

    python -m tools.cover

Sixty runs of online SGD for each of three links in d = 512, through the exact chain: the information exponent k decides
when they leave the equator.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lowdim import exact, plotting
from tools.sources import ROOT

D = 512
# Budget in samples per dimension, and the step size's constant, for each information exponent.
SETTINGS = {1: (12, 0.2), 2: (60, 0.2), 3: (4 * D, 0.5)}


def draw():
    """The figure: overlap against samples per dimension, one thin line a run."""
    plotting.use()
    fig, ax = plt.subplots(figsize=(9, 3.6))
    for k, (budget, c) in SETTINGS.items():
        result = exact.online_sgd(f"h{k}", D, budget * D, c / D ** max(k / 2, 1), runs=60, seed=7, records=160)
        x = result.samples[1:] / D
        ax.semilogx(x, np.abs(result.overlaps[:, 1:]).T, color=plotting.colour(k - 1), alpha=0.25, linewidth=0.7)
        ax.semilogx(x, result.quantile(0.5)[1:], color=plotting.colour(k - 1), linewidth=2.4)
        middle = x[np.argmin(np.abs(result.quantile(0.5)[1:] - 0.6))]
        plotting.label_line(ax, middle, 0.6, f"$k = {k}$", k - 1, dx=-42, fontsize=14)
    ax.set(
        xlim=(0.1, 4 * D),
        ylim=(0, 1),
        xlabel="samples per dimension $n/d$",
        ylabel=r"overlap $|\langle w, w^\star\rangle|$",
    )
    ax.set_title(f"One neuron, one hidden direction, $d = {D}$: the exponent $k$ sets the clock", fontsize=12)
    return fig


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = ROOT / "book" / "_static" / "cover.png"
    draw().savefig(path, dpi=130)
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
