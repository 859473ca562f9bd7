"""The formulas on a plan's page, with numbers that are written down here; and candidates side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.reports import compare as comparing
from inferplan.reports import plan_terms as report
from inferplan.work.step import decode, prefill

LENGTHS = {"prompt": SimpleNamespace(average=700.0), "output": SimpleNamespace(average=201.0)}


def plan(mixed: bool = True, encodes: bool = False, apart: bool = False, **more: Any) -> Any:
    """Batches of 8 on two attention ranks of each of 4 replicas; 10 requests/s."""
    deployment = SimpleNamespace(
        parallel=SimpleNamespace(dp=2), engine=SimpleNamespace(batching=SimpleNamespace(mixed=mixed)),
        model=SimpleNamespace(encodes=encodes), hardware="hardware", calibration="calibration",
    )  # fmt: skip
    demand = SimpleNamespace(**LENGTHS, users=more.pop("users", None), requests_per_second=10.0)
    option = SimpleNamespace(
        deployment=deployment, batch=8, budget=2048, speculation="drafts", rate=2.5, replicas=4,
        pools=(2, 3) if apart else None,
    )  # fmt: skip
    question = SimpleNamespace(
        demand=demand, slo=SimpleNamespace(percentile=95.0), sizing=SimpleNamespace(utilisation=0.8)
    )
    found = {"option": option, "question": question, "deployment": deployment, "capacity": None, "load": 10.0}
    return SimpleNamespace(**found | more)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the grid and the step are asked for. The first of two points has a round of decodes of 20 ms, 60 ms with
    prompts, which a quarter of the rounds have, and a mean TTFT of 300 ms."""
    calls: list[Any] = []

    def point(*words: Any) -> Any:
        calls.append(words)
        drafts = SimpleNamespace(length=3, tokens=2.0) if words[1].users == 7 else SimpleNamespace(length=0, tokens=9.0)
        return SimpleNamespace(
            step_decode=np.array([0.02, 5.0]), share=np.array([[0.25, 5.0], [6.0, 7.0]]), speculation=drafts,
            step_mixed=np.array([[0.06, 5.0], [6.0, 7.0]]), ttft_mean=np.array([[0.3, 5.0], [6.0, 7.0]]),
        )  # fmt: skip

    costs = [
        [SimpleNamespace(op=SimpleNamespace(name="small"), total=0.1)],
        [SimpleNamespace(op=SimpleNamespace(name="large"), total=0.4)],
        [SimpleNamespace(op=SimpleNamespace(name="middle"), total=0.3)],
    ]
    monkeypatch.setattr(report, "point", point)
    monkeypatch.setattr(report, "run_step", lambda *words: calls.append(words) or SimpleNamespace(stages=costs))
    monkeypatch.setattr(report, "time_terms", lambda *words: calls.append(words) or 0.004)
    monkeypatch.setattr(report, "cost_of", lambda plan: None)
    return calls


def terms(of: Any) -> dict[str, tuple[float, str]]:
    return {one.name: (round(float(one.evaluate()), 9), one.unit) for one in report.plan_terms(of)}


LARGEST = ("large (largest operator of a decode step), one run", (0.004, "s"))


def test_rounds_that_hold_prompts_and_decodes(asked: list[Any]) -> None:
    """0.75 x 20 + 0.25 x 60 = 30 ms; 8/(200 x 0.03) x 2 = 2.667 requests/s; Little: 2.667 x (0.3 + 6) = 16.8; 10 over
    0.8 x 2.667 are 4.69 replicas."""
    of = plan()
    assert terms(of) == dict([
        LARGEST, ("time per output token", (0.03, "s")),
        ("capacity per replica, closed form", (pytest.approx(8 / 3), "requests/s")),
        ("requests per replica", (pytest.approx(16.8), "requests")), ("replicas", (5.0, "")),
    ])  # fmt: skip
    rate, requests, replicas = report.plan_terms(of)[2:]
    for made in (str(rate.terms), str(requests.terms).partition("'mean TTFT'")[2]):
        assert made.index("'decoded tokens'") < made.index("'time per output token'")
    assert "round with prompts" in str(rate.terms) and "step of prompts" not in str(rate.terms)
    assert "name='rate', unit='requests/s'" in str(replicas.terms)
    grid, step, largest, *_ = asked
    assert step[0] is of.option.deployment and str(step[1]) == str(decode(16.0, 800.5))
    assert largest[0].name == "large" and largest[1:] == ("hardware", "calibration")
    assert grid == (of.option.deployment, of.question.demand, 95.0, 8, 2048, "drafts")


def test_prompts_between_rounds(asked: list[Any]) -> None:
    """20 + 0.25 x 60 = 35 ms."""
    found = report.plan_terms(plan(mixed=False))
    assert float(found[1].evaluate()) == pytest.approx(0.035)
    assert "step of prompts" in str(found[1].terms) and "round with prompts" not in str(found[1].terms)


def test_capacity_that_was_simulated(asked: list[Any]) -> None:
    """10 x 1.5 / 4 = 3.75 requests/s a replica: 3.33 of them; of users 40 x 1.5 / 4 = 15: 40/12."""
    found = report.plan_terms(plan(capacity=SimpleNamespace(factor=1.5)))
    assert (found[-1].name, float(found[-1].evaluate())) == ("replicas", 4.0)
    assert "capacity per replica, simulated" in str(found[-1].terms)
    users = report.plan_terms(plan(capacity=SimpleNamespace(factor=1.5), users=50, load=40.0))
    assert float(users[-1].evaluate()) == 5.0  # 50 / (0.8 x 15) = 4.2
    assert "name='users', unit='users'" in str(users[-1].terms) and "'rate'" not in str(users[-1].terms)


def test_rounds_of_several_tokens(asked: list[Any]) -> None:
    """Two tokens a round of 30 ms: 15 ms each, 100 rounds; 8/(100 x 0.03) x 2 = 5.333; x (0.3 + 3) = 17.6."""
    found = terms(plan(users=7))
    assert found == dict([
        LARGEST, ("mean round", (0.03, "s")), ("time per output token", (0.015, "s")),
        ("capacity per replica, closed form", (pytest.approx(16 / 3), "requests/s")),
        ("requests per replica", (pytest.approx(17.6), "requests")), ("replicas", (2.0, "")),
    ])  # fmt: skip


def test_pools_have_rounds_of_decodes_alone(asked: list[Any]) -> None:
    """8/(200 x 0.02) x 2 = 4 requests/s: 3.1 replicas, whatever simulation found of both pools."""
    assert terms(plan(apart=True, capacity=SimpleNamespace(factor=9.0))) == dict([
        LARGEST, ("capacity per replica, closed form", (4.0, "requests/s")),
        ("decode replicas, before simulation", (4.0, "")),
    ])  # fmt: skip


def test_what_generates_nothing_has_a_pass(asked: list[Any]) -> None:
    assert terms(plan(encodes=True)) == {
        "large (largest operator of a pass), one run": (0.004, "s"), "replicas": (5.0, ""),
    }  # fmt: skip
    assert str(asked[0][1]) == str(prefill(16.0, 700.0)) and len(asked) == 2


def test_what_tokens_cost(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """7.2 an hour are 0.002 a second; 1,000 tokens/s in at a ratio of 4 and 250 out count as 500: 4 a million."""
    bill = SimpleNamespace(offer=SimpleNamespace(currency="EUR"))

    def price(output: float) -> tuple[str, float, str, str]:
        rates = SimpleNamespace(input=1000.0, output=output, generated=250.0)
        cost = SimpleNamespace(per_hour=7.2, bill=bill, rates=rates, ratio=4.0)
        monkeypatch.setattr(report, "cost_of", lambda plan: cost)
        last = report.plan_terms(plan())[-1]
        return last.name, float(last.evaluate()), last.unit, str(last.terms)

    name, value, unit, made = price(250.0)
    assert (name, value, unit) == ("per million output tokens", pytest.approx(4.0), "EUR")
    assert "'bill per hour', unit='EUR'" in made and "output tokens/s" in made
    name, value, unit, made = price(0.0)
    assert (name, value, unit) == ("per million tokens", pytest.approx(2.0), "EUR")
    assert "output tokens/s" not in made


# --- candidates side by side


@pytest.fixture(autouse=True)
def errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of an estimate is what its candidate was given."""
    monkeypatch.setattr(comparing, "band_note", lambda estimate: f"error: {estimate.error}")


def candidate(label: str, metrics: dict[str, float], **more: Any) -> Any:
    """One with an estimate; without metrics one that is refused."""
    made = SimpleNamespace(line="counted", to_dict=lambda: {"counted": label})
    name, version = more.get("served", ("vllm", "0.33"))
    deployment = SimpleNamespace(
        engine=SimpleNamespace(note=more.get("engine", ""), name=name, describe=lambda: f"{name} {version}"),
        calibration=SimpleNamespace(note=more.get("constants", "")),
        model=SimpleNamespace(name=label, made_from=made), warnings=more.get("warnings", []), media=more.get("media"),
    )  # fmt: skip
    load = SimpleNamespace(batch=1.0, prompt=2.0, output=3.0, media_tokens=0.0)
    load = more.get("load", load)
    estimate = SimpleNamespace(
        basis=more.get("basis", "measured"), load=load, deployment=deployment, error=more.get("error", "unknown")
    )
    kept = more.get("kept", (1.0, "all"))
    return SimpleNamespace(label=label, metrics=lambda: metrics, estimate=estimate if metrics else None, kept=kept)


def comparison(*candidates: Any) -> Any:
    base = candidates[0]

    def ratios(one: Any) -> dict[str, float]:
        return {name: value / base.metrics()[name] for name, value in one.metrics().items() if base.metrics().get(name)}

    load = SimpleNamespace(batch=64.0, prompt=1100.0, output=200.0, media_tokens=100.0)
    return SimpleNamespace(
        candidates=candidates, baseline=base, ratios=ratios, why=lambda one: f"why {one.label}", load=load,
        rows=lambda: [{"candidate": one.label} for one in candidates],
    )  # fmt: skip


def test_candidates_in_columns() -> None:
    """Times, bytes, rates from 100 on without a decimal; ratios in three digits to the first."""
    first = {"ttft_s": 0.5, "output_tokens_per_s": 1234.5, "requests_per_s": 99.96, "max_batch": 100.0,
             "weights_bytes": 16e9, "kv_bytes_per_token": 0.0}  # fmt: skip
    second = {"ttft_s": 0.25, "output_tokens_per_s": 1e6, "requests_per_s": 9.0, "max_batch": 25.0,
              "weights_bytes": 8e9, "kv_bytes_per_token": 1000.0}  # fmt: skip
    load = SimpleNamespace(batch=32.0, prompt=1100.0, output=200.0, media_tokens=100.0)
    found = comparing.comparison_report(
        comparison(candidate("a", first, load=load), candidate("b", second), candidate("c", {}))
    )
    figures, why = found.tables
    assert figures.title == "batch 32, 1000 tokens in, 200 out; ratios to a"
    assert (list(figures.columns), figures.right) == (["", "a", "b", "c"], frozenset("abc"))
    assert list(figures.rows) == [
        ["TTFT of the batch alone", "500.0 ms", "250.0 ms (0.5x)", "-"],
        ["output tokens/s", "1,234", "1,000,000 (810x)", "-"],
        ["requests/s", "100.0", "9.0 (0.09x)", "-"],
        ["largest batch", "100", "25.0 (0.25x)", "-"],
        ["weights per device", "16.00 GB", "8.000 GB (0.5x)", "-"],
        ["KV per token per device", "0 B", "1.000 kB", "-"],
    ]  # fmt: skip
    assert list(why.rows) == [["a", "why a"], ["b", "why b"], ["c", "why c"]]
    assert found.record == {
        "model_counts": {"a": {"counted": "a"}, "b": {"counted": "b"}}, "model_notes": {"a": [], "b": []},
        "baseline": "a", "candidates": [{"candidate": "a"}, {"candidate": "b"}, {"candidate": "c"}],
    }  # fmt: skip
    assert found.notes == ["basis: measured", "error of a, b: unknown", "a: counted", "b: counted"]


def test_sentences_below_candidates() -> None:
    """Each is said once, in the order of the candidates."""
    metrics = {"requests_per_s": 5.0}
    media = SimpleNamespace(describe=lambda: "4 images")
    found = comparing.comparison_report(
        comparison(
            candidate("a", metrics, engine="an engine", basis="roofline", media=media, warnings=["one", "two"]),
            candidate("b", metrics, engine="an engine", constants="constants", basis="measured", media=media),
        )
    )
    assert found.notes == [
        "basis: measured, roofline", "error of a, b: unknown", "an engine", "constants",
        "media: a request carries 4 images", "a: counted", "b: counted", "note: a: one", "note: a: two",
    ]  # fmt: skip
    assert found.tables[0].title == "batch 1, 2 tokens in; ratios to a"
    ideal = comparing.comparison_report(comparison(candidate("a", metrics, basis="roofline"), candidate("b", {})))
    assert ideal.notes == [comparing.IDEAL_NOTE, "a: counted"]
    empty = comparing.comparison_report(comparison(candidate("a", {}), candidate("b", {})))
    assert empty.notes == ["basis: none"] and empty.tables[0].title == "batch 64, 1000 tokens in; ratios to a"


def test_errors_of_candidates() -> None:
    """Those with the same error are one line; two engines have no ranking, two versions of one have."""
    metrics = {"requests_per_s": 5.0}

    def said(*values: Any) -> list[str]:
        notes = comparing.comparison_report(comparison(*values)).notes
        return [note for note in notes if note.startswith(("error of", "no ranking"))]

    of_a, within = candidate("a", metrics), "80 % lie within 1 s to 2 s"
    of_b, of_c = candidate("b", metrics, error=within), candidate("c", metrics)
    lines = ["error of a, c: unknown", f"error of b: {within}"]
    assert said(of_a, of_b, of_c, candidate("d", {})) == lines
    assert said(of_a, of_b, candidate("c", metrics, served=("vllm", "0.20"))) == lines
    assert said(of_a, of_b, candidate("c", metrics, served=("sglang", "0.5"))) == [
        *lines, "no ranking of vllm 0.33, sglang 0.5 within these errors: no ratio of two engines was measured here",
    ]  # fmt: skip


def test_what_formats_keep_stands_where_one_loses() -> None:
    metrics = {"requests_per_s": 5.0}

    def kept(*values: Any) -> list[Any]:
        rows = comparing.comparison_report(comparison(*values)).tables[0].rows
        return [list(row) for row in rows if row[0] == "quality kept"]

    whole, some = candidate("a", metrics), candidate("b", metrics, kept=(0.99, "99%"))
    unknown = candidate("c", metrics, kept=(None, "none published"))
    assert kept(whole, some) == [["quality kept", "all", "99%"]]
    assert kept(whole, unknown) == [["quality kept", "all", "none published"]]
    assert kept(whole, candidate("d", {}, kept=(None, "-"))) == kept(whole) == []
