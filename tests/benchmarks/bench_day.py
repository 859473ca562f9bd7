"""How fast a day is simulated: the command of docs/day.md on traces that repeat, three policies and the sizing.

``python -m tests.benchmarks.bench_day FILE ...``, with the Azure LLM inference traces of 2023 or any other that
``--profile-from`` reads. Seconds are of the whole command, of one process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ASKED = ("day", "llama-3.1-8b", "--gpu", "l40s", "--ttft", "2s", "--tpot", "80ms", "--cold-start", "90s")


def main(files: list[str]) -> None:
    if not files:
        raise SystemExit("name one trace or more, such as AzureLLMInferenceTrace_conv.csv")
    print(f"{'trace':28} {'requests':>9} {'CPU':>7} {'wall':>7} {'requests/s':>11}  cost a day, share late")
    for file in files:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", "inferplan", *ASKED, "--profile-from", file, "--jobs", "1", "--format", "json"],
            stdout=subprocess.PIPE,
            check=True,
        )
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        record = json.loads(ran.stdout)
        requests, policies = record["profile"]["requests"], record["policies"]
        said = ", ".join(f"{one['policy']} {one['cost_per_day']:.2f} {one['missed']:.2%}" for one in policies)
        rate = requests * len(policies) / wall
        print(f"{Path(file).stem:28} {requests:9,} {spent:6.1f}s {wall:6.1f}s {rate:11,.0f}  {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
