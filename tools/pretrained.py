"""Train the transformer that the chapter on in-context learning loads, and write it into the library.

    python -m tools.pretrained                    about 15 minutes of CPU time; continues where it was stopped
    python -m tools.pretrained --out FILE --steps 200

The file holds the weights, the hidden subspace, the settings with the seed, and the loss curve of the run. Steps in
between are kept in _build/pretrained. On one kind of machine with one version of torch the same weights come out again.
"""

import argparse
import sys
from pathlib import Path

from lowdim import device, icl
from tools import sources

OUT = icl.SHIPPED
CHECKPOINT = sources.BUILD / "pretrained" / "checkpoint.pt"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="file to write (default: the library's)")
    parser.add_argument("--steps", type=int, default=icl.RECIPE["steps"], help="training steps")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="file for the steps in between")
    options = parser.parse_args()
    with device.one_thread():
        result = icl.pretrain_gpt(steps=options.steps, checkpoint=options.checkpoint, out=options.out)
    steps, losses = result.curve(10)
    for step, loss in zip(steps, losses, strict=True):
        print(f"step {step:7.0f}: loss {loss:.3f}")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
