"""Straightforward programs to compare with: what one writes first, correct and slow."""

import numpy as np


def loop_over_samples(d, steps, lr, runs, seed):
    """One-sample spherical SGD for f = σ = h_3, one run and one sample at a time, in NumPy. Returns overlaps [runs]."""
    rng = np.random.default_rng(seed)
    overlaps = np.empty(runs)
    for run in range(runs):
        w = rng.standard_normal(d)
        w /= np.linalg.norm(w)
        for _ in range(steps):
            x = rng.standard_normal(d)
            z, h = x[0], w @ x
            y, slope = (z**3 - 3 * z) / np.sqrt(6), 3 * (h**2 - 1) / np.sqrt(6)
            w = w + lr * y * slope * (x - h * w)
            w /= np.linalg.norm(w)
        overlaps[run] = w[0]
    return overlaps
