"""Answers of ``plan``, each run again for longer: ``python -m tests.benchmarks.examine_plans [part[:number] ...]``.

The questions are those of ``examined.yaml``. What one answers is run by ``inferplan simulate`` as a whole fleet with
another seed: under the load, and under ``load/utilisation``, with a replica less too; of a plan that survives failures
while replicas are lost. A line says what was bought, by how much a long run is over each quoted percentile, and
which limits are broken. Traces are those of the reference data (``$INFERPLAN_SHARED``). docs/planning.md, "Examined",
has the outcome.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TRACES = Path(os.environ.get("INFERPLAN_SHARED") or HERE.parents[2] / "shared") / "traces"
REQUESTS, LONG, SEED, UTILISATION = 8_000, 24_000, 31, 0.8
"""LONG: requests under the load itself, as many as are quoted from; and of conversations, which take minutes, so that a
run holds some of them."""
SAME = ["--aggregated", "--confidence", "0.5"]
LIMITS = {"ttft": "--ttft", "tpot": "--tpot", "e2el": "--e2e"}
OF_A_PLAN = {
    *("--gpu", "--quant", "--kv", "--tp", "--pp", "--ep", "--dp", "--most", "--engine", "--token-budget", "--price"),
    *("--survive", "--restart", "--power-budget", "--provision", "--pue", "--host-watts", "--power-cap"),
    *("--percentile", "--cache-tier", "--max-loras", "--prices"),
}
"""Options that ``simulate`` gets from the answer, or does not have; all others are of the load."""
FLEETS = ("fleet", "several")
"""Parts of ``examine_fleets.py``."""
FROM_DEPLOYMENT = {"lora.slots": "--max-loras", "power_cap": "--power-cap", "roles.kv": "--kv"}


def ask(words: list[str]) -> tuple[int, dict[str, Any], str]:
    """A command's exit code, its JSON and what it says on stderr."""
    command = [sys.executable, "-m", "inferplan", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


def options(words: list[str]) -> list[tuple[str, str]]:
    """The options of a question with their values, in order."""
    return list(zip(words[::2], words[1::2]))


def load_of(words: list[str], factor: float) -> list[str]:
    """The load of a question, so many times as fast."""
    kept: list[str] = []
    for name, value in options(words):
        faster = value
        if name in ("--rate", "--session-rate"):
            number, per, unit = value.partition("/")
            faster = f"{float(number) * factor:.9g}{per}{unit}"
        elif name == "--people":
            faster = str(round(int(value) * factor))
        elif name == "--trace" and factor != 1:
            faster = hurried(Path(value), factor)
        kept += [] if name in OF_A_PLAN else [name, faster]
    return kept


def hurried(trace: Path, factor: float) -> str:
    """A trace whose requests come so many times as fast, in a file of its own."""
    target, lines = Path(tempfile.mkdtemp()) / trace.name, trace.read_text().splitlines()
    if trace.suffix == ".jsonl":
        found = [json.loads(line) for line in lines]
        text = [json.dumps({**one, "timestamp": one["timestamp"] / factor}) for one in found]
    else:
        rows = [line.split(",") for line in lines[1:]]
        times = [datetime.fromisoformat(when[:26]).timestamp() for when, _, _ in rows]
        begin = min(times)
        text = ["arrival_s,prompt,output"]
        text += [f"{(at - begin) / factor},{prompt},{output}" for at, (_, prompt, output) in zip(times, rows)]
    target.write_text("\n".join(text))
    return str(target)


def replica_of(deployment: dict[str, Any]) -> list[str]:
    """The options of ``simulate`` that a plan's deployment stands for."""
    parallel, words = deployment["parallel"], [deployment["model"], "--gpu", deployment["gpu"]]
    words += ["--engine", deployment["engine"].replace(" ", "@")]
    words += ["--quant", deployment["quant"]] if deployment["quant"] else []
    for name in ("tp", "pp", "ep", "dp", "replicas"):
        words += [f"--{name}", str(parallel[name])]
    words += ["--max-num-seqs", str(-(-deployment["concurrency"] // parallel["dp"]))]
    words += ["--max-num-batched-tokens", str(deployment["token_budget"])]
    if deployment["pools"]:
        words += ["--prefill-replicas", str(deployment["pools"]["prefill"])]
        words += ["--decode-replicas", str(deployment["pools"]["decode"])]
    for name, value in deployment["options"].items():
        if (option := FROM_DEPLOYMENT.get(name)) is not None:
            words += [option, f"{value}W" if name == "power_cap" else str(value)]
    for tier in deployment["cache_tiers"] or ():
        text = f"{tier['name']}:{tier['capacity_bytes']:.0f}B:{tier['bandwidth_bytes_per_s']:.0f}B/s"
        text += f":{tier['latency_s']}s" if tier.get("latency_s") else ""
        words += ["--cache-tier", text + (":shared" if tier.get("shared") else "")]
    return words


def figures_of(words: list[str], record: dict[str, Any], percentile: str) -> dict[str, tuple[float, float | None]]:
    """Each latency that is held to a limit, with its limit: of every class, or of all requests. record: of a run."""
    if record.get("classes"):
        return {
            f"{one['name']} {key[:-2]}": (one["at_percentile"][key] or inf, limit)
            for one in record["classes"]
            for key, limit in one["slo"].items()
            if limit is not None
        }
    names = {name for name, _ in options(words)}
    limits = record["slo"]
    found = {
        name: (record[f"{name}_s"][f"p{percentile}"] or inf, limits[f"{name}_s"])
        for name, option in LIMITS.items()
        if option in names
    }
    if "--session-time" in names:
        found["session"] = (record["sessions"]["duration_s"][f"p{percentile}"] or inf, None)
    return found


def run_of(words: list[str], deployment: dict[str, Any], factor: float, requests: int) -> tuple[dict[str, Any], str]:
    """A deployment under so many times the load of a question, or why it does not run."""
    names = {name for name, _ in options(words)}
    requests = LONG if "--turns" in names else requests
    count = ["--requests", str(requests), "--seed", str(SEED)]
    if "--sessions" in names:
        count = ["--session-count", str(REQUESTS // 10), "--seed", str(SEED), "--routing", "sticky"]
    count = [] if "--trace" in names else count
    count += ["--routing", "sticky"] if "--turns" in names else []
    code, run, said = ask(["simulate", *replica_of(deployment), *load_of(words, factor), *count])
    return run, f"exit {code} {said.strip()[:200]}"


def breaks(words: list[str], run: dict[str, Any], percentile: str) -> list[str]:
    """The limits that a run breaks, and what else is wrong with it."""
    found = figures_of(words, run, percentile).items()
    over = [f"{name} {value:.4g} > {limit:.4g}" for name, (value, limit) in found if limit and value > limit]
    return over + [run["verdict"]] * (run["verdict"] not in ("stable", "saturated"))


def lost(words: list[str], deployment: dict[str, Any], plan: dict[str, Any], runs: int = 4) -> str:
    """The percentiles of those who come while replicas are missing, in each of so many runs."""
    when, given = round(20 * plan["e2el_s"] + 30), dict(options(words))
    found, gone = [], plan["survival"]["replicas_lost"]
    for seed in range(SEED, SEED + runs):
        fail = ["--fail", f"{when}s:{gone}", "--restart", given["--restart"], "--seed", str(seed)]
        fail += ["--routing", "sticky"] if "--turns" in given else []
        _, run, said = ask(["simulate", *replica_of(deployment), *load_of(words, 1), *fail])
        if not run:
            return said.strip()[:200]
        found += [one for one in run["stretches"] if one["name"] == "replicas missing"]
    names = [key for key in ("ttft_s", "tpot_s", "e2el_s") if key in run["slo"]]
    return ", ".join(f"{key} " + " ".join(f"{one[key] or inf:.4g}" for one in found) for key in names)


Examiner = Callable[[str, list[str], dict[str, Any]], Iterator[str]]
"""From what a question is about (a model or a file), its options and the JSON of its answer: what is said of it."""


def examine(_: str, words: list[str], answer: dict[str, Any]) -> Iterator[str]:
    """What is said of a plan, as it is found."""
    plan, percentile = answer["plan"], f"{answer['question']['percentile']:g}"
    deployment = plan["deployment"]
    shape = f"tp{plan['tp']} {plan['gpu']} {plan['precision']}, {plan['token_budget']} tokens per step"
    yield f"{plan['cost']} {plan['replicas']} x {shape}"
    quoted = figures_of(words, plan["simulation"], percentile)
    for factor in (1, 1 / UTILISATION):
        run, why = run_of(words, deployment, factor, LONG if factor == 1 else REQUESTS)
        long = figures_of(words, run, percentile).items() if run and factor == 1 else ()
        off = ", ".join(f"{name} {value / quoted[name][0] - 1:+.1%}" for name, (value, _) in long)
        yield f"; x{factor:g} {off} {breaks(words, run, percentile) or 'keeps' if run else why}"
    fewer = {**deployment, "parallel": {**deployment["parallel"], "replicas": plan["replicas"] - 1}}
    if plan["survival"]:
        then = [f"{key} {value:.4g}" for key, value in plan["survival"]["kept"][0].items() if key[:-2] in quoted]
        yield f"; quoted while lost {', '.join(then)}, run {lost(words, deployment, plan)}"
        if plan["replicas"] > plan["survival"]["replicas_lost"] + 1:
            yield f", one less {lost(words, fewer, plan, 1)}"
    elif plan["replicas"] > 1 and not deployment["pools"]:
        for budget in sorted({2048, plan["token_budget"]}):
            run, why = run_of(words, {**fewer, "token_budget": budget}, 1 / UTILISATION, REQUESTS // 2)
            yield f"; one less, {budget}: {breaks(words, run, percentile) or 'KEEPS' if run else why}"


def answered(part: str, question: str, examiner: Examiner) -> Iterator[str]:
    """What is said of the answer to a question; where it has none, why."""
    subject, *words = shlex.split(question)
    command = [part, subject] if part in FLEETS else ["plan", subject, *SAME]
    code, answer, said = ask([*command, *words])
    if code:
        yield f"exit {code}: {said.strip()[:400]}"
    else:
        yield from examiner(subject, words, answer)


def main(chosen: list[str], examiners: dict[str, Examiner] | None = None) -> None:
    """One line a question. chosen: parts, or ``part:3`` for the third of one. examiners: of the parts, those of plans
    without them.
    """
    examined, files = yaml.safe_load((HERE / "examined.yaml").read_text()), Path(tempfile.mkdtemp())
    for name, content in examined["files"].items():
        (files / name).write_text(yaml.safe_dump(content))
    ours = examiners or dict.fromkeys((part for part in examined["questions"] if part not in FLEETS), examine)
    for one in chosen or list(ours):
        part, _, number = one.partition(":")
        for place, question in enumerate(examined["questions"][part], 1):
            if not number or place == int(number):
                print(f"\n{part} {place}: ", end="")
                for piece in answered(part, question.format(files=files, traces=TRACES), ours[part]):
                    print(piece, end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
