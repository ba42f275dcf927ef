"""Every target function of the talks, by name, as data: formula, directions, exponents and a way to draw labels.

>>> targets.get("h3").information_exponent
3
>>> targets.names()                      # all names
"""

import difflib
import math
from dataclasses import dataclass, field

import torch

from lowdim import checks, functions, hermite, links, polynomials
from lowdim import device as devices


@dataclass(frozen=True)
class Target:
    """A target y = g(h + s ξ) + t ξ of the r = `directions` projections h = (⟨w*_1, x⟩, …, ⟨w*_r, x⟩), ξ ~ N(0, 1).

    `vectorised` is the regression function h ↦ E[y | h]: […] → […] for r = 1, […, r] → […] else. `link` is its form as
    data where it has one (r = 1). `noiseless` is g, `noise_inside` is s, `noise_outside` is t. `information_exponent`
    is the lowest degree ≥ 1 in the Hermite expansion of E[y | h]; `generative_exponent` the same after the best
    transformation of the label, None where unknown. `latex` is the formula.
    """

    name: str
    latex: str
    directions: int
    vectorised: functions.Vectorised = field(repr=False, compare=False)
    information_exponent: float
    generative_exponent: float | None = None
    link: links.Link | None = None
    noiseless: functions.Vectorised | None = field(default=None, repr=False, compare=False)
    noise_inside: float = 0.0
    noise_outside: float = 0.0

    def __call__(self, h):
        """The regression function E[y | h] at `h` (NumPy array or tensor)."""
        return self.vectorised(h)

    @property
    def is_noisy(self):
        """Whether a label is random once h is known."""
        return bool(self.noise_inside or self.noise_outside)

    def labels(self, h, xi=None):
        """Labels y = g(h + s ξ) + t ξ for `h` (NumPy or torch) and standard Gaussian `xi` of the labels' shape.

        `xi` is needed for noisy targets only.
        """
        if not self.is_noisy:
            return self.vectorised(h)
        if xi is None:
            raise ValueError(f"target {self.name!r} has noisy labels: xi, an array of standard Gaussians, is needed")
        inside = self.noise_inside * (xi if self.directions == 1 else xi[..., None])
        return (self.noiseless or self.vectorised)(h + inside) + self.noise_outside * xi


def custom(f, directions=1, name="custom", latex=""):
    """Make a target of a vectorised function `f` written with NumPy or torch: […] → […], or […, r] → [...] if r > 1.

    Its information exponent is computed for r = 1 and left unknown (nan) for more directions.
    """
    directions = checks.whole_number("directions", directions, least=1)
    function = functions.vectorised(f, "target", directions)
    link = f if isinstance(f, links.Link) else links.as_polynomial(function) if directions == 1 else None
    exponent = hermite.information_exponent(function) if directions == 1 else math.nan
    return Target(name, latex, directions, function, exponent, link=link)


def get(name, argument="target"):
    """Return the target called `name`; an unknown name raises ValueError with the nearest names that exist.

    `argument` is what the error message calls it.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    near = difflib.get_close_matches(str(name), REGISTRY, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise ValueError(f"{argument} is {name!r}; {hint}known targets: {', '.join(REGISTRY)}")


def names():
    """Return the names of all targets, in the order of the book."""
    return list(REGISTRY)


def resolve(target):
    """Return a `Target` from a name, a `Target` or a vectorised callable of one variable."""
    if isinstance(target, Target):
        return target
    if isinstance(target, str):
        return get(target)
    return custom(target)


def _single(name, latex, link, information_exponent, generative_exponent):
    return Target(name, latex, 1, link.vectorised, information_exponent, generative_exponent, link)


def _multi(name, latex, directions, function, information_exponent, generative_exponent, noise_outside=0.0):
    wrapped = functions.Vectorised(function, "torch", directions)
    return Target(
        name, latex, directions, wrapped, information_exponent, generative_exponent, noise_outside=noise_outside
    )


def _he(k, z):
    """The un-normalised Hermite polynomial He_k of a tensor."""
    return links.he(k)(z)


def _parity(h):
    return torch.sign(torch.prod(h, dim=-1))


def _noisy_sign(variance):
    mean = links.Link("erf", (1 / math.sqrt(2 * variance),))
    return Target(
        name="noisy_sign",
        latex=rf"\mathrm{{sign}}(z + \sqrt{{{variance:g}}}\,\xi)",
        directions=1,
        vectorised=mean.vectorised,
        information_exponent=1,
        generative_exponent=1,
        link=mean,
        noiseless=links.Link("sign").vectorised,
        noise_inside=math.sqrt(variance),
    )


def _catalogue():
    """All targets of the talks. Exponents are data here; the tests compute them from the functions."""
    for k, generative in zip(range(1, 7), (1, 2, 1, 2, 1, 2), strict=True):
        yield _single(f"h{k}", rf"h_{k}(z)", links.polynomial([0.0] * k + [1.0], rf"h_{k}(z)"), k, generative)
    for k, generative in ((2, 2), (3, 1), (4, 2)):
        yield _single(f"He{k}", rf"\mathrm{{He}}_{k}(z)", links.he(k), k, generative)
    sums = {"He1+He3": ((1, 3), 1, 1), "He2+He3": ((2, 3), 2, 1)}
    for name, (degrees, information, generative) in sums.items():
        alpha = [math.sqrt(math.factorial(k)) if k in degrees else 0.0 for k in range(4)]
        latex = " + ".join(rf"\mathrm{{He}}_{k}(z)" for k in degrees)
        yield _single(name, latex, links.polynomial(alpha, latex), information, generative)
    yield _single("linear", "z", links.polynomial([0.0, 1.0], "z"), 1, 1)
    yield _single("square", "z^2", links.polynomial([1.0, 0.0, math.sqrt(2)], "z^2"), 2, 2)
    yield _single("abs", "|z|", links.Link("abs", latex="|z|"), 2, 2)
    yield _single("sign", r"\mathrm{sign}(z)", links.Link("sign", latex=r"\mathrm{sign}(z)"), 1, 1)
    yield _noisy_sign(variance=0.25)
    yield _single("tanh", r"\tanh(z)", links.Link("tanh", latex=r"\tanh(z)"), 1, 1)
    yield _single("sin", r"\sin(z)", links.Link("sin", latex=r"\sin(z)"), 1, 1)
    yield _single("relu", r"\max(z, 0)", links.relu(), 1, 1)
    yield _single("bump", "z^2 e^{-z^2}", links.Link("bump", latex="z^2 e^{-z^2}"), 4, 4)
    latex = r"\textstyle\sum_{j=2}^{10} c_{2j}\, h_{2j}(z)"
    yield _single("superorthogonal", latex, polynomials.superorthogonal(2, 2).scaled(latex), 4, 2)
    yield _multi("linear+abs", "h_1 + |h_2|", 2, lambda h: h[..., 0] + h[..., 1].abs(), 1, 1)
    yield _multi(
        "quadratic",
        "h_1 + 2h_2 + h_1h_2 + 3h_2^2",
        2,
        lambda h: h[..., 0] + 2 * h[..., 1] + h[..., 0] * h[..., 1] + 3 * h[..., 1] ** 2,
        1,
        1,
    )
    yield _multi(
        "committee",
        r"\tfrac13\textstyle\sum_{i=1}^{3}\max(h_i, 0) + 0.1\,\xi",
        3,
        lambda h: torch.relu(h).mean(dim=-1),
        1,
        1,
        noise_outside=0.1,
    )
    yield _multi("parity2", r"\mathrm{sign}(h_1h_2)", 2, _parity, 2, 2)
    yield _multi("parity3", r"\mathrm{sign}(h_1h_2h_3)", 3, _parity, 3, 3)
    yield _multi("square+parity3", r"h_1^2 + \mathrm{sign}(h_1h_2h_3)", 3, lambda h: h[..., 0] ** 2 + _parity(h), 2, 2)
    for k, information in ((2, 2), (4, 3)):
        yield _multi(
            f"He{k}+parity3",
            rf"\mathrm{{He}}_{k}(h_1) + \mathrm{{sign}}(h_1h_2h_3)",
            3,
            lambda h, k=k: _he(k, h[..., 0]) + _parity(h),
            information,
            2,
        )
    yield _multi(
        "staircase",
        r"h_1 + \mathrm{He}_3(h_1)\,h_2 + \mathrm{He}_3(h_2)\,h_3",
        3,
        lambda h: h[..., 0] + _he(3, h[..., 0]) * h[..., 1] + _he(3, h[..., 1]) * h[..., 2],
        1,
        1,
    )
    yield _multi(
        "additive", r"\tfrac12\textstyle\sum_{m=1}^{4} h_3(h_m)", 4, lambda h: get("h3")(h).sum(dim=-1) / 2, 3, 1
    )
    yield _multi(
        "tree",
        r"\tanh\bigl(8^{-1/2}\textstyle\sum_{j=1}^{8}(\mathrm{He}_2+\mathrm{He}_3)(h_j)\bigr)",
        8,
        lambda h: torch.tanh((_he(2, h) + _he(3, h)).sum(dim=-1) / math.sqrt(8)),
        1,
        None,
    )


REGISTRY = {target.name: target for target in _catalogue()}


def additive(link, tasks, coefficients=None):
    r"""The additive target f(h) = M^{−1/2} Σ_m c_m σ_m(h_m) of M = `tasks` directions h_m = ⟨θ_m, x⟩.

    link          σ: a name ("h3"), a `Link`, a `Target` of one direction or a vectorised function; a list of M of them
                  gives every task its own σ_m
    coefficients  c_1..c_M, finite numbers; default: all 1

    With orthonormal directions and links of mean 0 and variance 1, E[f²] = Σ_m c_m²/M. Its information exponent is the
    least one among the tasks.
    """
    tasks = checks.whole_number("tasks", tasks, least=1)
    given = list(link) if isinstance(link, list | tuple) else [link] * tasks
    if len(given) != tasks:
        raise ValueError(f"link is a list of {len(given)}; with tasks = {tasks} it must have {tasks} entries")
    parts = {id(one): resolve(one) for one in given}
    if any(part.directions > 1 or part.is_noisy for part in parts.values()):
        bad = next(part for part in parts.values() if part.directions > 1 or part.is_noisy)
        raise ValueError(f"link is {bad.name!r}; every task must have one direction and a label without noise")
    c = [1.0] * tasks if coefficients is None else [checks.finite("coefficients", value) for value in coefficients]
    if len(c) != tasks:
        raise ValueError(f"coefficients has {len(c)} entries; with tasks = {tasks} it must have {tasks}")
    # One evaluation serves all tasks that share link and coefficient.
    groups = {}
    for m, one in enumerate(given):
        groups.setdefault((id(one), c[m]), []).append(m)

    def function(h):
        total = 0.0
        for (key, size), members in groups.items():
            columns = h if len(members) == tasks else h[..., members]
            total = total + size / math.sqrt(tasks) * parts[key].vectorised.torch(columns).sum(dim=-1)
        return total

    exponent = min(
        parts[id(one)].information_exponent for one, size in zip(given, c, strict=True) if size or tasks == 1
    )
    latex = r"M^{-1/2}\textstyle\sum_m c_m\,\sigma_m(h_m)"
    if tasks == 1:
        only, size = parts[id(given[0])], c[0]
        scaled = functions.Vectorised(lambda h: size * only.vectorised.torch(h), "torch")
        return Target("additive, 1 task", latex, 1, scaled, exponent, link=only.link if size == 1 else None)
    return Target(
        f"additive, {tasks} tasks", latex, tasks, functions.Vectorised(function, "torch", tasks), exponent, None
    )


@dataclass(frozen=True)
class Tree:
    r"""A tree target y = Σ_{i=1}^r g(h_i), h_i = ⟨a_i, p(z_i)⟩, z_i = W_i x: the hierarchy x → z → h → y.

    directions    [r·m, d] or [runs, r·m, d]   the rows of W_1, …, W_r one below the other; all orthonormal
    coefficients  [r, m] or [runs, r, m]       a_i, of norm one
    polynomial    p, applied entry by entry    link  g
    """

    directions: torch.Tensor
    coefficients: torch.Tensor
    polynomial: functions.Vectorised
    link: functions.Vectorised

    @property
    def d(self):
        """Dimension of the input."""
        return self.directions.shape[-1]

    @property
    def r(self):
        """Number r of branches."""
        return self.coefficients.shape[-2]

    @property
    def width(self):
        """Number m of directions of each branch."""
        return self.coefficients.shape[-1]

    def first(self, x):
        """z = (z_1, …, z_r), [..., n, r·m], for inputs x [..., n, d]."""
        return x @ self.directions.mT

    def second(self, x):
        """h = (h_1, …, h_r), [..., n, r], for inputs x [..., n, d]."""
        z = self.first(x)
        p = self.polynomial.torch(z).unflatten(-1, (self.r, self.width))
        return (p * self.coefficients[..., None, :, :]).sum(-1)

    def __call__(self, x):
        """The labels y, [..., n], for inputs x [..., n, d]."""
        return self.link.torch(self.second(x)).sum(-1)

    def split(self, size):
        """The targets of at most `size` runs each, in order (the target itself if it has no runs axis)."""
        if self.directions.ndim == 2:
            return [self]
        pairs = zip(self.directions.split(size), self.coefficients.split(size), strict=True)
        return [Tree(w, a, self.polynomial, self.link) for w, a in pairs]


def tree(d, r=1, *, width=None, polynomial="He2+He3", link="tanh", runs=None, seed=0, device=None, dtype=torch.float32):
    r"""Draw a tree target: r branches with m = `width` random orthonormal directions each (default √d, rounded).

    The coefficients are random signs, a_ij = ±1/√m. `polynomial` p and `link` g are names, `Link`s, `Target`s of one
    direction or functions written with torch. runs=None draws one target without a runs axis.
    """
    d, r = checks.whole_number("d", d, least=1), checks.whole_number("r", r, least=1)
    m = round(math.sqrt(d)) if width is None else checks.whole_number("width", width, least=1)
    if r * m > d:
        raise ValueError(f"d is {d}; {r} branches with {m} directions each need d ≥ {r * m}")
    lead = () if runs is None else (checks.whole_number("runs", runs, least=1),)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"generator": generator, "device": place}
    basis = torch.linalg.qr(torch.randn(*lead, d, r * m, dtype=dtype, **options)).Q
    signs = 2 * torch.randint(0, 2, (*lead, r, m), **options) - 1
    p, g = (
        functions.vectorised(get(f, name) if isinstance(f, str) else f, name)
        for name, f in (("polynomial", polynomial), ("link", link))
    )
    return Tree(basis.mT.contiguous(), signs.to(dtype) / math.sqrt(m), p, g)
