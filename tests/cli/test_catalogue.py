"""``models``, ``gpus``, ``show`` and ``fit``."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import for_each
from tests.cli.conftest import Run

CONFIGS = Path(__file__).parents[2] / "configs"


@for_each(("command", "kind"), [("models", "models"), ("gpus", "hardware")])
def test_lists_are_the_files(run: Run, command: str, kind: str) -> None:
    record = run(command, "--format", "json").json
    assert [entry["name"] for entry in record[command]] == sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))
    assert all(entry["source"] for entry in record[command])


@for_each("command", ["models", "gpus"])
def test_lists_as_rows(run: Run, command: str) -> None:
    count = len(run(command, "--format", "json").json[command])
    assert len(list(csv.DictReader(io.StringIO(run(command, "--format", "csv").out)))) == count
    assert len(run(command, "--format", "jsonl").out.splitlines()) == count


def test_show_contract(run: Run) -> None:
    """Llama-3.1-8B's counts, from its safetensors index and by hand."""
    record = run("show", "llama-3.1-8b", "--format", "json").json
    assert record["parameters"] == {
        "total": 8_030_261_248,
        "embedding": 128256 * 4096,
        "lm_head": 128256 * 4096,
        "active": 8_030_261_248,
    }
    assert record["kv_elements_per_token"] == 65_536
    assert record["kv_elements_per_token_beyond_windows"] == 65_536
    assert record["state_elements_per_sequence"] == 0
    assert record["layers"] == 32


def test_show_of_windows(run: Run) -> None:
    """Mistral 7B v0.1: every layer has a window, so beyond it a token adds nothing."""
    record = run("show", "mistral-7b-v0.1", "--format", "json").json
    assert record["parameters"]["total"] == 7_241_732_096
    assert (record["kv_elements_per_token"], record["kv_elements_per_token_beyond_windows"]) == (65_536, 0)


def test_show_of_experts(run: Run) -> None:
    """Mixtral 8x7B: 46.7e9 parameters, 12.9e9 active."""
    parameters = run("show", "mixtral-8x7b-v0.1", "--format", "json").json["parameters"]
    assert parameters["total"] == 46_702_792_704
    assert parameters["active"] == 12_879_925_248


def test_show_of_a_device(run: Run) -> None:
    record = run("show", "h100", "--format", "json").json
    assert record["name"] == "h100-sxm"
    assert record["confidence"] == "high"
    assert record["peak_flop_per_s"]["bf16"] == 989.4e12
    assert run("show", "h100").out.splitlines()[0].startswith("h100-sxm")


def test_fit_of_one_device(run: Run) -> None:
    """The two lines that vLLM would log, and parts that add up to the device."""
    record = run("fit", "llama-3.1-8b", "--gpu", "h100", "--format", "json").json
    parts = record["weights_bytes"] + record["activation_bytes"] + record["reserve_bytes"] + record["kv_pool_bytes"]
    assert parts == pytest.approx(record["usable_bytes"], rel=1e-12)
    assert record["log"]["kv_cache_tokens"] == int(record["log"]["concurrency"] * record["log"]["max_model_len"])
    text = run("fit", "llama-3.1-8b", "--gpu", "h100").out
    assert f"GPU KV cache size: {record['log']['kv_cache_tokens']:,} tokens" in text
    assert "Maximum concurrency for " in text


def test_fit_logs_the_context_that_was_asked_for(run: Run) -> None:
    """vLLM divides 1,310 blocks of 16 tokens by the 1,000 of 16,000 tokens."""
    record = run("fit", "qwen3-8b", "--gpu", "l4", "--context", "16k", "--format", "json").json
    assert record["log"]["kv_cache_tokens"] == 1310 * 16
    assert record["log"]["concurrency_at_context"] == 1.31
    assert "; with --max-model-len 16000: 1.31x" in run("fit", "qwen3-8b", "--gpu", "l4", "--context", "16k").out


def test_fit_without_a_device_names_all_that_hold_it(run: Run) -> None:
    record = run("fit", "llama-3.1-8b", "--format", "json").json
    assert {option["gpu"] for option in record["options"]} == {
        path.stem for path in (CONFIGS / "hardware").glob("*.yaml")
    }
    for option in record["options"]:
        assert option["fits"] or option["reason"]


def test_fewest_devices_are_fewest(run: Run) -> None:
    """Llama-3.1-70B: 141 GB in bf16 need two H200 (150 GB each), 72.6 GB in fp8 need one."""
    record = run("fit", "llama-3.1-70b", "--format", "json").json
    devices = {(o["gpu"], o["quant"]): o["devices"] for o in record["options"] if o["fits"]}
    assert devices["h200-sxm", "native"] == 2
    assert devices["h200-sxm", "fp8"] == 1


def test_fit_tries_what_each_device_and_its_usual_engine_run(run: Run) -> None:
    """docs/planning.md, "Number formats": Ampere computes in int8 and neither in fp8 nor in 4 bits, Blackwell in both
    of these, CDNA 4 in mxfp4; a Mac runs llama.cpp, which reads GGUF files: what `plan` and `fit --have` try there.
    """
    tried = dict[str, list[str]]()
    for option in run("fit", "qwen3-32b", "--format", "json").json["options"]:
        tried.setdefault(option["gpu"], []).append(option["quant"])
    for gpu, formats in {
        "a100-80gb-sxm": {"native", "int8", "w4a16"},
        "b200-hgx": {"native", "fp8", "nvfp4"},
        "mi355x": {"native", "fp8", "mxfp4"},
        "m4-max": {"native", "q8_0", "q4_k_m"},
    }.items():
        assert sorted(tried[gpu]) == sorted(formats)
        owned = run("fit", "qwen3-32b", "--have", f"1x-{gpu}", "--format", "json").json["options"]
        assert {option["quant"] for option in owned} == formats
    named = run("fit", "qwen3-32b", "--engine", "sglang", "--format", "json").json["options"]
    assert {option["quant"] for option in named if option["gpu"] == "m4-max"} == {"native"}


def test_fit_says_that_a_mac_is_sold_with_less_memory(run: Run) -> None:
    """An M3 Max has 36 to 128 GB: the answer for the largest must not be taken for one's own."""
    assert (
        "sold in several sizes: give the size on the box with --memory" in run("fit", "qwen3-8b", "--gpu", "M3 Max").out
    )
    assert "several sizes" not in run("fit", "qwen3-8b", "--gpu", "M3 Max", "--memory", "36GB").out
    assert "several sizes" not in run("fit", "qwen3-8b", "--gpu", "rtx-4090").out


def test_fit_says_the_cheapest_first(run: Run) -> None:
    """The first choices are those that the list of all options gives, of what a provider sells, and the list goes from
    cheap to dear."""
    record = run("fit", "llama-3.1-70b", "--format", "json").json
    fitting = [option for option in record["options"] if option["fits"]]
    priced = [option for option in fitting if option["cost"]]
    prices = [option["cost"]["per_hour"] for option in priced]
    assert prices == sorted(prices) and fitting[: len(priced)] == priced

    def value(option: dict[str, Any]) -> float:
        copies = option["cost"]["devices_bought"] // option["devices"]
        return copies * option["max_requests"] / option["cost"]["per_hour"]

    for quant in ("native", "fp8", "w4a16"):
        of = [option for option in priced if option["quant"] == quant and option["cost"]["price_kind"] == "provider"]
        first = {why: next(o for o in of if o["gpu"] == e["gpu"]) for why, e in record["first"].items() if quant in why}
        assert first[f"cheapest, {quant}"]["cost"]["per_hour"] == min(option["cost"]["per_hour"] for option in of)
        assert value(first[f"most requests for the money, {quant}"]) == max(map(value, of))


def test_fit_in_a_memory_names_what_has_no_more(run: Run) -> None:
    """In 48 GB one card of 48 or 40, two of 24, four of 12: by labels, which the record does not state. 35 GB of int4
    weights and their scales, 39.8 GB, leave room on a card of 48 GB and on no two of 24, as --gpu and --tp say."""
    label = {
        path.stem: yaml.safe_load(path.read_text("utf-8"))["memory"]["label"]
        for path in (CONFIGS / "hardware").glob("*.yaml")
    }
    for model, words in (("llama-3.1-70b", ("--quant", "int4")), ("qwen3-14b", ())):
        found = run("fit", model, *words, "--memory", "48GB", "--format", "json").json
        assert found["memory_together_bytes"] == 48e9
        held = {option["gpu"]: option["devices"] for option in found["options"] if option["fits"]}
        sizes = {gpu: int(re.sub(r"\D*(\d+) Gi?B.*", r"\1", label[gpu])) for gpu in held}
        assert held and not [gpu for gpu, count in held.items() if count * sizes[gpu] > 48]
        assert {"rtx-a6000"} <= set(held) and "h100-sxm" not in held
        assert ("rtx-3090" in held) is (model == "qwen3-14b")
    said = run("fit", "llama-3.1-70b", "--quant", "int4", "--memory", "48GB").out
    assert "on GPUs with at most 48GB together, for" in said.splitlines()[0]
    assert "does not hold" in run("fit", "llama-3.1-70b", "--gpu", "3090", "--tp", "2", "--quant", "int4").err
    for more, code, text in ((("--memory", "1GB"), 3, "a larger --memory"), (("--memory", "48"), 2, "no unit")):
        refused = run("fit", "llama-3.1-70b", *more)
        assert refused.code == code and text in refused.err


def test_fit_has_a_line_for_each_device(run: Run) -> None:
    """Llama-3.1-70B in bf16 needs two H200, in fp8 and int4 one; the last column is what is bought."""
    lines = run("fit", "llama-3.1-70b").out.splitlines()
    (line,) = (line for line in lines if line.startswith("h200-sxm"))
    cells = re.split(r"  +", line)
    assert [cell.split(",")[0] for cell in cells[1:4]] == ["2 GPUs", "1 GPU", "1 GPU"]
    assert sum(line.startswith("mi300x ") for line in lines) == 1


def test_help_of_every_command_has_an_example(run: Run) -> None:
    from inferplan.cli import COMMANDS

    for command in ("estimate", "fit"):
        ran = run(command, "--help")
        assert ran.code == 0
        assert f"Example: inferplan {command}" in " ".join(ran.out.split())
    for command in COMMANDS:
        assert run(command, "--help").code == 0
    assert run("--version").out.startswith("inferplan, version")


def test_show_says_how_many_devices_a_node_holds(run: Run) -> None:
    """HGX boards hold 8; of cards in PCIe slots the site decides."""
    for name, devices, said in (("h100-sxm", 8, "8"), ("l40s", None, "not on file")):
        assert run("show", name, "--format", "json").json["devices_per_node"] == devices
        (line,) = (line for line in run("show", name).out.splitlines() if "devices per node" in line)
        assert said in line


def found(run: Run, *conditions: str) -> set[str]:
    words = [word for condition in conditions for word in ("--filter", condition)]
    return {entry["name"] for entry in run("models", *words, "--format", "json").json["models"]}


def test_models_are_filtered(run: Run) -> None:
    """Published sizes: gpt-oss-20b has 3.6 billion active parameters without its tables, gpt-oss-120b 5.1."""
    small, large = {"gpt-oss-20b", "gpt-oss-safeguard-20b"}, {"gpt-oss-120b", "gpt-oss-safeguard-120b"}
    assert found(run, "gpt-oss") == small | large
    assert found(run, "gpt-oss", "active<5B") == small
    assert found(run, "gpt-oss", "parameters>=100B", "licence=Apache-2.0") == large
    assert found(run, "family=llama", "context>=128k", "parameters <= 8.1B", "licence=llama3.1") == {
        "hermes-3-llama-3.1-8b",
        "llama-3.1-8b",
        "llama-guard-3-8b",
    }
    assert found(run, "kind=experts", "deepseek", "context=163840", "licence=deepseek") == {
        "deepseek-coder-v2-lite",
        "deepseek-v2-lite",
        "deepseek-v2",
        "deepseek-v3",
    }
    assert found(run, "qwen3-4b-thinking-2507") == {"qwen3-4b-instruct-2507"}
    assert found(run, "bge", "kind=encode") == found(run, "bge") != set()
    assert found(run, "whisper", "kind=encoder-decoder", "kind=dense") == found(run, "whisper") != set()


def test_what_shows_an_encoder_and_mixers_side_by_side(run: Run) -> None:
    """BERT generates nothing (1810.04805); a layer of Falcon-H1 has attention and Mamba-2 on one input (2507.22448)."""
    assert "generates" in run("show", "bert-base-uncased").out and "generates" not in run("show", "gpt2").out
    shown = run("show", "falcon-h1-7b").out
    assert "parallel attention heads" in shown and " and mamba2 heads" in shown and "{" not in shown


def test_a_config_is_named_by_its_folder(tmp_path: Path, run: Run) -> None:
    config = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128}
    config |= {"max_position_embeddings": 512, "tie_word_embeddings": False}
    (tmp_path / "Day-Zero").mkdir()
    for file, name in (("config.json", "day-zero"), ("other.json", "other")):
        (tmp_path / "Day-Zero" / file).write_text(json.dumps(config))
        assert f"name: {name}\n" in run("import", str(tmp_path / "Day-Zero" / file)).out
    assert "name: day-zero\n" in run("import", str(tmp_path / "Day-Zero")).out


def test_gpus_are_filtered(run: Run) -> None:
    """By what datasheets say: of AMD's, the MI300X and later have more than 5 TB/s, and fp8."""

    def names(*conditions: str) -> set[str]:
        words = [word for condition in conditions for word in ("--filter", condition)]
        return {entry["name"] for entry in run("gpus", *words, "--format", "json").json["gpus"]}

    assert names("vendor=amd", "bandwidth>5TB/s", "format=fp8") == {"mi300x", "mi325x", "mi350x", "mi355x"}
    assert names("rtx", "memory>=32GB", "segment=consumer") == {"rtx-5090"}
    assert names("h200", "memory=141 GB", "year<2030", "vendor=nvidia") >= {"h200-sxm"}
    for condition, said in (("memory>=x", "not a quantity"), ("colour=red", "colour"), ("segment=toy", "consumer")):
        result = run("gpus", "--filter", condition)
        assert result.code in (2, 4) and said in result.err


@for_each(
    ("condition", "said"),
    [
        ("licens=mit", "licens"),
        ("context>=x", "the number"),
        ("family<x", "family=x"),
        ("zzz", "none of"),
        (" ", "empty"),
    ],
)
def test_a_filter_that_is_none(run: Run, condition: str, said: str) -> None:
    result = run("models", "--filter", condition)
    assert result.code in (2, 4) and said in result.err


def test_a_model_with_the_layers_of_another(run: Run) -> None:
    """Qwen2.5-1.5B with a head of its own: 1,543,714,304 parameters and 151,936 x 1,536 more (hub: 1.78B)."""
    record = run("show", "DeepSeek-R1-Distill-Qwen-1.5B", "--format", "json").json
    assert record["parameters"]["total"] == 1_543_714_304 + 151_936 * 1_536
    assert record["max_context_tokens"] == 131_072
    told = run("explain", "memory.weights", "deepseek-r1-distill-qwen-1.5b", "--gpu", "h100-sxm").out
    assert "configs/models/qwen2.5-1.5b.yaml:" in told


def test_fit_of_one_device_says_how_fast(run: Run) -> None:
    """A step of one request reads 16.06 GB of weights (without the embedding table, 15.01 GB) and 8,192 tokens of
    131,072 B at 3.35 TB/s at most: 4.8 ms and more; vLLM was measured at 7.5 ms (pull request 16937)."""
    record = run("fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--format", "json").json
    assert (15.01e9 + 8192 * 131072) / 3.35e12 < record["tpot_s"] < 8e-3
    assert f"{record['tpot_s'] * 1e3:.3f} ms" in run("fit", "llama-3.1-8b", "--gpu", "h100-sxm").out
    assert run("fit", "bge-m3", "--gpu", "l40s", "--format", "json").json["tpot_s"] is None
