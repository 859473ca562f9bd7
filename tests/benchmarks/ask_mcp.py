"""The five questions asked by an assistant, and two hundred calls that nobody means.

``python -m tests.benchmarks.ask_mcp`` starts ``inferplan mcp``, asks by the client of the protocol's SDK, and prints
the seconds to each answer; docs/mcp.md quotes them. It exits 1 where a question has an error, or a malformed call none.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp.shared.exceptions import MCPError

from tests.assistant import Assistant, assistant
from tests.hostile_calls import UNKNOWN, hostile_calls

ROWS = "model,gpu,engine,precision,isl,osl,concurrency,tp,tpot_ms\nllama-3.1-8b,h100-sxm,vllm,bf16,1024,256,8,1,7.5\n"
FIVE: dict[str, dict[str, Any]] = {
    "run": {"model": "llama-3.1-70b", "have": "2x-a6000"},
    "people": {"model": "llama-3.1-8b", "have": "l40s", "people": 40, "workload": "chat"},
    "buy": {"model": "llama-3.1-8b", "people": 100, "workload": "chat"},
    "format": {"model": "llama-3.1-8b", "have": "2x-a6000"},
    "slow": {"model": "llama-3.1-8b", "have": "h100-sxm", "server": "bench.csv"},
}


def ask_five(asked: Assistant) -> int:
    """Ask, print a line each; how many had an error."""
    failed = 0
    for name, facts in FIVE.items():
        began = time.perf_counter()
        result = asked.call("ask", {"question": name, **facts})
        took, lines = time.perf_counter() - began, result.content[0].text.splitlines()
        first = next(line for line in lines if line.strip())
        print(f"{name:<8} {took:6.1f} s  {sum(len(one.text) for one in result.content):6,} characters  {first:.90}")
        failed += result.is_error
    return failed


def ask_badly(asked: Assistant) -> int:
    """Ask what nobody means; how many were not answered with an error."""
    began, calls, passed, codes = time.perf_counter(), hostile_calls(), 0, {}
    for name, arguments in calls:
        result = asked.call(name, arguments)
        passed += not result.is_error
        code = json.loads(result.content[-1].text)["error"]["exit_code"] if result.is_error else 0
        codes[code] = codes.get(code, 0) + 1
    for name in UNKNOWN:
        try:
            asked.call(name, {})
            passed += 1
        except MCPError as error:
            codes[error.code] = codes.get(error.code, 0) + 1
    took = time.perf_counter() - began
    said = ", ".join(f"{count} of code {code}" for code, count in sorted(codes.items()))
    print(f"{len(calls) + len(UNKNOWN)} malformed calls in {took:.1f} s: {said}; {passed} without an error")
    alive = asked.call("estimate", {"model": "llama-3.1-8b", "gpu": "h100-sxm"})
    print(f"afterwards: {alive.content[0].text.splitlines()[0]}")
    return passed + alive.is_error


def main() -> int:
    """The exit code."""
    with TemporaryDirectory() as folder:
        Path(folder, "bench.csv").write_text(ROWS, encoding="utf-8")
        began = time.perf_counter()
        with assistant("--folder", folder, "--seconds", "600") as asked:
            tools = asked.tools()
            size = sum(len(tool.model_dump_json()) for tool in tools.values())
            print(f"{len(tools)} tools of {size:,} characters, {time.perf_counter() - began:.1f} s after the start")
            return 1 if ask_five(asked) + ask_badly(asked) else 0


if __name__ == "__main__":
    sys.exit(main())
