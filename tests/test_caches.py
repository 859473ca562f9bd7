"""KV caches and checkpoints that engines take: one list each in ``configs/engines``, which every answer reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import ceil

import pytest

from inferplan.answers.emit import launch
from inferplan.answers.emit.engines import command
from inferplan.answers.fit import FitAsked, fit_on
from inferplan.catalog.assemble import Request, assemble, load_engine, usual_engine
from inferplan.catalog.files import load_hardware, names
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.estimate.memory import Footprint
from inferplan.work.formats import FORMATS
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.command import exit_code

TRIED = (
    "fp32",
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int4",
    "nf4",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "q8_0",
    "q5_1",
    "q5_0",
    "q4_1",
)
TRIED += ("q4_0", "iq4_nl", "q4_k", "q8_1", "fp8-token-head", "int8-token-head", "int8-token-head-zero", "int4-kivi")
GGML = {"fp32", "fp16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
TAKEN: dict[str, tuple[str, set[str]]] = {
    # the values of each engine's own option, in our names, and bf16, the format of the model
    "vllm@0.5": ("h100-sxm", {"bf16", "fp8"}),  # 0.7.3, arg_utils.py:359
    "vllm@0.12": ("h100-sxm", {"bf16", "fp8"}),  # config/cache.py, CacheDType, of this version and those below
    "vllm@0.18": ("h100-sxm", {"bf16", "fp16", "fp8"}),
    # nvfp4 is in the list of 0.20.2, and flashinfer.py:625 raises NotImplementedError
    "vllm@0.20": ("h100-sxm", {"bf16", "fp16", "fp8", "fp8-token-head", "int8-token-head"}),
    "vllm@0.33": ("h100-sxm", {"bf16", "fp16", "fp8", "nvfp4", "fp8-token-head", "int8-token-head"}),
    "sglang@0.5": ("h100-sxm", {"bf16", "fp8"}),  # model.py:209 and kv_cache_hook.py:107-131 of 0.5.23
    "ktransformers@0.5": ("h100-sxm", {"bf16", "fp8"}),
    "trtllm@0.17": ("h100-sxm", {"bf16", "fp8", "int8"}),  # quantization/mode.py
    "trtllm@1.0": ("h100-sxm", {"bf16", "fp8"}),  # llm_args.py, KvCacheConfig
    "llama.cpp@2025": ("h100-sxm", GGML),  # common/arg.cpp, kv_cache_types
    "ik_llama.cpp@2025": ("h100-sxm", GGML),  # a fork of it
    "atom@0.1": ("mi355x", {"bf16", "fp8"}),  # arg_utils.py
    "atom@0.1.6": ("mi355x", {"bf16", "fp8"}),
    "none@0": ("h100-sxm", {*TRIED}),
}


def taken(engine: str, gpu: str, kv: str) -> dict[str, bool]:
    """By answer whether it takes a cache of llama-3.1-8b in a format."""
    asked = Request(model="llama-3.1-8b", gpu=gpu, engine=engine, roles=(("kv", kv),), flags=EngineFlags())
    answers = {
        "estimate": lambda: assemble(asked),
        "fit": lambda: fit_on("llama-3.1-8b", gpu, FitAsked(engine=engine, kv=kv, tp=1), PriceBook(stated={})),
    }
    bare = engine.partition("@")[0]
    if load_engine(engine).defaults.commands and bare != "none":
        file = "m.gguf" if bare == "llama.cpp" else None
        answers["emit"] = lambda: command(replace(launch(asked, 4096, file), extra="extra.yaml"))
    found = {}
    for name, answer in answers.items():
        try:
            answer()
            found[name] = True
        except UsageError as error:
            assert f"no KV cache in {kv}" in error.what, error
            found[name] = False
    return found


def test_every_engine_on_file_states_its_caches() -> None:
    versions = {f"{name}@{one.version}" for name in names("engines") for one in _spec(name).versions}
    assert versions - {"ktransformers@0.2"} == {*TAKEN}
    for name in {*versions} - {"none@0"}:
        assert (caches := load_engine(name).caches) is not None and caches.source, name
        assert {*caches.formats} <= {*FORMATS}, name


@for_each("engine, kv", [(engine, kv) for engine in TAKEN for kv in TRIED])
def test_all_answers_take_the_caches_that_an_engine_lists(engine: str, kv: str) -> None:
    gpu, formats = TAKEN[engine]
    found = taken(engine, gpu, kv)
    assert set(found.values()) == {kv in formats}, found


@for_each(
    "engine, gpu, kv, runs",
    [
        # vLLM 0.33.0: FlashInfer from compute capability 8.0 on, Triton's fp8 from 8.9 on (triton_attn.py:516)
        *[
            ("vllm", "t4", "fp8", False),
            ("vllm", "v100-sxm2-32gb", "fp8", False),
            ("vllm", "a100-80gb-sxm", "fp8", True),
        ],
        *[("vllm", "t4", "int8-token-head", True), ("vllm", "a100-80gb-sxm", "fp8-token-head", False)],
        *[("vllm", "l40s", "fp8-token-head", True), ("vllm", "mi300x", "fp8", True)],
        # flashinfer.py, supports_kv_cache_dtype: compute capability 8, 9, 10 and 12
        *[("vllm", gpu, "nvfp4", True) for gpu in ("b200-hgx", "rtx-5090", "a100-80gb-sxm", "h100-sxm")],
        *[("vllm", "mi300x", "nvfp4", False), ("vllm", "t4", "nvfp4", False)],
        # SGLang 0.5.23, kv_cache_hook.py: Blackwell alone
        *[("sglang", gpu, "nvfp4", gpu != "h200-sxm") for gpu in ("b200-hgx", "rtx-5090", "h200-sxm")],
        *[("sglang", "rtx-5090", "mxfp8", True), ("sglang", "h200-sxm", "mxfp8", False)],
        ("sglang", "mi355x", "nvfp4", False),
        # TensorRT-LLM, docs/source/features/quantization.md, "Hardware Support Matrix": from Ampere on
        *[("trtllm", "a100-80gb-sxm", "fp8", True), ("trtllm", "l4", "fp8", True), ("trtllm", "t4", "fp8", False)],
    ],
)
def test_kernels_need_a_generation(engine: str, gpu: str, kv: str, runs: bool) -> None:
    assert load_engine(engine).keeps(kv, load_hardware(gpu)) == runs


@for_each(
    "gpu, runs", [("h200-sxm", True), ("b200-hgx", True), ("rtx-pro-6000-server", True), ("a100-80gb-sxm", False)]
)
def test_a_sparse_cache_of_latents(gpu: str, runs: bool) -> None:
    """flashmla_sparse.py: compute capability 9 and 10; flashinfer_mla_sparse.py: 10 and 12."""
    assert load_engine("vllm").keeps("fp8-ds-mla", load_hardware(gpu)) == runs
    assert load_engine("vllm@0.20").keeps("fp8-ds-mla", load_hardware(gpu)) == (runs and gpu != "rtx-pro-6000-server")


@for_each(
    "engine, gpu, kept",
    [("vllm", "h100-sxm", "fp8"), ("vllm", "t4", "int8-token-head"), ("llama.cpp", "rtx-4090", "q8_0"),
     ("none", "a100-80gb-sxm", "int8"), ("none", "h100-sxm", "fp8"), ("vllm", "a100-80gb-sxm", "fp8")],
)  # fmt: skip
def test_eight_bits_of_a_shorthand_are_those_that_the_engine_keeps(engine: str, gpu: str, kept: str) -> None:
    quant = "w16a16kv8" if engine == "llama.cpp" else "w4a16kv8"
    assert assemble(Request(model="llama-3.1-8b", gpu=gpu, engine=engine, quant=quant)).precision.kv.name == kept


def test_two_formats_of_one_cache_are_refused() -> None:
    both = Request(model="llama-3.1-8b", gpu="h100-sxm", quant="w4a16kv8", roles=(("kv", "bf16"),))
    with pytest.raises(UsageError) as refused:
        assemble(both)
    assert "w4a16kv8" in refused.value.what and "--quant w4a16 --kv bf16" in refused.value.hint
    again = Request(model="llama-3.1-8b", gpu="h100-sxm", quant="w4a16kv8", roles=(("kv", "fp8_e4m3"),))
    assert assemble(again).precision.kv.name == "fp8"
    assert assemble(replace(both, quant="w4a16")).precision.kv.name == "bf16"


# --- checkpoints


@for_each(
    "engine, quant, reads",
    [("vllm", "q4_k_m", False), ("vllm@0.20", "q4_k_m", True), ("sglang", "q8_0", True), ("trtllm", "q8_0", False),
     ("llama.cpp", "q4_k_m", True), ("llama.cpp", "fp8", False), ("llama.cpp", "w4a16", False), ("none", "q8_0", True),
     ("ktransformers", "q8_0", False), ("ktransformers@0.2", "q8_0", True), ("ktransformers@0.2", "fp8", False)],
)  # fmt: skip
def test_files_that_an_engine_reads(engine: str, quant: str, reads: bool) -> None:
    """vLLM 0.20.2 has quantization/gguf.py, 0.33.0 has not; SGLang 0.5.23, choices.py:12."""
    asked = Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, quant=quant)
    if reads:
        assert assemble(asked).precision.weights.bits < 16
        return
    with pytest.raises(UsageError) as refused:
        assemble(asked)
    works = re.findall(r"--(quant|engine) ([\w.@]+)", refused.value.hint)
    assert works
    for changed in works:  # each of them does
        assert assemble(replace(asked, **dict([changed])))


@for_each(
    "model, gpu, quant, engine",
    [("llama-3.1-8b", "rtx-4090", "q4_k_m", "llama.cpp"), ("llama-3.1-8b", "h100-sxm", "Q8_0", "llama.cpp"),
     ("llama-3.1-8b", "rtx-4090", None, "vllm"), ("llama-3.1-8b", "rtx-4090", "w4a16", "vllm"),
     ("llama-3.1-8b", "m2-max", "fp16", "llama.cpp"), ("a.gguf", "rtx-4090", None, "llama.cpp")],
)  # fmt: skip
def test_the_usual_engine_reads_the_format(model: str, gpu: str, quant: str | None, engine: str) -> None:
    assert usual_engine(model, gpu, quant) == engine


LOAD = ("--rate", "1", "--ttft", "2s", "--tpot", "100ms", "--prompt", "256", "--output", "64")


@pytest.mark.parametrize("command", ["estimate", "fit", "compare", "plan"])
def test_commands_take_the_engine_that_reads_the_file(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (command, "llama-3.1-8b", "--gpu", "rtx-4090", "--quant", "q4_k_m", *(LOAD if command == "plan" else ()))
    assert exit_code(monkeypatch, *words) == 0
    assert "llama.cpp" in capsys.readouterr().out or command == "compare"
    code = exit_code(monkeypatch, *words, "--engine", "vllm")
    said = capsys.readouterr()
    assert code != 0 and "reads no GGUF file" in said.err


def test_a_plan_names_the_caches_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among several engines those that keep it are taken."""
    words = ("plan", "llama-3.1-8b", "--gpu", "rtx-4090", "--kv", "q8_0", *LOAD)
    assert exit_code(monkeypatch, *words) == 2
    assert "vllm 0.33 has no KV cache in q8_0" in capsys.readouterr().err
    assert exit_code(monkeypatch, *words, "--engine", "vllm,llama.cpp", "--quant", "q4_k_m,fp8") == 0
    said = capsys.readouterr().out
    assert "llama.cpp 2025" in said and "kv q8_0" in said


def test_two_usual_engines_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(monkeypatch, "compare", "llama-3.1-8b", "--gpu", "rtx-4090", "--quant", "native,q4_k_m") == 2
    error = capsys.readouterr().err
    assert "vllm for llama-3.1-8b" in error and "--engine" in error


# --- pages


@for_each("tokens", [1, 15, 16, 17, 5249, 39_073, 39_079])
def test_a_request_takes_whole_pages(tokens: int) -> None:
    """llama-3.1-8b keeps 2 * 8 heads * 128 * 32 layers * 2 bytes = 131,072 a token; a page of vLLM has 16."""
    made = assemble(Request(model="llama-3.1-8b", gpu="rtx-4090", ideal=True))
    one = Footprint(deployment=made, batch=1.0, prompt=1.0, context=float(tokens))
    pages = int(one.kv_pool) // (16 * 131_072)
    assert int(one.max_batch()) == pages // ceil(tokens / 16)
    assert one.fits == (one.max_context() >= tokens) == (int(one.max_batch()) >= 1)
    assert one.fits == (float(one.state_allocated) <= one.kv_pool)


def test_pages_of_several_ranks() -> None:
    """SGLang's pages have one token by default, TensorRT-LLM's 32."""
    for engine, page in (("sglang", 1), ("trtllm", 32)):
        asked = Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, parallel=Parallelism(tp=2), ideal=True)
        one = Footprint(deployment=assemble(asked), batch=1.0, prompt=1.0, context=1001.0)
        assert int(one.max_batch()) == int(one.kv_pool) // (65_536 * ceil(1001 / page) * page)


def _spec(name: str):  # type: ignore[no-untyped-def]
    from inferplan.catalog.files import load
    from inferplan.devices.engine import EngineSpec

    return load("engines", name, EngineSpec)


def test_caches_side_by_side(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``compare --kv`` takes a list. A token of Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 elements."""
    words = ("compare", "llama-3.1-8b", "--gpu", "h100-sxm", "--kv", "bf16,fp8", "--format", "json")
    assert exit_code(monkeypatch, *words) == 0
    wide, narrow = json.loads(capsys.readouterr().out)["candidates"]
    assert wide["kv_bytes_per_token"] == 2 * 2 * 32 * 8 * 128
    assert narrow["kv_bytes_per_token"] == 2 * 32 * 8 * 128
