"""Devices at home on the command line: names as tools print them, the engine that is usual there, plans and fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.assemble import usual_engine
from inferplan.catalog.files import find
from inferplan.errors import UnknownNameError
from tests.cases import for_each
from tests.cli.conftest import Run

EIGHT = ["llama-3.1-8b", "--quant", "q4_k_m"]


@for_each(
    ("name", "device"),
    [
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Apple M4 Max", "m4-max"),
        ("M3 Max", "m3-max"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("5080", "rtx-5080"),
        ("RTX 6000 Pro", "rtx-pro-6000-ws"),
    ],
)
def test_devices_have_the_names_that_tools_print(name: str, device: str) -> None:
    assert find("hardware", name).stem == device


def test_an_unknown_device_is_refused_all_the_same() -> None:
    with pytest.raises(UnknownNameError, match="no GPU named 'NVIDIA Voodoo 2'"):
        find("hardware", "NVIDIA Voodoo 2")


@for_each(
    ("model", "gpu", "engine"),
    [
        ("llama-3.1-8b", "m4-max", "llama.cpp"),
        ("some/where/model.gguf", "rtx-4090", "llama.cpp"),
        ("llama-3.1-8b", "rtx-4090", "vllm"),
        ("llama-3.1-8b", "nothing like it", "vllm"),
    ],
)
def test_the_usual_engine(model: str, gpu: str, engine: str) -> None:
    assert usual_engine(model, gpu) == engine


def test_a_named_engine_stays(run: Run) -> None:
    assert "vllm 0.33 defaults" in run("estimate", "llama-3.1-8b", "--gpu", "m4-max", "--engine", "vllm").out
    assert "llama.cpp 2025 defaults" in run("estimate", *EIGHT, "--gpu", "m4-max").out
    assert "llama.cpp 2025" in run("fit", *EIGHT, "--gpu", "m4-max").out


def test_a_fit_says_whose_engine_holds_for_each(run: Run) -> None:
    """llama.cpp on the Macs, which vLLM does not run on; one engine for all needs no word."""
    asked = ("fit", "llama-3.1-8b", "--context", "600", "--quant", "native")
    options = run(*asked, "--format", "json").json["options"]
    engines = {one["gpu"]: one["engine"] for one in options if one["fits"]}
    assert (engines["m3-ultra"], engines["l4"], engines["mi300x"]) == ("llama.cpp", "vllm", "vllm")
    (said,) = [line for line in run(*asked).out.splitlines() if line.startswith("engine: ")]
    assert "; llama.cpp on Apple" in said and "vllm on NVIDIA" in said
    assert "\nengine: " not in run(*asked, "--engine", "vllm").out


@pytest.mark.slow
def test_plans_and_sweeps_take_the_usual_engine_too(run: Run) -> None:
    """vLLM does not run on Metal, llama.cpp does."""
    load = ("--workload", "chat", "--rate", "0.01", "--ttft", "20s", "--tpot", "400ms", "--price", "m4-max=0.1")
    plan = run("plan", *EIGHT, "--gpu", "m4-max", *load, "--format", "json").json
    assert plan["plan"]["engine"] == "llama.cpp 2025"
    sweep = run("sweep", *EIGHT, "--gpu", "m4-max,m3-max", "--executor", "serial", "--format", "json").json
    assert {point["engine"] for point in sweep["points"]} == {"llama.cpp"}
    mixed = run("sweep", "llama-3.1-8b", "--gpu", "m4-max,h100-sxm", "--executor", "serial")
    assert mixed.code == 2 and "no engine is the usual one for all of them" in mixed.err


def test_comparisons_and_pictures_of_lists_do_too(run: Run, tmp_path: Path) -> None:
    """A list is no device's name, so all of it was vLLM's: tokens on M4 Max in 12.7 ms, under llama.cpp 18.3."""
    apple = run("compare", *EIGHT, "--gpu", "m4-max,m3-max", "--format", "json").json["candidates"]
    alone = run("estimate", *EIGHT, "--gpu", "m4-max", "--format", "json").json
    assert apple[0]["tpot_s"] == alone["tpot_s"]
    others = ("compare", "llama-3.1-8b", "--gpu", "rtx-4090", "--vs")
    for words in (
        ("compare", "llama-3.1-8b", "--gpu", "m4-max,rtx-4090"),
        ("plot", "memory", "llama-3.1-8b", "--gpu", "m4-max,rtx-4090", "-o", str(tmp_path / "a.svg")),
        (*others, "gpu=m4-max"),
    ):
        mixed = run(*words)
        assert mixed.code == 2 and "no engine is the usual one for all of them" in mixed.err
    assert run(*others, "gpu=m4-max,engine=llama.cpp").code == 0
    assert run(*others, "gpu=m4-max,engine=vllm").code == 0


def test_an_estimate_says_that_a_chip_is_sold_with_less_memory(run: Run) -> None:
    said = run("estimate", *EIGHT, "--gpu", "m3-ultra")
    assert "give the size on the box with --memory" in said.out
    assert (
        "give the size on the box with --memory"
        not in run("estimate", *EIGHT, "--gpu", "m3-ultra", "--memory", "96GB").out
    )


def test_every_apple_chip_answers(run: Run) -> None:
    """A 1B in q4_k_m fits them all. On M1: a file of 0.808 GB at 0.92 x 68.25 GB/s is 12.9 ms, 16 layers 3.0 ms,
    attention to 1,151 tokens 4 x 2,048 x 1,151 x 16 = 151 MFLOP at 4.23 % of 2.617 TFLOP/s 1.4 ms."""
    for path in sorted(Path(find("hardware", "m1")).parent.glob("m[1-5]*.yaml")):
        record = run("estimate", "llama-3.2-1b", "--quant", "q4_k_m", "--gpu", path.stem, "--format", "json").json
        assert record["tpot_s"] > 0 and record["ttft_s"] > 0, path.stem
        if path.stem == "m1":
            assert record["tpot_s"] == pytest.approx(17.3e-3, rel=0.02)


@pytest.mark.slow
def test_a_plan_at_home(run: Run) -> None:
    found = run(
        *("plan", *EIGHT, "--gpu", "rtx-4090", "--engine", "llama.cpp", "--workload", "chat"),
        *("--rate", "0.5", "--ttft", "2s", "--tpot", "40ms", "--format", "json"),
    ).json
    assert found["plan"]["engine"] == "llama.cpp 2025" and found["plan"]["precision"].startswith("weights q4_k")
    # a token reads 4.6 of the 4.9 GB of the file (its table of 0.3 GB aside), at 1,008 GB/s at the most
    assert 4.6e9 / 1.008e12 < found["plan"]["tpot_s"] < 0.04 and 0 < found["plan"]["ttft_s"] < 2.0


def test_a_size_on_the_box_may_be_written_with_decimals() -> None:
    """64.0GB is 64GB: 55,662.79 MB, as llama.cpp's log of an M3 Max says."""
    from inferplan.catalog.wired import usable_of

    assert usable_of("64.0GB", "metal")[0] == usable_of("64GB", "metal")[0] == 55_662.79e6
