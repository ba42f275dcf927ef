"""The problem that the three trainers of one neuron share: its data, checked once, in one place."""

from dataclasses import dataclass

import numpy as np
import torch

from lowdim import checks, functions, links, targets

LOSSES = ("correlation", "square")
# How a sample is used twice; see `Problem`.
VARIANTS = ("look-ahead", "two steps", "sharpness-aware")


@dataclass(frozen=True)
class Problem:
    r"""One neuron σ(⟨w, x⟩) on the sphere, trained one fresh sample (x, y) at a time; x ~ N(0, I_d).

    With h = ⟨w, x⟩ and the residual e = y (correlation loss −yσ(h)) or e = y − σ(h) (square loss ½(y − σ(h))²),

        w ← normalise(w + γ g (x − h w)),      g = e(h̃) σ'(h̃),     h̃ = h + ρ |x|² e(h) σ'(h),

    where γ = lr and ρ = lookahead: for ρ > 0 the gradient is taken after a trial step of size ρ on the same sample.
    That is variant="look-ahead" (extra-gradient). Two other ways to use the sample twice change g alone:

        variant="two steps"         g = e(h) σ'(h) + e(h̃) σ'(h̃):     both steps are kept, in the proportion 1 : 1
        variant="sharpness-aware"   h̃ = h − ρ |x| sign(e(h) σ'(h)):  a trial step of length ρ *up* the loss (SAM)
    """

    target: targets.Target
    student: functions.Vectorised
    link: links.Link | None
    d: int
    steps: int
    lr: float
    runs: int
    loss: str
    lookahead: float
    records: int
    stop_at: float | None
    variant: str = "look-ahead"

    @property
    def directions(self):
        """Number r of directions of the target."""
        return self.target.directions

    def gradient_factor(self, y, h, squared_norm):
        """The factor g above, for tensors `y`, `h` and `squared_norm` = |x|² of one shape."""
        g = self._factor(y, h)
        if not self.lookahead:
            return g
        if self.variant == "sharpness-aware":
            return self._factor(y, h - self.lookahead * squared_norm.sqrt() * torch.sign(g))
        ahead = self._factor(y, h + self.lookahead * squared_norm * g)
        return ahead if self.variant == "look-ahead" else g + ahead

    def _factor(self, y, h):
        residual = y if self.loss == "correlation" else y - self.student.torch(h)
        return residual * self.student.derivative(h)


def prepare(target, d, steps, lr, runs, student, loss, lookahead, records, stop_at, variant="look-ahead"):
    """Check all arguments of a trainer and return the `Problem`. See `sgd.online_sgd` for their meaning."""
    target = targets.resolve(target)
    d = checks.whole_number("d", d, least=1)
    if d < target.directions + 1:
        raise ValueError(f"d is {d}; target {target.name!r} needs d ≥ {target.directions + 1}")
    link, activation = _resolve_student(student, target)
    if not activation.derivative(torch.linspace(-6, 6, 200, dtype=torch.float64)).any():
        raise ValueError(
            f"student is {student if student is not None else target.name!r}; its derivative vanishes everywhere, so "
            "that its gradient does too: choose another, e.g. student='tanh'"
        )
    return Problem(
        target=target,
        student=activation,
        link=link,
        d=d,
        steps=checks.whole_number("steps", steps, least=1),
        lr=checks.positive("lr", lr),
        runs=checks.whole_number("runs", runs, least=1),
        loss=checks.one_of("loss", loss, LOSSES),
        lookahead=checks.not_negative("lookahead", lookahead),
        records=checks.whole_number("records", records, least=2),
        stop_at=None if stop_at is None else _stop_level(stop_at, target),
        variant=checks.one_of("variant", variant, VARIANTS),
    )


def prepare_batch(target, d, n, steps, lr, runs, student, loss):
    """Check the arguments of a full-batch trainer; return the `Problem` and n."""
    return prepare(target, d, steps, lr, runs, student, loss, 0.0, 2, None), checks.whole_number("n", n, least=1)


def _resolve_student(student, target):
    """Return the student's activation as a `Link` (None if it is no known family) and as a vectorised function."""
    if student is None:
        if target.directions > 1:
            raise ValueError(
                f"student is None; target {target.name!r} has {target.directions} directions and no link of its own, "
                "so a student must be given, e.g. student='tanh' or links.relu(0.7)"
            )
        return target.link, target.vectorised
    if isinstance(student, str):
        student = targets.get(student, "student")
    if isinstance(student, targets.Target):
        if student.directions > 1:
            raise ValueError(f"student is {student.name!r} with {student.directions} directions; it must have one")
        return student.link, student.vectorised
    if isinstance(student, links.Link):
        return student, student.vectorised
    function = functions.vectorised(student, "student")
    return links.as_polynomial(function), function


def _stop_level(stop_at, target):
    if target.directions > 1:
        raise ValueError(f"stop_at is {stop_at!r}; it is for targets with one direction, not {target.name!r}")
    return checks.fraction("stop_at", stop_at)


def start_overlaps(start, runs, directions):
    """Return the given start overlaps as an array [runs, r], checked to lie in the unit ball."""
    try:
        m = np.asarray(start, dtype=np.float64)
        m = np.broadcast_to(m[..., None] if directions == 1 and m.ndim <= 1 else m, (runs, directions)).copy()
    except (TypeError, ValueError):
        raise ValueError(
            f"start has shape {np.shape(start)}; it must be one overlap, or shape [{runs}]"
            + (f" or [{runs}, {directions}]" if directions > 1 else "")
        ) from None
    if not np.isfinite(m).all() or (np.sum(m**2, axis=1) > 1).any():
        raise ValueError(f"start is {start!r}; overlaps must be finite, with Σ m_i² ≤ 1")
    return m


def start_tensor(problem, start, generator, options):
    """Overlaps [runs, r] at the start: as given, or those of a uniformly random point of the sphere."""
    runs, r = problem.runs, problem.directions
    if start is not None:
        return torch.as_tensor(start_overlaps(start, runs, r), **options)
    z = torch.randn(runs, r, generator=generator, **options)
    rest = 2 * torch._standard_gamma(torch.full((runs,), (problem.d - r) / 2, **options), generator=generator)
    return z / (z.square().sum(-1) + rest).sqrt()[:, None]
