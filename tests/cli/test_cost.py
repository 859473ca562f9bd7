"""``inferplan cost``, ``inferplan prices`` and the price options, as a user types them."""

from __future__ import annotations

import shlex

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

AWS = ("--prices", "aws-us-east-1")
L40S = ("cost", "llama-3.1-70b", "--gpu", "l40s", "--tp", "8", "--quant", "fp8", *AWS)
H100 = ("cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--prompt", "1024", "--output", "256")


def test_eight_l40s_in_one_host_cost_what_that_host_costs(run: Run) -> None:
    """g6e.48xlarge is 30.13118 USD/h at AWS; eight single ones would be 14.89 and eight hosts."""
    cost = run(*L40S, "--format", "json").json["cost"]
    assert (cost["instance"], cost["instances"], cost["devices_idle"]) == ("g6e.48xlarge", 1, 0)
    assert cost["per_hour"] == pytest.approx(30.13118)
    told = "1 x g6e.48xlarge (8 x l40s) at 30.131 USD/h (on-demand, aws-us-east-1, 2026-09-10, 73 days old)"
    assert told in run(*L40S).out


def test_the_batch_is_the_largest_that_fits_and_says_so(run: Run) -> None:
    """One more is refused by ``estimate``; with fewer slots the slots are the limit."""
    largest = run(*H100, "--format", "json").json
    assert largest["batch_is_the_largest"] is True
    batch = largest["load"]["batch"]
    same = ("estimate", *H100[1:], "--batch")
    assert run(*same, str(batch)).code == 0
    refused = run(*same, str(batch + 1))
    assert refused.code == 3
    assert f"--batch {batch}" in refused.err
    assert f"batch {batch} (the largest)" in run(*H100).out and "(the largest)" not in run(*H100, "--batch", "1").out
    single = run(*H100, "--batch", "1", "--format", "json").json
    assert single["batch_is_the_largest"] is False
    ratio = single["cost"]["per_million_output_tokens"] / largest["cost"]["per_million_output_tokens"]
    assert ratio > 20
    assert run(*H100, "--max-num-seqs", "16", "--format", "json").json["load"]["batch"] == 16
    ranks = run(*H100, "--dp", "2", "--max-num-seqs", "16", "--price", "h100=1", "--format", "json").json
    assert ranks["load"]["batch"] == 32


def test_what_is_idle_is_shown_and_how_to_fill_it(run: Run) -> None:
    """A replica of 2 B200 in a box of 8: three quarters of 113.93 an hour run nothing."""
    text = run("cost", "llama-3.1-70b", "--gpu", "b200-hgx", "--tp", "2", "--quant", "fp8", "--batch", "8", *AWS).out
    assert "6 of 8 (75% of the bill)" in text
    assert "--replicas 4 costs the same" in text


@for_each(
    ("words", "code", "said"),
    [
        (("--price", "h10=2"), 2, "did you mean --price h100-sxm"),
        (("--price", "h100=2/0"), 2, "not a price"),
        (("--prices", "no-such-list"), 2, "no-such-list"),
        (("--prices", "modal", "--term", "spot"), 2, "no price of h100-sxm is known"),
        (("--prices", "modal", "--currency", "EUR"), 2, "cannot be compared"),
        (("--currency", "EUR"), 2, "no price of h100-sxm is known"),
        (("--pue", "nan"), 2, "--pue"),
        (("--ratio", "0"), 2, "--ratio"),
        (("--api-price", "nan/3"), 2, "not a price"),
        (("--utilisation", "nan"), 2, "--utilisation"),
    ],
)
def test_what_is_no_price_or_nobodys_is_refused(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    ran = run(*H100, *words)
    assert ran.code == code
    assert said in ran.err


def test_a_plan_refuses_the_price_of_a_gpu_that_it_does_not_look_at(run: Run) -> None:
    ran = run("plan", "llama-3.1-8b", "--workload", "chat", "--rate", "5", "--gpu", "h100-sxm", "--price", "h10=2")
    assert ran.code == 2
    assert "did you mean --price h100-sxm" in ran.err


def test_a_price_of_another_gpu_is_said_to_be_unused(run: Run) -> None:
    assert "--price l40s is not used" in run(*H100, "--price", "l40s=2").out


def test_the_cheapest_of_all_lists_is_taken_with_the_list_price_beside(run: Run) -> None:
    """MI300X: RunPod asks 3.49 for one, Azure 48.00 for eight. Eight H200: RunPod 36.72, AWS 63.296 for its box."""
    priced = run("cost", "llama-3.1-70b", "--gpu", "mi300x", "--tp", "8", "--format", "json").json["cost"]
    assert (priced["price_source"], priced["per_hour"]) == ("runpod-secure", pytest.approx(27.92))
    assert priced["list_price_source"] is None  # AWS sells none
    ran = run("cost", "llama-3.1-70b", "--gpu", "h200", "--tp", "8", "--format", "json").json["cost"]
    assert (ran["per_hour"], ran["list_price_per_hour"], ran["list_price_source"]) == (
        pytest.approx(36.72), 63.296, "aws-us-east-1"
    )  # fmt: skip
    assert "at the list price: 1 x p5en.48xlarge" in run("cost", "llama-3.1-70b", "--gpu", "h200", "--tp", "8").out


def test_stated_prices_carry_their_terms(run: Run) -> None:
    text = run(*H100, "--price", "h100=1.20", "--term", "spot").out
    assert "1 x h100-sxm at 1.20 USD/h (spot, --price)" in text
    assert "take a spot instance away" in text


def test_fit_prices_what_holds_one_replica(run: Run) -> None:
    """70B in bf16, 141 GB: two H200 of a box of 8 at 63.296 USD/h, which is paid for whole."""
    found = run("fit", "llama-3.1-70b", *AWS, "--format", "json").json["options"]
    (h200,) = (one for one in found if one["gpu"] == "h200-sxm" and one["quant"] == "native")
    assert (h200["devices"], h200["cost"]["instance"], h200["cost"]["devices_idle"]) == (2, "p5en.48xlarge", 6)
    assert h200["cost"]["per_hour"] == 63.296
    assert "63.30 USD  1 x p5en.48xlarge (8 x h200-sxm), aws-us-east-1" in run("fit", "llama-3.1-70b", *AWS).out
    alone = run("fit", "llama-3.1-70b", "--gpu", "h200-sxm", "--price", "h200=3").out
    assert "price: 6.00 USD per hour: 2 x h200-sxm at 3.00 USD/h (stated, --price)" in alone
    assert run("fit", "llama-3.1-70b", "--price", "h10=3").code == 2


def test_fit_marks_a_replica_that_is_spread_over_instances(run: Run) -> None:
    """70B in bf16 needs two H100 of 80 GB, and lambda sells the PCIe card singly."""
    rows = run("fit", "llama-3.1-70b", "--prices", "lambda", "--format", "json").json["options"]
    (pcie,) = (one for one in rows if (one["gpu"], one["quant"]) == ("h100-pcie", "native"))
    assert pcie["devices"] > pcie["cost"]["instance_gpus"]
    assert pcie["cost"]["across_instances"] is True
    for one in rows:
        if one["fits"] and one["cost"]:
            size = one["cost"]["instance_gpus"]
            assert one["cost"]["across_instances"] is bool(size and size < one["devices"])
    text = run("fit", "llama-3.1-70b", "--prices", "lambda").out
    assert "across instances, lambda" in text
    assert "ask what links them" in text
    alone = run("fit", "llama-3.1-70b", "--gpu", "h100-pcie", "--prices", "lambda").out
    assert "does not hold a tensor-parallel group" in alone
    assert "across instances" not in run("fit", "llama-3.1-8b", "--gpu", "h100-sxm").out


def test_prices_lists_instances(run: Run) -> None:
    rows = run("prices", "l40s", "--format", "json").json["prices"]
    found = {row["instance"]: row for row in rows if row["list"] == "aws-us-east-1"}
    assert found["g6e.48xlarge"]["instance_gpus"] == 8
    assert found["g6e.48xlarge"]["per_instance_hour"] == pytest.approx(30.13118)
    assert found["g6e.48xlarge"]["per_hour"] == pytest.approx(3.766, abs=5e-4)
    assert {row["instance_gpus"] for row in rows if row["list"] == "modal"} == {"any"}
    assert "unknown" in run("prices", "mi325x").out


def test_the_plan_that_a_cost_names_runs_as_pasted(run: Run) -> None:
    """10 requests/s for 730 hours at 0.60 and 0.80 USD: 26.28 million x (1,024 x 0.60 + 256 x 0.80) millionths."""
    said = run("cost", "llama-3.1-8b", "--gpu", "1x-h100", "--api-price", "0.60/0.80").out
    line = next(line for line in said.splitlines() if line.startswith("the break-even ignores latency limits"))
    words = shlex.split(line.partition(": inferplan ")[2])
    assert words[:2] == ["plan", "llama-3.1-8b"]
    planned = run(*words)
    assert (planned.code, "21,529 USD per month" in planned.out) == (0, True)


def test_electricity_of_a_month_stands_beside_the_rent(run: Run) -> None:
    """575 W (TDP of an RTX 5090) for 730 hours are 419.75 kWh, at 0.30 a kWh 125.93; at 60 % of TDP and a PUE of 1.2
    302.2 kWh. A currency of its own is not compared with that of the rent."""
    asked = ("cost", "llama-3.1-8b", "--gpu", "rtx-5090", "--quant", "fp8", "--price", "rtx-5090=0.99")
    found = run(*asked, "--kwh-price", "0.30", "--format", "json").json
    assert found["energy"]["per_month_kwh"] == pytest.approx(419.75)
    assert (found["energy"]["electricity_per_month"], found["energy"]["electricity_currency"]) == (
        pytest.approx(125.925),
        "USD",
    )
    assert found["cost"]["per_month"] == pytest.approx(0.99 * 730)  # the rent alone
    capped = run(*asked, "--power-share", "0.6", "--pue", "1.2", "--kwh-price", "0.30EUR/kWh").out
    assert "302.2 kWh" in capped and "90.67 EUR" in capped and "GPUs x PUE 1.2" in capped
    assert run(*asked, "--format", "json").json["energy"].get("electricity_per_month") is None


def test_a_cost_says_how_far_off_it_may_be_as_an_estimate_does(run: Run) -> None:
    """The same batch, so the same line: a band on an H100, none under an engine that nobody measured there."""
    for gpu, words in (("h100-sxm", "error: 80 %"), ("rtx-5090", "error: unknown; ")):
        line = ("llama-3.1-8b", "--gpu", gpu, "--quant", "fp8", "--batch", "8")
        says = [one for one in run("estimate", *line).out.splitlines() if one.startswith("error: ")]
        assert says[0].startswith(words) and says[0] in run("cost", *line, "--price", f"{gpu}=1").out
