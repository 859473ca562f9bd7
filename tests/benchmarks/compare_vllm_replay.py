"""Simulator against a replay of vLLM V1, request by request.

``python -m tests.benchmarks.compare_vllm_replay [COUNT]``; COUNT: requests of each load. The replay is ours
(``tests/serving/vllm_replay.py``). Prints the table of docs/serving.md.
"""

from __future__ import annotations

import sys

from tests.serving.replay_cases import CASES, agreement


def main(count: int | None = None) -> None:
    print("| load | requests | TTFT, largest difference | end | steps | preemptions | tokens found | tokens computed |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if not case.available:
            print(f"| {case.name} | no trace |")
            continue
        found = agreement(case, count or case.count)
        pairs = [
            f"{ours:,}" if ours == theirs else f"{ours:,} / {theirs:,}"
            for ours, theirs in (found.steps, found.preemptions, found.hits, found.computed)
        ]
        print(
            f"| {case.name} | {found.requests:,} | {found.ttft:.2%} | {found.end:.2%} | {' | '.join(pairs)} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
