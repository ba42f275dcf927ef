"""Interactive figures that work with and without a kernel.

`figure` draws one matplotlib figure per combination of parameter values and returns an `Explorer`: one piece of
HTML that carries all pictures and a few lines of JavaScript. Native range inputs choose the picture, so the same
output works on the static site, in JupyterLab, in VS Code and in Colab, and it asks the network for nothing.
`for_page` turns it into the lighter form that the site serves: frames in files of their own, fetched when needed.

>>> import numpy as np
>>> from matplotlib.figure import Figure
>>> from lowdim import explore
>>> def wave(f):
...     picture = Figure(figsize=(6, 3), layout="constrained")
...     t = np.linspace(0, 1, 200)
...     axes = picture.subplots()
...     axes.plot(t, np.sin(2 * np.pi * f * t))
...     axes.set(xlabel="time $t$", ylabel="signal $s(t)$")
...     return picture
>>> explore.figure(wave, f=[1, 2, 3], labels={"f": "frequency $f$"})
Interactive figure with 3 frames: frequency f in 1, 2, 3
"""

import base64
import hashlib
import html
import io
import itertools
import json
import math
import numbers
import os
import re
import sys
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextToPath
from PIL import Image

from lowdim.progress import bar

__all__ = ["Explorer", "LiveExplorer", "figure", "for_page"]

MAX_PARAMETERS = 3
MAX_FRAMES = 400  # already some 8 MB of HTML: more than a reader should have to load

CSS_DPI = 96  # CSS defines an inch as 96 pixels: a figure 6.4 inches wide takes 614 pixels on every page
PIXEL_RATIO = 1.5  # image pixels per CSS pixel: sharp on a dense screen at little more than half the bytes of 2
FRAME_DPI = CSS_DPI * PIXEL_RATIO

FRAME_BYTES = 25_000  # what a frame may weigh on average: 60 frames in 1.5 MB
PALETTE_SIZES = (48, 64, 96, 128, 256)
# A figure too dense for the budget gets fewer pixels and, in the end, fewer colours (16 of them take half a byte).
QUALITIES = ((PIXEL_RATIO, PALETTE_SIZES), (1.0, PALETTE_SIZES), (1.0, (16,)))
PALETTE_TOLERANCE = 2.0  # root-mean-square error in levels of 255; below it the eye finds no difference


@dataclass(frozen=True, repr=False)
class Explorer:
    """An interactive figure: `html` is complete in itself, `summary` says in words what can be moved."""

    html: str
    summary: str

    def __repr__(self):
        return self.summary

    def _repr_html_(self):
        return self.html

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": self.html, "text/plain": self.summary}


@dataclass(frozen=True, repr=False)
class LiveExplorer(Explorer):
    """An `Explorer` with ipywidgets `controls` below it, which call `draw` for values off the grid."""

    controls: object = field(kw_only=True)

    def _ipython_display_(self):
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        display(self.controls)


def figure(draw, /, *, labels=None, alt=None, caption=None, live=False, start=None, **parameters):
    """Show `draw` with one slider for each parameter.

    draw        `draw(**values)` returns a new matplotlib Figure; it is called once for every combination of values
    parameters  one to three lists of numbers or strings, at most 400 combinations in all
    labels      {parameter: what its slider is called}, with mathematics between dollar signs
    alt         the picture in words: a format string, a function `alt(**values)`, or None to build it from the
                labels of the axes
    caption     a text below the sliders, with mathematics between dollar signs
    start       {parameter: value shown first}; the first of its list unless given
    live        in a running kernel, also show widgets that call `draw` for values between the listed ones; the
                site's build (LOWDIM_BUILD=1) leaves them out

    Corresponding axes get the same limits and the same place in all frames, so that a slider moves the curves and
    not the axes.

    >>> explore.figure(plot_overlap, d=[100, 1000, 10_000], k=[1, 2, 3],  # doctest: +SKIP
    ...                labels={"d": "dimension $d$", "k": "information exponent $k$"},
    ...                alt="overlap against samples for d={d} and k={k}")
    """
    if not callable(draw):
        raise ValueError(f"draw is {draw!r}; it must be a function that returns a matplotlib Figure")
    grid = _Grid.from_arguments(parameters, labels, start)
    _check_alt(alt)
    _check_text("caption", caption, optional=True)
    live = live and os.environ.get("LOWDIM_BUILD") != "1"
    widgets = _import_ipywidgets() if live else None  # before the slow part, so that a missing package shows at once

    pictures = _draw_all(draw, grid)
    alts = _alt_texts(alt, pictures, grid)
    limits = _union_of_limits(pictures)
    for picture in pictures:
        _set_limits(picture, limits)
    size = [round(inches * CSS_DPI) for inches in pictures[0].get_size_inches()]
    frames, frame_of = _encode_all(_render_all(pictures))

    page = _page(grid, frames, frame_of, alts, caption, size)
    if not live:
        return Explorer(page, grid.summary)
    return LiveExplorer(page, grid.summary, controls=_live_controls(widgets, draw, grid, limits))


# --- The grid of parameter values ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    """The parameters: their values, how values and names are written, and where the sliders start."""

    values: dict  # name -> list of values
    texts: dict  # name -> how the values are written
    labels: dict  # name -> what the slider is called
    start: dict  # name -> position of the value shown first

    @classmethod
    def from_arguments(cls, parameters, labels, start):
        if not 1 <= len(parameters) <= MAX_PARAMETERS:
            raise ValueError(
                f"parameters are {list(parameters)}; an explorer must have 1 to {MAX_PARAMETERS} of them, "
                "each a keyword with a list of values"
            )
        values = {name: _checked_values(name, listed) for name, listed in parameters.items()}
        _check_frame_count(values)
        return cls(
            values=values,
            texts={name: _value_texts(listed) for name, listed in values.items()},
            labels=_checked_labels(labels, values),
            start=_checked_start(start, values),
        )

    @property
    def combinations(self):
        """All combinations; the last parameter runs fastest, and the script on the page counts the same way."""
        return [dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values())]

    @property
    def combination_texts(self):
        """The combinations in words, such as "dimension d = 100, k = 2"."""
        names = [_plain_text(self.labels[name]) for name in self.values]
        return [
            ", ".join(f"{name} = {text}" for name, text in zip(names, chosen, strict=True))
            for chosen in itertools.product(*self.texts.values())
        ]

    @property
    def start_combination(self):
        number = 0
        for name, listed in self.values.items():
            number = number * len(listed) + self.start[name]
        return number

    @property
    def summary(self):
        frames = _frame_count(self.values)
        ranges = "; ".join(f"{_plain_text(self.labels[name])} in {', '.join(self.texts[name])}" for name in self.values)
        return f"Interactive figure with {frames} frame{'s' if frames > 1 else ''}: {ranges}"


def _frame_count(values):
    return math.prod(len(listed) for listed in values.values())


def _check_frame_count(values):
    frames = _frame_count(values)
    if frames > MAX_FRAMES:
        lists = " × ".join(f"{name} ({len(listed)} values)" for name, listed in values.items())
        raise ValueError(f"{lists} is {frames} frames; it must be at most {MAX_FRAMES}, so shorten a list")


def _checked_values(name, listed):
    if isinstance(listed, np.ndarray) and listed.ndim == 1:
        listed = listed.tolist()
    if not isinstance(listed, list | tuple | range):
        raise ValueError(f"{name} is {listed!r}; it must be a list of values (a list, tuple, range or 1-d array)")
    if len(listed) == 0:
        raise ValueError(f"{name} is {listed!r}; it must list at least one value")
    values = [value.item() if isinstance(value, np.generic) else value for value in listed]
    for position, value in enumerate(values):
        is_number = isinstance(value, numbers.Real) and not math.isnan(value)
        if not is_number and not isinstance(value, str):
            raise ValueError(f"{name}[{position}] is {value!r}; it must be a number (not NaN) or a string")
        if value in values[:position]:
            raise ValueError(f"{name} is {values!r}; its values must differ, but {value!r} is listed twice")
    return values


def _checked_labels(labels, values):
    labels = _checked_mapping("labels", labels, values)
    for name, label in labels.items():
        _check_text(f"labels[{name!r}]", label)
    return {name: labels.get(name, name.replace("_", " ")) for name in values}


def _checked_start(start, values):
    start = _checked_mapping("start", start, values)
    for name, value in start.items():
        if value not in values[name]:
            raise ValueError(f"start[{name!r}] is {value!r}; it must be one of {values[name]!r}")
    return {name: listed.index(start[name]) if name in start else 0 for name, listed in values.items()}


def _checked_mapping(argument, mapping, values):
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{argument} is {mapping!r}; it must be a dict whose keys are among {list(values)}")
    for name in mapping:
        if name not in values:
            raise ValueError(f"{argument} has the key {name!r}; it must be one of the parameters {list(values)}")
    return mapping


def _check_text(argument, text, optional=False):
    if optional and text is None:
        return
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{argument} is {text!r}; it must be a string that is not empty")
    try:
        _rich_text(text)
    except ValueError as error:
        raise ValueError(f"{argument} is {text!r}; its mathematics must be what matplotlib understands") from error


# --- Drawing ------------------------------------------------------------------------------------------------------


def _draw_all(draw, grid):
    pictures = []
    for values in bar(grid.combinations, "drawing frames"):
        picture = _draw_one(draw, values)
        if any(picture is earlier for earlier in pictures):
            raise ValueError(f"{_call(values)} returned the Figure of an earlier call; it must return a new one")
        if pictures:
            _check_same_shape(pictures[0], picture, values)
        pictures.append(picture)
    return pictures


def _draw_one(draw, values):
    """Call `draw` and take its figure away from pyplot, which would show it again and warn of open figures."""
    open_before = _pyplot_figures()
    try:
        picture = draw(**values)
    except Exception as error:
        raise ValueError(f"{_call(values)} raised {type(error).__name__}: {error}") from error
    finally:
        for number in _pyplot_figures() - open_before:
            sys.modules["matplotlib.pyplot"].close(number)
    if not isinstance(picture, Figure):
        raise ValueError(f"{_call(values)} returned {picture!r}; it must return a matplotlib Figure")
    picture.set_dpi(FRAME_DPI)
    FigureCanvasAgg(picture)  # whatever window or notebook backend the figure was made for, pixels come from Agg
    return picture


def _pyplot_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")  # not imported for its own sake: `draw` may do without it
    return set(pyplot.get_fignums()) if pyplot else set()


def _call(values):
    return f"draw({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _check_same_shape(first, picture, values):
    if len(picture.axes) != len(first.axes):
        raise ValueError(
            f"{_call(values)} returned a Figure with {len(picture.axes)} axes; "
            f"it must have {len(first.axes)}, like the first frame"
        )
    size, first_size = picture.get_size_inches(), first.get_size_inches()
    if not np.allclose(size, first_size):
        raise ValueError(
            f"{_call(values)} returned a Figure of {size[0]:g} × {size[1]:g} inches; "
            f"it must be {first_size[0]:g} × {first_size[1]:g}, like the first frame"
        )


# --- The same axes in all frames ----------------------------------------------------------------------------------


def _plot_axes(picture):
    """The axes that show data, insets included. A colour bar's limits are its colours', so they stay as they are."""
    insets = [child for axes in picture.axes for child in axes.child_axes if isinstance(child, Axes)]
    return [axes for axes in [*picture.axes, *insets] if not _is_colorbar(axes)]


def _is_colorbar(axes):
    return axes.get_label() == "<colorbar>"


def _directions(axes):
    return ("x", "y", "z") if hasattr(axes, "get_zlim") else ("x", "y")


def _union_of_limits(pictures, also=None):
    """For each axes {direction: (low, high)} that covers all pictures (and the limits `also`, if given)."""
    corresponding = list(zip(*map(_plot_axes, pictures), strict=False))  # not every frame need have every inset
    also = also or [{} for _ in corresponding]
    return [
        {
            direction: _union(group, direction, other.get(direction))
            for direction in _directions(group[0])
            if len({getattr(axes, f"get_{direction}scale")() for axes in group}) == 1
        }
        for group, other in zip(corresponding, also, strict=False)
    ]


def _union(group, direction, other=None):
    # An axes without data has the limits (0, 1) by default, which say nothing and must not stretch the others.
    telling = [axes for axes in group if axes.has_data() or not getattr(axes, f"get_autoscale{direction}_on")()]
    limits = [tuple(map(float, getattr(axes, f"get_{direction}lim")())) for axes in telling or group]
    if other is not None:
        limits.append(other)
    low, high = min(map(min, limits)), max(map(max, limits))
    inverted = limits[0][0] > limits[0][1]
    return (high, low) if inverted else (low, high)


def _set_limits(picture, limits):
    for axes, wanted in zip(_plot_axes(picture), limits, strict=False):
        for direction, (low, high) in wanted.items():
            if tuple(getattr(axes, f"get_{direction}lim")()) != (low, high):
                getattr(axes, f"set_{direction}lim")(low, high)


def _align(pictures, canvas):
    """Lay all pictures out and give corresponding axes the place that they have in common.

    Wider tick labels or a second title line in one frame would otherwise make the axes jump between frames.
    """
    for picture in bar(pictures, "laying out frames"):
        if engine := picture.get_layout_engine():
            _put_on(canvas, picture)
            engine.execute(picture)
            picture.set_layout_engine("none")
    for group in zip(*(picture.axes for picture in pictures), strict=True):
        if not all(axes.get_subplotspec() or _is_colorbar(axes) for axes in group):
            continue  # placed by hand, so perhaps moved on purpose
        boxes = np.array([axes.get_position(original=True).extents for axes in group])
        left, bottom = boxes[:, :2].max(axis=0)
        right, top = boxes[:, 2:].min(axis=0)
        if np.ptp(boxes, axis=0).max() > 1e-6 and left < right and bottom < top:
            for axes in group:
                axes.set_position([left, bottom, right - left, top - bottom])


# --- Pixels -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Raster:
    """One frame as packed colours 0xRRGGBB; kept compressed, since 400 frames would fill a gigabyte."""

    packed: bytes
    height: int
    width: int

    @classmethod
    def from_rgb(cls, rgb):
        red, green, blue = np.moveaxis(rgb.astype("<u4"), -1, 0)
        packed = zlib.compress((red << 16 | green << 8 | blue).tobytes(), level=1)
        return cls(packed, *rgb.shape[:2])

    def colours(self):
        return np.frombuffer(zlib.decompress(self.packed), "<u4").reshape(self.height, self.width)

    def resized(self, factor):
        """The same picture with `factor` times the pixels in each direction."""
        colours = self.colours()
        rgb = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.uint8)
        size = round(self.width * factor), round(self.height * factor)
        return _Raster.from_rgb(np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.LANCZOS)))


def _render_all(pictures):
    """Turn the pictures into rasters. matplotlib keeps Python busy here, so that threads would gain nothing."""
    canvas = FigureCanvasAgg(pictures[0])
    _align(pictures, canvas)
    rasters = []
    for picture in bar(pictures, "rendering frames"):
        _put_on(canvas, picture)
        rasters.append(_Raster.from_rgb(_rgb(picture)))
        picture.clear()  # a drawn figure holds megabytes, and 400 of them may be waiting
    return rasters


def _put_on(canvas, picture):
    """One canvas for all pictures: it remembers the formulas that it has set, which takes a third off the time."""
    picture.set_canvas(canvas)
    canvas.figure = picture


def _rgb(picture):
    picture.canvas.draw()
    rgba = np.asarray(picture.canvas.buffer_rgba())
    if rgba[..., 3].min() == 255:
        return rgba[..., :3]
    # Black axis labels on a transparent background would vanish on a dark page.
    on_white = Image.new("RGBA", rgba.shape[1::-1], "white")
    on_white.alpha_composite(Image.fromarray(rgba))
    return np.asarray(on_white)[..., :3]


def _encode_all(rasters):
    """The distinct frames as PNG files, and for each raster the number of its frame."""
    distinct = list(dict.fromkeys(rasters))
    number = {raster: position for position, raster in enumerate(distinct)}
    frame_of = [number[raster] for raster in rasters]
    for ratio, palette_sizes in QUALITIES:
        sized = distinct if ratio == PIXEL_RATIO else [raster.resized(ratio / PIXEL_RATIO) for raster in distinct]
        frames = _encode(sized, palette_sizes)
        if np.mean([len(frame) for frame in frames]) <= FRAME_BYTES:
            break
    return frames, frame_of


def _encode(rasters, palette_sizes):
    """Rasters as PNG files that share one palette: a line that keeps its colour then keeps it exactly.

    Compression leaves Python's lock, so here threads do help.
    """
    palette, index_of_colour = _palette(rasters, palette_sizes)
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda raster: _png(index_of_colour[raster.colours()], palette), rasters))


def _png(indices, palette):
    image = Image.fromarray(indices)
    image.putpalette(palette.tobytes())
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _palette(rasters, sizes):
    """The smallest palette that the eye cannot tell from the original (else the largest of the given sizes), and the
    table from 0xRRGGBB to its entries."""
    colours, counts = _census(rasters)
    channels = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.uint8)
    for size in sizes:
        palette = _choose_colours(channels, counts, size)
        nearest, squared_error = _nearest(channels, palette)
        if np.sqrt(np.average(squared_error, weights=counts) / 3) <= PALETTE_TOLERANCE:
            break
    index_of_colour = np.zeros(1 << 24, np.uint8)
    index_of_colour[colours] = nearest
    return palette, index_of_colour


def _census(rasters):
    """All colours of all frames, and the number of pixels of each."""
    censuses = [np.unique(raster.colours(), return_counts=True) for raster in rasters]
    colours, place = np.unique(np.concatenate([found for found, _ in censuses]), return_inverse=True)
    counts = np.bincount(place.ravel(), weights=np.concatenate([count for _, count in censuses]))
    return colours, counts


def _choose_colours(channels, counts, size):
    """The most frequent colours exactly (paper, ink, filled areas), the rest by Pillow's median cut.

    The square root of the counts gives the few pixels of a thin line a say against the large areas.
    """
    if len(channels) <= size:
        return channels
    by_frequency = np.argsort(-counts, kind="stable")
    exact, others = np.split(by_frequency, [size // 4])
    votes = np.maximum(1, np.sqrt(counts[others])).astype(int)
    sample = Image.fromarray(np.repeat(channels[others], votes, axis=0)[None])
    cut = sample.quantize(size - len(exact), method=Image.Quantize.MEDIANCUT, kmeans=3)
    blended = np.array(cut.getpalette()[: 3 * (size - len(exact))], np.uint8).reshape(-1, 3)
    return np.concatenate([channels[exact], blended])


def _nearest(channels, palette):
    """For each colour its nearest palette entry and the squared distance, in pieces that fit the cache."""
    palette = palette.astype(np.float32)
    nearest, squared_error = [], []
    for piece in np.array_split(channels.astype(np.float32), len(channels) // 4096 + 1):
        distances = (piece**2).sum(1)[:, None] - 2 * piece @ palette.T + (palette**2).sum(1)
        nearest.append(distances.argmin(1).astype(np.uint8))
        squared_error.append(np.maximum(distances.min(1), 0))
    return np.concatenate(nearest), np.concatenate(squared_error)


# --- Words --------------------------------------------------------------------------------------------------------


def _value_texts(values):
    """How values are written: 0.001, 10⁶, 2.5×10⁻⁵, a string as it is; with more digits where two would look alike."""
    for digits in (4, 6, 9, 12):
        texts = [value if isinstance(value, str) else _number_text(value, digits) for value in values]
        if len(set(texts)) == len(texts) and all(text.strip() for text in texts):
            return texts
    return [repr(value) for value in values]


def _number_text(number, digits):
    if isinstance(number, bool):
        return str(number)
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number == int(number) and (abs(number) < 1e5 or (abs(number) < 1e15 and _significant_digits(int(number)) > 3)):
        return str(int(number)).replace("-", "−")
    mantissa, exponent = f"{float(number):.{digits - 1}e}".split("e")
    exponent = int(exponent)
    if -3 <= exponent < 5:
        decimals = max(digits - 1 - exponent, 1)
        return f"{float(number):.{decimals}f}".rstrip("0").rstrip(".").replace("-", "−")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {"1": power, "−1": f"−{power}"}.get(mantissa, f"{mantissa}×{power}")


def _significant_digits(whole):
    return len(str(abs(whole)).rstrip("0"))


def _check_alt(alt):
    if alt is not None and not isinstance(alt, str) and not callable(alt):
        raise ValueError(f"alt is {alt!r}; it must be a format string, a function that returns a string, or None")


def _alt_texts(alt, pictures, grid):
    """One text per frame, never empty and no two alike."""
    if alt is None:
        alts = [_description(picture) for picture in pictures]
    else:
        alts = [_given_alt(alt, values) for values in grid.combinations]
    if len(set(alts)) == len(alts) and all(alts) and alt is not None:
        return alts
    return [f"{text or 'Figure'} ({where})" for text, where in zip(alts, grid.combination_texts, strict=True)]


def _given_alt(alt, values):
    try:
        text = alt(**values) if callable(alt) else alt.format(**values)
    except Exception as error:
        raise ValueError(
            f"alt is {alt!r}; it must work with {', '.join(values)}, but {_call(values).replace('draw', 'alt', 1)} "
            f"raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str):
        raise ValueError(f"{_call(values).replace('draw', 'alt', 1)} returned {text!r}; it must return a string")
    return " ".join(text.split())


def _description(picture):
    """What the axes say of themselves: "title: y label against x label; …"."""
    parts = [picture.get_suptitle()]
    for axes in _plot_axes(picture):
        plotted = " against ".join(filter(None, [axes.get_ylabel(), axes.get_xlabel()]))
        parts.append(": ".join(filter(None, [axes.get_title(), plotted])))
    return _plain_text("; ".join(dict.fromkeys(filter(None, parts))))


MATHEMATICS = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$")
SILENT_COMMANDS = re.compile(r"\\(?:(?:math[a-z]+|text[a-z]*|operatorname|left|right|quad)(?![a-zA-Z])|[,;:! ])|[{}]")
BRACKETS = {r"\langle": "⟨", r"\rangle": "⟩", r"\|": "‖"}


def _plain_text(text):
    r"""A text with mathematics as a screen reader can say it: "step size $\gamma_{0}$" is "step size gamma_0"."""

    def spoken(match):
        formula = SILENT_COMMANDS.sub("", match[1])
        for command, bracket in BRACKETS.items():
            formula = formula.replace(command, bracket)
        return re.sub(r"([_^⟨]) ", r"\1", formula.replace("\\", " "))

    return " ".join(MATHEMATICS.sub(spoken, text).replace(r"\$", "$").split())


def _rich_text(text):
    """A text with mathematics as HTML: words stay words, formulas become inline SVG in the colour of the words."""
    pieces, end = [], 0
    for match in MATHEMATICS.finditer(text):
        pieces += [html.escape(text[end : match.start()].replace(r"\$", "$")), _formula_svg(match[0])]
        end = match.end()
    return "".join([*pieces, html.escape(text[end:].replace(r"\$", "$"))])


@lru_cache(maxsize=256)
def _formula_svg(formula):
    """A formula drawn by matplotlib as outlines: no font and no MathJax is needed where the HTML ends up."""
    outlines = TextToPath()
    font = FontProperties(size=outlines.FONT_SCALE, math_fontfamily="cm")  # the size at which the outlines come
    width, height, depth = outlines.get_text_width_height_descent(formula, font, ismath=True)
    path = Path(*outlines.get_text_path(font, formula, ismath=True))
    margin = 4  # outlines may stick out of their box by a hair
    box = f"0 {-(height - depth) - margin:.0f} {width:.0f} {height + 2 * margin:.0f}"
    em = outlines.FONT_SCALE / 1.15  # Computer Modern looks small beside the fonts of a page
    sizes = {"width": width, "height": height + 2 * margin, "vertical-align": -(depth + margin)}
    style = ";".join(f"{name}:{size / em:.3f}em" for name, size in sizes.items())
    return (
        f'<svg aria-hidden="true" focusable="false" viewBox="{box}" style="{style}">'
        f'<path fill="currentColor" d="{_svg_path(path)}"/></svg>'
    )


def _svg_path(path):
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
    commands = []
    for points, code in path.iter_segments(simplify=False, curves=True):
        if code == Path.CLOSEPOLY:
            commands.append("Z")
        else:  # SVG counts y downwards
            coordinates = " ".join(f"{x:.0f} {-y:.0f}" for x, y in points.reshape(-1, 2))
            commands.append(f"{letters[code]}{coordinates}")
    return "".join(commands)


# --- The page -----------------------------------------------------------------------------------------------------

DATA_ADDRESS = "data:image/png;base64,"

# Nothing is shown or enabled by the style alone: without scripts a reader sees the first frame and no dead sliders.
STYLE = """
.lowdim-explorer{margin:1em 0;padding:0;color:inherit;box-sizing:border-box}
.lowdim-explorer>img{display:block;max-width:100%;height:auto;margin:0;background:#fff;border-radius:.4rem}
.lowdim-explorer svg{display:inline-block;overflow:visible;max-width:none}
.lowdim-explorer .lowdim-controls{display:grid;grid-template-columns:fit-content(45%) minmax(6rem,1fr) fit-content(35%);
gap:.3rem .9rem;align-items:center;margin:.7rem 0 0;padding:0 .3rem;
line-height:1.4}
.lowdim-explorer .lowdim-controls[hidden]{display:none}
.lowdim-explorer .lowdim-row,.lowdim-explorer .lowdim-row label{display:contents}
.lowdim-explorer input[type=range]{width:100%;min-width:0;height:1.75rem;margin:0;accent-color:#2a78c2;cursor:pointer}
.lowdim-explorer output{display:block;font-variant-numeric:tabular-nums;font-weight:600;overflow-wrap:anywhere;
color:inherit;padding:0}
.lowdim-explorer figcaption{margin:.6rem 0 0;padding:0 .3rem;font-size:.95em;line-height:1.5;color:inherit;
text-align:left}
@media (max-width:480px){
.lowdim-explorer .lowdim-controls{display:block}
.lowdim-explorer .lowdim-row{display:grid;grid-template-columns:1fr auto;column-gap:.9rem;margin-bottom:.3rem}
.lowdim-explorer .lowdim-row span{grid-area:1/1}
.lowdim-explorer .lowdim-row output{grid-area:1/2;text-align:right}
.lowdim-explorer .lowdim-row input{grid-area:2/1/3/3}
}
""".replace("\n", "")

# VS Code and the classic notebook run scripts outside of the output, hence the search through the document; it may
# hold several explorers, and the same one twice, hence the mark on each. The mark is a property: an attribute would be
# saved with the page. Frames that are files are fetched as soon as somebody comes near the sliders.
SCRIPT = """
(() => {
  for (const figure of document.querySelectorAll("figure.lowdim-explorer")) {
    if (figure.lowdimReady) continue;
    figure.lowdimReady = true;
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const image = figure.querySelector("img");
    const controls = figure.querySelector(".lowdim-controls");
    const sliders = [...controls.querySelectorAll("input")];
    const outputs = [...controls.querySelectorAll("output")];
    const show = () => {
      let combination = 0;
      sliders.forEach((slider, i) => {
        const position = Number(slider.value);
        const text = data.texts[i][position];
        combination = combination * data.texts[i].length + position;
        outputs[i].textContent = text;
        slider.setAttribute("aria-valuetext", text);
      });
      image.src = data.frames[data.frame_of[combination]];
      image.alt = data.alts[combination];
    };
    sliders.forEach((slider, i) => {
      slider.value = data.start[i];
      slider.disabled = false;
      slider.addEventListener("input", show);
    });
    const fetched = [];
    const fetch = () => data.frames.forEach((frame, i) => {
      if (fetched[i] || frame.startsWith("data:")) return;
      fetched[i] = new Image();
      fetched[i].src = frame;
    });
    for (const event of ["pointerenter", "focusin"]) figure.addEventListener(event, fetch, { once: true });
    controls.addEventListener("keydown", (event) => event.stopPropagation());
    controls.hidden = false;
  }
})();
"""


def _page(grid, frames, frame_of, alts, caption, size):
    encoded = [f"{DATA_ADDRESS}{base64.b64encode(frame).decode()}" for frame in frames]
    first = grid.start_combination
    data = {
        "start": [grid.start[name] for name in grid.values],
        "texts": [grid.texts[name] for name in grid.values],
        "alts": alts,
        "frame_of": frame_of,
        "frames": encoded,
    }
    width, height = size
    rows = "".join(_slider_row(grid, name) for name in grid.values)
    body = "\n".join(
        [
            f"<style>{STYLE}</style>",
            f'<img src="{encoded[frame_of[first]]}" alt="{html.escape(alts[first])}" '
            f'width="{width}" height="{height}">',
            # JupyterLab would take the arrow keys for moving between cells.
            f'<div class="lowdim-controls" data-lm-suppress-shortcuts="true" hidden>{rows}</div>',
            f"<figcaption>{_rich_text(caption)}</figcaption>" if caption else "",
            f'<script type="application/json">{_json_for_script(data)}</script>',
        ]
    )
    name = f"explorer-{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    # A caption wider than its picture would look lost, hence the limit.
    opening = f'<figure class="lowdim-explorer" id="{name}" style="max-width:{width}px">'
    return f"{opening}\n{body}\n<script>{SCRIPT}</script>\n</figure>"


def for_page(text, folder):
    """The explorer in the HTML `text` for a page that serves its frames as files.

    Returns the HTML, in which style and script are left to the page (`STYLE`, `SCRIPT`) and the frames are addresses
    under `folder`, and {address: PNG file}. The first frame is the only one that a browser asks for at once.
    """
    files = {}

    def as_file(match):
        picture = base64.b64decode(match[1])
        address = f"{folder}/{hashlib.sha256(picture).hexdigest()[:12]}.png"
        files[address] = picture
        return address

    text = text.replace(f"<style>{STYLE}</style>\n", "").replace(f"\n<script>{SCRIPT}</script>", "")
    return re.sub(rf"{DATA_ADDRESS}([A-Za-z0-9+/=]+)", as_file, text), files


def _slider_row(grid, name):
    """Label, slider and value. The label encloses its slider: an explorer shown twice has no ids to mix up."""
    texts, position = grid.texts[name], grid.start[name]
    widest = max(map(len, texts))  # room for the longest value, so that the slider does not change its length
    return (
        f'<div class="lowdim-row"><label><span>{_rich_text(grid.labels[name])}</span>'
        f'<input type="range" min="0" max="{len(texts) - 1}" step="1" value="{position}" autocomplete="off" '
        f'aria-label="{html.escape(_plain_text(grid.labels[name]))}" '
        f'aria-valuetext="{html.escape(texts[position])}" disabled></label>'
        # The slider announces its value itself: a live region would say it twice.
        f'<output aria-live="off" style="min-width:{min(widest, 12)}ch">{html.escape(texts[position])}</output></div>'
    )


def _json_for_script(data):
    """JSON in which no `</script>` or `<!--` can end or hide the element around it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- Live controls ------------------------------------------------------------------------------------------------


def _import_ipywidgets():
    try:
        import ipywidgets
    except ImportError as error:
        raise ImportError(
            "live=True needs the package ipywidgets: pip install ipywidgets, or leave live out"
        ) from error
    return ipywidgets


def _live_controls(widgets, draw, grid, limits):
    """Widgets over the whole range of each parameter, with a picture that the kernel draws when one of them moves.

    Only what ipywidgets 7 (Colab) and 8 have in common is used.
    """
    inputs = {name: _live_input(widgets, grid, name) for name in grid.values}
    # The start frame is already in the explorer above: the picture appears with the first change.
    picture = widgets.Image(format="png", layout=widgets.Layout(display="none", max_width="100%"))
    message = widgets.HTML("Any value in between, computed now:")

    def redraw(_change=None):
        values = {name: chosen.value for name, chosen in inputs.items()}
        message.value = "computing …"
        try:
            picture.value = _live_png(draw, values, limits)
            picture.layout.display = "block"
            message.value = html.escape(_call(values).removeprefix("draw"))
        except ValueError as error:  # an exception in a widget's callback would end in a log that nobody sees
            picture.layout.display = "none"
            message.value = f"<b>{html.escape(str(error))}</b>"

    for chosen in inputs.values():
        chosen.observe(redraw, names="value")
    return widgets.VBox([message, *inputs.values(), picture])


def _live_input(widgets, grid, name):
    values, texts, first = grid.values[name], grid.texts[name], grid.values[name][grid.start[name]]
    common = {
        "description": grid.labels[name],
        "style": {"description_width": "initial"},
        "layout": widgets.Layout(width="30em", max_width="100%"),
    }
    if any(isinstance(value, str | bool) or math.isinf(value) for value in values):
        return widgets.Dropdown(options=list(zip(texts, values, strict=True)), value=first, **common)
    low, high = min(values), max(values)
    common["continuous_update"] = False  # each change may cost a simulation
    wide = low > 0 and high / low >= 50
    if all(isinstance(value, int) for value in values):
        if not wide:
            return widgets.IntSlider(first, min=low, max=high, **common)
        # A dimension must stay whole, and a linear slider would hide its small values.
        whole = sorted({round(number) for number in np.geomspace(low, high, 100)} | set(values))
        return widgets.SelectionSlider(
            options=list(zip(_value_texts(whole), whole, strict=True)), value=first, **common
        )
    if wide:
        powers = math.log10(low), math.log10(high)
        return widgets.FloatLogSlider(first, min=powers[0], max=powers[1], step=(powers[1] - powers[0]) / 100, **common)
    step = (high - low) / 100 or 1.0
    return widgets.FloatSlider(first, min=low, max=high, step=step, readout_format=".4g", **common)


def _live_png(draw, values, limits):
    picture = _draw_one(draw, values)
    _set_limits(picture, _union_of_limits([picture], also=limits))
    file = io.BytesIO()
    Image.fromarray(_rgb(picture)).save(file, "PNG")
    return file.getvalue()
