"""One visual language for the book: line = theory, markers or band = simulation, the same colour for both.

Colours are the eight of Okabe and Ito, which colour-blind readers can tell apart; a marker and a line style go with
each, so that colour is never the only carrier of meaning.
"""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from IPython import get_ipython
from matplotlib.ticker import NullFormatter
from matplotlib_inline.backend_inline import set_matplotlib_formats

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

STYLE = {
    "figure.figsize": (7.2, 4.2),
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "font.size": 10.5,
    "mathtext.fontset": "cm",
}


def use():
    """Switch matplotlib to the book's style; in a notebook, figures also get two pixels for each one of the screen."""
    mpl.rcParams.update(STYLE)
    if (shell := get_ipython()) is not None and hasattr(shell, "kernel"):
        set_matplotlib_formats("retina")


def look(index):
    """Colour, marker and line style number `index`, as a dict of keyword arguments for markers and a line."""
    i = index % len(COLOURS)
    return {"color": COLOURS[i], "marker": MARKERS[i], "linestyle": LINES[i]}


def colour(index):
    """Colour number `index` of the book."""
    return COLOURS[index % len(COLOURS)]


def band(ax, x, runs, index=0, label=None, low=0.1, high=0.9):
    """Draw the median over runs [runs, n] against x [n], with the band between two quantiles. Returns the median."""
    runs = np.asarray(runs, dtype=float)
    median = np.median(runs, axis=0)
    ax.fill_between(
        x, np.quantile(runs, low, axis=0), np.quantile(runs, high, axis=0), color=colour(index), alpha=0.18, linewidth=0
    )
    ax.plot(x, median, color=colour(index), marker=MARKERS[index % len(MARKERS)], linestyle="none", label=label)
    return median


@dataclass(frozen=True)
class Slope:
    """A power law y ≈ scale · x^slope: slope, its bootstrap standard error over runs, and scale."""

    slope: float
    error: float
    scale: float

    def __call__(self, x):
        """The fitted law at x."""
        return self.scale * np.asarray(x, dtype=float) ** self.slope


def fit_slope(x, runs, seed=0, resamples=200):
    """Fit the power law of the medians of `runs` (a list of arrays, one per x) by least squares in log–log.

    The error is the standard deviation of the slope when the runs at each x are resampled. A run that never arrived is
    inf: medians are right as long as fewer than half of the runs are.
    """
    x = np.asarray(x, dtype=float)
    if len(x) < 2 or len(x) != len(runs):
        raise ValueError(f"x has {len(x)} values and runs {len(runs)}; at least 2 are needed, one array of runs each")
    rng = np.random.default_rng(seed)
    medians = np.array([np.median(r) for r in runs])
    if not np.isfinite(medians).all():
        bad = [float(v) for v in x[~np.isfinite(medians)]]
        raise ValueError(f"runs: at x = {bad} half of the runs or more never arrived, so the median is infinite")
    slope, intercept = np.polyfit(np.log(x), np.log(medians), 1)
    again = []
    for _ in range(resamples):
        drawn = np.array([np.median(rng.choice(r, len(r))) for r in runs])
        if np.isfinite(drawn).all():
            again.append(np.polyfit(np.log(x), np.log(drawn), 1)[0])
    return Slope(float(slope), float(np.std(again)), float(np.exp(intercept)))


def power_law(ax, x, runs, index=0, label="", low=0.1, high=0.9, seed=0):
    """Log–log plot of the medians of `runs` against x, with their band and the fitted line, its slope printed on it.

    Returns the `Slope`. Runs that never arrived (inf) are left out of the band's upper edge.
    """
    law = fit_slope(x, runs, seed=seed)
    x = np.asarray(x, dtype=float)
    medians = [np.median(r) for r in runs]
    # Order statistics instead of interpolated quantiles: an infinite hitting time then spoils only its own rank.
    edges = np.array([np.quantile(r, [low, high], method="nearest") for r in runs])
    edges = np.where(np.isfinite(edges), edges, np.nan)
    ax.fill_between(x, edges[:, 0], edges[:, 1], color=colour(index), alpha=0.18, linewidth=0)
    ax.loglog(x, medians, color=colour(index), marker=MARKERS[index % len(MARKERS)], linestyle="none")
    ax.loglog(x, law(x), color=colour(index), linestyle=LINES[index % len(LINES)])
    ax.annotate(
        f"{label}slope {law.slope:.2f}",
        (x[-1], law(x[-1])),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=colour(index),
    )
    return law


def label_line(ax, x, y, text, index=0, dx=6, dy=0, **options):
    """Write `text` beside the point (x, y) in the line's colour: a direct label instead of a legend."""
    ax.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points", color=colour(index), va="center", **options)


def powers_of_two(ax, values):
    """Ticks of a logarithmic x axis at the given values, written 2⁵, 2⁶, …"""
    ax.set_xticks(values, [rf"$2^{{{int(np.log2(v))}}}$" for v in values])
    ax.xaxis.set_minor_formatter(NullFormatter())


def sphere(ax, elevation=18.0):
    """Draw a unit sphere seen from `elevation` degrees above its equator, with the equator and both poles ±w*.

    Returns the projection: a function from points [n, 3] (third coordinate towards w*) to screen coordinates [n, 2] and
    a mask [n] of the points in front.
    """
    tilt = np.deg2rad(elevation)

    def project(points):
        points = np.asarray(points, dtype=float)
        screen = np.stack([points[:, 0], points[:, 2] * np.cos(tilt) - points[:, 1] * np.sin(tilt)], axis=1)
        return screen, points[:, 1] * np.cos(tilt) + points[:, 2] * np.sin(tilt) >= -0.05

    angle = np.linspace(0, 2 * np.pi, 400)
    ax.plot(np.cos(angle), np.sin(angle), color="#8A8A8A", linewidth=1)
    ring, front = project(np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1))
    for mask, style in ((front, "-"), (~front, ":")):
        ax.plot(*np.where(mask[:, None], ring, np.nan).T, color=COLOURS[6], linestyle=style, linewidth=1.2)
    for sign, name in ((1, r"$w^\star$"), (-1, r"$-w^\star$")):
        (pole,), _ = project([[0, 0, sign]])
        ax.plot(*pole, marker="*", markersize=11, color="#000000", zorder=5)
        ax.annotate(name, pole, xytext=(0, 12 * sign), textcoords="offset points", ha="center", va="center")
    ax.set_aspect("equal")
    ax.set_axis_off()
    return project
