"""The command line: tries in worker processes, so that a try that ends its process is one that is told."""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import run as tries

BAD = ("raw", "hung", "died", "elsewhere", "unprintable", "unforeseen")


def main() -> int:
    os.environ.setdefault("KERNEL_DSL_CACHE", "off")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # not on import, for tests import this file, and others share their process
    parser = argparse.ArgumentParser(prog="python -m tests.errors.hostile", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="subjects whose name holds this")
    parser.add_argument("--show", type=int, default=40, help="how many tries of each bad kind to print")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        os.chdir(Path(given.worker).parent)  # some calls write files
        tries.work(given.count, given.seed, given.only, Path(given.worker))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = _run(given, Path(folder))
    return report(rows, given.show)


def _run(given: Any, folder: Path) -> list[dict[str, Any]]:
    """All tries: each job goes on after a try that ended its process."""
    share = -(-given.count // given.jobs)
    left = dict.fromkeys(range(given.jobs), share)
    running: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
    rows: list[dict[str, Any]] = []
    starts = collections.Counter[int]()
    done = collections.Counter[int]()
    while left or running:
        for job, count in list(left.items()):
            path = folder / f"{job}-{starts[job]}"
            words = [sys.executable, "-m", "tests.errors.hostile", "--count", str(count), "--worker", str(path)]
            words += ["--seed", str(given.seed * 1000 + job * 100 + starts[job]), "--only", given.only]
            running[job] = subprocess.Popen(words, stdout=subprocess.DEVNULL), path
            starts[job] += 1
            del left[job]
        job, (process, path) = next(iter(running.items()))
        process.wait()
        del running[job]
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        found = list({row["number"]: row for row in lines if row["kind"] != "begun"}.values())
        if process.returncode:
            last = lines[-1] if lines else {"subject": "", "parameter": "", "call": "no try was begun"}
            found.append({**last, "kind": "died", "words": f"status {process.returncode}"})
        done[job] += len(found)
        if done[job] < share and lines:
            left[job] = share - done[job]
        rows += found
    return rows


def report(rows: list[dict[str, Any]], show: int) -> int:
    """Print the counts and the bad tries, one for each function, parameter and kind. The status: how many are raw or worse."""
    counts = collections.Counter(row["kind"] for row in rows)
    print(f"{len(rows)} tries: " + ", ".join(f"{kind} {n}" for kind, n in counts.most_common()))
    for kind in BAD:
        seen: dict[tuple[str, str], dict[str, Any]] = {}
        for row in rows:
            if row["kind"] == kind:
                seen.setdefault((row["subject"], row["parameter"]), row)
        if seen:
            print(f"\n{kind}: {counts[kind]} tries, {len(seen)} parameters")
        for row in list(seen.values())[:show]:
            print(f"  {row['call']}\n      {row['words']}")
    bad = sum(counts[kind] for kind in BAD if kind != "unforeseen")
    return int(bad > 0)


if __name__ == "__main__":
    random.seed(0)
    raise SystemExit(main())
