"""Options by the names of other tools, users by both of ours, and hints about users that are followed."""

from __future__ import annotations

import click
import pytest

from inferplan.cli import COMMANDS, cli
from inferplan.cli.synonyms import SAME, SYNONYMS, understood
from inferplan.errors import InfeasibleError
from inferplan.planning.question import Question
from tests.cases import for_each
from tests.cli.conftest import Run

UNDERSTOOD = """
fit --accelerator = --gpu
simulate --input-len = --prompt
plan --isl = --prompt
estimate --random-input-len = --prompt
cost --input-tokens = --prompt
measure --input-len = --prompt
plan --osl = --output
simulate --random-output-len = --output
simulate --output-tokens-mean = --output
simulate --request-rate = --rate
plan --qps = --rate
plan --budget = --max-cost
simulate --max-concurrency = --in-flight
recipe --max-concurrency = --in-flight
simulate --num-prompts = --requests
simulate --request-count = --requests
simulate --tensor-parallel-size = --tp
plan --tp-size = --tp
estimate -tp = --tp
estimate --pipeline-parallel-size = --pp
estimate --ep-size = --ep
fit --quantization = --quant
simulate --kv-cache-dtype = --kv
emit --max-model-len = --context
simulate --context-length = --max-model-len
plan --max-num-batched-tokens = --token-budget
simulate --max-num-tokens = --max-num-batched-tokens
simulate --max-running-requests = --max-num-seqs
simulate --max-batch-size = --max-num-seqs
validate --gpu-memory-utilization = --memory-fraction
estimate --batch-size = --batch
plan --num-speculative-tokens = --draft-tokens
plan --speculative-num-steps = --draft-tokens
estimate --speculative-model = --draft-model
estimate --speculative-eagle-topk = --draft-branches
simulate --enable-prefix-caching = --prefix-caching
simulate --disable-radix-cache = --no-prefix-caching
simulate --enable-chunked-prefill = --chunked-prefill
estimate --n-gpu-layers = --gpu-layers
estimate -ngl = --gpu-layers
estimate --n-cpu-moe = --cpu-moe-layers
simulate --page-size = --block-size
simulate --random-seed = --seed
validate --input-len = --isl
plan --request-latency = --e2e
"""
"""Flags of vLLM (serve, bench serve), SGLang, TensorRT-LLM, llama.cpp, GuideLLM, AIPerf and genai-perf as their
documentation writes them, and ours of the same meaning."""
ANSWERED = """
plan --gpus = --gpu
fit --num-gpus = --gpu
plan --num-users = --in-flight
simulate --max-tokens = --output
simulate --random-range-ratio = --length-ratio-min
fit --max-model-len = --context
fit --ctx-size = --context
estimate --mem-fraction-static = --gpu-memory-utilization
estimate --data-parallel-size = --dp
simulate --chunked-prefill-size = --max-num-batched-tokens
"""
"""Flags that mean nearly the same, or mean the same in some cases."""
ELSEWHERE = """
plan --max-model-len = simulate, measure, validate have --max-model-len
fit --request-rate = simulate, plan, report, fleet and others have --rate
cost --concurrency = fit, estimate, recipe, simulate and others have --in-flight
recipe --draft = --with speculative:draft=NAME
fit --isl = --context counts prompt and output together
plan --num-prompts = simulate, measure, validate have --requests
estimate --free-gpu-memory-fraction = has no option here
fit --dtype = the format of a model is --quant
"""


def commands() -> dict[str, click.Command]:
    group = click.Context(cli, info_name="inferplan")
    found = {name: cli.get_command(group, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def pairs(text: str) -> list[tuple[str, str, str]]:
    lines = [line.partition(" = ") for line in text.strip().splitlines()]
    return [(*said.split(), meant) for said, _, meant in lines]  # type: ignore[misc]


def test_what_means_the_same_is_taken_for_ours() -> None:
    """The word is replaced, with its value or without, and a note says so; what stands behind ``--`` is left alone."""
    every = commands()
    for name, option, ours in pairs(UNDERSTOOD):
        assert not any(option in param.opts for param in every[name].params), option
        said = f"note: {option} is {ours} here"
        assert understood(every[name], ["x", option, "8"]) == (["x", ours, "8"], [said])
        assert understood(every[name], [f"{option}=8"]) == ([f"{ours}=8"], [said])
        assert understood(every[name], ["--", option]) == (["--", option], [])
    assert len(pairs(UNDERSTOOD)) >= 40


TERMS = """
--reserved 1y = --term reserved-1y
--reserved 3y = --term reserved-3y
--reserved=1-year = --term reserved-1y
--reserved three-years = --term reserved-3y
--reserved 36mo = --term reserved-3y
--commitment 3yrs = --term reserved-3y
--term 3-years = --term reserved-3y
--term=12months = --term reserved-1y
--spot = --term spot
--on-demand = --term on-demand
--reserved = --term reserved
"""
"""Ways to write what people buy, as clouds do: a reservation of one or three years, on demand, spot."""


def test_terms_as_people_write_them() -> None:
    every = commands()
    for name in ("plan", "cost", "fleet", "day", "fit", "several"):
        for line in TERMS.strip().splitlines():
            typed, _, meant = line.partition(" = ")
            words, notes = understood(every[name], ["x", *typed.split(), "--quant", "fp8"])
            assert words == ["x", *meant.split(), "--quant", "fp8"], (name, typed)
            assert notes == [f"note: {typed.replace('=', ' ')} is {meant} here"]
        for line in ("--term reserved", "--term spot", "--spot=1", "--quant fp8 -- --reserved 3y"):
            assert understood(every[name], ["x", *line.split()]) == (["x", *line.split()], [])
    assert understood(every["cost"], ["x", "--reserved", "2y"]) == (["x", "--term", "2y"], [])  # which is refused
    assert understood(every["compare"], ["x", "--reserved", "3y"])[0] == ["x", "--reserved", "3y"]  # no prices


def test_pools_apart_are_not_promised_beside_one() -> None:
    """docs/planning.md: with --survive, a routing and other questions a plan has one pool."""
    plan = commands()["plan"]
    alone = ["note: --disaggregated: no separate pools are tried with --survive"]
    assert understood(plan, ["--rate", "2", "--disaggregated", "--survive=1"]) == (
        ["--rate", "2", "--survive=1"],
        alone,
    )
    (tried,) = understood(plan, ["--disaggregated", "--rate", "2"])[1]
    assert tried.startswith("note: --disaggregated: separate pools for prompts and for decodes are tried")


def test_short_names_of_formats_are_read_aloud() -> None:
    """Q4_K_M is llama.cpp's usual file of four bits, 4-bit weights with 16-bit inputs (W4A16) that of vLLM."""
    said = "note: q4 is w4a16, or q4_k_m where the engine reads GGUF files alone"
    assert understood(commands()["compare"], ["--quant", "native,q4"])[1] == [said]
    assert understood(commands()["compare"], ["--quant=fp8"])[1] == []


def test_an_answer_is_that_of_our_own_words(run: Run) -> None:
    words = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--format", "json"]
    ours = run(*words, "--tp", "2", "--prompt", "512", "--output", "64")
    theirs = run(*words, "-tp", "2", "--isl", "512", "--random-output-len=64")
    assert theirs.json == ours.json
    assert theirs.err.splitlines()[:3] == [
        "note: -tp is --tp here",
        "note: --isl is --prompt here",
        "note: --random-output-len is --output here",
    ]
    twice = run(*["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--prompt", "512", "--isl", "512"])
    assert (twice.code, "--prompt is given 2 times" in twice.err) == (2, True)


def test_each_other_foreign_name_is_answered_with_ours(run: Run) -> None:
    every, wrong = commands(), []
    for text in (ANSWERED, ELSEWHERE):
        for name, option, meant in pairs(text):
            assert not any(option in param.opts for param in every[name].params), option
            said = run(name, option, "1")
            start = f"error: No such option '{option}'.\nhint: " + (f"{meant} here" if text is ANSWERED else "")
            if said.code != 2 or not said.err.startswith(start) or meant not in said.err:
                wrong.append(f"{name} {option}: {said.err}")
    assert not wrong, "\n".join(wrong)


def test_the_table_names_what_there_is() -> None:
    every = commands()
    params = [param for one in every.values() for param in one.params]
    options = {text.removeprefix("--") for param in params for text in (*param.opts, *param.secondary_opts)}
    table = {**SAME, **SYNONYMS}
    assert not [(name, one) for name, ours in table.items() for one in ours if one not in options]
    assert not [name for name, ours in table.items() if name.strip("-") in ours and len(ours) == 1 and name[0] != "-"]


def test_what_means_something_else_is_not_said_to_mean_ours(run: Run) -> None:
    """SGLang's --speculative-num-draft-tokens counts the root too: N + 1. vLLM's --dtype is the base format."""
    for words in ("plan --speculative-num-draft-tokens", "fit --dtype"):
        said = run(*words.split(), "1")
        assert said.code == 2 and " here" not in said.err


def test_arguments_and_typing_errors(run: Run) -> None:
    assert "hint: MODEL is an argument: write it without --model" in run("fit", "--model", "llama-3.1-8b").err
    assert "hint: GPU is an argument: write it without --gpu" in run("prices", "--gpu", "h100").err
    typed = run("cost", "llama-3.1-8b", "--bathc", "2").err
    assert "--batch" in typed and "--help" in typed


@for_each(
    "words",
    [
        "estimate llama-3.1-8b --gpu h100-sxm {} 8",
        "fit llama-3.1-8b --gpu h100-sxm {} 8",
        "simulate llama-3.1-8b --gpu h100-sxm --prompt 64 --output 4 {} 2",
        "recipe llama-3.1-8b --gpu h100-sxm --with continuous-batching {} 2",
    ],
)
def test_requests_in_flight_have_three_names(words: str, run: Run) -> None:
    flight, users, concurrency = (
        run(*words.format(name).split(), "--format", "json").json
        for name in ("--in-flight", "--users", "--concurrency")
    )
    assert flight == users == concurrency
    assert run(*words.format("--users").split(), "--concurrency", "3").code == 2  # one notion, given twice


PLAN = "plan llama-3.1-8b --gpu l40s --quant fp8 --most 1 --aggregated --prompt 128 --output 16 --ttft 1s"


def test_the_hints_about_users_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hint is followed, and is not refused again. What a plan answers is tests/planning/test_people.py's."""
    asked: list[Question] = []

    def search(question: Question, _: object) -> None:
        asked.append(question)
        raise InfeasibleError("as far as a search")

    monkeypatch.setattr("inferplan.cli.plan.plan", search)
    refused = run(*PLAN.split(), "--rate", "2", "--think-time", "3s")
    assert "hint: --people 200 instead of --rate, or --rate with --turns 4" in refused.err
    assert run(*PLAN.split(), "--people", "200", "--think-time", "30s").code == 3
    assert (asked[-1].demand.users, asked[-1].demand.think) == (200, 30.0)
    assert asked[-1].demand.people is not None and asked[-1].demand.people.count == 200
    assert run(*PLAN.split(), "--concurrency", "200").code == 3
    assert (asked[-1].demand.users, asked[-1].demand.think) == (200, 0.0)
    assert run(*PLAN.split(), "--rate", "2", "--think-time", "3s", "--turns", "4").code == 3
    assert (asked[-1].demand.rate, asked[-1].demand.prefix.turns) == (2.0, 4)

    memory = run("fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--users", "20", "--think-time", "60s")
    assert (memory.code, "--answer-time 5s, a --workload" in memory.err) == (2, True)
    words = ("fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--users", "20", "--think-time", "60s", "--answer-time", "5s")
    assert (
        run(*words).out.splitlines()[2] == "users         20; each thinks 60 s between an answer and the next request"
    )

    sessions = run("plan", "llama-3.1-8b", "--sessions", "coding-agent", "--users", "200", "--gpu", "h100-sxm")
    assert "--people 200" in sessions.err and "inferplan simulate --sessions NAME --in-flight 200" in sessions.err
    simulated = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--sessions", "coding-agent", "--users", "2")
    assert run(*simulated, "--session-count", "4").code == 0


@for_each(
    "words", [("--cpu-moe",), ("-cmoe",), ("--cpu-moe-layers", "all"), ("--cpu-moe-layers=all",), ("-ncmoe", "all")]
)
def test_all_experts_on_the_host_are_those_of_every_layer(run: Run, words: tuple[str, ...]) -> None:
    """num_hidden_layers of the config of gpt-oss-120b is 36; ``-cmoe`` of llama.cpp's common/arg.cpp takes no value."""
    host = ("--gpu", "rtx-4090", "--engine", "llama.cpp", "--host", "epyc-9654", "--host-memory", "384GB")
    found = run("estimate", *host, *words, "gpt-oss-120b")
    assert (found.code, "experts of the first 36 layers on epyc-9654" in found.out) == (0, True)
    assert "is --cpu-moe-layers 36 here: all layers of gpt-oss-120b" in found.err
    assert "no model named 'gpt-oss-12b'" in run("estimate", *host, "gpt-oss-12b", *words).err
