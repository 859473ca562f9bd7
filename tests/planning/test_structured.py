"""Plans with structured decoding: the closed form against estimates and steps by hand, finalists against simulate."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.price_lists import price_book
from inferplan.cli import cli
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.estimate.structured import MaskedSteps, Structured, StructuredEstimate
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import plan
from inferplan.planning.question import Question
from inferplan.planning.search import point
from inferplan.planning.space import Space
from inferplan.planning.verify import verify
from inferplan.reports.plan_figures import launch_line
from inferplan.reports.plan_record import plan_record
from inferplan.serving.techniques.speculation import Speculation
from inferplan.traffic.requests import Lengths, Slo
from tests.cases import for_each
from tests.serving.test_structured import after, asked


def demand(structured: Structured | None, **changes: Any) -> Demand:
    return Demand(
        **({"prompt": Lengths(mean=512), "output": Lengths(mean=128), "rate": 4.0} | changes), structured=structured
    )


def deployment() -> Any:
    return assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))


def question(asked_for: Demand, sizing: Sizing | None = None, **space: Any) -> Question:
    given: dict[str, Any] = {"gpus": ("h100-sxm",), "quants": (None,), "most": 1, "budgets": (2048,)}
    given["disaggregate"] = False
    return Question(
        space=Space(base=Request(model="llama-3.1-8b", gpu=""), **(given | space)),
        demand=asked_for,
        slo=Slo(ttft=0.5, tpot=0.05, percentile=95.0),
        sizing=sizing or Sizing(),
        prices=price_book(stated=["h100-sxm=2", "b200-hgx=4"]),
    )


@for_each("share", [1.0, 0.3])
@for_each("batch", [1, 8, 64, 200])
def test_a_step_of_the_closed_form_is_that_of_an_estimate(batch: int, share: float) -> None:
    """Masks of 200 us: hidden behind small batches, the pace of larger ones. Answers of two tokens are one step."""
    structured = asked(share=share, mask_time=200e-6)
    plain = estimate(deployment(), StaticLoad(batch=float(batch), prompt=512.0, output=2.0))
    made = StructuredEstimate(deployment=plain.deployment, load=plain.load, structured=structured)
    grid = point(deployment(), demand(structured, output=Lengths(mean=2)), 95.0, batch, 2048)
    assert float(grid.step_decode[0]) == pytest.approx(float(made.tpot), rel=1e-9)


def test_a_step_with_prompts_has_a_mask_for_each_that_ends() -> None:
    """Eight decodes, masks of 20 ms that are longer than any step: in the 1 - exp(-8/127) of the steps that hold
    prompts (8/127)/(1 - exp(-8/127)) = 1.0318 of these end, so the mean of 9 and 10 masks, 20 ms each."""
    structured = asked(mask_time=20e-3)
    coming = 8 / 127
    ending = coming / (1 - np.exp(-coming))
    masks = [20e-3 * n + after(n) for n in (9, 10)]
    by_hand = masks[0] + (ending - 1) * (masks[1] - masks[0])
    ideal = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    grid = point(ideal, demand(structured), 95.0, 8, 2048)
    assert float(grid.step_mixed[0, 0]) == pytest.approx(by_hand, rel=1e-6)
    assert float(grid.step_decode[0]) == pytest.approx(8 * 20e-3 + after(8), rel=1e-9)


def test_masks_of_drafts_are_filled_one_after_another() -> None:
    """A verification of three tokens of each of eight sequences: 24 masks of 20 ms, longer than any step, on one thread
    however many cores there are; of 200 sequences 600, of which threads would share those beyond 128."""
    ideal, drafts = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True)), Speculation(length=2)
    for batch in (8, 200):
        grid = point(ideal, demand(asked(mask_time=20e-3)), 95.0, batch, 2048, drafts)
        assert float(grid.step_decode[0]) == pytest.approx(3 * batch * 20e-3 + after(3 * batch), rel=1e-9)


def test_the_host_scheduler_hides_no_mask() -> None:
    """What hides is behind the kernels: a step of one is its host's time and the mask of 20 ms, not the larger."""
    structured = asked(mask_time=20e-3)
    one = deployment()
    grid = point(one, demand(structured), 95.0, 1, 2048)
    host = one.step.host + one.step.sequence
    assert host > 0
    steps = MaskedSteps(deployment=one, structured=structured)
    behind = float(steps.copied(1.0) + steps.applied(1.0))
    assert float(grid.step_decode[0]) == pytest.approx(host + 20e-3 + behind, rel=1e-9)


def test_hardly_any_structured_requests_change_nothing() -> None:
    masked = point(deployment(), demand(asked(share=1e-15)), 95.0, 48, 2048)
    plain = point(deployment(), demand(None), 95.0, 48, 2048)
    for name in ("step_decode", "step_mixed", "rate", "ttft", "tpot", "e2el", "memory_use"):
        assert getattr(masked, name) == pytest.approx(getattr(plain, name), rel=1e-12), name


def test_finalists_are_what_simulate_says_of_the_flags_that_are_emitted() -> None:
    """One replica, its flags read from the command that starts it, through ``inferplan simulate``."""
    of = question(demand(asked(share=0.5, mask_time=1e-3), rate=3.0))
    best = plan(of)
    assert best.option.replicas == 1
    words = str(launch_line(best)).split()
    flag = {name: words[words.index(f"--{name}") + 1] for name in ("max-num-seqs", "max-num-batched-tokens")}
    first = verify(best.option, of)
    assert first.rest is not None
    checked = first.rest.whole
    assert checked is not None and checked.result is not None
    line = "simulate llama-3.1-8b --gpu h100-sxm --rate 3 --prompt 512 --output 128 --format json"
    line += " --structured-share 0.5 --mask-time 1ms --host-cores 32 --mask-bandwidth 64GB/s"
    line += f" --max-num-seqs {flag['max-num-seqs']} --max-num-batched-tokens {flag['max-num-batched-tokens']}"
    line += f" --requests {len(checked.result.records.prompt)}"
    said = json.loads(CliRunner().invoke(cli, line.split(), catch_exceptions=False).output)
    for name in ("ttft", "tpot", "e2el"):
        # the same draws of arrivals: there as they fall, in a plan each quarter of them at its rate
        assert said[f"{name}_s"]["p95"] == pytest.approx(checked.achieved[name], rel=0.01), name
    record = json.loads(json.dumps(plan_record(best), default=str))
    assert record["question"]["structured"]["share"] == 0.5
    assert record["question"]["structured"]["mask_time_s"] == 1e-3
    assert best.best.watts is not None and 0.3 * 700 < best.best.watts < 700


def test_masks_that_set_the_pace_cost_replicas() -> None:
    """Masks of 5 ms for all: 50 ms is up with less than ten sequences, so a replica makes less than 10/50 ms tokens a
    second: 1.6 requests of 127 of them. Eight times as much takes 5 replicas or more; without masks one does."""
    rate = 8.0
    fewest = int(np.ceil(rate / (10 / 0.05 / 127)))
    found = plan(question(demand(asked(mask_time=5e-3), rate=rate)))
    assert found.option.replicas >= fewest > plan(question(demand(None, rate=rate))).option.replicas == 1


def test_beside_what_it_is_not_planned() -> None:
    of = demand(asked())
    for space, said in (
        ({"engines": ("vllm", "trtllm")}, "under trtllm is not known"),
        ({"disaggregate": True}, "pools of their own"),
        ({"placed": (OffloadAsked(host="epyc-9654", cpu_offload_gb=10.0),)}, "weights read from the host"),
    ):
        with pytest.raises(UsageError, match=said):
            question(of, **space)
    with pytest.raises(InfeasibleError, match="the bandwidth from the host to b200-hgx"):
        plan(question(demand(Structured(share=1.0, mask_time=1e-6, cores=1)), gpus=("b200-hgx",)))


@for_each(
    ("words", "said"),
    [
        ("plan --ttft 1s --mask-time 40us", "--mask-time belongs to structured decoding"),
        ("plan --ttft 1s --structured-share 1", "needs --host-cores"),
        ("plan --ttft 1s --structured-share 1 --mask-time 40us --host-cores 8 --engine trtllm", "under trtllm"),
    ],
)
def test_what_is_refused(words: str, said: str) -> None:
    command, *options = words.split()
    line = [command, "llama-3.1-8b", "--gpu", "h100-sxm", "--rate", "1", "--prompt", "64", "--output", "8", *options]
    result = CliRunner().invoke(cli, line)
    assert isinstance(result.exception, InferplanError) and said in result.exception.render()
