"""Repeat the chapters under other seeds and count how often each claim holds.

    python -m tools.seeds --seeds 20 [--chapter NAME]

A chapter runs once for each LOWDIM_SEED = 1..N with LOWDIM_CLAIMS=record, so that a claim that fails is written down
instead of stopping the run. Results are kept in _build/seeds/ by execution key and code of the chapter: an interrupted
measurement goes on where it stopped, and a larger N adds to a smaller one. A claim that holds for fewer than 95 % of
the seeds is fragile, and makes this program fail.
"""

import argparse
import asyncio
import json
import sys
import time

from tools import execute, sources

RESULTS = sources.BUILD / "seeds"
ENOUGH = 0.95


def result_file(source, notebook, seed):
    key = f"{sources.execution_key()[:8]}{sources.code_hash(notebook)[:8]}"
    return RESULTS / f"{source.name}-{key}" / f"seed-{seed}.json"


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def measure(selected, count):
    """Execute what is missing; return {source: {seed: claim rows}} and the runs that crashed."""
    wanted = [(source, seed) for seed in range(1, count + 1) for source in selected]
    notebooks = {source: source.read() for source in selected}
    files = {(source, seed): result_file(source, notebooks[source], seed) for source, seed in wanted}
    missing = [place for place in wanted if not files[place].exists()]
    print(f"{len(wanted)} runs, {len(wanted) - len(missing)} of them known already", flush=True)
    crashed = run_missing(missing, files)
    rows = {source: {} for source in selected}
    for (source, seed), file in files.items():
        if file.exists():
            rows[source][seed] = json.loads(file.read_text("utf8"))
    return rows, crashed


def run_missing(missing, files):
    """Execute the missing runs, one thread each on all cores; store each result as soon as it is there."""
    crashed = []
    ended = 0
    began = time.monotonic()
    runs = [
        execute.Run(source, source.read(), {"LOWDIM_SEED": str(seed), "LOWDIM_CLAIMS": "record"}, f"seed {seed}")
        for source, seed in missing
    ]
    file_of = {id(run): files[place] for run, place in zip(runs, missing, strict=True)}

    def store(run, say):
        nonlocal ended
        ended += 1
        elapsed = time.monotonic() - began
        left = elapsed / ended * (len(runs) - ended)
        say(f"  {ended} of {len(runs)} runs, {duration(elapsed)} elapsed, about {duration(left)} to go")
        if run.error:
            crashed.append(run)
        else:
            rows = sources.claim_rows(run.notebook)
            sources.write_if_changed(file_of[id(run)], json.dumps(rows, indent=1, ensure_ascii=False) + "\n")

    if runs:
        asyncio.run(execute.execute_runs(runs, execute.cores(), threads=1, after=store))
    return crashed


def worst(rows):
    """The measured value furthest on the wrong side of the theory: below for ≥, above for ≤, else on either side."""
    relation = str(rows[0].get("relation") or "")

    def badness(row):
        try:
            difference = float(row["measured"]) - float(row["theory"])
        except (TypeError, ValueError):
            return float(row["verdict"] == "fails")
        if ">" in relation or "≥" in relation:
            return -difference
        if "<" in relation or "≤" in relation:
            return difference
        return abs(difference)

    return max(rows, key=badness)["measured"]


def shown(value):
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def report(rows):
    """Print claims × pass rate; return the lines of the fragile claims."""
    fragile = []
    print(f"\n{'holds':>9}  {'theory':>10}  {'worst':>10}  claim")
    for source, by_seed in rows.items():
        names = list(dict.fromkeys(row["name"] for claims in by_seed.values() for row in claims))
        print(source.name)
        for name in names:
            claims = [row for claims in by_seed.values() for row in claims if row["name"] == name]
            held = sum(row["verdict"] != "fails" for row in claims)
            rate = held / len(by_seed)
            print(f"{held:>4} / {len(by_seed):<3} {shown(claims[0]['theory']):>10}  {shown(worst(claims)):>10}  {name}")
            if rate < ENOUGH:
                fragile.append(f"FRAGILE {source.name}: {name} ({rate:.0%} of {len(by_seed)} seeds)")
    return fragile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="how many seeds (default: 20)")
    parser.add_argument("--chapter", metavar="NAME", help="only this chapter (default: all)")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    rows, crashed = measure(sources.select([options.chapter] if options.chapter else []), options.seeds)
    fragile = report(rows)
    print()
    for run in crashed:
        print(f"CRASHED {run.source.name}, {run.label}: {run.error}", file=sys.stderr)
    for line in fragile:
        print(line)
    if fragile or crashed:
        raise SystemExit(f"{len(fragile)} fragile claims, {len(crashed)} crashed runs.")
    print(f"Every claim holds for at least {ENOUGH:.0%} of {options.seeds} seeds.")


if __name__ == "__main__":
    main()
