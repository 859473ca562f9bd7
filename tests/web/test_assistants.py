"""The tools of ``inferplan mcp``: by the SDK's own client, and line by line as the protocol has them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from mcp.shared.exceptions import MCPError

from inferplan.cli import cli
from inferplan.errors import MissingExtraError
from tests.assistant import Assistant, assistant, command, environment
from tests.cases import for_each
from tests.cli.conftest import Run, run
from tests.command import exit_code
from tests.hostile_calls import TOOLS, UNKNOWN, hostile_calls

__all__ = ["run"]  # the fixture
BENCHMARK = (
    "model,gpu,engine,precision,isl,osl,concurrency,tp,tpot_ms\n"
    "llama-3.1-8b,h100-sxm,vllm,bf16,1024,256,8,1,7.5\n"
    "llama-3.1-8b,h100-sxm,vllm,bf16,1024,256,16,1,9.0\n"
)
FIVE: dict[str, dict[str, Any]] = {
    "run": {"model": "llama-3.1-70b", "have": "2x-a6000"},
    "people": {"model": "llama-3.2-1b", "have": "l4", "people": 5},
    "buy": {"model": "llama-3.2-1b", "people": 20, "workload": "chat"},
    "format": {"model": "llama-3.1-8b", "have": "2x-a6000"},
    "slow": {"model": "llama-3.1-8b", "have": "h100-sxm", "server": "bench.csv"},
}
LONG = {"model": "llama-3.1-70b", "workload": "chat", "people": 5000}
"""A plan that takes minutes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given")
    (path / "bench.csv").write_text(BENCHMARK, encoding="utf-8")
    (path.parent / "outside.csv").write_text(BENCHMARK, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone() -> Iterator[Assistant]:
    """A server that was given no files."""
    with assistant() as found:
        yield found


@pytest.fixture(scope="module")
def given(folder: Path) -> Iterator[Assistant]:
    """A server that was given a folder."""
    with assistant("--folder", str(folder), "--seconds", "600") as found:
        yield found


def error_of(result: Any) -> dict[str, Any]:
    """The error of a result, as text and as data."""
    assert result.is_error, result.content
    record = result.structured_content
    assert json.loads(result.content[-1].text) == record
    assert record["schema_version"] == 2
    found: dict[str, Any] = record["error"]
    assert set(found) - {"picture"} == {"what", "because", "hint", "exit_code"}
    assert "a bug in inferplan" not in found["what"], found
    return found


def options_typed(name: str) -> set[str]:
    """What the command itself takes, as click has it."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    long = {text[2:] for param in found.params for text in param.opts if text.startswith("--")}
    return long | {param.name or "" for param in found.params if isinstance(param, click.Argument)}


def test_tools_are_commands_with_the_options_of_their_declarations(alone: Assistant) -> None:
    tools = alone.tools()
    assert set(tools) == {*TOOLS, "options"}
    for name in TOOLS:
        listed = tools[name].input_schema["properties"]
        assert set(listed) - {"format"} <= options_typed(name), name
        whole = json.loads(alone.call("options", {"tool": name}).content[0].text)["properties"]
        assert set(listed) - {"format"} <= set(whole) <= options_typed(name), name
        assert not set(whole) & {"o", "report", "plot", "timeline", "rows", "update", "jobs", "format"}, name
        assert tools[name].annotations.read_only_hint
    assert {"gpu", "batch", "prompt"} <= set(tools["estimate"].input_schema["properties"])
    assert "two-batch-overlap" not in tools["estimate"].input_schema["properties"]
    assert (
        alone.call("estimate", {"model": "gpt-oss-20b", "gpu": "h100-sxm", "tp": 2, "expert-skew": 1.5}).is_error
        is False
    )


@pytest.mark.slow
@for_each("name", FIVE)
def test_five_questions_are_answered_as_in_a_terminal(name: str, given: Assistant, folder: Path) -> None:
    arguments = {"question": name, **FIVE[name]}
    result = given.call("ask", arguments)
    assert not result.is_error, result.content
    words = [word for key, value in FIVE[name].items() for word in (f"--{key}", str(value))]
    terminal = [sys.executable, "-m", "inferplan", "ask", name, *words]
    own = {**os.environ, **environment()}
    printed = subprocess.run(terminal, check=True, cwd=folder, env=own, capture_output=True, text=True)
    assert result.content[0].text.splitlines() == [*printed.stdout.rstrip().splitlines(), *printed.stderr.splitlines()]
    assert sorted(path.name for path in folder.iterdir()) == ["bench.csv"]


def test_json_is_that_of_the_command_line(alone: Assistant, run: Run) -> None:
    result = alone.call("fit", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "format": "json"})
    record = result.structured_content
    assert json.loads(result.content[0].text) == record
    assert record["result"] == run(*shlex.split(record["command"])[1:], "--format", "json").json


def test_what_is_to_be_started_is_said(alone: Assistant, run: Run) -> None:
    result = alone.call("emit", {"target": "vllm", "model": "llama-3.1-8b", "gpu": "h100-sxm"})
    printed = run("emit", "vllm", "llama-3.1-8b", "--gpu", "h100-sxm")
    assert not result.is_error and "vllm serve" in printed.out
    assert result.content[0].text.splitlines() == [*printed.out.rstrip().splitlines(), *printed.err.splitlines()]


def test_an_overloaded_simulation_has_its_figures_and_its_error(alone: Assistant) -> None:
    result = alone.call("simulate", {"model": "llama-3.1-8b", "gpu": "l4", "rate": 90, "prompt": "900", "output": "90"})
    assert error_of(result)["exit_code"] == 3
    assert "overloaded" in result.content[0].text and len(result.content) == 2


@for_each(
    ("name", "arguments"),
    [
        ("validate", {"files": "bench.csv"}),
        ("estimate", {"model": "./own.yaml", "gpu": "h100-sxm"}),
        ("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "calibration": "own.yaml"}),
        ("simulate", {"model": "llama-3.1-8b", "gpu": "l4", "trace": "trace.csv"}),
        ("ask", {"question": "slow", "model": "llama-3.1-8b", "have": "l4", "server": "bench.csv"}),
    ],
)
def test_without_a_folder_no_file_is_read(name: str, arguments: dict[str, Any], alone: Assistant) -> None:
    found = error_of(alone.call(name, arguments))
    assert found["exit_code"] == 4
    assert found["hint"] == "inferplan mcp --folder DIR"


def test_files_of_the_folder_and_no_others(given: Assistant, folder: Path) -> None:
    assert not given.call("validate", {"files": ["bench.csv", "bench.csv"]}).is_error
    (folder / "link.csv").symlink_to(folder.parent / "outside.csv")
    try:
        for outside in ("../outside.csv", str(folder.parent / "outside.csv"), "link.csv"):
            assert error_of(given.call("validate", {"files": outside}))["exit_code"] == 4, outside
    finally:
        (folder / "link.csv").unlink()


def test_two_hundred_malformed_calls_are_answered_with_errors(given: Assistant, folder: Path) -> None:
    calls = hostile_calls()
    assert len(calls) + len(UNKNOWN) >= 200
    codes = [error_of(given.call(name, arguments))["exit_code"] for name, arguments in calls]
    assert set(codes) <= {2, 3, 4}
    for name in UNKNOWN:
        with pytest.raises(MCPError) as refused:
            given.call(name, {})
        assert refused.value.code == -32602  # Invalid params, of JSON-RPC 2.0
    assert not given.call("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm"}).is_error
    assert sorted(path.name for path in folder.iterdir()) == ["bench.csv"]


class Lines:
    """A server whose lines are written and read here, as docs of the protocol have them (version 2025-06-18)."""

    def __init__(self, *options: str) -> None:
        pipe = subprocess.PIPE
        own = {**os.environ, **environment()}
        self.process = subprocess.Popen(command(*options), stdin=pipe, stdout=pipe, stderr=pipe, env=own)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.hello = self.ask(1, "initialize", about)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, message: Any) -> None:
        self.write(json.dumps(message).encode())

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, name: int, method: str, params: Any) -> Any:
        self.send({"jsonrpc": "2.0", "id": name, "method": method, "params": params})
        return self.read()

    def call(self, name: int, tool: str, arguments: Any) -> Any:
        return self.ask(name, "tools/call", {"name": tool, "arguments": arguments})

    def processes(self) -> set[int]:
        """Those that answer: what the server has started, but for the one that looks after semaphores."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(one) for one in listed if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()}

    def end(self) -> bytes:
        """Close stdin; what it said on stderr, when it has ended."""
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, said
        return said


@pytest.fixture
def lines() -> Iterator[Callable[..., Lines]]:
    opened: list[Lines] = []

    def start(*options: str) -> Lines:
        opened.append(Lines(*options))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdin, one.process.stdout, one.process.stderr):
            assert stream is not None
            with suppress(OSError):
                stream.close()


def until(holds: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def busy(process: int) -> float:
    """Seconds of CPU time of a process; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_lines_that_are_no_messages_are_answered_and_stdout_has_nothing_else(lines: Callable[..., Lines]) -> None:
    server = lines()
    assert server.hello["result"]["serverInfo"]["name"] == "inferplan"
    # codes of https://www.jsonrpc.org/specification: -32700 Parse error, -32600 Invalid Request, -32602 Invalid params
    for line, code in (
        (b"{", -32700),
        (b"hello", -32700),
        (b"\xff\xfe\x00", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600),
    ):
        server.write(line)
        assert server.read()["error"]["code"] == code, line[:40]
    for params in ([], {}, {"name": "fit", "arguments": [1]}, {"name": 5}):
        assert server.ask(3, "tools/call", params)["error"]["code"] in (-32600, -32602), params
    assert server.ask(4, "nonsense", {})["error"]["code"] == -32601  # Method not found
    answer = server.call(5, "estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm"})
    assert answer["id"] == 5 and not answer["result"]["isError"]
    assert b"no files" in server.end()


def test_a_client_that_leaves_is_no_error(lines: Callable[..., Lines]) -> None:
    server = lines()
    assert server.process.stdout is not None and server.process.stderr is not None
    server.process.stdout.close()
    server.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    server.process.stdin.close()  # type: ignore[union-attr]
    assert server.process.wait(30) == 0
    assert b"error" not in server.process.stderr.read()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_call_that_is_cancelled_ends_its_process(lines: Callable[..., Lines]) -> None:
    server = lines()
    assert until(lambda: len(server.processes()) == 2)
    server.call(2, "formats", {})  # both have started by then, or one has
    before = {one: busy(one) for one in server.processes()}
    long = {"name": "plan", "arguments": LONG}
    server.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": long})
    works: list[int] = []
    assert until(lambda: bool(works.extend(one for one in before if busy(one) > before[one] + 3) or works))
    server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})
    assert until(lambda: not set(works) & server.processes(), 10)
    answer = server.call(4, "estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm"})
    assert answer["id"] == 4 and not answer["result"]["isError"]
    left = server.processes()
    server.end()
    assert until(lambda: not any(Path(f"/proc/{one}").exists() for one in left), 10)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_call_that_takes_too_long_is_ended(lines: Callable[..., Lines]) -> None:
    server = lines("--seconds", "2")
    server.call(2, "formats", {})
    before, began = server.processes(), time.monotonic()
    result = server.call(3, "plan", LONG)["result"]
    assert result["isError"] and time.monotonic() - began < 60
    assert "--seconds 4" in result["structuredContent"]["error"]["hint"]
    assert before - server.processes()
    assert not server.call(4, "estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm"})["result"]["isError"]


@pytest.mark.slow
def test_progress_is_told_to_a_client_that_asks(alone: Assistant) -> None:
    progress: list[float] = []
    assert not alone.call("ask", {"question": "people", **FIVE["people"]}, progress).is_error
    assert progress and progress == sorted(progress) and progress[0] >= 1


def test_without_the_sdk_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert exit_code(monkeypatch, "mcp") == MissingExtraError.exit_code == 2
    said = capsys.readouterr()
    assert "needs mcp" in said.err and "pip install" in said.err and not said.out
