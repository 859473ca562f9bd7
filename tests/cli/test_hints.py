"""Hints of refusals, pasted: what they name runs."""

from __future__ import annotations

import re
import shlex

from tests.cases import for_each
from tests.cli.conftest import Run


def pasted(line: list[str], hint: str) -> list[str]:
    """A command with the options of a hint in the place of its own; GPUs come by --gpu or --have, and one --tp less."""
    words = shlex.split(hint)
    gone = {word for word in words if word.startswith("--")}
    gone |= {"--have", "--tp"} if "--gpu" in gone else set[str]()
    kept = [word for before, word in zip(["", *line], line) if word not in gone and before not in gone]
    return [*kept, *words]


@for_each(
    "line",
    [
        "fit qwen3-32b --have 1xepyc-9654",
        "fit qwen3-32b --have 2xepyc-9654",
        "fit --have core-i9-14900k",
        "fit --have 2xcore-i9-14900k",
        "fit llama-3.1-8b --gpu epyc-9654 --tp 2",
        "estimate llama-3.1-8b --gpu epyc-9654 --tp 2",
        "estimate llama-3.1-8b --gpu epyc-9654",
        "estimate llama-3.1-8b --gpu 2x-epyc-9654",
        "estimate llama-3.1-8b --gpu rtx-4090 --tp 2 --engine llama.cpp",
        "fit llama-3.1-8b --gpu rtx-4090 --tp 2 --engine llama.cpp",
        "fit llama-3.1-70b --gpu l4 --tp 2",
    ],
)
def test_the_options_of_a_hint_run(run: Run, line: str) -> None:
    refused = run(*line.split())
    assert refused.code in (2, 3), refused.out
    hint = re.search(r"^hint: (?:.*, or |[^-]*: )?(--.*)$", refused.err, re.M)
    assert hint is not None, refused.err
    found = run(*pasted(line.split(), hint[1]))
    assert found.code == 0, (hint[1], found.err)


@for_each(
    "line",
    [
        "fit deepseek-r1 --have 1xrtx-4090",
        "fit llama-3.1-70b --have 24GB",
        "fit deepseek-r1 --gpu rtx-4090 --tp 2",
    ],
)
def test_the_commands_of_a_hint_run(run: Run, line: str) -> None:
    refused = run(*line.split())
    assert refused.code == 3, refused.out
    commands = re.findall(r"inferplan (.*)$", refused.err, re.M)
    assert commands, refused.err
    for command in commands:
        found = run(*shlex.split(command))
        assert found.code == 0, (command, found.err)
