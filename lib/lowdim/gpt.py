r"""A GPT-style transformer that reads prompts (x_1, y_1, x_2, y_2, …) and predicts every y_i from what is before it.

The set-up is that of Garg, Tsipras, Liang and Valiant (2022): points and labels alternate as tokens, a causal
transformer with GPT-2 blocks reads them, and Adam minimises the mean squared error of all predictions over fresh
prompts. A run depends on nothing but its arguments; it can be stopped, saved and continued to the same bits on a CPU.
"""

import contextlib
import math
import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lowdim import checks
from lowdim import device as devices
from lowdim.progress import bar

# GPT-2's vocabulary: its table of embeddings is part of the counts of parameters in papers that take the model as is.
VOCABULARY = 50_257


@dataclass(frozen=True)
class Settings:
    """The size of a transformer: inputs of dimension `d`, prompts of at most `points` points.

    `width` must be a multiple of `heads`. `init` is the standard deviation of the initial weights: GPT-2's 0.02 is made
    for widths of many hundreds; narrow transformers leave their first plateau sooner with more. `preset` knows two
    sizes: "small" for one CPU core, "paper" as in Garg et al.
    """

    d: int
    points: int
    layers: int = 2
    width: int = 64
    heads: int = 4
    init: float = 0.02

    def __post_init__(self):
        for name, least in (("d", 1), ("points", 2), ("layers", 1), ("width", 1), ("heads", 1)):
            object.__setattr__(self, name, checks.whole_number(name, getattr(self, name), least=least))
        object.__setattr__(self, "init", checks.positive("init", self.init))
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}; it must be a multiple of heads = {self.heads}")

    def parameter_count(self, vocabulary=0):
        """Number of parameters; `vocabulary` adds a table of that many embeddings, which prompts of numbers never use.

        A block has 12w² + 13w of them (w = width), a position w, the read-in (d + 1)w, the read-out w + 1, the last
        normalisation 2w.
        """
        w = self.width
        blocks = self.layers * (12 * w**2 + 13 * w)
        return blocks + (2 * self.points - 1) * w + (self.d + 1) * w + 2 * w + w + 1 + vocabulary * w


PRESETS = {
    "small": {"layers": 2, "width": 64, "heads": 4, "init": 0.1},
    "paper": {"layers": 12, "width": 256, "heads": 8, "init": 0.02},
}


def preset(name, d, points):
    """The `Settings` called "small" (2 layers, width 64) or "paper" (12 layers, width 256, 8 heads)."""
    return Settings(d, points, **PRESETS[checks.one_of("name", name, tuple(PRESETS))])


class Block(nn.Module):
    """One GPT-2 block: x + attention(norm(x)), then x + MLP(norm(x)), with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, every=1):
        """The stream [B, t, width] behind the block; with every=2 only at the tokens 0, 2, 4, … [B, ⌈t/2⌉, width]."""
        b, t, w = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if every == 1:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            place = torch.arange(t, device=x.device)
            seen = place[None, :] <= place[::every, None]
            mixed = functional.scaled_dot_product_attention(q[:, :, ::every], k, v, attn_mask=seen)
            x = x[:, ::every]
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class GPT(nn.Module):
    """The transformer: model(x [B, n, d], y [B, n]) are the predictions [B, n], the i-th of them from
    x_1, y_1, …, x_{i−1}, y_{i−1}, x_i alone (y_n is never read)."""

    def __init__(self, settings, *, seed=0, device=None):
        super().__init__()
        self.settings = settings
        place, w = devices.resolve(device), settings.width
        with torch.device(place):
            self.read_in, self.read_out = nn.Linear(settings.d, w), nn.Linear(w, 1)
            self.positions = nn.Parameter(torch.empty(2 * settings.points - 1, w))
            self.blocks = nn.ModuleList(Block(w, settings.heads) for _ in range(settings.layers))
            self.last_norm = nn.LayerNorm(w)
        self._draw(devices.generator(place, seed))

    def _draw(self, generator):
        """GPT-2's initial values: N(0, init²), projections back to the stream divided by √(2 layers), biases zero.

        Positions and the read-out are N(0, 0.02²) at every size. The read-in, which GPT-2 does not have, keeps the size
        of its inputs: N(0, 1/d).
        """
        init = self.settings.init
        sizes = {"positions": 0.02, "read_out.weight": 0.02, "read_in.weight": 1 / math.sqrt(self.settings.d)}
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if "norm" in name or "before" in name:
                    weight.fill_(1.0 if name.endswith("weight") else 0.0)
                elif name.endswith("bias"):
                    weight.zero_()
                else:
                    back = name.endswith(("out.weight", "down.weight"))
                    size = init / math.sqrt(2 * len(self.blocks)) if back else init
                    weight.normal_(0.0, sizes.get(name, size), generator=generator)

    def forward(self, x, y):
        b, n, d = x.shape
        if d != self.settings.d or n > self.settings.points or y.shape != (b, n):
            raise ValueError(
                f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be [prompts, n, {self.settings.d}] "
                f"and [prompts, n] with n ≤ {self.settings.points}"
            )
        labels = functional.pad(y[..., None], (0, d - 1))
        tokens = torch.stack([x, labels], dim=2).view(b, 2 * n, d)[:, :-1]
        h = self.read_in(tokens) + self.positions[: 2 * n - 1]
        for block in self.blocks[:-1]:
            h = block(h)
        # Predictions are read off at the points alone: the last block need not compute the labels' tokens.
        return self.read_out(self.last_norm(self.blocks[-1](h, every=2)))[..., 0]

    @property
    def device(self):
        """Where the weights are."""
        return self.positions.device


# --- Training -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curriculum:
    """Easy prompts first (Garg et al.): begin with `d` coordinates and `points` points, one more of each at a time.

    Coordinates beyond the present number are zero; the full size is reached after the fraction `until` of all steps.
    """

    d: int = 4
    points: int = 8
    until: float = 0.25

    def __post_init__(self):
        for name in ("d", "points"):
            object.__setattr__(self, name, checks.whole_number(name, getattr(self, name), least=2))
        object.__setattr__(self, "until", checks.fraction("until", self.until))

    def size(self, step, steps, settings):
        """Coordinates and points of the prompts of this step."""
        share = min(1.0, step / (self.until * steps))
        return tuple(
            min(full, first + int(share * (full - first + 1e-9)))
            for first, full in (
                (min(self.d, settings.d), settings.d),
                (min(self.points, settings.points), settings.points),
            )
        )


@dataclass(frozen=True)
class Training:
    """A trained transformer and how it came about.

    model   the `GPT`
    losses  [steps, points]  mean squared error of the prediction with i − 1 examples, over the batch of each step
            (nan where the curriculum's prompts were shorter)
    """

    model: GPT
    losses: np.ndarray

    def curve(self, blocks=60, first=0):
        """Steps [blocks] and losses [blocks], averaged over blocks of steps and over positions from `first` on."""
        steps = len(self.losses)
        edges = np.unique(np.linspace(0, steps, checks.whole_number("blocks", blocks, least=1) + 1).astype(int))
        with np.errstate(invalid="ignore"):
            parts = [np.nanmean(self.losses[i:j, first:]) for i, j in pairwise(edges)]
        return (edges[:-1] + edges[1:]) / 2, np.array(parts)


def train(
    tasks,
    settings,
    steps,
    *,
    batch=64,
    lr=1e-3,
    warmup=0.05,
    curriculum=None,
    seed=0,
    device=None,
    precision=None,
    checkpoint=None,
    save_every=1000,
    stop_after=None,
):
    r"""Train a `GPT` on fresh prompts with Adam: a `Training`.

    Every step draws `batch` prompts from `tasks` and takes one step on the mean over i of (y_i − ŷ_i)². The rate rises
    linearly to `lr` during the fraction `warmup` of all steps and then falls linearly to zero; gradients are clipped to
    norm one.

    tasks       what draws prompts, as `lowdim.icl.tasks` makes it: tasks.draw(batch, points, generator) has `.x`
                [batch, n, d] and `.y` [batch, n]; on the same device
    settings    the size, a `Settings`
    curriculum  None, or a `Curriculum`
    precision   None (single), or "bfloat16" / "float16" for the forward pass on a GPU (mixed precision; the losses are
                scaled for float16)
    checkpoint  a file: the run is saved there every `save_every` steps and at the end, and continued from there if it
                exists; a file of another run (other settings, another link or subspace) raises ValueError
    stop_after  stop when so many steps are done in all (to be continued from the checkpoint)

    No value is read on the host between two checkpoints. A run whose loss is not finite raises FloatingPointError.
    """
    steps, batch = checks.whole_number("steps", steps, least=1), checks.whole_number("batch", batch, least=1)
    lr, warmup = checks.positive("lr", lr), checks.not_negative("warmup", warmup)
    save_every = checks.whole_number("save_every", save_every, least=1)
    stop_after = steps if stop_after is None else min(steps, checks.whole_number("stop_after", stop_after, least=1))
    if tasks.d != settings.d:
        raise ValueError(f"settings.d is {settings.d}; the tasks have dimension {tasks.d}")
    checks.one_of("precision", precision, (None, "bfloat16", "float16"))
    place = devices.resolve(device if device is not None else tasks.device)
    if place.type != tasks.device.type:
        raise ValueError(f"device is {str(place)!r}; the tasks are on {str(tasks.device)!r}")
    generator = devices.generator(place, seed)
    model = GPT(settings, seed=seed, device=place)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.99), foreach=True)
    half = precision is not None and place.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=half and precision == "float16")
    losses = torch.full((steps, settings.points), torch.nan, device=place)
    run = {"settings": asdict(settings), "steps": steps, "batch": batch, "lr": lr, "warmup": warmup, "seed": seed,
           "precision": precision, "curriculum": asdict(curriculum) if curriculum else None,
           "link": tasks.target.name, "subspace": tasks.subspace}  # fmt: skip
    done = _resume(checkpoint, run, model, optimiser, scaler, generator, losses)
    few = devices.one_thread() if settings.width <= 128 else contextlib.nullcontext()  # small operations, see there
    with few, bar(label="transformer", total=stop_after) as progress:
        progress.update(done)
        for step in range(done, stop_after):
            d, points = curriculum.size(step, steps, settings) if curriculum else (settings.d, settings.points)
            prompts = tasks.draw(batch, points, generator, coordinates=d)
            for group in optimiser.param_groups:
                group["lr"] = lr * rate(step, steps, warmup)
            with torch.autocast("cuda", dtype=getattr(torch, precision)) if half else contextlib.nullcontext():
                errors = (model(prompts.x, prompts.y) - prompts.y).square().mean(0)
            optimiser.zero_grad(set_to_none=True)
            scaler.scale(errors.mean()).backward()
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimiser)
            scaler.update()
            losses[step, :points] = errors.detach()
            progress.update(1)
            if checkpoint and ((step + 1) % save_every == 0 or step + 1 == stop_after):
                _save(checkpoint, run, model, optimiser, scaler, generator, losses, step + 1)
    host = devices.to_host(losses[:stop_after])
    if isinstance(host, np.ndarray) and not np.isfinite(host[:, 0]).all():
        raise FloatingPointError(f"training diverged: a loss is not finite with lr = {lr}; use a smaller one")
    return Training(model.eval(), host)


def rate(step, steps, warmup):
    """The factor of the learning rate: linear rise during the fraction `warmup` of the steps, then linear fall to 0."""
    rise = (step + 1) / max(1.0, warmup * steps)
    fall = (steps - step) / max(1.0, (1 - warmup) * steps)
    return min(1.0, rise, fall)


def _save(path, run, model, optimiser, scaler, generator, losses, done):
    """Write everything the run needs to go on, first beside the file, so that a crash leaves a whole one."""
    path = Path(path)
    state = {
        "run": run,
        "done": done,
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "scaler": scaler.state_dict(),
        "generator": generator.get_state(),
        "losses": losses[:done],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part", path)


def _resume(path, run, model, optimiser, scaler, generator, losses):
    """Fill in what `path` holds, if it exists, and return the number of steps done."""
    if path is None or not Path(path).exists():
        return 0
    state = torch.load(path, map_location=losses.device, weights_only=True)
    subspace = state["run"].pop("subspace", None)
    other = [name for name in run if name != "subspace" and state["run"].get(name) != run[name]]
    theirs = ", ".join(f"{name} = {state['run'].get(name)!r}" for name in other)
    if not other and (subspace is None or not torch.equal(subspace, run["subspace"])):
        other, theirs = ["subspace"], "another hidden subspace"
    if other:
        raise ValueError(f"checkpoint is {str(path)!r}, which holds another run ({theirs}); use another file")
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    scaler.load_state_dict(state["scaler"])
    generator.set_state(state["generator"].cpu())
    losses[: state["done"]] = state["losses"]
    return state["done"]


# --- Using a trained transformer ----------------------------------------------------------------------------------


def risks(model, prompts, block=256):
    """Squared errors [prompts, n] of all predictions: entry i is the error with i examples. A NumPy array."""
    with torch.no_grad():
        parts = [
            (model(x, y) - y).square() for x, y in zip(prompts.x.split(block), prompts.y.split(block), strict=True)
        ]
    return devices.to_host(torch.cat(parts))
