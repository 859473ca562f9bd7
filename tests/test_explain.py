"""Every number goes back to its formula and the line it stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferplan.answers.drafting import measured_drafting
from inferplan.answers.explain import Explainer, Explanation
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_model
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.reports.estimate import estimate_record
from inferplan.serving.techniques.applied import Techniques, served_estimate
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.conftest import fitted
from tests.printed import read

CASES = [
    ("llama-3.1-8b", "h100-sxm"),
    ("mixtral-8x7b-v0.1", "h200-sxm"),
    ("gpt-oss-20b", "h100-sxm"),
    ("gemma-3-12b", "h200-sxm"),
]


def explainer(model: str = "llama-3.1-8b", gpu: str = "h100-sxm") -> Explainer:
    return Explainer(request=Request(model=model, gpu=gpu, ideal=True), load=StaticLoad(batch=8.0))


@for_each(("model", "gpu"), CASES)
def test_every_number_is_its_printed_formula(model: str, gpu: str) -> None:
    found = explainer(model, gpu)
    for name in found.names():
        explanation = found.explain(name)
        assert explanation.page.startswith("docs/"), name
        printed = read(explanation.substituted)
        slack = 1e-6 * abs(explanation.value)
        assert printed.low - slack <= explanation.value <= printed.high + slack, name
        assert " = " in explanation.formula, name


def test_values_are_those_of_the_estimate() -> None:
    found = explainer()
    estimate = found.estimate
    assert found.explain("ttft").value == float(estimate.ttft)
    assert found.explain("memory.kv").value == 8 * 1280 * 131072
    assert found.explain("ridge").value == pytest.approx(989.4e12 / 3.35e12, rel=1e-3)
    operator = found.explain("decode.ffn.down")
    assert operator.value == pytest.approx(float(estimate.decode.by("ffn.down")), rel=1e-12)


def test_lines_hold_what_they_are_said_to_hold() -> None:
    found = explainer().explain("decode.ffn.down")
    for entry in found.inputs:
        file, _, rest = entry.origin.partition(":")
        if not file.startswith("configs/"):
            continue
        line, _, field = rest.partition(": ")
        text = (config_root() / Path(file).relative_to("configs")).read_text().splitlines()[int(line) - 1]
        assert field.rpartition(".")[2] in text, entry


@for_each("name", ["ttfd", "decode.fn.down", "memory.weight", "", "decode."])
def test_unknown_numbers_are_refused_with_close_ones(name: str) -> None:
    with pytest.raises(UnknownNameError, match="no number named"):
        explainer().explain(name)


def test_pages_exist() -> None:
    root = Path(__file__).parents[1]
    found = explainer()
    missing = {page for name in found.names() if not (root / (page := found.explain(name).page)).is_file()}
    assert not missing


def test_a_pipeline_explains_its_slowest_stage() -> None:
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True, parallel=Parallelism(pp=4))
    found = Explainer(request=request, load=StaticLoad(batch=8.0))
    for name, time in found.estimate.decode.by_operator().items():
        assert found.explain(f"decode.{name}").value == pytest.approx(float(time), rel=1e-12), name


@for_each(
    ("asked", "answered"),
    [
        ("decode.ffn.up", "decode.ffn.gate_up"),
        ("prefill.attn.k", "prefill.attn.qkv"),
        ("decode.time_s", "decode.time"),
        ("memory.kv_bytes_per_token", "memory.kv_per_token"),
        ("ttft_s", "ttft"),
    ],
)
def test_tensors_and_json_keys_are_names_too(asked: str, answered: str) -> None:
    assert explainer().explain(asked).name == answered


def asked(number: str, load: StaticLoad | None = None, **request: Any) -> Explanation:
    """The explanation of a number of Llama-3.1-8B on an H100 of 80 GB, at the roofline unless said otherwise."""
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "memory": "80GB", "ideal": True} | request
    return Explainer(request=Request(**given), load=load or StaticLoad(batch=8.0)).explain(number)


def test_cache_of_a_token() -> None:
    found = asked("memory.kv_per_token", parallel=Parallelism(tp=2))
    assert found.value == 65536
    assert found.substituted == "32 * 2048 * 0.5 * 2"
    assert found.formula == "kv_per_token = layers * elements * share of this rank * bytes per element"


WEIGHTS = 16.0605
"""GB of 8,030,261,248 parameters in bf16."""
RESERVES = {
    "vllm": (f"{139_586_437} + {1_105_954_079} + (1 - 0.92) * 80e9", 0.08 * 80e9 + 1.16 * 2**30),
    "sglang": ("max(0 + 0, 80e9 * (1 - 0.818) - 2101346304)", 0.182 * 80e9 - 4096 * 128256 * 4),
    "trtllm": ("0 + 0 + (1 - 0.9) * max(80e9 - 16060522496 - 1050673152 - (0 + 0), 0)", 0.1 * (80e9 - 17_111_195_648)),
    "llama.cpp": ("1073741824 + 0", 2**30),
    "none": ("0 + 0", 0.0),
}


@for_each("engine", RESERVES)
def test_the_reserve_of_every_rule(engine: str) -> None:
    """Numbers by hand; the printed formula, its units replaced, is the same arithmetic."""
    by_hand, value = RESERVES[engine]
    found = asked("memory.reserve", engine=engine)
    assert found.value == pytest.approx(value, rel=1e-6)
    assert eval(by_hand, {"__builtins__": {"max": max}}) == pytest.approx(value, rel=1e-6)
    printed = read(found.substituted)
    assert printed.low <= value * (1 + 1e-6)
    assert value * (1 - 1e-6) <= printed.high
    assert printed.high - printed.low <= 1e-4 * value


@for_each("dp", [1, 4])
def test_the_largest_batch_without_an_engine_pays_its_activations(dp: int) -> None:
    found = asked("max_batch", engine="none", parallel=Parallelism(dp=dp))
    assert found.substituted == f"floor(max(63.9395 GB, 0) / (167.772 MB + 104.858 MB)) * {dp}"
    assert found.value == 234 * dp  # (80 - 16.0605) GB / 272.63 MB = 234.5


def test_the_largest_batch_counts_every_attention_rank() -> None:
    one, four = (asked("max_batch", parallel=Parallelism(dp=dp)).value for dp in (1, 4))
    assert 4 * one >= four >= 4 * (one - 3)  # a communicator of 0.42 GiB, 2.7 sequences, is kept where ranks talk


def test_a_stage_without_the_head_has_no_logits_to_explain() -> None:
    """32 layers in stages of 11, 11 and 10: the first is the fullest, with 8 x 4096 tokens of 51,200 elements alive."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", engine="none", ideal=True, parallel=Parallelism(pp=3))
    found = Explainer(request=request, load=StaticLoad(batch=8.0, prompt=4096.0))
    assert found.estimate.footprint.stage.first
    activations = found.explain("memory.activations")
    assert activations.value == 8 * 4096 * 51200 * 2
    assert activations.substituted == "ceil(8 / 1) * 4096 * 51200 * 2"


def test_one_token_has_no_time_per_output_token() -> None:
    load = StaticLoad(batch=1.0, output=1.0)
    with pytest.raises(UsageError, match="no time per output token"):
        asked("tpot", load)
    found = asked("e2el", load)
    assert (found.formula, found.value) == ("e2el = ttft", asked("ttft", load).value)
    names = Explainer(request=Request(model="llama-3.1-8b", gpu="h100-sxm"), load=load).names()
    assert "tpot" not in names
    assert "e2el" in names


def test_an_overhead_is_that_of_the_file_and_its_share_stands_beside_it() -> None:
    found = asked("decode.ffn.down", ideal=False)
    stated = {entry.symbol: entry for entry in found.inputs}
    overhead, share = stated["overhead"], stated["share of overhead in a step"]
    for entry, unit in ((overhead, 1e-6), (share, 1.0)):
        file, _, rest = entry.origin.partition(":")
        line, _, _ = rest.partition(": ")
        text = (config_root() / Path(file).relative_to("configs")).read_text().splitlines()[int(line) - 1]
        assert float(entry.value.partition(" ")[0]) * unit == pytest.approx(
            float(text.partition(":")[2].rstrip(",")), rel=1e-3
        )
    one_run = next(part for part in found.parts if part.name == "one run")
    assert "overhead * share of overhead in a step" in one_run.formula


@for_each("tp", [1, 2, 8])
def test_decoding_alone_uses_nearly_all_bandwidth_at_the_roofline(tp: int) -> None:
    """A step at the roofline reads weights and cache and little else: MBU is just below 1 on any number of devices."""
    found = asked("decode.mbu", StaticLoad(batch=1.0), parallel=Parallelism(tp=tp))
    assert 0.97 < found.value <= 1.0
    printed = read(found.substituted)
    assert 0.97 < printed.low < printed.high <= 1.0001


def test_options_are_where_a_user_set_them() -> None:
    flags = EngineFlags(memory_fraction=0.5, max_sequences=64, token_budget=1024)
    origins = {entry.symbol: entry.origin for entry in asked("max_batch", flags=flags).inputs}
    assert origins["fraction"] == "--gpu-memory-utilization"
    assert origins["sequences of a step"] == "--max-num-seqs"
    assert origins["tokens of a step"] == "--max-num-batched-tokens"
    assert origins["usable"] == "--memory"
    usual = {entry.symbol: entry.origin for entry in asked("max_batch").inputs}
    assert usual["fraction"].startswith("configs/engines/vllm.yaml:")


def test_what_a_file_leaves_out_is_said_to_be_the_default() -> None:
    graphs = next(entry for entry in asked("memory.reserve", engine="none").inputs if entry.symbol == "graphs")
    assert graphs.origin == "configs/engines/none.yaml: versions.0.graphs is not stated: the default"


def test_the_first_token_at_the_server_is_its_parts() -> None:
    """Latency and front end are constants, each with its line of configs/engines/vllm.yaml."""
    found = Explainer(request=Request(model="llama-3.1-8b", gpu="h100-sxm"), load=StaticLoad(batch=8.0))
    explained = found.explain("ttft_at_server_s")
    printed = read(explained.substituted)
    assert printed.low * (1 - 1e-6) <= explained.value <= printed.high * (1 + 1e-6)
    assert explained.formula.startswith(
        "ttft_at_server = alone + latency + (front_request + front_token * prompt)"
    ) or ("front_request + front_token * prompt" in explained.formula)
    places = {entry.symbol: entry for entry in explained.inputs}
    for name in ("latency", "front_request", "front_token"):
        assert places[name].origin.startswith("configs/engines/vllm.yaml:")
        shown = read(places[name].value)
        assert shown.low <= fitted("vllm", name) <= shown.high
    assert explained.value == pytest.approx(found.explain("ttft").value, rel=1)
    unknown = Explainer(request=Request(model="llama-3.1-8b", gpu="h100-sxm", engine="llama.cpp"), load=StaticLoad())
    assert "ttft_at_server" not in unknown.names()
    with pytest.raises(UsageError, match="no constants are known"):
        unknown.explain("ttft_at_server")


@for_each("number", ["ttft", "tpot", "e2el", "ttft_at_server"])
def test_a_batch_with_drafts_is_explained_with_them(number: str) -> None:
    request = Request(model="deepseek-v3", gpu="h200-sxm", parallel=Parallelism(tp=8))
    asked = Techniques(speculation=measured_drafting(load_model("deepseek-v3"), "mtp", 1).on(request, request.parallel))
    found = Explainer(request=request, load=StaticLoad(batch=8.0), techniques=asked)
    record = estimate_record(served_estimate(assemble(request), found.load, asked))
    assert found.explain(number).value == pytest.approx(record[f"{number}_s"])
    plain = Explainer(request=request, load=found.load).explain(number).value
    assert found.explain(number).value != pytest.approx(plain, rel=1e-3)


def test_a_constant_of_a_release_is_shown_where_it_stands() -> None:
    """Attention of SGLang 0.5.6 on H100 is that of 0.5.6.post2, the nearest release timed there."""
    request = Request(model="qwen3-30b-a3b", gpu="h100-sxm", engine="sglang@0.5.6")
    load = StaticLoad(batch=8.0, prompt=256.0, output=32.0)
    found = Explainer(request=request, load=load).explain("decode.attn.core")
    origins = [one.origin for one in found.inputs if "calibration" in one.origin]
    assert any("engines.sglang.0.5.6.post2.kernels.attention.decode" in origin for origin in origins), origins


def test_what_overlapping_halves_hide_has_a_name() -> None:
    """Of two halves an operator shows the share of both that the slower in each slot leaves (docs/formulas/step.md)."""
    request = Request(
        model="deepseek-v2-lite",
        gpu="h200-sxm",
        engine="sglang",
        flags=EngineFlags(two_batch_overlap=True),
        parallel=Parallelism(dp=8, ep=8),
    )
    found = Explainer(request=request, load=StaticLoad(batch=8 * 64.0)).explain("decode.ffn.dispatch")
    assert found.formula.startswith("ffn.dispatch = share that overlapping halves do not hide * one run * runs")
    printed = read(found.substituted)
    assert printed.low <= found.value <= printed.high


def test_a_latency_names_the_largest_operators_of_its_step() -> None:
    """llama-3.1-8b, 1,024 tokens on an ideal H100 SXM of 989.4 TFLOP/s: gate and up are 2 * 1,024 * 4,096 * 28,672 FLOP
    in each of 32 layers, 7.779 ms; down is half of it, q, k and v (6,144 channels) 3/14. A decode step reads 32 *
    28,672 * 4,096 weights of gate and up, 7.516 GB at 3.352 TB/s: 2.242 ms."""
    asked = Explainer(request=Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True), load=StaticLoad())
    first = [part for part in asked.explain("ttft").parts if part.name.startswith("prefill.")]
    assert [part.name for part in first[:3]] == ["prefill.ffn.gate_up", "prefill.ffn.down", "prefill.attn.qkv"]
    whole = asked.explain("ttft").value
    assert [part.value for part in first[:2]] == ["7.779 ms", "3.890 ms"]
    assert first[0].how == f"{7.779e-3 / whole:.0%} of the prefill"
    step = next(part for part in asked.explain("tpot").parts if part.name.startswith("decode."))
    assert step.name == "decode.ffn.gate_up" and float(step.value.split()[0]) == pytest.approx(2.242, rel=2e-3)


def test_a_cold_start_is_explained_by_what_it_reads() -> None:
    """8,030,261,248 weights of 2 bytes, on both devices together; bge-m3 has 567,754,752 of 4 bytes in its file."""
    load = StaticLoad()
    eight = Explainer(request=Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(tp=2)), load=load)
    assert "cold_start" in eight.names()
    assert eight.explain("cold_start").value == pytest.approx(2 * 8_030_261_248, rel=1e-3)
    narrow = Explainer(request=Request(model="bge-m3", gpu="l4"), load=load).explain("cold_start")
    assert narrow.value == pytest.approx(4 * 567_754_752, rel=2e-3)
    assert narrow.formula.startswith("cold_start = fp32 over 16 bits * weights")
