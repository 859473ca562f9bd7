"""llama.cpp's constants: the fit on rows made up by hand, the published shares, and what ships against rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.calibrations import calibration_file, load_kernels
from inferplan.catalog.files import load_hardware, read_yaml
from inferplan.devices.constants import Calibration
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from tests.cases import for_each
from tools.fitting.published import llama

TRUE = {"stream": 0.8, "cache": 0.5, "layer": 5e-5, "wide": 0.6, "quantised": 0.4, "attention": 0.1}
"""Constants that made-up rows have."""
BYTES = {"scores": np.inf}
"""Attention of a token is bound by the bytes of its cache."""


def rows(cards: tuple[str, ...] = ("rtx-3090", "rtx-4090")) -> list[llama.Bench]:
    made = [
        llama.Bench(card=card, model=model, weights=weights, what=what, tokens=tokens)
        for card in cards
        for model, weights in (("llama-3-8b", "f16"), ("llama-3-8b", "q4_k_m"), ("llama-2-7b", "q4_0"))
        for what in ("pp", "tg")
        for tokens in (512, 8192)
    ]
    return [replace(row, seconds=llama.predicted(row, TRUE)) for row in made]


def test_the_fit_finds_the_constants_of_made_up_rows() -> None:
    assert llama.fit_class(rows(), BYTES) == pytest.approx(TRUE, rel=2e-3)
    assert llama.fit_class(rows(), BYTES | {"stream": 0.8})["layer"] == pytest.approx(5e-5, rel=1e-3)


def test_the_fit_finds_what_arithmetic_binds() -> None:
    """Attention of a token at 1 % of the peak in place of half the bandwidth, as on Apple's chips."""
    true = {name: value for name, value in TRUE.items() if name != "cache"} | {"scores": 0.01}
    made = [replace(row, seconds=llama.predicted(row, true)) for row in rows(("m2-ultra", "m3-max"))]
    assert llama.fit_class(made, {"cache": np.inf}) == pytest.approx(true, rel=2e-3)


def test_a_card_left_out_is_predicted_by_the_others() -> None:
    """Rows of one card take a tenth longer; the other card knows nothing of it."""
    slow = [replace(row, seconds=1.1 * row.seconds) if row.card == "rtx-4090" else row for row in rows()]
    ratios = llama.left_out(slow, BYTES)
    assert ratios["rtx-4090"]["tg"] == pytest.approx(1.1, rel=5e-3)
    assert llama.together(ratios, "pp")["n"] == 12


def test_bytes_of_a_token_by_hand() -> None:
    """Llama-2-7B in fp16: 6,738,415,616 parameters less the table of 32,000 x 4,096, 2 bytes each, at 936 GB/s."""
    row = llama.Bench(card="rtx-3090", model="llama-2-7b", weights="f16", what="tg", tokens=128)
    asked = llama.demand(row)
    weights = 2 * (6_738_415_616 - 32_000 * 4_096) / 936e9
    assert asked["layer"] == 32
    assert asked["stream"] == pytest.approx(weights, rel=2e-3)  # activations are the rest
    assert asked["cache"] == pytest.approx(
        32 * 2 * 4_096 * 2 * 65 / 936e9, rel=2e-2
    )  # 64 tokens on average, and itself


def test_unpacked_weights_are_moved_for_each_piece_of_a_prompt() -> None:
    """Llama-2-7B in q4_0: 6.476e9 weights of layers, read in 4.5 bits and written in 16, twice for 1,024 tokens."""
    packed = llama.Bench(card="rtx-4090", model="llama-2-7b", weights="q4_0", what="pp", tokens=1024)
    before, after = llama.demand(packed), llama.demand(replace(packed, unpacked=True))
    moved = 2 * 6.476e9 * (0.5625 + 2) / 1.008e12
    assert after["stream"] - before["stream"] == pytest.approx(moved, rel=1e-3)
    assert after["wide"] == before["quantised"] and "quantised" not in after


def test_runs_that_speed_up_are_left_out(tmp_path: Path) -> None:
    head = "id,source,model,hardware,gpus,weights,quantity,value\n"
    good = "".join(f"A,s,Llama-3-8B,3090 24GB,1,f16,pp{n},{rate}\n" for n, rate in ((512, 4400), (8192, 2700)))
    bad = "".join(f"B,s,Llama-3-8B,L40S 48GB,1,f16,pp{n},{rate}\n" for n, rate in ((512, 2254), (8192, 3312)))
    several = "C,s,Llama-3-8B,L40S 48GB,4,f16,pp512,2211\n"
    file = tmp_path / "rows.csv"
    file.write_text(head + good + bad + several + "D,s,Llama-3-8B,L40S 48GB,1,f16,tg512,43.7\n", "utf-8")
    kept, slow = llama.read_rows(file)
    assert slow == ["l40s, llama-3-8b, f16"]
    assert [(row.card, row.what, row.seconds) for row in kept] == [
        ("rtx-3090", "pp", 512 / 4400),
        ("rtx-3090", "pp", 8192 / 2700),
        ("l40s", "tg", 1 / 43.7),
    ]


@for_each(
    ("card", "file"),
    [
        ("m4-max", "apple"),
        ("rtx-4090", "geforce"),
        ("rtx-a6000", "professional"),
        ("l40s", "professional"),
        ("h100-sxm", "hbm"),
        ("rx-7900-xtx", "professional"),
    ],
)
def test_class_of_a_device(card: str, file: str) -> None:
    assert llama.class_of(card) == f"llama.cpp-{file}"
    found = calibration_file(load_hardware(card), "llama.cpp")
    assert found is not None and found.stem == f"llama.cpp-{file}"


@for_each(
    ("card", "share", "per_second"),
    [("rtx-4090", 0.23, 660.6e12), ("rtx-pro-6000-ws", 0.20, 1007.6e12), ("h100-sxm", 0.094, 1978.9e12)],
)
def test_a_prompt_reaches_the_published_share_of_int8(card: str, share: float, per_second: float) -> None:
    """512 tokens of Llama-2-7B: 2 FLOP for each of 6.476e9 weights of its layers; a class has one share, so 5 %."""
    deployment = assemble(Request(model="llama-2-7b", gpu=card, quant="q4_0", engine="llama.cpp"))
    seconds = float(Estimate(deployment=deployment, load=StaticLoad(prompt=512.0, output=1.0)).ttft)
    assert 512 * 2 * 6.476e9 / seconds / per_second == pytest.approx(share, rel=0.05)


@for_each(
    ("gpu", "model", "quant", "prompt", "output", "rate", "within"),
    [  # Apple: llama-bench, truths MAC-002 to MAC-012 and XD-2023; no 7B is in the fit
        ("m1-pro-14core", "llama-2-7b", "fp16", 1, 129, 12.75, 0.05),
        ("m1-pro-14core", "llama-2-7b", "q8_0", 1, 129, 21.95, 0.06),
        ("m3-pro", "llama-2-7b", "fp16", 1, 129, 9.89, 0.05),
        ("m3-pro", "llama-2-7b", "q8_0", 1, 129, 17.53, 0.05),
        ("m3-pro", "llama-2-7b", "q4_0", 1, 129, 30.74, 0.05),
        ("m2-ultra", "llama-2-7b", "fp16", 1, 129, 40.68, 0.05),
        ("m2-ultra", "llama-2-7b", "q4_0", 1, 129, 91.89, 0.06),
        ("m3-max", "llama-2-7b", "q4_0", 1, 129, 63.11, 0.05),
    ],
)
def test_tokens_of_apple_chips(
    gpu: str, model: str, quant: str, prompt: int, output: int, rate: float, within: float
) -> None:
    deployment = assemble(Request(model=model, gpu=gpu, quant=quant, engine="llama.cpp"))
    found = Estimate(deployment=deployment, load=StaticLoad(prompt=float(prompt), output=float(output)))
    assert 1 / float(found.tpot) == pytest.approx(rate, rel=within)


def test_apple_by_hand() -> None:
    """Llama-2-7B in fp16 on M3 Max: 13.21 GB at 0.92 x 400 GB/s are 35.91 ms, 32 layers 6.08 ms; attention to 1,025
    tokens is 4 x 4096 x 1025 x 32 = 537 MFLOP at 4.23 % of 14.13 TFLOP/s, 0.90 ms, and 537 MB at 0.92 x 400 GB/s, 1.46
    ms, which are longer."""
    fit = load_kernels(load_hardware("m3-max"), None, "llama.cpp")
    decode = fit.fit("attention.decode", "fp16")
    assert decode is not None and fit.step.layer == 1.9e-4
    weights = 2 * (6_738_415_616 - 32_000 * 4_096) / (0.92 * 400e9)
    assert 4 * 4_096 * 1_025 * 32 / (decode.math * 14.13e12) < (cache := 2 * 2 * 4_096 * 1_025 * 32 / (0.92 * 400e9))
    deployment = assemble(Request(model="llama-2-7b", gpu="m3-max", quant="fp16", engine="llama.cpp"))
    found = Estimate(deployment=deployment, load=StaticLoad(prompt=1024.0, output=2.0))
    assert float(found.tpot) == pytest.approx(weights + cache + 32 * 1.9e-4, rel=5e-3)


def test_attention_behind_many_tokens_is_that_of_later_builds() -> None:
    """Qwen3-0.6B on M2 Ultra (pull request 26570): 28 layers x 4 x 16 heads x 128 are 229,376 FLOP for each token
    behind, 7.516 GFLOP for 32,768; a token takes 1/98.94 - 1/240.28 = 5.945 ms more, 4.65 % of 27.2 TFLOP/s. Gemma 3
    12B looks back at all in 8 of 48 layers, with 16 heads of 256: 131,072 FLOP, and 1,024 tokens of a window in the
    others. The median of the three models is Gemma's."""
    apple = llama.figures()["llama.cpp-apple"]
    shares = {one.model: one.scores for one in apple.depth}
    assert shares["qwen3-0.6b"] == pytest.approx(229_376 * 32_768 / (1 / 98.94 - 1 / 240.28) / 27.2e12, rel=1e-3)
    windows = 40 * 4 * 16 * 256 * (1_024 - 16)  # those of the first token of the run already look back at 16
    asked = 131_072 * 32_768 + windows
    assert shares["gemma-3-12b"] == pytest.approx(asked / (1 / 36.26 - 1 / 42.97) / 27.2e12, rel=0.01)
    assert apple.later == {"scores": 0.0423}
    decode = load_kernels(load_hardware("m4-max"), None, "llama.cpp").fit("attention.decode", "fp16")
    assert decode is not None and (decode.math, decode.basis) == (0.0423, "transferred")


def test_an_error_is_known_only_where_the_maker_was_measured() -> None:
    def band(gpu: str, metric: str) -> tuple[float, float] | None:
        deployment = assemble(Request(model="llama-3.1-8b", gpu=gpu, quant="q4_k_m", engine="llama.cpp", memory="12GB"))
        return Estimate(deployment=deployment, load=StaticLoad()).band(metric)

    for gpu in ("m5-max", "rtx-5070", "rtx-5000-ada", "h100-sxm"):
        tokens, prompts = band(gpu, "tpot"), band(gpu, "ttft")
        assert tokens is not None and prompts is not None
        assert prompts[0] < 1.0 < prompts[1] and tokens[0] < 1.0 < tokens[1]
        assert prompts[1] / prompts[0] > 0.999 * tokens[1] / tokens[0]  # prompts are the harder ones
    assert band("rx-9070-xt", "tpot") is band("strix-halo", "ttft") is band("arc-b580", "tpot") is None


def test_bands_are_the_quantiles_of_cards_left_out() -> None:
    """Decode of GeForce between 0.92 and 1.17 of the prediction, as reported with its 39 rows."""
    file = calibration_file(load_hardware("rtx-4070"), "llama.cpp")
    assert file is not None
    found = Calibration.model_validate(read_yaml(file))
    ratios = [one["tg"]["bias"] for one in found.held_out["cards"].values()]
    assert len(ratios) == 7 and abs(np.mean(ratios)) < 0.05
    fit = found.fit("matmul", "fp16")
    assert fit is not None and fit.band == pytest.approx((0.92, 1.17), abs=0.005)


def test_integers_only_where_the_device_has_them() -> None:
    """q8_1 inputs on NVIDIA and AMD, whose peak of int8 is on file; 16 bits on Apple."""

    def arithmetic(gpu: str, quant: str) -> str:
        return assemble(Request(model="llama-3.1-8b", gpu=gpu, quant=quant, engine="llama.cpp")).math

    assert (arithmetic("rtx-3060", "q4_k_m"), arithmetic("strix-halo", "q8_0")) == ("int8", "int8")
    assert (arithmetic("m4-pro", "q4_k_m"), arithmetic("rtx-3060", "fp16")) == ("bf16", "fp16")


def test_a_llama_bench_file_is_scored_with_the_mix_of_its_file_type(tmp_path: Path) -> None:
    """XiongjieDai's row of the RTX 4090, May 2024: 8B in Q4_K_M, 512 tokens at 130.58 a second (7.66 ms each).

    llama.cpp prints the file as ``llama 8B Q4_K - Medium`` and the card by NVIDIA's name. Today's launches are cheaper.
    """
    record = {
        "gpu_info": "NVIDIA GeForce RTX 4090",
        "model_filename": "Llama-3-8B-Q4_K_M.gguf",
        "model_type": "llama 8B Q4_K - Medium",
        "n_ubatch": 512,
        "type_k": "f16",
        "n_prompt": 0,
        "n_gen": 512,
        "n_depth": 0,
        "avg_ns": 512 / 130.58 * 1e9,
    }
    file = tmp_path / "bench.json"
    file.write_text(json.dumps([record]), encoding="utf-8")
    (scored,) = price_rows(read_file(file, {})[1], Pricing())
    assert scored.prediction is not None and scored.row.measured.tpot == pytest.approx(7.658e-3, rel=1e-3)
    found = scored.prediction.at("tpot", "mean")
    assert found is not None and 0.8 < found / scored.row.measured.tpot < 1.0
