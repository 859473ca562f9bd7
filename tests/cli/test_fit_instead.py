"""Which engine `fit --have` takes for a format, and what it says where a model does not fit."""

from __future__ import annotations

import re

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run


def _lines(hint: str) -> dict[str, str]:
    """The commands of a hint, by what they are for."""
    return dict(re.findall(r"^  (.+?): (inferplan .+)$", hint, re.M))


@for_each(
    ("question", "requests", "context", "kept"),
    [
        ("llama-3.1-70b --have 4090", 1, 8192, ""),
        ("llama-3.1-70b --have 1x4090 --in-flight 2 --context 4096", 2, 4096, ""),
        ("llama-3.1-70b --have 2x-l40s --quant native", 1, 8192, ""),
        ("llama-3.1-70b --have 1x-h100-sxm --quality 0.99", 1, 8192, "--quality 0.99"),
        ("llama-3.1-70b --have 4090 --quality 0.9", 1, 8192, "--quality 0.9"),
        ("llama-3.1-70b --have 2x-rtx-4090 --tp 2 --lora-rank 16", 1, 8192, "--tp 2 --lora-rank 16"),
        ("gpt-oss-120b --have 4090", 1, 8192, ""),
        # 400 people, of whom 8 s / (8 s + 30 s) wait at a time: 84.2
        ("llama-3.1-70b --have 2x24GB --engine vllm --people 400 --answer-time 8s --think-time 30s", 85, 8192, ""),
    ],
)
def test_every_command_of_the_hint_holds_the_load(
    run: Run, question: str, requests: int, context: int, kept: str
) -> None:
    said = run("fit", *question.split())
    lines = _lines(said.err)
    assert said.code == 3 and len(lines) >= 2 and "GPUs that hold it" in lines
    for what, line in lines.items():
        if what == "every model that runs there" and requests != 2:
            continue  # once is enough: it takes seconds
        found = run(*line.split()[1:], "--format", "json")
        assert found.code == 0, (line, found.err)
        fits = [one for one in found.json.get("options", found.json.get("models", [found.json])) if one["fits"]]
        users, tokens = found.json["load"]["requests_at_once"], found.json.get("context_tokens", context)
        assert what.startswith("fewer requests") or users == requests, line
        assert what.startswith("shorter requests") or tokens == context, line
        assert min(one["max_requests"] for one in fits) >= users and (kept in line or "(quality: " in what), line


def test_no_format_under_the_quality_is_told_for_the_host(run: Run) -> None:
    """Nobody published a score of Llama 3.1 70B as a GGUF file: configs/quality.yaml."""
    plain, asked = (run("fit", "llama-3.1-70b", "--have", "4090", *more).err for more in ((), ("--quality", "0.99")))
    assert "per token), in q4_k_m (quality: none published): " in plain
    assert "on the host" not in asked and "q4_k_m: " not in asked


def test_one_card_is_told_layers_on_the_host_and_a_smaller_model(run: Run) -> None:
    """Llama 3.1 has 8B below 70B. Of the 80 layers as many are on the card as fit: one more does not."""
    lines = _lines(run("fit", "llama-3.1-70b", "--have", "4090").err)
    assert "inferplan fit llama-3.1-8b --have 4090" in lines.values()
    assert "inferplan fit --have 4090" in lines.values()
    (what, placed) = next((what, line) for what, line in lines.items() if "--gpu-layers" in line)
    count = int(re.findall(r"--gpu-layers (\d+)", placed)[0])
    assert what.startswith(f"{81 - count} of 80 layers on the host (name yours; ")
    more = run(*placed.replace(f"--gpu-layers {count}", f"--gpu-layers {count + 1}").split()[1:])
    assert more.code == 3
    ms = float(re.findall(r"; (\d+) ms per token", what)[0])
    host, card = 89.6e9, 1008e9  # DDR5-5600 on two channels (Intel ARK, i9-14900K); GeForce RTX 4090
    least = 42.5e9 * ((81 - count) / 80 / host + (count - 1) / 80 / card)  # the file has 42.5 GB on the hub
    assert least < ms / 1e3 < 1.7 * least  # DDR reaches three quarters of its rate, and a cache is read beside it


def test_a_mixture_is_told_experts_on_the_host(run: Run) -> None:
    """gpt-oss-120b has 36 layers (its config), and a sibling of 20B."""
    lines = _lines(run("fit", "gpt-oss-120b", "--have", "4090").err)
    assert any("--cpu-moe-layers 36 " in line for line in lines.values())
    assert "inferplan fit gpt-oss-20b --have 4090" in lines.values()


def test_other_formats_are_told_with_their_quality(run: Run) -> None:
    """Of Arena-Hard, OpenLLM v1 and v2 and HumanEval 57.9, 84.2, 41.7 and 80.0 in fp8 for 57.0, 84.4, 41.7 and 79.7
    (the card of RedHatAI); two cards of 48 GB hold it: 70.6 GB."""
    lines = _lines(run("fit", "llama-3.1-70b", "--have", "2x-l40s", "--quant", "native").err)
    assert lines["in fp8 (quality: 99.8% of OpenLLM v1, mean of 4 100.4%)"].endswith("--have 2x-l40s --quant fp8")


@for_each(("have", "batch"), [("1x-rtx-4090", 1), ("4x-rtx-3090", 1), ("4x-rtx-3090", 16), ("1x-rtx-3060", 4)])
def test_the_engine_of_a_format_is_the_faster_one(run: Run, have: str, batch: int) -> None:
    """By `estimate` of each engine; formats that one alone reads are that one's."""
    asked = ("fit", "llama-3.2-3b", "--have", have, "--in-flight", str(batch), "--context", "4096")
    said = {one["quant"]: one for one in run(*asked, "--format", "json").json["options"]}
    assert {said[name]["engine"] for name in ("q8_0", "q4_k_m")} == {"llama.cpp"}
    assert {said[name]["engine"] for name in ("int8", "w4a16")} == {"vllm"}
    load = ("--batch", str(batch), "--prompt", "4094", "--output", "2", "--format", "json")
    times = {
        engine: run("estimate", "llama-3.2-3b", "--gpu", have, "--engine", engine, *load).json["tpot_s"]
        for engine in ("vllm", "llama.cpp")
    }
    assert said["native"]["engine"] == min(times, key=lambda name: times[name])
    assert said["native"]["tpot_s"] == pytest.approx(min(times.values()))
    shown = run(*asked).out
    assert "the one with the lower predicted TPOT for that load" in shown
    assert any({"engine", "TPOT"} <= set(line.split()) for line in shown.splitlines())


def test_a_named_engine_is_the_only_one(run: Run) -> None:
    for engine in ("vllm", "llama.cpp"):
        options = run("fit", "llama-3.2-3b", "--have", "1x-rtx-4090", "--engine", engine, "--format", "json").json
        assert {one["engine"] for one in options["options"] if one["fits"]} == {engine}
    file = run("fit", "llama-3.2-3b", "--have", "1x-rtx-4090", "--quant", "q4", "--format", "json").json["options"]
    assert [(one["quant"], one["engine"]) for one in file] == [("w4a16", "vllm")]
    gguf = run("fit", "llama-3.2-3b", "--have", "1x-rtx-4090", "--quant", "q5_k_m", "--format", "json").json["options"]
    assert [(one["quant"], one["engine"]) for one in gguf] == [("q5_k_m", "llama.cpp")]
    native = run("fit", "llama-3.2-3b", "--have", "1x-rtx-4090", "--quant", "native", "--format", "json").json
    assert [one["quant"] for one in native["options"]] == ["native"]
    served = run("fit", "llama-3.2-3b", "--have", "1x-l40s", "--format", "json").json["options"]
    assert {one["engine"] for one in served} == {"vllm"}


def test_a_time_says_over_which_link(run: Run) -> None:
    """NVIDIA sells the NVLink bridge of an RTX A6000 apart."""
    assert "bridge" in run("fit", "llama-3.2-3b", "--have", "2x-a6000").out
    assert "bridge" not in run("fit", "llama-3.2-3b", "--have", "1x-a6000").out


def test_a_cache_of_8_bits_is_named_where_it_helps(run: Run) -> None:
    """A block of q8_0 has 34 bytes for 32 elements: 8.5 bits where fp16 has 16, so 1.88 times the tokens."""
    asked = ["fit", "llama-3.3-70b", "--have", "2x-rtx-3090", "--context", "16k"]
    refused = run(*asked)
    wide = re.search(r"holds one request of up to ([\d,]+) tokens", refused.err)
    assert refused.code == 3 and wide is not None
    named = [line for what, line in _lines(refused.err).items() if what.startswith("with an 8-bit KV cache, in q4_k_m")]
    (line,) = named
    (option,) = (one for one in run(*line.split()[1:], "--format", "json").json["options"] if one["fits"])
    assert option["max_context_tokens"] == pytest.approx(int(wide[1].replace(",", "")) * 16 / 8.5, rel=0.001)
    of_int4 = _lines(run(*asked, "--quant", "int4").err)
    assert any("--kv q8_0" in line and "--engine llama.cpp --quant q4_k_m" in line for line in of_int4.values())


def test_the_largest_file_that_holds_it_is_named(run: Run) -> None:
    """Files of Llama-3.3-70B-Instruct (bartowski's repository): Q3_K_S 30.9, Q3_K_M 34.3, Q3_K_L 37.1 GB. With 10.5 GB
    of cache in 16 bits two cards of 25.8 GB, 1.9 GB of each set aside, hold the second and not the third."""
    lines = _lines(run("fit", "llama-3.3-70b", "--have", "2x-rtx-3090", "--context", "32k").err)
    assert "in q3_k_m (quality: none published; so few bits may make answers worse)" in lines


def test_a_gguf_file_is_for_an_engine_that_reads_it(run: Run) -> None:
    """vLLM 0.33 reads no GGUF file (quantization/__init__.py): one 4090 holds Gemma 3 27B in q4_k_m (16.5 GB on the
    hub) under llama.cpp."""
    said = run("fit", "gemma-3-27b", "--gpu", "rtx-4090", "--quant", "q4_k_m").out
    assert "on 1 x rtx-4090" in said.splitlines()[0] and "llama.cpp" in said.splitlines()[0]
