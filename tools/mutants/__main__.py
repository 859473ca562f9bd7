"""Plant small mistakes, one at a time, and run the tests that must notice: ``python -m tools.mutants``.

Without ``--killed-before`` it draws from all mutants, and prints each that no test notices. With it, it draws from the
mutants of tools/mutants/killed.tsv, whose function and test are as they were: these must die again.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.mutants.judge import Judged, forks, verdict
from tools.mutants.record import judges, records
from tools.mutants.source import ROOT, Mutant, load_everything, loaded, modules, mutants_of, plant

LOWEST_RATE = 0.5
"""Of the drawn mutants that some test runs, the share that must die."""
LOWEST_RATE_AGAIN = 0.95
"""Of the drawn mutants that died before, in a function and by a test that are still there, the share that must die."""
FIRST_TESTS = 6
TEST_SECONDS = 15.0
"""Of the tests that judge one mutant, by their recorded times."""
CPU_SECONDS = 40
"""A mutant that takes longer has timed out."""
CHEAP_SECONDS = 1.5
"""A mutant that dies within so many CPU seconds is worth keeping."""
HERE = Path(__file__).parent
KILLED, EQUIVALENT = HERE / "killed.tsv", HERE / "equivalent.tsv"
PHYSICS = ("inferplan/work", "inferplan/estimate", "inferplan/serving", "inferplan/planning", "inferplan/devices")


class Killed(NamedTuple):
    """A line of killed.tsv: a mutant, its function's digest, the test that noticed."""

    name: str
    digest: str
    test: str


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    read.add_argument("--only", nargs="*", default=[], metavar="PATH", help="inferplan/serving, or the start of a name")
    read.add_argument("--draw", type=int, help="how many (default: all)")
    read.add_argument("--seed", default=_commit(), help="of the draw (default: the commit)")
    read.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    read.add_argument("--tests", nargs="*", default=[], metavar="PATH", help="only tests of these folders or files")
    read.add_argument("--killed-before", action="store_true", help="draw from tools/mutants/killed.tsv")
    read.add_argument("--keep", action="store_true", help="write what died into tools/mutants/killed.tsv")
    given = read.parse_args()
    load_everything()
    return _again(given) if given.killed_before else _fresh(given)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()[:12] or "0"


def _wanted(only: list[str]) -> list[Mutant]:
    """The mutants of these paths, but those that are known to change nothing."""
    starts = tuple(one.removesuffix(".py").replace("/", ".") for one in only) or ("",)
    known = {line.partition("\t")[0] for line in EQUIVALENT.read_text().splitlines()}
    files = [name for name in modules() if name.startswith(starts) or any(one.startswith(name) for one in starts)]
    every = [mutant for name in files for mutant in mutants_of(name)]
    return [mutant for mutant in every if mutant.name.startswith(starts) and mutant.name not in known]


def _drawn(found: list[Mutant], given: argparse.Namespace) -> list[Mutant]:
    drawn = random.Random(given.seed).sample(found, min(given.draw or len(found), len(found)))
    print(f"{len(drawn)} of {len(found)} mutants, seed {given.seed}", file=sys.stderr)
    return drawn


def _fresh(given: argparse.Namespace) -> int:
    """Mutants of all kinds, judged by the tests that run them."""
    found = records(given.jobs, tuple(given.tests))
    stages: dict[Mutant, list[list[str]]] = {}
    for mutant in _drawn(_wanted(given.only), given):
        left, chosen = TEST_SECONDS, []
        for seconds, test in judges(mutant, found):
            if seconds <= left:
                left -= seconds
                chosen.append(test)
        stages[mutant] = [chosen[:FIRST_TESTS], chosen[FIRST_TESTS:]] if chosen[FIRST_TESTS:] else [chosen]
    found.clear()
    run = [mutant for mutant, tests in stages.items() if tests[0]]
    fates = dict(_judged({mutant: stages[mutant] for mutant in run}, given.jobs))
    if given.keep:
        _keep(fates)
    _print_table("survives", [mutant for mutant in run if fates[mutant].fate == "survives"])
    _print_table("is run by no test", [mutant for mutant in stages if not stages[mutant][0]])
    return _rated(fates, LOWEST_RATE)


def _again(given: argparse.Namespace) -> int:
    """Mutants that died before, each judged by the test that noticed it."""
    rows = {row.name: row for row in _read_killed()}
    there = [mutant for mutant in _wanted(given.only or list(PHYSICS)) if mutant.name in rows]
    same = [mutant for mutant in there if rows[mutant.name].digest == mutant.digest and _is_there(rows[mutant.name])]
    print(f"killed before: {len(rows)} names, {len(there)} drawn from, {len(same)} as they were", file=sys.stderr)
    stages = {mutant: [[rows[mutant.name].test]] for mutant in _drawn(same, given)}
    fates = dict(_judged(stages, given.jobs))
    _print_table("died before and lives", [mutant for mutant in stages if fates[mutant].fate == "survives"], rows)
    return _rated(fates, LOWEST_RATE_AGAIN)


def _judged(stages: dict[Mutant, list[list[str]]], jobs: int) -> Iterator[tuple[Mutant, Judged]]:
    live = loaded()
    gc.freeze()

    def judge(mutant: Mutant) -> str:
        try:
            plant(mutant, live)
        except LookupError:
            return "gone"
        return verdict(stages[mutant])

    for count, (mutant, judged) in enumerate(forks(list(stages), judge, jobs, CPU_SECONDS), 1):
        says = f"by {judged.word}" if judged.fate == "killed" else judged.fate
        print(f"{count}/{len(stages)} {mutant.name} {says} ({judged.seconds:.1f} s)", file=sys.stderr, flush=True)
        yield mutant, judged


def _rated(fates: dict[Mutant, Judged], lowest: float) -> int:
    """The sum of it on stdout; 1 where too few have died."""
    counts = Counter(judged.fate for judged in fates.values())
    tried = len(fates) - counts["not run"]
    rate = (counts["killed"] + counts["timed out"]) / tried if tried else 1.0
    seconds = sum(one.seconds for one in fates.values())
    print(", ".join(f"{number} {word}" for word, number in counts.most_common()) or "nothing was tried", end="; ")
    print(f"{rate:.1%} noticed (at least {lowest:.0%}), {seconds:.0f} CPU seconds")
    return int(rate < lowest)


def _print_table(title: str, found: list[Mutant], rows: dict[str, Killed] | None = None) -> None:
    for mutant in found:
        path = mutant.path.relative_to(ROOT)
        print(f"{title}: {mutant.name}\n  {path}:{mutant.lines[0]}  {mutant.before}  ->  {mutant.after}")
        if rows:
            print(f"  {rows[mutant.name].test}")


def _read_killed() -> list[Killed]:
    return [Killed(*line.split("\t")) for line in KILLED.read_text().splitlines()]


def _is_there(row: Killed) -> bool:
    """Whether the test function that noticed still stands in its file."""
    name, _, test = row.test.partition("::")
    path = ROOT / name
    return path.exists() and f"def {test.partition('[')[0].rpartition('::')[2]}(" in path.read_text(encoding="utf-8")


def _keep(fates: dict[Mutant, Judged]) -> None:
    rows = {row.name: row for row in _read_killed()}
    for mutant, judged in fates.items():
        if "::" in judged.word and judged.seconds <= CHEAP_SECONDS:
            rows[mutant.name] = Killed(mutant.name, mutant.digest, judged.word)
        else:
            rows.pop(mutant.name, None)
    KILLED.write_text("".join("\t".join(row) + "\n" for row in sorted(rows.values())))


if __name__ == "__main__":
    sys.exit(main())
