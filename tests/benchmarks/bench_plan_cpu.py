"""What plans take: ``python -m tests.benchmarks.bench_plan_cpu [NAME ...] [--repeat 3]``.

CPU seconds, user and system, of whole processes (``--jobs 1``), the least of some readings, over those of
``python -c "import numpy"`` at the same moment: the clock of a shared machine moves by a factor of two, the ratio less.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import subprocess
import sys

PLANS = {
    "README": "llama-3.1-70b --workload chat --rate 50 --ttft 500ms --tpot 40ms",
    "qwen3-32b, 16k": "qwen3-32b --gpu rtx-pro-6000-server,h100-sxm,l40s --rate 0.2 --prompt 16384 --output 1024 "
    "--ttft 5s --tpot 40ms",
    "nemotron-3-super": "nvidia-nemotron-3-super-120b-a12b --gpu b200-hgx --most 4 --rate 10 "
    "--prompt lognormal:2048:1.0 --output lognormal:512:0.8 --ttft 1s --tpot 20ms",
    "70b chat, l40s": "llama-3.1-70b --gpu l40s --workload chat --rate 5 --ttft 2s --tpot 80ms",
    "qwen3-next": "qwen3-next-80b-a3b --gpu h100-sxm,h200-sxm --rate 20 --prompt 2048 --output 512 --ttft 1s "
    "--tpot 20ms",
    "glm-4.5-air": "glm-4.5-air --gpu h200-sxm --rate 30 --arrivals gamma --burstiness 0.1111 --prompt 1024 "
    "--output 256 --ttft 500ms --tpot 30ms",
    "gpt-oss-120b": "gpt-oss-120b --gpu h100-sxm --rate 200 --prompt 1024 --output 256 --ttft 500ms --tpot 20ms",
    "405b": "llama-3.1-405b --gpu b200-hgx,h200-sxm --rate 3 --prompt 4096 --output 512 --ttft 2s --tpot 50ms",
}
"""Questions of the kinds that a review of decisions found slow (2026-11-23)."""


def cpu(*arguments: str) -> float:
    """CPU seconds of Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PLANS))
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    for name in asked.names:
        numpy, plans = [], []
        for _ in range(asked.repeat):
            numpy.append(cpu("-c", "import numpy"))
            plans.append(cpu("-m", "inferplan", "plan", *shlex.split(PLANS[name]), "--jobs", "1"))
        print(f"{name}: {min(plans):.2f} CPU s, {min(plans) / min(numpy):.0f} times import numpy ({min(numpy):.3f} s)")


if __name__ == "__main__":
    main()
