"""A day of a service of known behaviour (``tests/watching/service.py``) beside its plan: when each change is named.

``python -m tests.benchmarks.watch_day``: some minutes. At 6:00 prompts double, until 8:00; at 12:00 nothing is found in
the prefix cache, until 14:00; at 18:00 one of two servers is lost, until 20:00; at 22:00 steps take 1.4 times as long.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from inferplan.reports.plan_measured import PlanFile
from inferplan.reports.watching import event_text, held_to
from inferplan.watching.counters import read_counters
from inferplan.watching.minutes import Minutes, Scrapes
from inferplan.watching.summary import Summary
from tests.watching.planned import plan_file
from tests.watching.service import Does, Service

MINUTES = 1440
USUAL = Does(rate=20.0)
CHANGES = {360: replace(USUAL, prompt=2000.0), 480: USUAL, 720: replace(USUAL, hits=0.0), 840: USUAL,
           1320: replace(USUAL, slow=1.4)}  # fmt: skip


def main() -> None:
    """Print the events, what was off, and what it took."""
    began = process_time()
    with TemporaryDirectory() as folder:
        twin, drift = held_to(PlanFile(str(plan_file(Path(folder)))), 2)
    minutes, summary = Minutes(twin=twin, drift=drift), Summary()
    scrapes = Scrapes(servers=("a", "b"))
    for at, texts in Service(changes=CHANGES, lost=(1080, 1200)).scrapes(MINUTES):
        found = {name: None if text is None else read_counters(text, name) for name, text in zip("ab", texts)}
        ended = scrapes.add(at, found)
        if ended is not None:
            summary.add(minutes.add(ended[0], at, ended[1]))
    for at, event in summary.events:
        print(event_text(at, event))
    for name, miss in summary.misses.items():
        print(f"{name}: predicted {miss.off:.1%} off, bias {miss.bias:+.1%}, over {miss.count:,} minutes")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{summary.minutes:,} minutes, {process_time() - began:.0f} CPU s, {most:.0f} MiB at most")


if __name__ == "__main__":
    main()
