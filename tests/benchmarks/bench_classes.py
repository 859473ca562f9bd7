"""How fast classes of traffic are simulated, by the order of the queue; CPU seconds of one process.

``python -m tests.benchmarks.bench_classes``
"""

from __future__ import annotations

import time
from typing import get_args

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.classes import load_classes
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic

REQUESTS, RATE, SLOTS, REPEATS = 40_000, 12.5, 96, 3


def main() -> None:
    served, classes = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm")), load_classes("chat-and-batch").classes
    load = Traffic(
        arrivals=OpenLoop(rate=RATE), prompt=Lengths(), output=Lengths(), requests_count=REQUESTS, classes=classes
    )
    for order in get_args(QueueOrder):
        flags, taken = Flags(max_num_seqs=SLOTS, queue=order), []
        for _ in range(REPEATS):
            start = time.process_time()
            simulate(served, load, flags)
            taken.append(time.process_time() - start)
        print(f"{order:10} {REQUESTS / min(taken):10,.0f} requests/s")


if __name__ == "__main__":
    main()
