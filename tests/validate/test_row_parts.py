"""Rows that state adapters, weights on the host, sampling or a cap are priced with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferplan.catalog.assemble import Request, assemble
from inferplan.cli import cli
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Unusable, interpret, run_record
from inferplan.work.adapters import LoraAsked
from tests.cases import for_each

H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16", "tp": "1"}
LOAD = {"isl": "512", "osl": "128", "batch": "64"}
AWAY = {"cpu_moe_layers": "61", "host": "epyc-9355", "host_memory": "700GB"}
IK = {"model": "deepseek-v3", "gpu": "rtx-4090", "engine": "ik_llama.cpp", "weights": "q4_k_m", "tp": "1", **AWAY}


def priced(**facts: str) -> Estimate:
    run, _ = interpret(facts)
    return Estimate(deployment=deployment_of(run)[0], load=StaticLoad(batch=64.0, prompt=512.0, output=128.0))


@for_each(
    ("column", "value", "asked"),
    [
        ("sampling", "top-k,top-p", {"sampling": "top-k,top-p"}),
        ("power_cap_w", "350", {"power_cap": 350.0}),
        ("lora_rank", "16", {"lora": LoraAsked(rank=16)}),
    ],
)
def test_a_column_is_the_option_of_the_estimate(column: str, value: str, asked: dict[str, object]) -> None:
    """What the option adds to the estimate, the column adds to the row's."""
    requests = [Request(model="llama-3.1-8b", gpu="h100-sxm", **more) for more in ({}, asked)]  # type: ignore[arg-type]
    load = StaticLoad(batch=64.0, prompt=512.0, output=128.0)
    without, with_it = (float(Estimate(deployment=assemble(one), load=load).tpot) for one in requests)
    plain, stated = (float(priced(**H100, **LOAD, **more).tpot) for more in ({}, {column: value}))
    assert stated / plain == pytest.approx(with_it / without, rel=1e-6)
    assert stated > plain or column == "power_cap_w"


def test_a_published_row_with_experts_on_the_host() -> None:
    """ik_llama.cpp discussion 258: 512 tokens of DeepSeek-V3 in 3.82 s, then 15.01 tokens/s, EPYC 9355 and RTX 4090."""
    run, _ = interpret({**IK, "isl": "512", "osl": "128", "batch": "1"})
    found = Estimate(deployment=deployment_of(run)[0], load=StaticLoad(batch=1.0, prompt=512.0, output=128.0))
    assert float(found.ttft) == pytest.approx(512 / 134.15, rel=0.12)
    assert float(found.tpot) == pytest.approx(1 / 15.01, rel=0.2)
    assert run_record(run)["parts"] == {"cpu_moe_layers": 61, "host": "epyc-9355", "host_memory": "700GB"}


def test_validate_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    rows = [{**IK, "isl": "512", "osl": "128", "batch": "1", "ttft_ms": "3816", "tpot_ms": "66.6"}]
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = CliRunner().invoke(cli, ["validate", str(file), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["answered"] == 1


@for_each(
    ("facts", "said"),
    [
        ({"max_loras": "4"}, "no adapters were asked for"),
        ({"active_loras": "9", "lora_rank": "8"}, "9 adapters"),
        ({"power_cap_w": "much"}, "power_cap_w is 'much'"),
        ({"lora_rank": "1.5"}, "lora_rank is 1.5"),
    ],
)
def test_what_cannot_be_read(facts: dict[str, str], said: str) -> None:
    with pytest.raises(Unusable, match=said):
        interpret({**H100, **LOAD, **facts})
