"""Draw the logo and the favicon by code: book/_static/logo.svg and favicon.svg.

    python -m tools.logo

A neuron leaves the equator of the sphere for the hidden direction. Its path is computed: the overlap follows the
population flow of the book for a link with information exponent 2, dm/dt = 2m(1 − m²), while the rest of the vector
turns around the axis at constant speed. The picture is the orthographic view from 18° above the equator.
"""

import argparse

import numpy as np
from scipy.integrate import solve_ivp

from tools import sources

STATIC = sources.ROOT / "book" / "_static"
ELEVATION = np.deg2rad(18)
LABEL = "A unit vector leaving the equator of a sphere for its pole"
INK, WATER, FLAME = "#1b2a3a", "#2b5c8a", "#c8541b"


def path(points=40):
    """Unit vectors [points, 3] along the flow, from m = 0.05 to m = 0.97; the third coordinate is the overlap m."""
    flow = solve_ivp(lambda t, m: 2 * m * (1 - m**2), (0, 4), [0.05], dense_output=True, rtol=1e-8)
    t = np.linspace(0, 4, 2000)
    m = flow.sol(t)[0]
    t = np.interp(np.linspace(0.05, 0.97, points), m, t)
    m, angle = flow.sol(t)[0], 0.75 - 0.35 * t
    around = np.sqrt(1 - m**2)
    return np.stack([around * np.cos(angle), around * np.sin(angle), m], axis=1)


def project(vectors, centre, radius):
    """Vectors [n, 3] as seen on the page [n, 2]; y counts downwards, as SVG does."""
    x, depth, height = np.asarray(vectors).T
    up = height * np.cos(ELEVATION) - depth * np.sin(ELEVATION)
    return np.stack([centre[0] + radius * x, centre[1] - radius * up], axis=1)


def curve(points):
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def logo():
    """The full picture, 120 units wide."""
    centre, radius = (60, 64), 46
    pole = project([[0, 0, 1]], centre, radius)[0]
    track = project(path(), centre, radius)
    half = radius * np.sin(ELEVATION)
    arc = f"a{radius} {half:.1f} 0 0 %d 92 0"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 120" role="img" aria-label="{LABEL}">
  <defs>
    <radialGradient id="ball" cx="0.38" cy="0.32" r="0.75">
      <stop offset="0" stop-color="#f4f8fc"/>
      <stop offset="1" stop-color="#a9c4dd"/>
    </radialGradient>
  </defs>
  <circle cx="60" cy="64" r="46" fill="url(#ball)" stroke="{WATER}" stroke-width="3"/>
  <path d="M14 64{arc % 1}" fill="none" stroke="{WATER}" stroke-width="2" stroke-dasharray="4 4"/>
  <path d="M14 64{arc % 0}" fill="none" stroke="{WATER}" stroke-width="3"/>
  <path d="M60 64V{pole[1] - 6:.1f}" fill="none" stroke="{FLAME}" stroke-width="5" stroke-linecap="round"/>
  <path d="M60 {pole[1] - 18:.1f}l-9 16h18z" fill="{FLAME}"/>
  <path d="{curve(track)}" fill="none" stroke="{INK}" stroke-width="3" stroke-linecap="round" stroke-dasharray="1 5"/>
  <circle cx="{track[0][0]:.1f}" cy="{track[0][1]:.1f}" r="5" fill="{INK}"/>
</svg>
"""


def favicon():
    """The same at 32 units, without what would not be seen at that size."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
  <circle cx="16" cy="18" r="12" fill="#cfe0ef" stroke="{WATER}" stroke-width="2.5"/>
  <path d="M4 18a12 {12 * np.sin(ELEVATION):.1f} 0 0 0 24 0" fill="none" stroke="{WATER}" stroke-width="2"/>
  <path d="M16 18V7" stroke="{FLAME}" stroke-width="3.5" stroke-linecap="round"/>
  <path d="M16 1l-5 8h10z" fill="{FLAME}"/>
</svg>
"""


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, text in (("logo.svg", logo()), ("favicon.svg", favicon())):
        (STATIC / name).write_text(text, "utf8")
        print(f"wrote {sources.shown(STATIC / name)}")


if __name__ == "__main__":
    main()
