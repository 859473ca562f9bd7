"""How many drafts are accepted: curves, measured lengths, and where they come from."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferplan.answers.drafting import Drafting, DraftsAsked, DraftsTried, measured_drafting
from inferplan.answers.sweep import Execution, Grid, sweep
from inferplan.catalog.acceptance import acceptance_for, measured_tokens
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_model
from inferplan.devices.engine import EngineFlags
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.fields import question_if_asked
from inferplan.planning.space import Rejections, Space, speculations
from inferplan.reports import plan_file
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.applied import Techniques, refusal, served_estimate
from inferplan.serving.techniques.speculation import Speculation, expected_tokens, speculate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment

CHANCES = st.floats(min_value=0.0, max_value=1.0)


def test_tokens_of_a_curve_by_hand() -> None:
    """1 + 0.8 + 0.8*0.6 + 0.8*0.6*0.4 = 2.472."""
    assert Speculation(length=3, acceptance=(0.8, 0.6, 0.4)).tokens == pytest.approx(2.472, rel=1e-12)
    assert Speculation(length=2, acceptance=(0.0, 1.0)).tokens == 1.0
    assert Speculation(length=2, acceptance=(0.5, 0.5), branches=2).tokens == pytest.approx(1 + 0.75 + 0.75**2)
    assert Speculation().tokens == 1.0
    with pytest.raises(UsageError, match="3 positions does not go with 2"):
        Speculation(length=2, acceptance=(0.8, 0.6, 0.4))
    with pytest.raises(UsageError, match=r"not 1\.2"):
        Speculation(length=2, acceptance=(0.8, 1.2))


@given(chance=CHANCES, length=st.integers(min_value=1, max_value=12))
def test_a_constant_curve_is_equation_1(chance: float, length: int) -> None:
    curve = Speculation(length=length, acceptance=(chance,) * length)
    assert curve.tokens == pytest.approx(float(expected_tokens(chance, float(length))), rel=1e-9)
    assert curve.tokens == Speculation(length=length, acceptance=chance).tokens


@given(curve=st.lists(CHANCES, min_size=1, max_size=8), more=CHANCES, where=st.integers(min_value=0, max_value=7))
def test_more_acceptance_never_yields_less(curve: list[float], more: float, where: int) -> None:
    better = [max(chance, more) if at == where else chance for at, chance in enumerate(curve)]
    worse, improved = (Speculation(length=len(curve), acceptance=tuple(chances)) for chances in (curve, better))
    assert 1.0 <= worse.tokens <= improved.tokens <= len(curve) + 1


def test_no_drafts_are_plain_decoding() -> None:
    served = deployment("llama-3.1-8b", "h100-sxm", ideal=False)
    gain = speculate(served, Speculation(length=0, draft=served), 8.0, 1000.0)
    assert float(gain.tpot) == float(gain.plain)
    assert float(gain.draft) == 0.0


def test_more_acceptance_is_never_slower() -> None:
    served = deployment("llama-3.1-8b", "h100-sxm", ideal=False)
    draft = deployment("llama-3.2-1b", "h100-sxm", ideal=False)
    curves = [(0.5, 0.3, 0.1), (0.6, 0.3, 0.1), (0.6, 0.6, 0.1), (0.6, 0.6, 0.6)]
    times = [
        float(speculate(served, Speculation(length=3, acceptance=curve, draft=draft), 8.0, 1000.0).tpot)
        for curve in curves
    ]
    assert times == sorted(times, reverse=True)


def test_measured_lengths_are_those_published(shared: Path) -> None:
    """Every row of the table is on file, and nothing else of its source."""
    first = yaml.safe_load((config_root() / "acceptance.yaml").read_text(encoding="utf-8"))["sources"][0]
    on_file = sorted(
        (one["model"], one["draft"], one["mode"].partition(",")[0], tokens, length)
        for one in first["measured"]
        for tokens, length in one["lengths"].items()
    )
    published = []
    with (shared / "reference" / "acceptance_lengths.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            named = row["model"], row["draft"] or "dspark", row["mode"].replace("_", " ")
            published.append((*named, int(row["draft_tokens"]), float(row["mean_acceptance_length"])))
    assert on_file == sorted(published)


def test_which_measurement_is_taken() -> None:
    """InferenceX: 3.39 tokens of 3 drafts with thinking, 3.33 without; lmsys: 2.44 of DeepSeek-V3."""
    qwen = acceptance_for("qwen3.5-397b-a17b", "mtp", 3)
    assert (qwen.length, qwen.low, qwen.high) == (3.39, 3.33, 3.39)
    assert "thinking on" in qwen.basis
    assert acceptance_for("qwen3.5-397b-a17b", "mtp", 3, "thinking off").length == 3.33
    assert acceptance_for("deepseek-r1", "mtp", 3).length == 2.44
    assert "measured of deepseek-v3" in acceptance_for("deepseek-r1", "mtp", 3).basis
    assert acceptance_for("deepseek-v3", "mtp", 1)[:3] == (1.875, 1.85, 1.9)
    assert measured_tokens("deepseek-r1", "mtp") == [1, 2, 3, 7]
    drafting = measured_drafting(load_model("deepseek-r1"), "mtp", 3)
    assert drafting.beside(None).tokens == pytest.approx(2.44, rel=1e-9)
    assert "lmsys" in drafting.basis


@for_each(
    ("asked", "because"),
    [
        (("qwen3-235b-a22b", "eagle3", 3), "none is on file"),
        (("deepseek-r1", "mtp", 5), "on file for 1, 2, 3, 7"),
        (("glm-5.2", "mtp", 2, "thinking off"), "measured: 'thinking on'"),
    ],
)
def test_what_was_not_measured_is_refused(asked: tuple[str, str, int], because: str) -> None:
    with pytest.raises(MissingFactError) as refused:
        acceptance_for(*asked)
    assert because in refused.value.because
    assert "--acceptance 0.7" in refused.value.hint


def test_lengths_of_an_eagle3_head_by_position() -> None:
    """vLLM issue 26191: of 4,816 rounds 0.74, 0.54, 0.41, 0.31, 0.23, 0.17 and 0.13 accept so many tokens, 3.53 on
    average with the model's own."""
    reached = [0.74, 0.54, 0.41, 0.31, 0.23, 0.17, 0.13]
    found = [acceptance_for("llama-3.1-8b", "eagle3", tokens, "temperature 0").length for tokens in range(1, 8)]
    assert found == [round(1 + sum(reached[:tokens]), 2) for tokens in range(1, 8)]
    assert acceptance_for("llama-3.1-8b", "eagle3", 7)[1:3] == (2.77, 3.53)


def test_a_number_of_drafts_that_was_measured_is_named() -> None:
    with pytest.raises(MissingFactError, match="no acceptance of 3") as refused:
        acceptance_for("qwen3-8b", "eagle3", 3)
    assert refused.value.hint.startswith("--draft-tokens 2, --acceptance 0.7")


def test_a_drafting_says_what_it_is() -> None:
    words = Drafting(model="mtp", length=2, acceptance=(0.9, 0.6)).describe()
    assert words == "mtp drafts of 2 tokens, acceptance 0.9, 0.6 by position"


def asked(**changes: Any) -> dict[str, Any]:
    """The values of the options of drafts."""
    names = ("draft_model", "draft_tokens", "acceptance", "acceptance_length", "thinking")
    return {**dict.fromkeys(names), "draft_branches": None, **changes}


def draftings_of(values: dict[str, Any], target: str, kind: type[DraftsAsked] = DraftsAsked) -> tuple[Drafting, ...]:
    """What options ask for a model; none without drafts."""
    found = question_if_asked(kind, values)
    return () if found is None else found.draftings(target)


def test_numbers_of_drafts_to_try() -> None:
    """Those measured, those of a curve, or a range; a shorter one takes the first positions of the curve."""
    every = draftings_of(asked(draft_model="mtp"), "deepseek-r1", DraftsTried)
    assert [one.length for one in every] == [1, 2, 3, 7]
    assert [round(one.beside(None).tokens, 3) for one in every] == [1.875, 2.18, 2.44, 3.2]
    curve = draftings_of(asked(draft_model="free", acceptance="0.8,0.6,0.4"), "llama-3.1-8b", DraftsTried)
    assert [one.acceptance for one in curve] == [(0.8,), (0.8, 0.6), (0.8, 0.6, 0.4)]
    ranged = asked(draft_model="free", acceptance="0.5", draft_tokens="1-3")
    assert [one.length for one in draftings_of(ranged, "llama-3.1-8b", DraftsTried)] == [1, 2, 3]
    lengths = asked(draft_model="free", acceptance_length="1.5,1.75", draft_tokens="1,2")
    assert [one.acceptance for one in draftings_of(lengths, "llama-3.1-8b", DraftsTried)] == [
        pytest.approx(0.5),
        pytest.approx(0.5),
    ]
    assert draftings_of(asked(draft_model="mtp", draft_tokens=0), "deepseek-r1") == ()
    assert draftings_of(asked(), "deepseek-r1") == ()


@for_each(
    ("changes", "words"),
    [
        (
            {"draft_model": "free", "draft_tokens": 2, "acceptance": "0.8,0.6,0.4,0.2", "thinking": "on"},
            "state the same",
        ),
        ({"draft_model": "free", "draft_tokens": 4, "acceptance": "0.8,0.6"}, "2 positions does not go with 4"),
        ({"draft_model": "free", "draft_tokens": 2, "acceptance": "much"}, "is not a number"),
        ({"draft_model": "free", "draft_tokens": 2, "acceptance_length": "2,3"}, "2 acceptance lengths do not go"),
        ({"thinking": "on"}, "--thinking belongs to speculative decoding, and no draft model is named"),
    ],
)
def test_options_of_drafts_that_do_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        draftings_of(asked(**changes), "deepseek-r1")


def test_trees_need_an_acceptance_of_their_own() -> None:
    with pytest.raises(MissingFactError, match="no acceptance of trees"):
        draftings_of(asked(draft_model="mtp", draft_tokens=3, draft_branches=2), "deepseek-r1")


def test_a_sweep_prices_drafts_as_an_estimate_does() -> None:
    request = Request(model="llama-3.1-8b", gpu="h100-sxm")
    drafting = Drafting(model="llama-3.2-1b", length=3, acceptance=(0.8, 0.6, 0.4))
    grid = Grid(
        base=request,
        structure={"model": [request.model], "gpu": [request.gpu]},
        batch=[8],
        drafting={request.model: (drafting,)},
    )
    rows = list(sweep(grid, Execution(backend="serial")).columns)
    assert [row["draft_tokens"] for row in rows] == [0, 3]
    speculation = drafting.on(request, request.parallel)
    load = StaticLoad(batch=8.0, prompt=1024.0, output=256.0)
    alone = served_estimate(assemble(request), load, Techniques(speculation=speculation))
    assert rows[1]["tpot_s"] == pytest.approx(float(alone.tpot), rel=1e-9)
    assert rows[0]["tpot_s"] == pytest.approx(float(alone.without.tpot), rel=1e-9)
    assert rows[1]["max_batch"] == float(alone.footprint.max_batch())


def test_the_planner_tries_none_and_every_number() -> None:
    """None is always among them, so that a plan is never dearer for it."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm")
    tried = tuple(Drafting(model=None, length=length, acceptance=0.6) for length in (1, 2, 4))
    space = Space(base=request, gpus=("h100-sxm",), drafting=tried)
    found = speculations(space, request, assemble(request), Rejections())
    assert [one.length for one in found] == [0, 1, 2, 4]
    assert [space.drafting_of(one) for one in found] == [None, *tried]


def test_a_curve_comes_back_from_the_file_of_a_plan() -> None:
    written = {"model": "mtp", "length": 2, "acceptance": [0.9, 0.6], "branches": 1, "basis": "given"}
    drafting = plan_file._Drafting.model_validate(written, strict=True).drafting()
    assert drafting == Drafting(model="mtp", length=2, acceptance=(0.9, 0.6), basis="given")


def test_no_more_verifications_than_a_step_holds() -> None:
    """A step of 64 tokens holds 16 verifications of four tokens, and none of 65."""
    small = deployment(flags=EngineFlags(token_budget=64, max_sequences=64))
    load = UserLoad(concurrency=40.0, prompt=32.0, output=64.0)
    drafts = Speculation(length=3, acceptance=0.5)
    assert float(steady_state(small, load, speculation=drafts).admissible) == 16
    assert float(steady_state(small, load).admissible) == 64
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=40, burst=True, ramp=None), prompt=Lengths(mean=32), output=Lengths(mean=64)
    )
    run = simulate(small, traffic, options=Options(speculation=drafts))
    assert run.slots == 16
    with pytest.raises(UsageError, match="a verification of 65 tokens is more than a step of 64"):
        simulate(small, traffic, options=Options(speculation=Speculation(length=64, acceptance=0.5)))
    batch = StaticLoad(batch=17.0, prompt=32.0)
    assert "68 tokens to verify are more than max_num_batched_tokens 64" in refusal(small, batch, 4)
    assert not refusal(small, StaticLoad(batch=16.0, prompt=32.0), 4) and not refusal(small, batch)
