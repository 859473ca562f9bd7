"""A full disk, closed pipes, Ctrl-C, little memory: in a process of its own, as a shell starts it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import LLAMA_3_1_8B
from tests.cases import for_each
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
ESTIMATE = "estimate llama-3.1-8b --gpu h100-sxm"
PRINTING = [ESTIMATE, "--help", "--version", "completion bash", "import config.json", "emit vllm llama-3.1-8b --gpu l4"]
"""One of each way to write: a report, what click prints, and text."""


def started(folder: Path, command: str, limit: str = "") -> subprocess.Popen[str]:
    """``inferplan`` with what a shell would make of the rest of the line, after a command of the shell."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder.parent)}
    line = f"{limit}\nexec {shlex.quote(sys.executable)} -m inferplan {command}"
    return subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ran(folder: Path, command: str, limit: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = started(folder, command, limit)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return process.returncode, out, err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@for_each("command", PRINTING)
def test_a_full_disk_behind_stdout_is_exit_4(tmp_path: Path, command: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
    code, _, err = ran(tmp_path, f"{command} > /dev/full")
    assert (code, err) == (4, "error: cannot write the output\nbecause: No space left on device\n")


@for_each("command", [ESTIMATE, "--help"])
def test_a_closed_stdout_is_exit_4(tmp_path: Path, command: str) -> None:
    code, _, err = ran(tmp_path, f"{command} >&-")
    assert (code, err) == (4, "error: cannot write the output\nbecause: it is closed\n")


def test_without_stderr_the_exit_code_has_to_do(tmp_path: Path) -> None:
    assert ran(tmp_path, f"{ESTIMATE} --batch 0 2>&-") == (2, "", "")
    assert ran(tmp_path, f"{ESTIMATE} --batch 0 2>/dev/full")[0] == 2
    code, out, _ = ran(tmp_path, f"{ESTIMATE} 2>&-")
    assert (code, "TPOT" in out) == (0, True)


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    line = f"({shlex.quote(sys.executable)} -m inferplan models --format json; echo $? >&2) | head -c 100"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(["bash", "-c", line], check=True, cwd=tmp_path, env=environment, capture_output=True)
    assert found.stderr == b"0\n"
    assert len(found.stdout) == 100


@for_each(
    ("command", "name"),
    [
        (f"{ESTIMATE} -o own.json", "own.json"),
        ("sweep llama-3.1-8b --gpu h100-sxm --batch 1-8 -o own.jsonl", "own.jsonl"),
        ("sweep llama-3.1-8b --gpu h100-sxm --batch 1-8 -o own.parquet", "own.parquet"),
        ("plot memory llama-3.1-8b --gpu h100-sxm -o own.png", "own.png"),
        ("simulate llama-3.1-8b --gpu h100-sxm --rate 1 --requests 50 --timeline own.csv", "own.csv"),
    ],
)
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / name).write_text("what was measured last year")
    code, _, err = ran(tmp_path, command, "ulimit -f 0")
    assert code == 4
    assert f"error: cannot write {name}\nbecause: File too large\n" in err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "what was measured last year"}


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "real.json").chmod(0o640)
    (tmp_path / "link.json").symlink_to("real.json")
    assert ran(tmp_path, f"{ESTIMATE} -o link.json")[0] == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "ttft" in (tmp_path / "real.json").read_text()
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["simulate llama-3.1-8b --gpu h100-sxm --rate 20 --requests 5000000 -o own.json",
     "sweep llama-3.1-8b --gpu h100-sxm --batch 1-5000 --simulate --jobs 1 -o own.json",
     "plan llama-3.1-70b --workload chat --rate 500 -o own.json"],
)  # fmt: skip
def test_ctrl_c_is_130_and_leaves_no_file(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    kept = tmp_path_factory.mktemp("kept")
    monkeypatch.setenv("INFERPLAN_CACHE", str(kept))
    process = started(tmp_path, command)
    while not list(kept.iterdir()):  # what is read of YAML is kept there: the command runs, however slow the start was
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_the_journal_which_goes_on(tmp_path: Path) -> None:
    command = "sweep llama-3.1-8b --gpu h100-sxm,h200-sxm,a100-80gb-sxm,l40s --tp 1,2 --batch 4 --simulate --jobs 1"
    process, journal = started(tmp_path, f"{command} --resume own.journal"), tmp_path / "own.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=60), process.communicate()[1].splitlines()[-1]) == (130, "interrupted")
    kept = journal.read_bytes()
    assert kept.count(b"\n") >= 3
    code, out, _ = ran(tmp_path, f"{command} --resume own.journal --format jsonl")
    assert (code, len(out.splitlines())) == (0, 8)
    assert journal.read_bytes().startswith(kept[: kept.rindex(b"\n")])


ABSURD = """
simulate llama-3.1-8b --gpu h100-sxm --concurrency 1000000000
simulate llama-3.1-8b --gpu h100-sxm --rate 1 --requests 1000000000000
simulate llama-3.1-8b --gpu h100-sxm --rate 1 --replicas 1000000
simulate llama-3.1-8b --gpu h100-sxm --concurrency 4 --turns 1000000000
sweep llama-3.1-8b --gpu h100-sxm --batch 1-1000000000
sweep llama-3.1-8b --gpu h100-sxm --tp 1-1000000
plan llama-3.1-8b --gpu h100-sxm --workload chat --rate 1 --tp 1-1000000
anchor suggest llama-3.1-8b --gpu h100-sxm --concurrency 1-100k --prompt 1-100k
estimate llama-3.1-8b --gpu h100-sxm --draft llama-3.2-1b --draft-tokens 1000000000 --acceptance 0.5
measure http://localhost:9 --concurrency 1000000000
show layers.yaml
show deep.json
estimate llama-3.1-8b --gpu large.yaml
""".strip().splitlines()


IN_TURN = """
import sys
from inferplan.cli import main
for line in sys.argv[1:]:
    sys.argv = ["inferplan", *line.split()]
    try:
        main()
    except SystemExit as leave:
        print("exit", leave.code, line, file=sys.stderr, flush=True)
"""
"""Command lines one after another in one process, each with its exit code behind what it says."""


def test_absurd_sizes_are_refused_before_memory_is_touched(tmp_path: Path) -> None:
    (tmp_path / "layers.yaml").write_text(
        "name: x\nsource: x\nd_model: 8\nvocab: 8\nlayers: [{repeat: 1000000000000, ffn: {kind: mlp, d_ff: 8}}]\n"
    )
    (tmp_path / "deep.json").write_text("[" * 1_000_000)
    with (tmp_path / "large.yaml").open("wb") as large:
        large.truncate(200 * 2**20)
    words = " ".join(map(shlex.quote, [sys.executable, "-c", IN_TURN, *ABSURD]))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v {3 * 2**20}\nexec {words}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path.parent)},
        text=True,
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == ""
    assert "memory for this question" not in done.stderr and "Traceback" not in done.stderr
    for command in ABSURD:
        said, _, rest = done.stderr.partition(f" {command}\n")
        assert said.startswith("error: ") and said.endswith(("exit 2", "exit 4")), (command, said)
        done.stderr = rest


def test_escape_codes_of_a_file_reach_no_terminal_and_no_report(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heading = "model,gpu,engine,precision,isl,osl,concurrency,tp,ttft_ms"
    rows = ["\x1b[31mred\a,h100-sxm,vllm,bf16,100,100,1,1,5", "llama-3.1-8b,h100-sxm,vllm,bf16,100,10,1,1,50"]
    (tmp_path / "own.csv").write_text("\n".join([heading, *rows, ""]))
    for more in (
        "--show-rows",
        "--show-rows -o own.md",
        "--show-rows -o own.txt",
        "--show-rows --rows all.csv",
        "--format csv",
    ):
        answer = run("validate", "own.csv", *more.split())
        assert answer.code == 0, answer.err
        written = [path.read_text() for path in tmp_path.iterdir() if path.name != "own.csv"]
        assert "\\x1b[31mred" in answer.out + "".join(written)
        for text in (answer.out, answer.err, *written):
            assert not {"\x1b", "\a"} & set(text)
        for path in tmp_path.iterdir():
            if path.name != "own.csv":
                path.unlink()
