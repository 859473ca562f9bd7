"""``inferplan several``: its record, its rows, and files that are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run
from tests.json_page import listed

FIRST = (
    "{name: small, model: llama-3.2-1b, gpu: l4, rate: 6, prompt: '256', output: '32', "
    "answer: {e2e: 6 s, percentile: 90}}"
)
SECOND = "{name: large, model: llama-3.1-8b, gpu: l4, after: small, share: 0.5, output: '32'}"
BESIDE = SECOND.replace(
    "after: small, share: 0.5", "rate: 2, prompt: '256', shares: small, gpu_memory_utilization: 0.5"
).replace("large", "beside")
PRICE = ("--price", "l4=2.00")


def file(tmp_path: Path, *models: str) -> str:
    path = tmp_path / "service.yaml"
    path.write_text("models:\n" + "".join(f"  - {one}\n" for one in models))
    return str(path)


def test_the_record_adds_up(run: Run, tmp_path: Path) -> None:
    record = run("several", file(tmp_path, FIRST, SECOND), *PRICE, "--format", "json").json
    for part in ("models", "answers", "machines", "alone"):
        assert sorted(record[part][0]) == sorted(listed("several", f"{part}[]"))
    small, large = record["models"]
    assert (small["requests_per_s"], large["requests_per_s"]) == (6.0, 3.0)
    assert (small["after"], large["after"], large["share_of_stream"]) == (None, "small", 0.5)
    assert record["cost_per_hour"] == 2.0 * (small["replicas"] + large["replicas"])
    assert record["cost_per_month"] == pytest.approx(730 * record["cost_per_hour"])
    assert record["devices"] == record["devices_bought"] == small["devices"] + large["devices"]
    assert record["keeps_the_limits"] is True
    (answer,) = record["answers"]
    assert answer["at_percentile"]["e2el_s"] <= 6.0
    mean = small["e2el_mean_s"] + 0.5 * large["e2el_mean_s"]  # who goes on takes both; other requests are counted
    assert answer["e2el_s"]["mean"] == pytest.approx(mean, rel=0.03)
    (alone,) = record["alone"]
    assert alone["break_even_share"] == pytest.approx(1 - 2.0 * small["replicas"] / alone["cost_per_hour"])
    assert sum(count for one in record["machines"] for count in one["replicas"].values()) == record["devices"]


def test_lengths_are_numbers_too(run: Run, tmp_path: Path) -> None:
    """``prompt: 256`` is what ``prompt: "256"`` is; true and half a token are no length."""
    models = [FIRST.replace("rate", "replicas: 2, rate")]
    models += [one.replace("'", "") for one in models]
    as_text, as_number = (run("several", file(tmp_path, one), *PRICE, "--format", "json").json for one in models)
    assert as_number == as_text
    for wrong in ("true", "256.5"):
        ran = run("several", file(tmp_path, FIRST.replace("'256'", wrong)), *PRICE)
        assert ran.code == 2 and "models.0.prompt" in ran.err


def test_requests_name_adapters(run: Run, tmp_path: Path) -> None:
    """Shares of 6/11, 3/11 and 2/11 of three adapters: one slot has the next with the sum of their squares, 49/121.

    Requests take 30 ms and come once a second, so that nearly none waits for the slot of another adapter.
    """
    named = "rate: 1, replicas: 1, adapters: {rank: 16, slots: 1, named: 3, skew: 1, bandwidth: 25 GB/s}"
    models = [FIRST.replace("rate: 6", named).replace("'32'", "2"), SECOND.replace("share: 0.5", "share: 0.25")]
    with_one = run("several", file(tmp_path, *models), *PRICE, "--format", "json").json
    first, second = with_one["models"]
    assert first["adapters"]["hit_rate"] == pytest.approx(49 / 121, abs=0.02)
    assert first["adapters"]["loaded"] == pytest.approx(first["requests"]["arrived"] * 72 / 121, rel=0.05)
    assert second["adapters"] is None and second["replica"]["lora"] is None
    assert (
        "small: 3 adapters of popularity rank^-1, of rank 16; 4" in run("several", file(tmp_path, *models), *PRICE).out
    )
    ran = run("several", file(tmp_path, *models[:1], BESIDE), *PRICE)
    assert ran.code == 2 and "small shares its GPUs with another model" in ran.err


SMALL = "{name: small, model: llama-3.2-1b, gpu: 'h100-sxm:1g.10gb', rate: 1, prompt: 64, output: 4, replicas: 4}"
MID = "{name: mid, model: llama-3.1-8b, gpu: 'h100-sxm:3g.40gb', rate: 1, prompt: 64, output: 4, replicas: 1}"
ONE = "{name: one, model: llama-3.1-8b, gpu: h100-sxm, rate: 1, prompt: 64, output: 4, replicas: 2}"


@for_each(
    ("models", "gpus", "more"),
    [
        ((SMALL, MID), 1, ()),  # 4 x 1 + 4 memory slices of 8
        ((SMALL.replace("4}", "5}"), MID), 2, ()),  # a fifth has no room
        ((SMALL.replace("4}", "25}"), MID.replace("1}", "5}"), ONE), 8, ()),  # 25 + 20 of 48 slices on six, and two
        ((SMALL, MID), 2, ("--surge", "1")),
        ((SMALL, MID), 2, ("--rent", "h100-sxm:1g.10gb=70")),  # a stock of instances is one of its own
    ],
)
def test_instances_of_several_profiles_share_a_gpu(
    run: Run, tmp_path: Path, models: tuple[str, ...], gpus: int, more: tuple[str, ...]
) -> None:
    """GPUs at 2 USD/h one by one; 1g.10gb takes one memory slice of eight, 3g.40gb four (nvidia-smi mig -lgipp)."""
    found = run("several", file(tmp_path, *models), "--price", "h100-sxm=2", *more, "--format", "json").json
    assert found["cost_per_hour"] == 2.0 * gpus
    inside = [one["replicas"] for one in found["machines"]]
    assert sum(one.get("small", 0) for one in inside) == found["models"][0]["replicas"]
    assert sum(one["gpus"] - one["idle_gpus"] for one in found["machines"]) == found["devices"]
    assert {one["gpu"].partition(":")[0] for one in found["machines"]} == {"h100-sxm"}


def test_rows_are_the_models_and_seeds_differ(run: Run, tmp_path: Path) -> None:
    path = file(
        tmp_path, FIRST.replace("rate: 6", "rate: 6, replicas: 2"), SECOND.replace("share", "replicas: 2, share")
    )
    lines = run("several", path, *PRICE, "--format", "csv").out.splitlines()
    assert lines[0].startswith("name,model,gpu,replicas,given,shares_gpus_of,devices,after,share,share_of_stream,")
    assert [line.split(",")[0] for line in lines[1:]] == ["small", "large"]
    assert lines != run("several", path, *PRICE, "--format", "csv", "--seed", "1").out.splitlines()
    shown = run("several", path, *PRICE, "--own", "l4=4", "--own-price", "0.5").out
    assert "l4, owned" in shown
    assert "an owned GPU costs 0.50 USD/h while it works" in shown


@for_each(
    ("models", "says"),
    [
        ((FIRST, SECOND.replace("small", "smal")), "is asked after 'smal', which is not a model before it in the file"),
        (
            (FIRST, SECOND.replace("share: 0.5, ", "")),
            "large: share needs after: it is a share of that model's answers",
        ),
        ((FIRST.replace("rate", "share: 0.2, rate"),), "small: share needs after"),
        ((FIRST, SECOND.replace("share", "answer: {e2e: 1 s}, share")), "belong to the first model"),
        ((FIRST.replace("prompt: '256', ", ""),), "the prompts of small have no length"),
        ((FIRST.replace("output: '32'", "output: few"),), "'few' is not a length"),
        ((FIRST, SECOND.replace("gpu", "gpus")), "unknown field; did you mean gpu?"),
        (
            (FIRST, SECOND.replace("share", "shares: smal, share")),
            "shares the GPUs of 'smal', which is not a model before it",
        ),
        ((FIRST, BESIDE.replace("rate", "replicas: 2, rate")), "beside has the same number of replicas as small"),
        (
            (
                FIRST.replace("rate", "swap: {level: 1, bandwidth: 1 GB/s, keep_alive: 0 s, overhead: 0 s}, rate"),
                SECOND,
            ),
            "swap needs models that share GPUs, and no model shares the GPUs of small",
        ),
        (
            (FIRST.replace("rate", "alternatives: [{gpu: l40s}], rate"), SECOND),
            "alternatives are for a model that stands alone",
        ),
        ((FIRST.replace("rate", "alternatives: [{gpu: l40}], rate"),), "no GPU named 'l40'"),
        ((FIRST, BESIDE), "models that share GPUs take 0.92 + 0.5 of their memory"),
        ((FIRST.replace(", answer: {e2e: 6 s, percentile: 90}", ""),), " replicas of small cannot be found"),
    ],
)
def test_files_that_say_nothing_clear_are_refused(run: Run, tmp_path: Path, models: tuple[str, ...], says: str) -> None:
    ran = run("several", file(tmp_path, *models), *PRICE)
    assert ran.code == 2
    assert says in ran.err


def test_a_file_without_a_name_and_the_solver(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no file of models named 'nope'" in run("several", "nope").err
    monkeypatch.setitem(sys.modules, "scipy", None)
    ran = run("several", file(tmp_path, FIRST))
    assert ran.err.splitlines() == ["error: an integer programme needs scipy", "hint: pip install 'scipy>=1.12'"]
