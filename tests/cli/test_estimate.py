"""``inferplan estimate``: the contract for programs, and arithmetic that anyone can do by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

README = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "8", "--prompt", "1024", "--output", "256"]
WEIGHTS = 8_030_261_248 * 2
KV_PER_TOKEN = 131_072

CONTRACT: dict[str, Any] = {
    "schema_version": int,
    "memory": {
        "weights_bytes": float,
        "kv_bytes_per_token": float,
        "state_bytes_per_sequence": float,
        "kv_bytes": float,
        "activation_bytes": float,
        "reserve_bytes": float,
        "total_bytes": float,
        "usable_bytes": float,
        "fits": bool,
    },
    "prefill": {"flop": float, "bytes": float, "intensity_flop_per_byte": float, "time_s": float, "bound": str},
    "decode": {"flop": float, "bytes": float, "intensity_flop_per_byte": float, "time_s": float, "bound": str},
    "ridge_flop_per_byte": float,
    "ttft_s": float,
    "tpot_s": float,
    "e2el_s": float,
    "output_tokens_per_s": float,
    "max_batch": int,
    "max_context_tokens": int,
    "basis": str,
}


def missing(contract: dict[str, Any], record: dict[str, Any], path: str = "") -> list[str]:
    """Keys of the contract that are absent or of another type; a number may be an int or a float."""
    wrong = []
    for key, kind in contract.items():
        if key not in record:
            wrong.append(f"{path}{key} is missing")
        elif isinstance(kind, dict):
            wrong += missing(kind, record[key], f"{path}{key}.")
        elif not isinstance(record[key], (int, float) if kind is float else kind):
            wrong.append(f"{path}{key} is {record[key]!r}")
    return wrong


@pytest.fixture
def record(run: Run) -> dict[str, Any]:
    return run(*README, "--ideal", "--format", "json").json  # type: ignore[no-any-return]


def test_contract(record: dict[str, Any]) -> None:
    assert missing(CONTRACT, record) == []
    assert record["schema_version"] == 1


def test_numbers_by_hand(record: dict[str, Any]) -> None:
    """Llama-3.1-8B in bf16: 8,030,261,248 parameters, 32 x 8 x 128 x 2 x 2 bytes of KV; H100 989.4e12, 3.35e12."""
    memory = record["memory"]
    assert memory["weights_bytes"] == WEIGHTS
    assert memory["kv_bytes_per_token"] == KV_PER_TOKEN
    assert memory["kv_bytes"] == 8 * 1280 * KV_PER_TOKEN
    assert memory["usable_bytes"] == 85_020_639_232
    parts = ("weights_bytes", "kv_bytes", "activation_bytes", "reserve_bytes")
    assert memory["total_bytes"] == pytest.approx(sum(memory[part] for part in parts), rel=1e-12)
    assert record["ridge_flop_per_byte"] == pytest.approx(989.4e12 / 3.35e12)
    matrices = 8_030_261_248 - 2 * 128256 * 4096 - 65 * 4096
    pairs = 1024 * 1025 / 2
    flop = 8 * (2 * matrices * 1024 + 2 * 128256 * 4096 + 32 * 4 * pairs * 32 * 128)
    assert record["prefill"]["flop"] == pytest.approx(flop, rel=1e-12)
    keys = 1024 + 127 + 1  # the mean step of 255 has 1151 tokens behind it, and itself
    flop = 8 * (2 * matrices + 2 * 128256 * 4096 + 32 * 4 * keys * 32 * 128)
    assert record["decode"]["flop"] == pytest.approx(flop, rel=1e-12)


def test_relations(record: dict[str, Any]) -> None:
    assert record["e2el_s"] == pytest.approx(record["ttft_s"] + 255 * record["tpot_s"], rel=1e-12)
    assert record["output_tokens_per_s"] == pytest.approx(8 * 256 / record["e2el_s"], rel=1e-12)
    assert record["tpot_start_s"] <= record["tpot_s"] <= record["tpot_end_s"]
    for phase in ("prefill", "decode"):
        work = record[phase]
        assert work["intensity_flop_per_byte"] == pytest.approx(work["flop"] / work["bytes"])
        assert sum(work["operators_s"].values()) == pytest.approx(work["time_s"])
    assert record["prefill"]["bound"] == "compute"
    assert record["decode"]["bound"] == "memory"
    assert record["basis"] == "roofline"


def test_limits_are_where_it_stops_fitting(run: Run, record: dict[str, Any]) -> None:
    batch, context = record["max_batch"], record["max_context_tokens"]
    at = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--output", "256"]
    assert run(*at, "--prompt", "1024", "--batch", str(batch)).code == 0
    assert run(*at, "--prompt", "1024", "--batch", str(batch + 1)).code == 3
    assert run(*at, "--batch", "8", "--prompt", str(context - 256)).code == 0
    assert run(*at, "--batch", "8", "--prompt", str(context - 255)).code in (2, 3)


def test_one_output_token_has_no_tpot(run: Run) -> None:
    record = run(*README[:-1], "1", "--format", "json").json
    assert record["tpot_s"] is None
    assert record["e2el_s"] == record["ttft_s"]
    assert record["decode"]["time_s"] > 0


def test_replicas_multiply_throughput_only(run: Run, record: dict[str, Any]) -> None:
    three = run(*README, "--ideal", "--replicas", "3", "--format", "json").json
    assert three["output_tokens_per_s"] == pytest.approx(3 * record["output_tokens_per_s"])
    assert three["ttft_s"] == record["ttft_s"]
    assert three["devices"] == 3


def test_tensor_parallelism_divides_memory(run: Run, record: dict[str, Any]) -> None:
    four = run(*README, "--ideal", "--tp", "4", "--format", "json").json
    assert four["memory"]["kv_bytes"] == record["memory"]["kv_bytes"] / 4
    norms = 65 * 4096 * 2
    assert four["memory"]["weights_bytes"] == (WEIGHTS - norms) / 4 + norms
    assert four["prefill"]["flop"] == pytest.approx(record["prefill"]["flop"], rel=1e-12)
    assert four["prefill"]["wire_bytes"] > 0 == record["prefill"]["wire_bytes"]


@pytest.mark.parametrize(
    ("quant", "weights", "kv"),
    [
        ("bf16", 2.0, 2.0),
        ("fp32", 4.0, 4.0),
        ("fp8", 1.0, 2.0),
        ("w8a8", 1.0, 2.0),
        ("int4", (4 + 20 / 128) / 8, 2.0),
        ("w4a16kv8", (4 + 20 / 128) / 8, 1.0),
        ("w8a8kv8", 1.0, 1.0),
        ("w16a16kv8", 2.0, 1.0),
    ],
)
def test_quant_sets_widths(run: Run, quant: str, weights: float, kv: float) -> None:
    """Linear layers in the narrow format; both vocabulary tables and the norms stay in 16 bits (32 with fp32)."""
    memory = run(*README, "--quant", quant, "--format", "json").json["memory"]
    wide = max(weights, 2.0)
    tables, norms = 2 * 128256 * 4096, 65 * 4096
    linear = 8_030_261_248 - tables - norms
    assert memory["weights_bytes"] == pytest.approx(linear * weights + (tables + norms) * wide, rel=1e-12)
    assert memory["kv_bytes_per_token"] == 32 * 8 * 128 * 2 * kv


def test_without_a_cache_each_token_pays_for_its_prefix(run: Run, record: dict[str, Any]) -> None:
    bare = run(*README, "--ideal", "--no-kv-cache", "--format", "json").json
    assert bare["memory"]["kv_bytes"] == 0
    assert bare["ttft_s"] == record["ttft_s"]
    assert bare["tpot_s"] > 10 * record["tpot_s"]
    assert bare["tpot_start_s"] > bare["ttft_s"]


@pytest.mark.parametrize("style", ["json", "jsonl", "csv", "markdown", "table"])
def test_every_format_parses(run: Run, tmp_path: Path, style: str) -> None:
    """On stdout and, the same, in a file named by its suffix."""
    ran = run(*README, "--format", style)
    assert ran.code == 0
    assert ran.err == ""
    if style in ("json", "jsonl"):
        assert json.loads(ran.out)["schema_version"] == 1
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(ran.out)))
        assert float(rows[0]["memory.weights_bytes"]) == WEIGHTS
    elif style == "markdown":
        assert "| --- |" in ran.out
    suffix = {"markdown": "md", "table": "txt"}.get(style, style)
    path = tmp_path / f"report.{suffix}"
    written = run(*README, "-o", str(path))
    assert written.code == 0
    assert written.out == ""
    assert path.read_text(encoding="utf-8") == ran.out


def test_every_table_says_what_it_rests_on(run: Run) -> None:
    ran = run(*README, "--ideal")
    assert "basis: roofline" in ran.out
    assert "error:" in ran.out


@pytest.mark.parametrize("name", ["LLAMA-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B-Instruct"])
@pytest.mark.parametrize("suffix", ["", "-chat", "-base"])
def test_names_of_a_model(run: Run, name: str, suffix: str) -> None:
    record = run("estimate", name + suffix, "--gpu", "H100", "--format", "json").json
    assert (record["model"], record["gpu"]) == ("llama-3.1-8b", "h100-sxm")


def test_no_color(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No escape sequence on a pipe, nor on a terminal with NO_COLOR."""
    assert "\x1b" not in run(*README).out
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b" not in run(*README).out


def test_path_instead_of_a_name(run: Run, tmp_path: Path) -> None:
    """A YAML anywhere: the catalogue's own file, copied."""
    root = Path(__file__).parents[2] / "configs"
    for kind, name in (("models", "llama-3.1-8b"), ("hardware", "h100-sxm")):
        (tmp_path / f"{name}.yaml").write_text((root / kind / f"{name}.yaml").read_text(encoding="utf-8"))
    ours = run(
        "estimate",
        str(tmp_path / "llama-3.1-8b.yaml"),
        "--gpu",
        str(tmp_path / "h100-sxm.yaml"),
        "--ideal",
        "--format",
        "json",
    )
    theirs = run("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--format", "json")
    assert ours.json == theirs.json
