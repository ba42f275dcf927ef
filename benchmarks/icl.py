"""The transformer's training against what one writes first: explicit softmax attention and prompts drawn one by one."""

import math

import torch

from lowdim import icl

D, R, POINTS, BATCH = 8, 2, 24, 64


class PlainBlock(torch.nn.Module):
    """A GPT-2 block with the attention written out."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        h = self.norms[0](x)
        q, k, v = (m(h).view(b, t, self.heads, self.size).transpose(1, 2) for m in (self.q, self.k, self.v))
        later = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(self.size)).masked_fill(later, -math.inf)
        mixed = torch.softmax(scores, dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class PlainGPT(torch.nn.Module):
    """The same transformer: every block computes every token."""

    def __init__(self, settings):
        super().__init__()
        w = settings.width
        self.read_in, self.read_out = torch.nn.Linear(settings.d, w), torch.nn.Linear(w, 1)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(2 * settings.points, w))
        self.blocks = torch.nn.Sequential(*(PlainBlock(w, settings.heads) for _ in range(settings.layers)))
        self.last_norm = torch.nn.LayerNorm(w)

    def forward(self, x, y):
        b, n, d = x.shape
        tokens = torch.zeros(b, 2 * n, d)
        tokens[:, ::2] = x
        tokens[:, 1::2, 0] = y
        h = self.blocks(self.read_in(tokens) + self.positions[: 2 * n])
        return self.read_out(self.last_norm(h))[:, ::2, 0]


def plain_prompt(subspace):
    """One prompt of (h_1 + h_2)/√2."""
    theta = subspace @ torch.nn.functional.normalize(torch.randn(R), dim=0)
    x = torch.randn(POINTS, D)
    z = x @ theta
    return x, (z + (z**2 - 1) / math.sqrt(2)) / math.sqrt(2)


def plain_training(settings, steps):
    """Adam on batches that are put together prompt by prompt."""
    torch.manual_seed(1)
    model = PlainGPT(settings)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    subspace = torch.linalg.qr(torch.randn(D, R))[0]
    for _ in range(steps):
        prompts = [plain_prompt(subspace) for _ in range(BATCH)]
        x, y = (torch.stack(part) for part in zip(*prompts, strict=True))
        loss = ((model(x, y) - y) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def transformer_against_loop(seconds, row):
    """Training steps per second of the library's GPT against the plain loop, at the size of the chapter's live runs."""
    half = math.sqrt(0.5)
    tasks = icl.tasks(lambda z: half * z + half * (z**2 - 1) / math.sqrt(2), D, R, seed=1, device="cpu")
    settings, steps = icl.preset("small", D, POINTS), 15
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours, plain = seconds(
            lambda: icl.train(tasks, settings, steps, batch=BATCH), lambda: plain_training(settings, steps)
        )
    finally:
        torch.set_num_threads(threads)
    baseline = "explicit softmax, prompts drawn one by one"
    return row(
        "GPT training, 2 layers, width 64, batch 64", baseline, plain / ours, "≥", 1, "times the steps per second"
    )
