"""Interactive figures: what ends up in the page, what a reader can do with it, and what bad input is told."""

import base64
import io
import json
import re
import sys
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from PIL import Image

import lowdim
from lowdim import explore

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("LOWDIM_PROGRESS", "0")
    monkeypatch.delenv("LOWDIM_BUILD", raising=False)


def bars(*heights):
    """A small figure that is quick to render; its limits follow the data."""
    picture = Figure(figsize=(2, 1.5))
    picture.subplots().bar(range(len(heights)), heights)
    return picture


def line(a=1, b=0, kind=""):
    """A small figure that is different for each a and b."""
    picture = Figure(figsize=(2, 1.5))
    axes = picture.subplots()
    axes.plot([0, 1], [b, a + b])
    axes.set(xlabel="time $t$", ylabel=r"height $\gamma_{0}$")
    return picture


def soup(explorer):
    return BeautifulSoup(explorer.html, "html.parser").find("figure")


def data(explorer):
    return json.loads(soup(explorer).find("script", type="application/json").string)


def pixels(encoded):
    return np.asarray(image(encoded).convert("RGB")).astype(int)


def image(address):
    return Image.open(io.BytesIO(base64.b64decode(address.removeprefix(explore.DATA_ADDRESS))))


def frame_pixels(explorer):
    return [pixels(frame) for frame in data(explorer)["frames"]]


# --- What is in the page ------------------------------------------------------------------------------------------


def test_one_frame_per_combination_with_the_last_parameter_running_fastest():
    seen = []

    def draw(a, b):
        seen.append((a, b))
        return line(a, b)

    shown = data(explore.figure(draw, a=[1, 2], b=[0, 10, 20]))
    assert seen == [(1, 0), (1, 10), (1, 20), (2, 0), (2, 10), (2, 20)]
    assert shown["texts"] == [["1", "2"], ["0", "10", "20"]]
    assert shown["frame_of"] == [0, 1, 2, 3, 4, 5]
    assert len(set(shown["frames"])) == 6


def test_the_first_picture_needs_no_script():
    explorer = explore.figure(line, a=[1, 2, 3], start={"a": 2})
    image = soup(explorer).find("img")
    assert image["src"] == data(explorer)["frames"][1]
    assert image["alt"] == data(explorer)["alts"][1]
    assert soup(explorer).find("div", class_="lowdim-controls").has_attr("hidden")
    slider = soup(explorer).find("input")
    assert slider.has_attr("disabled") and slider["value"] == "1" and slider["aria-valuetext"] == "2"


def test_size_attributes_keep_the_page_from_jumping_and_pixels_are_dense():
    explorer = explore.figure(line, a=[1, 2])
    image = soup(explorer).find("img")
    assert (image["width"], image["height"]) == ("192", "144")  # 2 × 1.5 inches at 96 CSS pixels
    assert frame_pixels(explorer)[0].shape == (216, 288, 3)


def test_every_slider_is_labelled():
    figure = soup(explore.figure(line, a=[1, 2], b=[3], labels={"a": r"step $\gamma_{0}$"}))
    labels = figure.find_all("label")
    assert [label.find("input")["aria-label"] for label in labels] == ["step gamma_0", "b"]
    assert labels[0].get_text() == "step " and 'fill="currentColor"' in str(labels[0].find("svg"))
    assert [output.get_text() for output in figure.find_all("output")] == ["1", "3"]


def test_a_formula_is_drawn_inside_its_box():
    svg = BeautifulSoup(explore._formula_svg(r"$\frac{\sqrt{d}}{\gamma_0^2}$"), "html.parser").find("svg")
    left, top, width, height = map(float, svg["viewbox"].split())
    numbers = re.findall(r"-?\d+", svg.find("path")["d"])
    x, y = np.array(numbers, float).reshape(-1, 2).T
    assert left - 5 <= x.min() and x.max() <= left + width + 5
    assert top - 5 <= y.min() and y.max() <= top + height + 5
    assert np.ptp(y) > 0.8 * height  # and it fills it


def test_identical_frames_are_stored_once():
    shown = data(explore.figure(lambda a, b: line(a), a=[1, 2], b=[1, 2, 3]))
    assert len(shown["frames"]) == 2
    assert shown["frame_of"] == [0, 0, 0, 1, 1, 1]
    assert len(set(shown["alts"])) == 6


def test_output_is_deterministic_and_the_id_follows_the_content():
    first, again = (explore.figure(line, a=[1, 2], caption="c") for _ in range(2))
    other = explore.figure(line, a=[1, 3], caption="c")
    assert first.html == again.html
    assert soup(first)["id"] != soup(other)["id"]
    assert re.fullmatch(r"explorer-[0-9a-f]{12}", soup(first)["id"])


def test_nothing_is_loaded_from_elsewhere():
    explorer = explore.figure(line, a=[1, 2], labels={"a": "$a$"}, caption="$x$")
    without_frames = re.sub(r"[A-Za-z0-9+/=]{100,}", "", explorer.html)
    assert not re.search(r"https?:|//|url\(|@import|<link|src=\"(?!data:)", without_frames)


def test_representations():
    explorer = explore.figure(line, a=[1, 2], kind=["x", "y"], labels={"a": "$a$"})
    bundle = explorer._repr_mimebundle_()
    assert bundle == {"text/html": explorer.html, "text/plain": repr(explorer)}
    assert explorer._repr_html_() == explorer.html
    assert repr(explorer) == "Interactive figure with 4 frames: a in 1, 2; kind in x, y"


HOSTILE = """</script><script>alert("1")</script><!-- '"&<b>"""


def test_hostile_texts_stay_texts():
    explorer = explore.figure(
        line, kind=[HOSTILE, "tame"], labels={"kind": HOSTILE}, caption=HOSTILE, alt=lambda kind: f"alt {kind}"
    )
    figure = soup(explorer)
    assert len(figure.find_all("script")) == 2 and not figure.find("b")
    assert figure.find("figcaption").get_text() == HOSTILE
    assert figure.find("label").get_text() == HOSTILE
    assert figure.find("output").get_text() == HOSTILE
    assert figure.find("input")["aria-valuetext"] == HOSTILE
    assert figure.find("img")["alt"] == f"alt {HOSTILE}"
    assert data(explorer)["texts"] == [[HOSTILE, "tame"]]
    assert explorer.html.count("</script>") == 2 and "<!--" not in explorer.html


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.001, 0.01, 1], ["0.001", "0.01", "1"]),
        ([1e6, 10**6 + 1, 2.5e-5, -1e-7], ["10⁶", "1000001", "2.5×10⁻⁵", "−10⁻⁷"]),
        ([131072, 100, 99999, 300000], ["131072", "100", "99999", "3×10⁵"]),
        ([0.1 + 0.2, 1 / 3, -0.5, 1234.5], ["0.3", "0.3333", "−0.5", "1234.5"]),
        ([0.1234567, 0.1234568], ["0.1234567", "0.1234568"]),
        ([0, float("inf"), -0.25], ["0", "∞", "−0.25"]),
        (["ReLU", "tanh"], ["ReLU", "tanh"]),
        ([True, False], ["True", "False"]),
        ([1, "1"], ["1", "'1'"]),
        ([9999.99999, 10000], ["9999.99999", "10000"]),
    ],
)
def test_values_are_written_for_people(values, texts):
    assert explore._value_texts(values) == texts


def test_draw_gets_plain_python_values():
    kinds = set()

    def draw(a, b):
        kinds.update({type(a), type(b)})
        return line()

    explore.figure(draw, a=np.array([0.5, 1.5]), b=[np.int64(3), 4])
    assert kinds == {float, int}


# --- Alt texts ----------------------------------------------------------------------------------------------------


def test_alt_from_a_format_string_or_a_function():
    assert data(explore.figure(line, a=[1, 2], alt="slope {a:.1f}"))["alts"] == ["slope 1.0", "slope 2.0"]
    assert data(explore.figure(line, a=[1, 2], alt=lambda a: f"<{a}>"))["alts"] == ["<1>", "<2>"]


def test_alt_from_the_axes():
    alts = data(explore.figure(line, a=[1, 2]))["alts"]
    assert alts == ["height gamma_0 against time t (a = 1)", "height gamma_0 against time t (a = 2)"]


@pytest.mark.parametrize("alt", ["the same for all", "", lambda a: "", None])
def test_alts_are_never_empty_and_never_alike(alt):
    alts = data(explore.figure(lambda a: bars(a), a=[1, 2, 3], alt=alt))["alts"]
    assert all(alts) and len(set(alts)) == 3


# --- Axes ---------------------------------------------------------------------------------------------------------


def limits_when_rendered(monkeypatch, draw, **parameters):
    """The limits and places that all axes have at the moment when the pixels are made."""
    captured = []
    take_pixels = explore._rgb

    def capture(picture):
        captured.append([(*axes.get_xlim(), *axes.get_ylim(), *axes.get_position().extents) for axes in picture.axes])
        return take_pixels(picture)

    monkeypatch.setattr(explore, "_rgb", capture)
    explore.figure(draw, **parameters)
    return np.array(captured)


def plot(x, y, **settings):
    picture = Figure(figsize=(2, 1.5), layout="constrained")
    axes = picture.subplots()
    axes.plot(x, y)
    axes.margins(0)
    axes.set(**settings)
    return picture


def test_limits_are_the_union_over_all_frames(monkeypatch):
    frames = limits_when_rendered(monkeypatch, lambda a: plot([a, a + 1], [-a, 10 * a]), a=[1, 2, 5])
    assert np.allclose(frames[:, 0, :4], [1, 6, -5, 50])


def test_limits_on_log_axes(monkeypatch):
    frames = limits_when_rendered(
        monkeypatch, lambda a: plot([a, 10 * a], [0.1 / a, 1], xscale="log", yscale="log"), a=[1, 100]
    )
    assert np.allclose(frames[:, 0, :4], [1, 1000, 0.001, 1])


def test_inverted_axes_stay_inverted(monkeypatch):
    frames = limits_when_rendered(monkeypatch, lambda a: plot([0, 1], [0, 1], ylim=(a, 0)), a=[1, 3])
    assert np.allclose(frames[:, 0, 2:4], [3, 0])


def test_an_empty_frame_does_not_stretch_the_others(monkeypatch):
    def draw(a):
        return plot([5, 6], [7, 8]) if a else Figure(figsize=(2, 1.5)).subplots().figure

    assert np.allclose(limits_when_rendered(monkeypatch, draw, a=[1, 0])[:, 0, :4], [5, 6, 7, 8])


def test_equal_limits_are_left_alone(monkeypatch):
    automatic = []
    take_pixels = explore._rgb

    def capture(picture):
        automatic.append((picture.axes[0].get_autoscalex_on(), picture.axes[0].get_autoscaley_on()))
        return take_pixels(picture)

    monkeypatch.setattr(explore, "_rgb", capture)
    explore.figure(lambda a: plot([0, 1], [0, a]), a=[1, 2])
    # Setting a limit ends its automatic choice, so only y of the first frame may have been set.
    assert automatic == [(True, False), (True, True)]


def test_every_panel_has_its_own_union(monkeypatch):
    def draw(a):
        picture = Figure(figsize=(3, 1.5))
        left, right = picture.subplots(1, 2)
        left.set(xlim=(0, a), ylim=(0, 1))
        right.set(xlim=(-a, 0), ylim=(5, 6))
        return picture

    frames = limits_when_rendered(monkeypatch, draw, a=[1, 4])
    assert np.allclose(frames[:, 0, :4], [0, 4, 0, 1]) and np.allclose(frames[:, 1, :4], [-4, 0, 5, 6])


def test_axes_stay_in_place_when_one_title_is_taller(monkeypatch):
    frames = limits_when_rendered(monkeypatch, lambda a: plot([0, 1], [0, 1], title="line\n" * a), a=[0, 1, 2])
    assert np.ptp(frames, axis=0).max() < 1e-9


def test_a_colour_bar_keeps_its_own_limits(monkeypatch):
    def draw(a):
        picture = Figure(figsize=(3, 2))
        axes = picture.subplots()
        picture.colorbar(axes.imshow([[0, a]]), ax=axes)
        return picture

    frames = limits_when_rendered(monkeypatch, draw, a=[1, 3])
    assert frames[:, 1, 3].tolist() == [1, 3]


# --- pyplot -------------------------------------------------------------------------------------------------------


def test_no_figure_stays_open_and_none_of_the_readers_is_closed(recwarn):
    import matplotlib.pyplot as plt

    plt.close("all")
    mine = plt.figure()

    def draw(a):
        plt.figure()  # one that is not returned
        picture, axes = plt.subplots(figsize=(1, 1))
        axes.plot([0, a])
        return picture

    explore.figure(draw, a=list(range(25)))
    assert plt.get_fignums() == [mine.number]
    with pytest.raises(ValueError, match="boom"):
        explore.figure(fail_after_opening, a=[1])
    assert plt.get_fignums() == [mine.number]
    assert not recwarn.list
    plt.close("all")


def fail_after_opening(a):
    import matplotlib.pyplot as plt

    plt.figure()
    raise RuntimeError("boom")


def test_a_notebook_shows_the_explorer_and_nothing_else():
    import nbformat
    from nbclient import NotebookClient

    code = f"""
import sys
sys.path.insert(0, {str(Path(lowdim.__file__).parents[1])!r})
import matplotlib.pyplot as plt
from lowdim import explore

def draw(a):
    picture, axes = plt.subplots(figsize=(1, 1))
    axes.plot([0, a])
    return picture

explore.figure(draw, a=[1, 2])"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "execute_result" and set(output.data) == {"text/html", "text/plain"}


# --- Pixels -------------------------------------------------------------------------------------------------------


def overlap_curves(d, k):
    """A figure as the chapters have them: curves with markers, log axis, grid, legend and formulas."""
    picture = Figure(figsize=(6.4, 4))
    axes = picture.subplots()
    n = np.geomspace(1, 1e5, 300)
    for rate in (0.5, 1, 2):
        m = 1 / (1 + (d ** (1 + k / 4) / (rate * n)) ** 1.5)
        (curve,) = axes.plot(n, m, label=rf"$\gamma = {rate}/d$")
        axes.plot(n[::15], m[::15] + 0.02 * np.sin(n[::15]), "o", markersize=4, color=curve.get_color())
    axes.set(xscale="log", xlabel="samples seen $n$", ylabel="overlap $m$", title=f"d = {d}, information exponent {k}")
    axes.grid(alpha=0.3)
    axes.legend(title="step size")
    return picture


def test_sixty_frames_of_a_line_plot_fit_the_budget():
    # Ten real frames; what each of them adds is the price of the other fifty.
    few = explore.figure(overlap_curves, d=[64, 4096], k=[1])
    more = explore.figure(overlap_curves, d=[16, 64, 256, 1024, 4096], k=[1, 2])
    per_frame = (len(more.html) - len(few.html)) / 8
    assert len(data(more)["frames"]) == 10
    assert len(more.html) + 50 * per_frame < 1_500_000


def test_a_dense_figure_gets_fewer_pixels_to_fit_the_budget():
    def cloud(a):
        picture = Figure(figsize=(6.4, 4))
        x, y = np.random.default_rng(a).standard_normal((2, 4000))
        picture.subplots().scatter(x, y, s=6, c=np.hypot(x, y), cmap="viridis", alpha=0.6)
        return picture

    explorer = explore.figure(cloud, a=[1, 2])
    frames = data(explorer)["frames"]
    assert image(frames[0]).width < 6.4 * explore.FRAME_DPI
    assert soup(explorer).img["width"] == str(round(6.4 * explore.CSS_DPI))
    assert np.mean([len(base64.b64decode(frame.split(",")[1])) for frame in frames]) <= explore.FRAME_BYTES


def test_a_page_serves_the_frames_as_files():
    explorer = explore.figure(line, a=[1, 2, 3])
    text, files = explore.for_page(explorer.html, "frames/here")
    light = explore.Explorer(text, "")
    assert explore.DATA_ADDRESS not in text and "<style>" not in text and "querySelector" not in text
    assert len(files) == 3 and set(data(light)["frames"]) == set(files)
    assert soup(light).img["src"] == data(light)["frames"][0]
    for frame, address in zip(data(explorer)["frames"], data(light)["frames"], strict=True):
        assert base64.b64decode(frame.removeprefix(explore.DATA_ADDRESS)) == files[address]


def test_colours_survive_the_palette():
    picture = overlap_curves(256, 2)
    picture.set_dpi(explore.FRAME_DPI)
    explore.FigureCanvasAgg(picture)
    original = explore._rgb(picture).astype(int)
    explorer = explore.figure(overlap_curves, d=[256], k=[2])
    error = np.abs(frame_pixels(explorer)[0] - original)
    assert np.sqrt(np.mean(error**2)) <= explore.PALETTE_TOLERANCE
    assert np.percentile(error, 99.9) < 40
    assert image(data(explorer)["frames"][0]).mode == "P"


def test_a_heat_map_gets_more_colours():
    def draw(a):
        picture = Figure(figsize=(2, 2))
        axes = picture.add_axes([0, 0, 1, 1])
        axes.imshow(np.add.outer(np.linspace(0, a, 200), np.linspace(0, 1, 200)), cmap="viridis", aspect="auto")
        return picture

    frames = frame_pixels(explore.figure(draw, a=[1, 2]))
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > explore.PALETTE_SIZES[0]


def test_a_colour_is_exactly_the_same_in_all_frames():
    frames = frame_pixels(explore.figure(lambda a: bars(a, 3), a=[1, 2, 3]))
    blue = np.array(matplotlib.colors.to_rgb("C0")) * 255
    assert all(np.abs(frame - blue.round()).sum(axis=-1).min() == 0 for frame in frames)


def test_a_transparent_figure_is_shown_on_white():
    def draw(a):
        return Figure(figsize=(1, 1), facecolor=(0, 0, 0, a))

    clear, half, solid = (frame[0, 0, 0] for frame in frame_pixels(explore.figure(draw, a=[0, 0.5, 1])))
    assert (clear, solid) == (255, 0) and 125 <= half <= 130


def test_progress_is_reported_for_every_frame(monkeypatch):
    counted = {}

    def counting(iterable, label, total=None):
        for item in iterable:
            counted[label] = counted.get(label, 0) + 1
            yield item

    monkeypatch.setattr(explore, "bar", counting)
    explore.figure(line, a=[1, 2, 3])
    assert counted == {"drawing frames": 3, "laying out frames": 3, "rendering frames": 3}


# --- Bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"parameters are \[\].* 1 to 3"),
        ({"a": [1], "b": [1], "c": [1], "d": [1]}, r"parameters are \['a', 'b', 'c', 'd'\].* 1 to 3"),
        ({"a": []}, r"a is \[\]; it must list at least one value"),
        ({"a": "abc"}, r"a is 'abc'; it must be a list of values"),
        ({"a": 3}, "a is 3; it must be a list of values"),
        ({"a": {1, 2}}, r"a is \{1, 2\}; it must be a list of values"),
        ({"a": np.eye(2)}, "it must be a list of values"),
        ({"a": [1, 2, 1.0]}, "its values must differ, but 1.0 is listed twice"),
        ({"a": [1, float("nan")]}, r"a\[1\] is nan; it must be a number"),
        ({"a": [1, [2]]}, r"a\[1\] is \[2\]; it must be a number \(not NaN\) or a string"),
        ({"a": range(21), "b": range(20)}, r"a \(21 values\) × b \(20 values\) is 420 frames; it must be at most 400"),
        ({"a": [1, 2], "start": {"a": 3}}, r"start\['a'\] is 3; it must be one of \[1, 2\]"),
        ({"a": [1, 2], "start": {"z": 3}}, r"start has the key 'z'; it must be one of the parameters \['a'\]"),
        ({"a": [1, 2], "start": 1}, "start is 1; it must be a dict"),
        ({"a": [1], "labels": {"z": "x"}}, r"labels has the key 'z'; it must be one of the parameters \['a'\]"),
        ({"a": [1], "labels": {"a": ""}}, r"labels\['a'\] is ''; it must be a string that is not empty"),
        ({"a": [1], "labels": {"a": r"$\nonsense$"}}, r"labels\['a'\] is .*nonsense.*; its mathematics must"),
        ({"a": [1], "caption": 5}, "caption is 5; it must be a string"),
        ({"a": [1], "alt": 5}, "alt is 5; it must be a format string"),
        ({"a": [1], "alt": "{missing}"}, r"alt is '\{missing\}'; it must work with a, .*alt\(a=1\).*KeyError"),
        ({"a": [1], "alt": lambda a: a}, r"alt\(a=1\) returned 1; it must return a string"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        explore.figure(line, **arguments)


def test_bad_arguments_are_found_before_anything_is_drawn():
    def draw(a):
        pytest.fail("drew before checking")

    with pytest.raises(ValueError, match="caption"):
        explore.figure(draw, a=[1], caption="$\\nonsense$")


def test_draw_must_be_callable():
    with pytest.raises(ValueError, match="draw is 3; it must be a function"):
        explore.figure(3, a=[1])


def test_a_failing_draw_names_the_combination_and_keeps_the_cause():
    def draw(a, b):
        return line(1 / (a - b))

    with pytest.raises(ValueError, match=r"draw\(a=2, b=2\) raised ZeroDivisionError: ") as caught:
        explore.figure(draw, a=[2], b=[1, 2])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda: "text", r"draw\(a=2\) returned 'text'; it must return a matplotlib Figure"),
        (lambda: None, r"draw\(a=2\) returned None; it must return a matplotlib Figure"),
        (lambda: Figure(figsize=(2, 1.5)), r"draw\(a=2\) returned a Figure with 0 axes; it must have 1"),
        (lambda: plot([0, 1], [0, 1]).subplots().figure, r"draw\(a=2\) returned a Figure with 2 axes; it must have 1"),
        (lambda: resized(3, 1.5), r"draw\(a=2\) returned a Figure of 3 × 1.5 inches; it must be 2 × 1.5"),
    ],
)
def test_a_frame_that_does_not_fit_the_first_is_named(second, message):
    with pytest.raises(ValueError, match=message):
        explore.figure(lambda a: line() if a == 1 else second(), a=[1, 2])


def resized(width, height):
    picture = line()
    picture.set_size_inches(width, height)
    return picture


def test_draw_must_make_a_new_figure_each_time():
    picture = line()
    with pytest.raises(ValueError, match=r"draw\(a=2\) returned the Figure of an earlier call"):
        explore.figure(lambda a: picture, a=[1, 2])


# --- Live controls ------------------------------------------------------------------------------------------------


def live_parts(explorer):
    message, *inputs, picture = explorer.controls.children
    return message, inputs, picture


def test_live_controls_draw_off_the_grid():
    explorer = explore.figure(line, a=[1.0, 3.0], b=[0, 4], kind=["x", "y"], live=True, labels={"a": "$a$"})
    message, (a, b, kind), picture = live_parts(explorer)
    assert [type(chosen).__name__ for chosen in (a, b, kind)] == ["FloatSlider", "IntSlider", "Dropdown"]
    assert (a.min, a.max, b.min, b.max, a.description) == (1, 3, 0, 4, "$a$")
    assert picture.layout.display == "none"
    a.value = 2.5
    first = picture.value
    assert Image.open(io.BytesIO(first)).size == (288, 216) and picture.layout.display == "block"
    b.value = 3
    assert picture.value != first and message.value == "(a=2.5, b=3, kind=&#x27;x&#x27;)"


def test_live_controls_over_wide_ranges_are_logarithmic():
    explorer = explore.figure(line, a=[1e-3, 1.0], b=[10, 1000], start={"b": 1000}, live=True)
    _, (a, b), _ = live_parts(explorer)
    assert type(a).__name__ == "FloatLogSlider" and (a.min, a.max) == (-3, 0)
    whole = [value for _, value in b.options]
    assert whole == sorted(set(whole)) and {10, 1000} <= set(whole) and all(type(value) is int for value in whole)
    assert b.value == 1000 and len(whole) > 50


def test_a_live_picture_keeps_the_axes_of_the_frames():
    pictures = []

    def draw(a):
        pictures.append(plot([0, 1], [0, a]))
        return pictures[-1]

    explorer = explore.figure(draw, a=[1.0, 9.0], live=True)
    live_parts(explorer)[1][0].value = 5.0
    assert np.allclose(pictures[-1].axes[0].get_ylim(), [0, 9])


def test_a_live_draw_that_fails_says_so():

    def draw(a):
        return line(a) if a in (1, 5) else 1 / 0

    explorer = explore.figure(draw, a=[1, 5], live=True)
    message, (a,), picture = live_parts(explorer)
    a.value = 3
    assert "draw(a=3) raised ZeroDivisionError" in message.value and picture.layout.display == "none"


def test_the_site_shows_live_figures_without_widgets(monkeypatch):
    monkeypatch.setenv("LOWDIM_BUILD", "1")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert type(explore.figure(line, a=[1, 2], live=True)) is explore.Explorer


def test_missing_ipywidgets_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match="live=True needs the package ipywidgets"):
        explore.figure(line, a=[1, 2], live=True)
    explore.figure(line, a=[1, 2])  # and is not needed otherwise


def test_a_live_explorer_displays_the_page_and_the_controls(monkeypatch):
    import IPython.display

    displayed = []
    monkeypatch.setattr(IPython.display, "display", lambda shown, **_: displayed.append(shown))
    explorer = explore.figure(line, a=[1, 2], live=True)
    explorer._ipython_display_()
    assert displayed == [explorer._repr_mimebundle_(), explorer.controls]


# --- In a real browser --------------------------------------------------------------------------------------------


@pytest.fixture
def open_page(browser, tmp_path):
    """Open HTML as a local file with the network cut off; any complaint or request of the page fails the test."""
    contexts, complaints = [], []

    def open_page(body, width=800, **options):
        file = tmp_path / "page.html"
        file.write_text(f"<!doctype html><meta charset='utf-8'><title>t</title>{body}", encoding="utf-8")
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: complaints.extend([request.url] if is_remote(request.url) else []))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def is_remote(url):
    return not url.startswith(("file:", "data:"))


def state(figure):
    """What a reader sees of an explorer: picture, its alt text, and the values."""
    image = figure.locator("img")
    return image.get_attribute("src"), image.get_attribute("alt"), figure.locator("output").all_text_contents()


@cache
def two_explorers():
    first = explore.figure(line, a=[1, 2, 3], b=[0, 5], labels={"a": "slope $a$"}, alt="slope {a}, shift {b}")
    second = explore.figure(line, a=[1, 2], kind=["x", HOSTILE], start={"a": 2}, caption="$x$ and text")
    return first, second


def test_keys_move_one_explorer_and_leave_the_other(open_page):
    first, second = two_explorers()
    page = open_page(first.html + second.html)
    one, two = page.locator("figure").all()
    shown, frames = data(first), data(first)["frames"]
    before = state(two)

    slider = one.get_by_role("slider", name="slope a")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert state(one) == (frames[2], "slope 2, shift 0", ["2", "0"])
    assert slider.get_attribute("aria-valuetext") == "2"
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert state(one) == (frames[5], shown["alts"][5], ["3", "5"])
    page.keyboard.press("Home")
    assert state(one)[1:] == ("slope 3, shift 0", ["3", "0"])
    assert one.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 288
    assert state(two) == before

    two.get_by_role("slider", name="kind").focus()
    page.keyboard.press("ArrowRight")
    assert state(two)[2] == ["2", HOSTILE]
    assert state(one)[1] == "slope 3, shift 0"


def test_a_label_is_bound_to_its_slider_even_in_a_copy(open_page):
    explorer, _ = two_explorers()
    page = open_page(explorer.html * 2)
    copy = page.locator("figure").nth(1)
    copy.locator("label span").nth(1).click()
    page.keyboard.press("ArrowRight")
    assert state(copy)[2] == ["1", "5"]
    assert state(page.locator("figure").nth(0))[2] == ["1", "0"]


def test_running_the_cell_again_leaves_a_working_explorer(open_page):
    # As notebooks do it: the HTML is put in place, and then its script is run from elsewhere in the document.
    first, _ = two_explorers()
    page = open_page("<main></main>")
    for _ in range(2):
        page.evaluate(
            """html => {
                const main = document.querySelector("main");
                main.innerHTML = html;
                const script = document.createElement("script");
                script.textContent = main.querySelector("script:not([type])").textContent;
                document.head.appendChild(script).remove();
            }""",
            first.html,
        )
        page.get_by_role("slider", name="slope a").focus()
        page.keyboard.press("ArrowRight")
        assert state(page.locator("figure"))[1] == "slope 2, shift 0"


def test_without_scripts_the_first_picture_is_there_and_no_dead_slider(open_page):
    _, second = two_explorers()
    page = open_page(second.html, java_script_enabled=False)
    assert page.locator("img").is_visible() and page.locator("figcaption").is_visible()
    assert not page.locator("input").first.is_visible()


@cache
def wide_explorer():
    return explore.figure(
        lambda a, kind: overlap_curves(64, a),
        a=[1],
        kind=["a rather long name of a method", "short"],
        labels={"a": r"signal-to-noise ratio $\lambda = \|\beta\|^2 / \sigma^2$"},
    )


@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_sticks_out_of_a_narrow_screen(open_page, width):
    page = open_page("<meta name='viewport' content='width=device-width'>" + wide_explorer().html, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("img").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(614 / 384, rel=0.01)
    for slider in page.get_by_role("slider").all():
        box = slider.bounding_box()
        assert box["width"] >= 90 and box["height"] >= 24 and box["x"] + box["width"] <= width


def test_formulas_and_words_take_the_colour_of_a_dark_page(open_page):
    first, _ = two_explorers()
    page = open_page("<style>body{background:#111;color:rgb(200, 210, 220)}</style>" + first.html)
    assert page.locator("svg path").first.evaluate("path => getComputedStyle(path).fill") == "rgb(200, 210, 220)"
    assert page.locator("output").first.evaluate("value => getComputedStyle(value).color") == "rgb(200, 210, 220)"
    assert page.locator("img").evaluate("image => getComputedStyle(image).backgroundColor") == "rgb(255, 255, 255)"
