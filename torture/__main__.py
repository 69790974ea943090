"""Torture the package and print a table of tries and failures; the exit code is 1 if there was a failure.

python -m torture              minutes; writes results/torture.txt
python -m torture --long       hours
python -m torture --short      seconds
python -m torture --only kill  only what has one of these words in its name; writes nothing
python -m torture --jobs 8     in eight processes side by side
"""

import argparse
import importlib.util
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

import metareplay as mr
from torture.crowd import Crowd
from torture.disk import Disk
from torture.flips import Damage, Truncation
from torture.fuzz import Fuzz
from torture.interrupts import Interrupts, Shortages
from torture.kills import Kills
from torture.sharing import prepare, torture
from torture.trial import Torture

OUT = Path(__file__).parent.parent / "results" / "torture.txt"
KINDS: tuple[type[Torture], ...] = (Kills, Damage, Truncation, Interrupts, Shortages, Fuzz, Disk, Crowd)
CALLED = ("gymnasium", "matplotlib", "mlflow", "river", "sklearn", "tensorboard", "wandb")  # by wrong calls


def main() -> int:
    """Read the options, torture, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--long", action="store_true", help="as many tries as fit into hours")
    parser.add_argument("--short", action="store_true", help="as few tries as fit into seconds")
    parser.add_argument("--only", nargs="*", default=[""], help="only what has one of these words in its name")
    parser.add_argument("--tries", type=int, help="how many tries of each kind")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is drawn")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the tries of each kind")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if any(word in kind.name for word in given.only)]
    missing = [name for name in CALLED if not importlib.util.find_spec(name)]
    if missing and Fuzz in kinds:
        parser.error(f"not installed here: {', '.join(missing)}; make test installs everything, or choose by --only")
    prepare()
    size = "many" if given.long else "few" if given.short else "some"
    day, jobs = datetime.now(UTC).date(), f", {given.jobs} jobs" if given.jobs > 1 else ""
    lines = [f"{day}, metareplay {mr.__version__}, torch {torch.__version__}, seed {given.seed}{jobs}", ""]
    lines.append(f"{'what was tried':20} {'tries':>9} {'failures':>9} {'seconds':>9}")
    print("\n".join(lines), flush=True)
    failed = 0
    for kind in kinds:
        start = time.monotonic()
        tries, failures = torture(kind, given.tries or getattr(kind, size), given.seed, given.jobs)
        line = f"{kind.name:20} {tries:9,} {failures:9,} {time.monotonic() - start:9,.0f}"
        failed += failures
        lines.append(line)
        print(line, flush=True)
    lines.append("no failures" if not failed else f"{failed} failures")
    print(lines[-1])
    if given.only == [""] and not (given.short or given.tries):
        OUT.write_text("\n".join(lines) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
