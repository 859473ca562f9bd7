"""Which pairs of features run together: ``python -m tools.feature_pairs [simulate] [plan] [--only NAME]``.

Thirteen features give 78 pairs. Each is asked of ``inferplan simulate`` and of ``inferplan plan`` with small loads.
It runs where the command answers: a load that overloads one replica is an answer of ``simulate``; a ``plan`` that
finds nothing is none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import NamedTuple

MODEL = ("llama-3.1-8b", "--gpu", "h100-sxm")


class Words(NamedTuple):
    """The options of a feature for ``simulate`` and for ``plan``; those after ``load`` say what load they replace."""

    simulate: str
    plan: str
    load: str = ""
    plan_load: str = ""


FEATURES: dict[str, Words] = {
    "classes": Words("", "", "--classes chat-and-batch --rate 4", "--classes chat-and-batch --rate 4"),
    "adapters": Words(*["--lora-rank 16 --max-loras 4 --loras 10 --lora-skew 1 --lora-bandwidth 63GB/s"] * 2),
    "thoughts": Words(*["--thinking-tokens 200"] * 2),
    "sessions": Words(
        "", "", "--sessions coding-agent --session-rate 0.05/s", "--sessions coding-agent --session-rate 0.05/s"
    ),
    "structured": Words(*["--structured-share 0.5 --mask-time 40us --host-cores 32 --mask-bandwidth 63GB/s"] * 2),
    "samples": Words(*["--samples 2"] * 2),
    "drafts": Words(*["--draft llama-3.2-1b --draft-tokens 3 --acceptance 0.7"] * 2),
    "pools": Words("--prefill-replicas 1 --decode-replicas 1", ""),
    "tiers": Words(*["--cache-tier host:64GB:50GB/s"] * 2),
    "pipelines": Words(*["--pp 2"] * 2),
    "attention-dp": Words(*["--dp 2"] * 2),
    "failures": Words("--replicas 2 --fail 10s --restart 20s", "--survive 1 --restart 20s"),
    "power": Words("--power-cap 600W --energy", "--power-budget 30kW --power-cap 600W"),
}
"""``pools`` of a plan are considered unless ``--aggregated`` is given."""
_DEGREES = {"pp": "pipelines", "dp": "attention-dp"}
_LOAD = "--rate 4 --prompt 512 --output 128"
_REQUESTS = "--requests 60"
_LIMITS = "--ttft 5s --tpot 100ms"
_SPACE = "--quant native --token-budget 2048 --tp 1"


def asked(command: str, features: tuple[str, ...]) -> list[str]:
    """The command line that asks for these features together."""
    words = [FEATURES[name] for name in features]
    if command == "simulate":
        loads = [word.load for word in words if word.load]
        options = [word.simulate for word in words]
        rest = [] if "sessions" in features else [_REQUESTS]
    else:
        loads = [word.plan_load for word in words if word.plan_load]
        options = [word.plan for word in words]
        rest = [
            _SPACE,
            *([] if "classes" in features else [_LIMITS]),
            *([] if "pools" in features else ["--aggregated"]),
        ]
        rest += [f"--{degree} 1" for degree, name in _DEGREES.items() if name not in features]
    shared = "--turns 2" if "tiers" in features and "sessions" not in features else ""  # text that prompts share
    text = " ".join([*(loads or [_LOAD]), shared, *options, *rest])
    return [command, *MODEL, *text.split(), "--format", "json"]


class Found(NamedTuple):
    pair: tuple[str, str]
    command: str
    code: int
    said: str

    @property
    def runs(self) -> bool:
        return self.code in ((0, 3) if self.command == "simulate" else (0,))


def ask(command: str, pair: tuple[str, str]) -> Found:
    """Run one pair."""
    line = [sys.executable, "-m", "inferplan", *asked(command, pair)]
    run = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "400"})
    said = run.stderr.strip().splitlines()
    return Found(pair, command, run.returncode, said[0] if said else "")


def main() -> int:
    read = argparse.ArgumentParser(prog="python -m tools.feature_pairs", description=__doc__)
    read.add_argument("commands", nargs="*", default=["simulate", "plan"])
    read.add_argument("--only", default="", help="pairs that hold this name")
    read.add_argument("--format", choices=("text", "json"), default="text")
    given = read.parse_args()
    pairs = [pair for pair in combinations(FEATURES, 2) if not given.only or given.only in pair]
    for command in given.commands:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(partial(ask, command), pairs))
        if given.format == "json":
            print(json.dumps([one._asdict() for one in found], indent=1))
            continue
        print(f"{command}: {sum(one.runs for one in found)} of {len(found)} pairs run")
        for one in found:
            if not one.runs:
                print(f"    {' + '.join(one.pair)}: exit {one.code}: {one.said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
