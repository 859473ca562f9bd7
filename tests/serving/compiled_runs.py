"""Simulations of random loads: python -m tests.serving.compiled_runs SEED prints what they say as JSON.

First it says where the event loop is loaded from. ``tests/serving/test_compiled.py`` compares what two processes print.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np

from inferplan.cli import cli

SMALL, LARGE = "llama-3.1-8b --gpu h100-sxm", "llama-3.1-70b --gpu h100-sxm"
LITTLE = "--gpu-memory-utilization 0.3"
LOADS = {
    "plain": f"{SMALL} --rate {{rate}} {{lengths}}",
    "not chunked": f"{SMALL} --rate {{rate}} {{lengths}} --no-chunked-prefill --max-num-batched-tokens 40000",
    "pieces": f"{SMALL} --rate {{rate}} {{lengths}} --max-num-batched-tokens 768",
    "users": f"{SMALL} --users 40 {{lengths}}",
    "preemption": f"{SMALL} --users 90 {{lengths}} {LITTLE}",
    "no paging": f"{SMALL} --users 40 {{lengths}} --contiguous",
    "timeouts": f"{SMALL} --rate {{rate}} {{lengths}} {LITTLE} --client-timeout 20s",
    "sglang": f"{SMALL} --engine sglang --rate {{rate}} {{lengths}} {LITTLE}",
    "trtllm": f"{SMALL} --engine trtllm --rate {{rate}} {{lengths}} --batch-wait-steps 3 --batch-wait-fill 0.5",
    "bursts": f"{SMALL} --rate {{rate}} --arrivals gamma --burstiness 0.2 {{lengths}} --poll-interval-steps 4",
    "least loaded": f"{SMALL} --replicas 3 --rate {{rate}} {{lengths}} --routing least-loaded",
    "two processes": f"{SMALL} --replicas 4 --rate {{rate}} {{lengths}} --jobs 2",
    "prefixes": f"{SMALL} --replicas 2 --rate {{rate}} {{lengths}} --shared-prefix 900 --distinct-prefixes 9 "
    "--routing prefix-aware",
    "turns": f"{SMALL} --replicas 2 --rate {{rate}} --turns 3 --think-time 5s {{lengths}} --routing sticky",
    "people": f"{SMALL} --users 60 --turns 3 --think-time lognormal:9s:0.5 {{lengths}}",
    "sessions": f"{SMALL} --sessions coding-agent --session-rate 600/h --session-count 20",
    "pools": f"{SMALL} --prefill-replicas 2 --decode-replicas 2 --rate {{rate}} {{lengths}} --kv-sending layers",
    "pipeline": f"{LARGE} --tp 2 --pp 2 --rate 3 {{lengths}}",
    "pipeline, pieces": f"{LARGE} --tp 2 --pp 3 --rate 3 {{lengths}} --max-num-batched-tokens 1024 --turns 2",
    "ranks": "deepseek-v2-lite --gpu h100-sxm --dp 4 --ep 4 --rate {rate} {lengths}",
    "ranks, delayed": "deepseek-v2-lite --gpu h100-sxm --dp 4 --ep 4 --engine sglang --rate {rate} {lengths} "
    "--enable-prefill-delayer --prefill-decode-interval 2",
    "ranks, stages": "deepseek-v2-lite --gpu h100-sxm --dp 2 --ep 2 --pp 2 --users 60 {lengths}",
    "windows": "gpt-oss-20b --gpu h100-sxm --rate {rate} {lengths}",
    "states": "granite-4.0-h-small --gpu h100-sxm --tp 2 --rate {rate} {lengths}",
    "thoughts": f"{SMALL} --rate {{rate}} {{lengths}} --thinking-tokens lognormal:300:0.5",
    "masks": f"{SMALL} --rate {{rate}} {{lengths}} --structured-share 0.5 --mask-time 200us --host-cores 4 "
    "--mask-bandwidth 63GB/s",
    "adapters": f"{SMALL} --rate {{rate}} {{lengths}} --lora-rank 16 --max-loras 4 --loras 12 "
    "--lora-skew 1 --lora-bandwidth 63GB/s",
    "drafts": f"{SMALL} --rate {{rate}} {{lengths}} --draft-tokens 3 --acceptance 0.7 --draft-model llama-3.2-1b",
    "samples": f"{SMALL} --rate 4 {{lengths}} --samples 4",
}


def run(words: str) -> object:
    """What a command says, its JSON or its refusal."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        try:
            cli(["simulate", *words.split(), "--format", "json"], standalone_mode=False)
        except Exception as error:
            return repr(error)
    return json.loads(said.getvalue())


def main(seed: int) -> None:
    random = np.random.default_rng(seed)
    found: dict[str, object] = {}
    for name, words in LOADS.items():
        rate, prompt, output = random.uniform(4, 12), int(random.integers(100, 1500)), int(random.integers(2, 300))
        lengths = f"--prompt lognormal:{prompt}:{random.uniform(0.1, 1.0):.2f} --output lognormal:{output}:0.8"
        given = words.format(rate=f"{rate:.2f}", lengths=lengths)
        count = "" if "--session" in words else " --requests 300"
        found[name] = run(f"{given}{count} --seed {random.integers(1000)}")
    from inferplan.serving import replica

    print(json.dumps({"from": replica.__file__, "runs": found}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
