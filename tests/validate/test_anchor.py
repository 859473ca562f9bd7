"""Anchors: which runs to measure, files of measured runs, and what they make of every command's latencies."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from inferplan.answers.anchoring import AnchorLoads, suggest
from inferplan.catalog.assemble import Request, anchor_process, assemble, load_anchor
from inferplan.cli import cli
from inferplan.devices.anchors import Anchor, AnchorRow
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.anchoring import fingerprint, system_of, with_anchor
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.planning.demand import Demand
from inferplan.planning.grid import axes_for, load_grid
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from inferplan.validation.anchor import anchor_of, anchor_yaml, left_over
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.rows import Row, row_of
from inferplan.validation.run import Pricing, price_rows
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

HEAD = "model,gpu,engine,weights,isl,osl,concurrency,tp,requests,max_num_batched_tokens,ttft_ms,tpot_ms"
CELLS = "llama-3.1-8b,h100-sxm,vllm,bf16,256,32,2,1,4,2048,40,8"
FACTS = dict(zip(HEAD.split(","), CELLS.split(",")))
BARE = ["llama-3.1-8b", "--gpu", "h100-sxm"]


def row(**changes: str) -> Row:
    return row_of("here", {**FACTS, **changes}, {})


def everywhere(deployment: Deployment, ttft: float, tpot: float) -> Deployment:
    """The deployment with runs all over its loads that took so many times as long as predicted."""
    rows = tuple(
        AnchorRow(users=u, prompt=p, output=o, ttft_ln_ratio=float(np.log(ttft)), tpot_ln_ratio=float(np.log(tpot)))
        for u in (1, 4, 16)
        for p in (64, 256, 512)
        for o in (8, 32, 64)
    )
    anchor = Anchor(
        system=system_of(deployment), priced_with=fingerprint(deployment), process=anchor_process(), rows=rows
    )
    return with_anchor(deployment, anchor, "own.yaml")


def run_cli(*arguments: str) -> tuple[int, str, str]:
    result: Result = CliRunner().invoke(cli, list(arguments))
    code = result.exception.exit_code if isinstance(result.exception, InferplanError) else result.exit_code
    return code, result.stdout, str(result.exception or "")


def own_file(folder: Path, *lines: str) -> Path:
    """An anchor fitted by the command line to rows of a CSV."""
    source, target = folder / "rows.csv", folder / "own.yaml"
    source.write_text("\n".join([HEAD, *(lines or (CELLS,))]) + "\n")
    code, _, error = run_cli("anchor", "fit", str(source), "-o", str(target))
    assert (code, error) == (0, "")
    return target


def test_every_latency_moves_by_what_runs_like_it_took() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    moved = everywhere(deployment, 1.5, 0.8)
    load = StaticLoad(batch=2.0, prompt=256.0, output=32.0)
    before, after = Estimate(deployment=deployment, load=load), Estimate(deployment=moved, load=load)
    assert after.ttft == pytest.approx(float(before.ttft) * 1.5, rel=0.03)
    assert after.tpot == pytest.approx(float(before.tpot) * 0.8, rel=0.03)
    loop = ClosedLoop(concurrency=2)
    traffic = Traffic(arrivals=loop, prompt=Lengths(mean=64), output=Lengths(mean=8), requests_count=6)
    first, second = simulate(deployment, traffic), simulate(moved, traffic)
    ttft, tpot = second.anchor
    assert (ttft, tpot) == pytest.approx((1.5, 0.8), rel=0.03)
    assert np.allclose(second.ttft, ttft * first.ttft)
    assert np.allclose(second.tpot, tpot * first.tpot)
    assert np.allclose(second.e2el, second.ttft + 7 * second.tpot)
    slower = float(np.mean(second.e2el) / np.mean(first.e2el))
    assert second.request_rate == pytest.approx(first.request_rate / slower)  # users who wait longer ask less often
    state = steady_state(moved, UserLoad(concurrency=2.0, prompt=64.0, output=8.0))
    assert float(state.request_rate * state.e2el) == pytest.approx(2.0)


def test_an_open_loop_is_corrected_at_the_users_that_it_holds() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    rows = tuple(AnchorRow(users=u, prompt=512, output=64, tpot_ln_ratio=v) for u, v in ((1, 0.0), (64, 0.3)))
    facts: dict[str, Any] = {"system": system_of(deployment), "priced_with": fingerprint(deployment)}
    moved = with_anchor(deployment, Anchor(process=anchor_process(), rows=rows, **facts), "own.yaml")

    def factor(rate: float) -> float:
        lengths = {"prompt": Lengths(mean=512), "output": Lengths(mean=64)}
        return simulate(moved, Traffic(arrivals=OpenLoop(rate=rate), requests_count=200, **lengths)).anchor[1]

    assert 1.0 <= factor(0.5) < factor(20.0) < factor(60.0)


def test_a_plan_searches_among_corrected_latencies() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    demand = Demand(prompt=Lengths(mean=512), output=Lengths(mean=64), rate=1.0)
    axes = axes_for(deployment, [2048])
    before, after = (load_grid(one, demand, 95.0, axes) for one in (deployment, everywhere(deployment, 1.5, 1.5)))
    few = axes.batch <= 16
    for name in ("ttft", "tpot", "e2el"):
        assert np.allclose(getattr(after, name)[few], 1.5 * getattr(before, name)[few], rtol=0.05)
    assert np.allclose(after.rate[few], before.rate[few] / 1.5, rtol=0.05)


def test_rows_become_ratios_of_their_loads() -> None:
    scored = price_rows([row()])
    assert scored[0].prediction is not None
    fitted = anchor_of(scored, Pricing(), "here")
    (found,) = fitted.anchor.rows
    assert (found.users, found.prompt, found.output, found.tp) == (2.0, 256.0, 32.0, 1)
    assert np.exp(found.tpot_ln_ratio or 0) == pytest.approx(0.008 / float(scored[0].prediction.tpot or 0), rel=1e-5)
    assert np.exp(found.ttft_ln_ratio or 0) == pytest.approx(0.040 / float(scored[0].prediction.ttft or 0), rel=1e-5)
    assert left_over(fitted.anchor, "tpot") is None  # nothing beside it to correct it by


def test_rows_are_corrected_by_each_other_by_hand() -> None:
    """Two runs of one load, both a tenth slower than predicted: of the other one the process takes k/(k + n^2), k its
    variance and n the noise of a run; what is left of ln 1.1 is n^2/(k + n^2) of it."""
    rows = tuple(AnchorRow(users=4, prompt=256, output=32, tpot_ln_ratio=float(np.log(1.1))) for _ in range(2))
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    anchor = Anchor(
        system=system_of(deployment), priced_with=fingerprint(deployment), process=anchor_process(), rows=rows
    )
    kernel = anchor.process.tpot
    assert anchor.process.clip > np.log(1.1)
    noise, variance = kernel.noise**2, kernel.shared**2 + kernel.local**2
    left = np.log(1.1) * noise / (variance + noise)
    assert left_over(anchor, "tpot") == pytest.approx((1 - 1 / 1.1, 1 - float(np.exp(-left))))


def test_users_of_an_open_loop_are_those_of_little() -> None:
    # 2 requests per second, each there for 40 ms + 31 x 8 ms = 0.288 s: 0.576 users, and nobody is less than one
    (few,) = anchor_of(price_rows([row(concurrency="", rate_per_s="2")]), Pricing(), "").anchor.rows
    assert few.users == 1.0
    (many,) = anchor_of(price_rows([row(concurrency="", rate_per_s="20")]), Pricing(), "").anchor.rows
    assert many.users == pytest.approx(20 * 0.288)


def test_an_anchor_is_of_one_system() -> None:
    with pytest.raises(UsageError, match="one system, not 2"):
        anchor_of(price_rows([row(), row(model="llama-3.2-1b")]), Pricing(), "")
    with pytest.raises(UsageError, match="one system, not 2"):
        anchor_of(price_rows([row(), row(concurrency="", batch="2")]), Pricing(), "")
    with pytest.raises(UsageError, match="no run"):
        anchor_of(price_rows([row(gpu="abacus")]), Pricing(), "")
    with pytest.raises(UsageError, match="cold start"):
        anchor_of(price_rows([row(suspect="cold start")]), Pricing(), "")
    fitted = anchor_of(price_rows([row(), row(suspect="cold start"), row(tpot_ms="0.5")]), Pricing(), "")
    assert len(fitted.anchor.rows) == 1
    assert [reason for _, reason in fitted.left_out] == ["suspect: cold start", "impossible: tpot"]
    fitted = anchor_of(price_rows([row(), row(ttft_ms="", tpot_ms="", e2el_ms="300")]), Pricing(), "")
    assert [reason for _, reason in fitted.left_out] == ["neither TTFT nor TPOT"]


def test_a_file_that_is_given_twice_says_it_once(tmp_path: Path) -> None:
    """A copy of it, too, and the band is no narrower; another run of the same load counts."""
    first, copy, again = (tmp_path / name for name in ("first.csv", "copy.csv", "again.csv"))
    for path in (first, copy):
        path.write_text(f"{HEAD}\n{CELLS}\n")
    again.write_text(f"{HEAD}\n{CELLS}.1\n")

    def fitted(*files: Path) -> Anchor:
        target = tmp_path / "own.yaml"
        code, _, error = run_cli("anchor", "fit", *map(str, files), "-o", str(target))
        assert (code, error) == (0, "")
        return load_anchor(str(target))

    assert [len(fitted(*files).rows) for files in ((first, copy), (first, first), (first, again))] == [1, 1, 2]
    scored = price_rows([row(), row()])
    left = anchor_of(scored, Pricing(), "").left_out
    assert [reason for _, reason in left] == [f"the same run as {scored[0].row.where}, to the last digit"]


def test_an_anchor_is_of_the_release_that_ran(tmp_path: Path) -> None:
    """As rows state it; 0.19 is each of its patches, and where nobody asks for one it is that which ran."""
    with pytest.raises(UsageError, match="one system, not 2") as told:
        anchor_of(price_rows([row(engine_version="0.19.1"), row(engine_version="v0.19.0")]), Pricing(), "")
    assert "under vllm 0.19.1, " in str(told.value) and "under vllm 0.19.0, " in str(told.value)
    for said in ("", "0.33"):
        both = anchor_of(
            price_rows([row(engine_version=said, tpot_ms="8.1"), row(engine_version="0.33.0")]), Pricing(), ""
        )
        assert (both.anchor.system.release, len(both.anchor.rows)) == ("0.33.0", 2)
    fitted = anchor_of(price_rows([row(engine_version="v0.19.1rc2")]), Pricing(), "")
    assert fitted.anchor.system.release == "0.19.1"
    target = tmp_path / "own.yaml"
    target.write_text(anchor_yaml(fitted.anchor))
    words = ("estimate", *BARE, "--anchor", str(target), "--engine")
    assert [run_cli(*words, f"vllm@{one}")[0] for one in ("0.19.1", "0.19")] == [0, 0]
    code, _, error = run_cli(*words, "vllm@0.19.0")
    assert code == 2 and "under vllm 0.19.1, not to " in error and error.count("under vllm 0.19.0") == 1


def test_the_file_says_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    target = own_file(tmp_path, CELLS, CELLS.replace(",256,32,2,", ",512,32,8,"))
    anchor = load_anchor(str(target))
    assert len(anchor.rows) == 2
    assert "rows.csv:2: TTFT 40 ms, predicted" in anchor.rows[0].source
    assert anchor.process.source == anchor_process().source
    assert yaml.safe_load(anchor_yaml(anchor)) == yaml.safe_load(target.read_text())


@for_each(
    "command",
    [
        ["estimate", *BARE],
        ["explain", "tpot", *BARE],
        ["cost", *BARE, "--price", "h100-sxm=2"],
        ["simulate", *BARE, "--concurrency", "2", "--requests", "8"],
        ["sweep", *BARE, "--executor", "joblib", "--jobs", "1"],
        ["compare", "llama-3.1-8b", "--gpu", "h100-sxm"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_the_file(command: list[str], tmp_path: Path) -> None:
    target = own_file(tmp_path, CELLS.removesuffix("40,8") + "80,16")
    bare, corrected = (run_cli(*command, *more, "--format", "json") for more in ([], ["--anchor", str(target)]))
    assert (bare[0], corrected[0]) == (0, 0)
    assert bare[1] != corrected[1]


def test_the_basis_names_the_runs_and_the_band_is_theirs(tmp_path: Path) -> None:
    target = str(own_file(tmp_path))
    _, out, _ = run_cli("estimate", *BARE, "--anchor", target)
    assert "anchored to 1 measured runs: at this load TTFT x " in out
    assert "80 % of unseen runs of a system measured like this" in out
    served = [
        run_cli("simulate", *BARE, "--concurrency", "2", "--requests", "8", *anchor)[1]
        for anchor in ([], ["--anchor", target])
    ]
    gaps = [next(line.split()[1] for line in said.splitlines() if line.startswith("ITL")) for said in served]
    assert gaps[0] == gaps[1], "the mean"
    assert "ITL and waits are not anchored" in served[1] and "without it" not in served[0]
    near, far = (
        json.loads(run_cli("estimate", *BARE, *load, "--anchor", target, "--format", "json")[1])
        for load in (["--batch", "2", "--prompt", "256", "--output", "32"], ["--batch", "16", "--prompt", "8192"])
    )
    widths = [record["tpot_high_s"] / record["tpot_low_s"] for record in (near, far)]
    assert widths[0] < widths[1]  # what is far from every run is less known
    _, out, _ = run_cli("explain", "tpot", *BARE, "--anchor", target)
    assert "1 rows of tpot_ln_ratio" in out


def test_no_band_is_made_up(tmp_path: Path) -> None:
    """It is that of the constants for a latency that no run has, and unknown where theirs is."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    rows = (AnchorRow(users=2, prompt=256, output=32, tpot_ln_ratio=0.1),)
    facts: dict[str, Any] = {"system": system_of(deployment), "priced_with": fingerprint(deployment)}
    moved = with_anchor(deployment, Anchor(process=anchor_process(), rows=rows, **facts), "own.yaml")
    load = StaticLoad(batch=2.0, prompt=256.0, output=32.0)
    bare, corrected = (Estimate(deployment=each, load=load) for each in (deployment, moved))
    assert corrected.band("ttft") == bare.band("ttft")
    assert corrected.ttft == bare.ttft
    assert corrected.band("tpot") != bare.band("tpot")
    target = str(tmp_path / "own.yaml")
    (tmp_path / "rows.csv").write_text(f"{HEAD}\n{CELLS}\n")
    assert run_cli("anchor", "fit", str(tmp_path / "rows.csv"), "--ideal", "-o", target)[0] == 0
    record = json.loads(run_cli("estimate", *BARE, "--ideal", "--anchor", target, "--format", "json")[1])
    assert record["anchor"]["runs"] == 1
    assert record["tpot_low_s"] is None


def test_another_system_is_refused_by_name(tmp_path: Path) -> None:
    target = str(own_file(tmp_path))
    for other in (
        ["llama-3.2-1b", "--gpu", "h100-sxm"],
        ["llama-3.1-8b", "--gpu", "l40s"],
        [*BARE, "--engine", "sglang"],
        [*BARE, "--quant", "fp8"],
    ):
        code, _, error = run_cli("estimate", *other, "--anchor", target)
        assert code == 2
        assert "anchored to llama-3.1-8b in bf16 on h100-sxm under vllm, not to " in error
    code, _, error = run_cli("estimate", *BARE, "--ideal", "--anchor", target)
    assert code == 2
    assert "predictions of other constants" in error
    code, _, error = run_cli("plan", "llama-3.1-8b", "--gpu", "l40s", "--users", "2", "--workload", "chat",
                             "--price", "l40s=1", "--anchor", target)  # fmt: skip
    assert code == 2
    assert "which is no candidate" in error
    pools = ["--concurrency", "2", "--prefill-replicas", "1", "--decode-replicas", "1", "--requests", "4"]
    assert "compute prompts and decode" in run_cli("simulate", *BARE, *pools, "--anchor", target)[2]


def test_a_cache_in_another_format_is_another_system(tmp_path: Path) -> None:
    """Half the bytes of a cached token: twice the requests fit, and a step reads half."""
    target = own_file(tmp_path)
    code, _, error = run_cli("estimate", *BARE, "--kv", "fp8", "--anchor", str(target))
    assert code == 2
    assert "not to llama-3.1-8b in bf16, cache fp8 on h100-sxm" in error
    older = yaml.safe_load(target.read_text())
    del older["system"]["kv"]
    target.write_text(yaml.safe_dump(older))
    assert run_cli("estimate", *BARE, "--anchor", str(target))[0] == 0  # it says nothing of its cache


def test_what_a_file_says_is_not_overruled(tmp_path: Path) -> None:
    """An anchor is of the engine that ran, of its release and of the kernels that its flags chose."""
    (tmp_path / "rows.csv").write_text(f"{HEAD}\n{CELLS}\n")
    rows, target = str(tmp_path / "rows.csv"), str(tmp_path / "own.yaml")
    code, _, error = run_cli("anchor", "fit", rows, "--engine", "sglang", "-o", target)
    assert code == 2
    assert "rows.csv:2 says engine vllm, not sglang" in error
    same = ["--gpu", "H100-SXM", "--tp", "1", "--weights", "BF16"]
    assert run_cli("anchor", "fit", rows, *same, "-o", target)[0] == 0
    assert "the file says tp 1, not 2" in row_of("here", FACTS, {"tp": "2"}).notes


@for_each(
    "flags",
    [["--engine", "sglang@0.5.6"], ["--engine", "sglang", "--backend", "attention=@0.5.6"]],
    ids=["release", "backend"],
)
def test_runs_of_a_release_or_of_a_backend_anchor_what_is_priced_with_it(flags: list[str], tmp_path: Path) -> None:
    """What `anchor suggest` prints for `anchor fit` makes the anchor of that deployment, and of no other."""
    asked = ["anchor", "suggest", *BARE, *flags, "--runs", "1", "--format", "json"]
    words = shlex.split(json.loads(run_cli(*asked)[1])["fit"])
    assert words[:3] == ["inferplan", "anchor", "fit"]
    head = HEAD.replace("gpu,engine,weights,", "")
    cells = CELLS.replace("h100-sxm,vllm,bf16,", "")
    (tmp_path / "run.csv").write_text(f"{head}\n{cells}\n")
    target = str(tmp_path / "own.yaml")
    options = [word for word in words[3:-2] if word != "run-1.jsonl"]
    more = [] if "--engine" in options else ["--engine", "sglang"]
    assert run_cli("anchor", "fit", str(tmp_path / "run.csv"), *options, *more, "-o", target)[0] == 0
    assert run_cli("estimate", *BARE, *flags, "--anchor", target)[0] == 0
    code, _, error = run_cli("estimate", *BARE, "--engine", "sglang", "--anchor", target)
    assert code == 2
    assert "kernels of its runs: " in error and "0.5.6" in error and "here: the newest" in error


def test_runs_of_a_version_with_another_host_are_of_other_predictions(tmp_path: Path) -> None:
    """vLLM before 0.14 takes 1.8 ms a step: runs that it predicts say nothing of what is over a step of 0.6 ms."""
    head, cells = HEAD.replace("gpu,engine,weights,", ""), CELLS.replace("h100-sxm,vllm,bf16,", "")
    (tmp_path / "run.csv").write_text(f"{head}\n{cells}\n")
    target, facts = str(tmp_path / "own.yaml"), ["--gpu", "h100-sxm", "--weights", "bf16", "--engine", "vllm@0.12"]
    assert run_cli("anchor", "fit", str(tmp_path / "run.csv"), *facts, "-o", target)[0] == 0
    assert run_cli("estimate", *BARE, "--engine", "vllm@0.12", "--anchor", target)[0] == 0
    code, _, error = run_cli("estimate", *BARE, "--anchor", target)
    assert (code, "predictions of other constants" in error) == (2, True)


def test_a_server_that_is_not_started_here_is_named() -> None:
    asked = ["anchor", "suggest", *BARE, "--engine", "vllm@0.12", "--runs", "1"]
    code, out, _ = run_cli(*asked)
    assert (code, "server of 1: vllm 0.12 is priced, but its command line is not supported" in out) == (0, True)


def test_files_of_other_kinds_are_refused_with_what_to_do(tmp_path: Path) -> None:
    old, target = tmp_path / "old.yaml", own_file(tmp_path)
    old.write_text("name: h100-sxm, anchored\nconstants: {}\nanchor: {prefill: 1.1, decode: 0.9, rows: 3}\n")
    for option in ("--calibration", "--anchor"):
        code, _, error = run_cli("estimate", *BARE, option, str(old))
        assert code == 2
        assert "inferplan anchor fit RESULTS" in error
    assert run_cli("estimate", *BARE, "--anchor", str(tmp_path / "none.yaml"))[0] == 4
    assert run_cli("validate", str(tmp_path / "rows.csv"), "--anchor", str(tmp_path / "none.yaml"))[0] == 4
    assert run_cli("emit", "vllm", *BARE, "--anchor", str(target))[0] == 2  # it would change nothing


def test_rows_under_their_own_anchor_are_nearer(tmp_path: Path) -> None:
    target = own_file(tmp_path, CELLS.removesuffix("40,8") + "60,12")
    rows = str(tmp_path / "rows.csv")
    bare, corrected = (
        json.loads(run_cli("validate", rows, *more, "--format", "json")[1])["scores"]["all rows"]["tpot"]["mape"]
        for more in ([], ["--anchor", str(target)])
    )
    assert corrected < bare / 2
    _, out, _ = run_cli("validate", rows, "--anchor", str(target), "--gpu", "h100-sxm")
    assert "answered: 1 of 1 rows" in out


def request(**changes: Any) -> Request:
    return replace(Request(model="llama-3.1-8b", gpu="h100-sxm"), **changes)


def test_suggested_runs_are_among_what_is_asked_about_and_run() -> None:
    found = suggest(
        [request(), request(parallel=Parallelism(tp=2))], AnchorLoads((1, 16, 4096), (512, 4096), (128,)), 3
    )
    assert found.loads == 8
    assert found.dropped == 4  # 4,096 users are more than the slots
    assert len({(run.load, run.division) for run in found.runs}) == 3
    for run in found.runs:
        assert (run.load.users, run.load.prompt) in {(u, p) for u in (1.0, 16.0) for p in (512.0, 4096.0)}
    for metric in ("ttft", "tpot"):
        assert found.before[metric][0] < found.after[metric][0] < 1 < found.after[metric][1] < found.before[metric][1]
    with pytest.raises(InfeasibleError, match="none of the loads"):
        suggest([request()], AnchorLoads((1,), (1 << 20,), (128,)), 3)


def test_measured_runs_are_not_asked_for_again(tmp_path: Path) -> None:
    target = own_file(tmp_path, "llama-3.1-8b,h100-sxm,vllm,bf16,4096,128,16,1,160,8192,4000,20")
    loads = AnchorLoads((1, 16), (512, 4096), (128,))
    first = suggest([request()], loads, 1).runs[0].load
    found = suggest([request(anchor=str(target))], loads, 1)
    assert found.measured == 1
    assert (found.runs[0].load.users, found.runs[0].load.prompt) == (1.0, 512.0)  # the farthest from it
    assert found.before["tpot"][1] < suggest([request()], loads, 1).before["tpot"][1]
    assert first in [run.load for run in suggest([request()], loads, 4).runs]


@for_each("engine", ["vllm", "trtllm"])
def test_results_of_the_suggested_command_say_what_was_run(engine: str, tmp_path: Path) -> None:
    asked = request(engine=engine, parallel=Parallelism(tp=2), quant="bf16")
    (run,) = suggest([asked], AnchorLoads((4,), (512,), (64,)), 1).runs
    assert run.benchmark is not None
    words = shlex.split(run.benchmark)
    option = {name: words[place + 1] for place, name in enumerate(words) if name.startswith("--")}
    told = dict(word.split("=", 1) for word in words[words.index("--metadata") + 1 :])
    assert option["--result-filename"] == run.result
    record = {
        "model_id": option["--model"],
        "backend": "openai",
        "num_prompts": int(option["--num-prompts"]),
        "max_concurrency": int(option["--max-concurrency"]),
        "request_rate": "inf",
        "completed": 40,
        **told,
        "total_input_tokens": 40 * 512,
        "total_output_tokens": 40 * 64,
        "output_throughput": 100.0,
        "mean_ttft_ms": 40.0,
        "mean_tpot_ms": 9.0,
    }
    (tmp_path / run.result).write_text(json.dumps(record))
    ((measured,), deployment) = read_file(tmp_path / run.result, {})[1], assemble(asked)
    assert measured.run is not None, measured.refused
    again = deployment_of(measured.run)[0]
    assert system_of(again).same(system_of(deployment)) and fingerprint(again) == fingerprint(deployment)
    assert again.parallel == deployment.parallel
    assert (measured.run.concurrency, measured.run.requests) == (4, 40)


def test_sglang_states_the_rest_to_fit() -> None:
    found = suggest([request(engine="sglang")], AnchorLoads((4,), (512,), (64,)), 1)
    assert "sglang.bench_serving" in str(found.runs[0].benchmark)
    assert "--random-range-ratio 1 " in str(found.runs[0].benchmark)
    assert found.fit == "inferplan anchor fit run-1.jsonl --gpu h100-sxm --weights bf16 --kv bf16 -o own.yaml"
    other = suggest([request(engine="llama.cpp")], AnchorLoads((1,), (512,), (64,)), 1)
    assert other.runs[0].benchmark is None
    assert "no benchmark client of llama.cpp" in other.runs[0].note


def test_the_line_that_fits_names_the_constants() -> None:
    """Runs are predicted with what the deployment is priced with, else the anchor is refused there."""
    loads, own = AnchorLoads((4,), (512,), (64,)), "configs/calibration/h100-sxm.yaml"
    assert suggest([request(calibration=own)], loads, 1).fit.endswith(f"run-1.json --calibration {own} -o own.yaml")
    assert suggest([request(ideal=True)], loads, 1).fit.endswith("run-1.json --ideal -o own.yaml")


def test_the_command_prints_table_and_json() -> None:
    asked = ["anchor", "suggest", *BARE, "--runs", "2", "--concurrency", "1,8", "--prompt", "512", "--output", "64"]
    code, out, _ = run_cli(*asked)
    assert code == 0
    assert "vllm serve meta-llama/" in out
    assert "--max-concurrency 8" in out
    record = json.loads(run_cli(*asked, "--division", "tp=2", "--format", "json")[1])
    assert record["loads"] == 4
    assert {run["tp"] for run in record["runs"]} <= {1, 2}
    assert run_cli(*asked, "--division", "two")[0] == 2


@for_each("command", ["simulate", "estimate", "explain ttft", "plan"])
def test_runs_without_drafts_say_nothing_of_steps_that_verify_them(command: str, tmp_path: Path) -> None:
    name, *number = command.split()
    deployment, own = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm")), tmp_path / "own.yaml"
    rows = (AnchorRow(users=4, prompt=512, output=64, tpot_ln_ratio=0.1),)
    facts = {"system": system_of(deployment), "priced_with": fingerprint(deployment)}
    own.write_text(anchor_yaml(Anchor(process=anchor_process(), rows=rows, **facts)))
    drafts = ["--draft", "free", "--draft-tokens", "3", "--acceptance", "0.7", "--anchor", str(own)]
    load = (
        ["--concurrency", "4"]
        if name == "simulate"
        else ["--workload", "chat", "--rate", "1", "--ttft", "1s"]
        if name == "plan"
        else []
    )
    code, _, error = run_cli(name, *number, "llama-3.1-8b", "--gpu", "h100-sxm", *load, *drafts)
    assert code == 2
    assert "steps without drafts" in error


def test_rows_without_an_engine_say_how_to_state_it(tmp_path: Path) -> None:
    """What measure writes of a server that names no engine: the option fills it, and the error says so."""
    rows = tmp_path / "own.csv"
    rows.write_text(
        "model,gpu,engine,precision,tp,isl,osl,concurrency,requests,ttft_mean_ms,tpot_mean_ms\n"
        "llama-3.1-8b,h100-sxm,,bf16,1,512,8,2,6,36,7.9\n"
    )
    refused = CliRunner().invoke(cli, ["anchor", "fit", str(rows), "-o", str(tmp_path / "own.yaml")])
    assert isinstance(refused.exception, UsageError)
    assert refused.exception.because == "engine is empty" and "--engine" in refused.exception.hint
    stated = ["anchor", "fit", str(rows), "--engine", "vllm@0.20", "-o", str(tmp_path / "own.yaml")]
    assert CliRunner().invoke(cli, stated).exit_code == 0
