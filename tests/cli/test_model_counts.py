"""Every command says in one line how far the counts of its model can be trusted."""

from __future__ import annotations

import json

COMMANDS = [
    "show qwen3-8b",
    "estimate qwen3-8b --gpu h100-sxm",
    "fit qwen3-8b",
    "fit qwen3-8b --gpu h100-sxm",
    "simulate qwen3-8b --gpu h100-sxm --rate 1 --prompt 64 --output 4 --requests 50",
    "cost qwen3-8b --gpu h100-sxm --batch 1",
    "compare qwen3-8b --gpu h100-sxm --prompt 64 --output 4 --vs gpu=a100-sxm",
    "plan qwen3-8b --gpu h100-sxm --rate 1 --prompt 64 --output 8 --ttft 5s",
]


def test_every_command_says_it_in_one_line(run):
    for command in COMMANDS:
        ran = run(*command.split())
        lines = [line for line in ran.out.splitlines() if "model sizes: " in line]
        assert ran.code == 0 and len(lines) == 1, (command, ran.err, lines)
        assert "read from its config (aiconfigurator-core 0.12.0)" in lines[0]


def test_json_holds_what_the_model_was_made_from(run):
    record = json.loads(run("estimate", "qwen3-8b", "--gpu", "h100-sxm", "--format", "json").out)["model_counts"]
    assert record["trust"] == "config" and len(record["sha256"]) == 64
    assert record["line"].startswith("model sizes: read from its config")
