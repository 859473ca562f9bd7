"""The GitHub action of docs/pipelines.md, its own steps run over a repository with two commits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a test"), ("EMAIL", "test@example.org"))
}


def block(language: str) -> str:
    """The first block of a language on the page."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def steps() -> list[dict[str, Any]]:
    jobs = yaml.safe_load(block("yaml"))["jobs"]
    found: list[dict[str, Any]] = jobs["plan"]["steps"]
    return found


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **IDENTITY}
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


def test_the_action_is_a_workflow_that_github_reads() -> None:
    workflow = yaml.safe_load(block("yaml"))
    assert workflow[True] == {"pull_request": {"paths": ["serving/**"]}}  # YAML 1.1 reads `on` as true, GitHub as text
    assert workflow["permissions"] == {"contents": "read"}
    assert all(("uses" in step) != ("run" in step) for step in steps())
    # text of a pull request is given to a shell by the environment, never written into the command
    assert not [step for step in steps() if "${{" in step.get("run", "")]


@pytest.mark.slow
def test_a_pull_request_fails_when_its_plan_costs_more(tmp_path: Path) -> None:
    work, temporary, programs = tmp_path / "work", tmp_path / "runner", tmp_path / "bin"
    for folder in (work / "serving", temporary, programs):
        folder.mkdir(parents=True)
    (programs / "inferplan").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inferplan "$@"\n', encoding="utf-8")
    (programs / "inferplan").chmod(0o755)
    script = work / "serving" / "plan.sh"
    script.write_text(block("bash"), encoding="utf-8")
    git(work, "init", "-q", "-b", "main")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "a plan")
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(temporary),
        "BASE": git(work, "rev-parse", "HEAD"),
    }
    base, change = (step["run"] for step in steps() if step.get("name", "").startswith("Plan "))

    def ran(step: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-c", step]
        return subprocess.run(command, check=False, cwd=work, env=environment, capture_output=True, text=True)

    first = ran(base)
    assert first.returncode == 0, first.stderr
    before = json.loads((temporary / "base.json").read_text("utf-8"))["plan"]
    # the price that the script states is a tenth higher in the pull request; GPUs, load and limits are the same
    script.write_text(block("bash").replace("l4=0.80", "l4=0.88"), encoding="utf-8")
    second = ran(change)
    assert second.returncode == 6, second.stderr
    after = json.loads((temporary / "plan.json").read_text("utf-8"))
    assert after["plan"]["cost"] == pytest.approx(1.1 * before["cost"])
    assert after["against"]["rise"] == pytest.approx(0.1)
    script.write_text(block("bash").replace("l4=0.80", "l4=0.83"), encoding="utf-8")
    third = ran(change)
    assert third.returncode == 0, third.stderr
