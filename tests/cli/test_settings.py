"""Command line over environment over file; completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferplan.cli.defaults import current
from tests.cases import for_each
from tests.cli.conftest import Ran, Run

Inferplan = Callable[..., Ran]


@pytest.fixture
def inferplan(run: Run) -> Inferplan:
    """The command in a folder, with variables of the environment."""

    def call(*words: str, cwd: Path, **environ: str) -> Ran:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd)
            for name, value in environ.items():
                patch.setenv(name, value)
            current.cache_clear()  # a process reads its settings once
            try:
                return run(*words)
            finally:
                current.cache_clear()

    return call


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path, inferplan: Inferplan) -> None:
    (tmp_path / "inferplan.yaml").write_text("gpu: a100-80gb-sxm\nformat: json\nestimate:\n  batch: 4\n  output: 32\n")
    words = ("estimate", "llama-3.1-8b")
    record = inferplan(*words, cwd=tmp_path).json
    assert (record["gpu"], record["load"]["batch"], record["load"]["output_tokens"]) == ("a100-80gb-sxm", 4, 32)
    record = inferplan(*words, cwd=tmp_path, INFERPLAN_GPU="h100-sxm", INFERPLAN_BATCH="8").json
    assert (record["gpu"], record["load"]["batch"]) == ("h100-sxm", 8)
    record = inferplan(*words, cwd=tmp_path, INFERPLAN_BATCH="8", INFERPLAN_ESTIMATE_BATCH="16").json
    assert record["load"]["batch"] == 16
    record = inferplan(*words, "--gpu", "h200-sxm", cwd=tmp_path, INFERPLAN_GPU="h100-sxm").json
    assert record["gpu"] == "h200-sxm"


def test_commands_below_a_group_have_them_too(tmp_path: Path, inferplan: Inferplan) -> None:
    (tmp_path / "inferplan.yaml").write_text("gpu: h100-sxm\nanchor:\n  runs: 2\n  prompt: 512\n")
    record = inferplan("anchor", "suggest", "llama-3.1-8b", "--format", "json", cwd=tmp_path).json
    assert (record["system"]["gpu"], len(record["runs"])) == ("h100-sxm", 2)
    (tmp_path / "inferplan.yaml").write_text("gpu: h100-sxm\nanchor:\n  rums: 2\n")
    assert "did you mean runs" in inferplan("anchor", "suggest", "llama-3.1-8b", cwd=tmp_path).err


def test_a_token_is_not_printed(tmp_path: Path, inferplan: Inferplan) -> None:
    found = inferplan("settings", "--format", "json", cwd=tmp_path, INFERPLAN_WEB_TOKEN="a-secret-of-16-or-more")
    (said,) = found.json["settings"]
    assert (said["option"], said["origin"]) == ("token", "INFERPLAN_WEB_TOKEN") and "a-secret" not in found.out


def test_a_file_elsewhere_is_named_by_the_environment(tmp_path: Path, inferplan: Inferplan) -> None:
    (tmp_path / "mine.yaml").write_text("gpu: l4\n")
    (tmp_path / "sub").mkdir()
    result = inferplan(
        "settings", "--format", "json", cwd=tmp_path / "sub", INFERPLAN_CONFIG=str(tmp_path / "mine.yaml")
    )
    assert result.json["settings"][0]["value"] == "l4"
    missing = inferplan("estimate", "llama-3.1-8b", cwd=tmp_path, INFERPLAN_CONFIG="none.yaml")
    assert missing.code == 4


@for_each(
    ("text", "words", "message"),
    [
        ("estimate:\n  bach: 4\n", ("estimate", "llama-3.1-8b", "--gpu", "h100"), "did you mean batch"),
        ("gpuu: h100\n", ("settings",), "did you mean gpu"),
        ("esimate:\n  batch: 4\n", ("models",), "is no command"),
        ("- gpu\n", ("models",), "not a mapping"),
        ("batch: many\n", ("estimate", "llama-3.1-8b", "--gpu", "h100"), "not a count"),
        ('quant: ""\n', ("estimate", "llama-3.1-8b", "--gpu", "h100"), "inferplan.yaml:1: quant is empty"),
    ],
)
def test_mistakes_are_named(
    text: str, words: tuple[str, ...], message: str, tmp_path: Path, inferplan: Inferplan
) -> None:
    (tmp_path / "inferplan.yaml").write_text(text)
    result = inferplan(*words, cwd=tmp_path)
    assert result.code == 2
    assert message in result.err
    assert not result.out


@for_each("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, tmp_path: Path, inferplan: Inferplan) -> None:
    result = inferplan("completion", shell, cwd=tmp_path)
    assert result.code == 0
    assert "_INFERPLAN_COMPLETE" in result.out


def test_names_of_the_catalogue_complete(tmp_path: Path, inferplan: Inferplan) -> None:
    asked = {"_INFERPLAN_COMPLETE": "bash_complete", "COMP_WORDS": "inferplan estimate llama-3.1-7", "COMP_CWORD": "2"}
    assert "llama-3.1-70b" in inferplan(cwd=tmp_path, **asked).out
    asked |= {"COMP_WORDS": "inferplan estimate m --gpu h200-s", "COMP_CWORD": "4"}
    assert "h200-sxm" in inferplan(cwd=tmp_path, **asked).out
    asked |= {"COMP_WORDS": "inferplan swe", "COMP_CWORD": "1"}
    assert "sweep" in inferplan(cwd=tmp_path, **asked).out
    asked |= {"COMP_WORDS": "inferplan plan m --workload cha", "COMP_CWORD": "4"}
    assert "chat" in inferplan(cwd=tmp_path, **asked).out
