"""``docs/accuracy.md``: every figure in it is computed here, from the reference data and the shipped constants.

``python -m calibrate.accuracy SHARED --held-out HELD_OUT.csv --out docs/accuracy.md`` with the file that
``python -m calibrate.serving --held-out`` writes.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.catalog.files import config_root, load, names
from inferplan.devices.constants import Calibration
from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.anchor import SHRINKAGE, shrunk
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import Prediction, impossible
from inferplan.validation.rows import Run
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored

Array = npt.NDArray[np.float64]
Line = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of predictions, as fractions."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float

    def cells(self) -> list[str]:
        return [str(self.n), *(f"{100 * v:.1f}" for v in (self.mape, self.median, self.p90)), f"{100 * self.bias:+.1f}"]


HEADS = ("rows", "MAPE %", "median %", "p90 %", "bias %")


def figures(pairs: Iterable[tuple[float, float]]) -> Figures | None:
    """The errors of (predicted, measured) pairs; ``None`` without any."""
    table = np.array([pair for pair in pairs if np.all(np.isfinite(pair))])
    if not len(table):
        return None
    off = table[:, 0] / table[:, 1] - 1.0
    size = np.abs(off)
    middle, high = np.quantile(size, (0.5, 0.9))
    return Figures(n=len(off), mape=float(size.mean()), median=float(middle), p90=float(high), bias=float(np.mean(off)))


def markdown(heads: Sequence[str], lines: Iterable[Line]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines)) + "\n"


def _scored_lines(groups: dict[str, list[tuple[float, float]]]) -> list[Line]:
    found = {name: figures(pairs) for name, pairs in groups.items()}
    return [[name, *value.cells()] for name, value in found.items() if value is not None]


# --- closed loop ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Serving:
    """Measured rows with their held-out predictions; a sample of them with two more of each.

    banded: the sample's held-out predictions with their bands. shipped: by the constants on file. roofline: ideal.
    """

    held_out: list[Scored]
    banded: list[Scored]
    shipped: list[Scored]
    roofline: list[Scored]


def read_held_out(path: Path) -> list[Scored]:
    """Rows with predictions of constants that did not see their pair."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    rows = read_file(path, {})[1]
    found = []
    for row, given in zip(rows, cells):
        fast: tuple[str, ...] = ()
        if row.run is not None:
            with suppress(InferplanError):
                fast = impossible(deployment_of(row.run)[0], row.run, row.measured)
        ttft, tpot = (float(given[f"{name}_predicted_ms"]) * 1e-3 for name in ("ttft", "tpot"))
        known = np.isfinite(ttft) and np.isfinite(tpot)
        prediction = Prediction(ttft=ttft, tpot=tpot, impossible=fast) if known else None
        found.append(Scored(row=row, prediction=prediction))
    return found


def with_bands(scored: Sequence[Scored], source: Sequence[Scored]) -> list[Scored]:
    """Held-out predictions with the relative bands that the shipped ones carry."""
    result = []
    for one, other in zip(scored, source):
        if one.prediction is None or other.prediction is None:
            result.append(one)
            continue
        bands = {}
        for name, (low, high) in other.prediction.bands.items():
            centre, own = getattr(other.prediction, name), getattr(one.prediction, name)
            if own is not None:
                bands[name] = (low / centre * own, high / centre * own)
        result.append(replace(one, prediction=replace(one.prediction, bands=bands)))
    return result


def pairs_of(scored: Iterable[Scored], metric: str) -> list[tuple[float, float]]:
    return [
        (getattr(one.prediction, metric), getattr(one.row.measured, metric))
        for one in scored
        if one.prediction is not None and getattr(one.row.measured, metric) is not None
    ]


def _clean(scored: Iterable[Scored]) -> list[Scored]:
    return [one for one in scored if not one.suspect]


def _grouped(scored: Sequence[Scored], key: Callable[[Run], str], metric: str) -> dict[str, list[tuple[float, float]]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if one.row.run is not None:
            groups[key(one.row.run)].append(one)
    return {name: pairs_of(members, metric) for name, members in sorted(groups.items())}


def anchored(scored: Sequence[Scored], metric: str, count: int, draws: int = 20) -> Figures | None:
    """Errors on the other rows of a system when ``count`` of its rows set one scalar, over random draws."""
    systems: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in scored:
        run = one.row.run
        if run is not None and not one.impossible:
            systems[(*run.pair, run.engine, run.label)] += pairs_of([one], metric)
    rng = np.random.default_rng(0)
    found: list[tuple[float, float]] = []
    for pairs in systems.values():
        if len(pairs) <= count + 1:
            continue
        for _ in range(draws):
            chosen = set(rng.permutation(len(pairs))[:count].tolist())
            scalar = shrunk([pairs[i][1] / pairs[i][0] for i in chosen], SHRINKAGE[metric])
            found += [(pair[0] * scalar, pair[1]) for i, pair in enumerate(pairs) if i not in chosen]
    return figures(found)


def coverage(scored: Sequence[Scored], metric: str) -> tuple[float, int]:
    """The share of measurements inside the printed band, and of how many."""
    inside = [
        band[0] <= getattr(one.row.measured, metric) <= band[1]
        for one in scored
        if one.prediction is not None and (band := one.prediction.bands.get(metric)) is not None
    ]
    return (float(np.mean(inside)) if inside else float("nan")), len(inside)


NOTES = {"ttft": "TTFT", "tpot": "TPOT"}
PEER = {
    "tpot": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 25.1 | 16.7 | | |",
    "ttft": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 41.7 | 39.1 | | |",
}


def serving_section(serving: Serving) -> str:
    parts = ["## Serving, closed loop\n"]
    held, clean = serving.held_out, _clean(serving.held_out)
    for metric, name in (("tpot", "TPOT"), ("ttft", "TTFT")):
        unknown_client = [one for one in clean if one.row.run and one.row.run.campaign != "verification"]
        possible = [one for one in clean if not one.impossible]
        table = {
            "**unseen (model, GPU), without suspect rows**": pairs_of(clean, metric),
            "the same, suspect rows too": pairs_of(held, metric),
            "without suspect rows and those faster than light": pairs_of(possible, metric),
            "without suspect rows and the campaign of an unknown client": pairs_of(unknown_client, metric),
            "shipped constants (rows of the fit; a sample)": pairs_of(_clean(serving.shipped), metric),
            "datasheet roofline, same simulation (a sample)": pairs_of(_clean(serving.roofline), metric),
        }
        anchors = [
            (
                f"with {n} measured rows of the system (20 draws)"
                if n > 1
                else "with 1 measured row of the system (20 draws)",
                anchored(clean, metric, n),
            )
            for n in (1, 3, 5)
        ]
        lines = [*_scored_lines(table), *([label, *found.cells()] for label, found in anchors if found)]
        parts += [f"### {name}\n", markdown((name, *HEADS), lines).rstrip() + "\n" + PEER[metric] + "\n"]
        for title, key in (
            ("model", lambda run: run.model),
            ("GPU", lambda run: run.gpu),
            ("engine", lambda run: run.engine),
            ("format", lambda run: run.label),
            ("campaign", lambda run: run.campaign or "none"),
        ):
            parts.append(markdown((f"{name} by {title}", *HEADS), _scored_lines(_grouped(clean, key, metric))))
    answered = sum(one.prediction is not None for one in held)
    parts.append(f"Rows answered: {answered} of {len(held)}.\n")
    parts.append(_impossible(held))
    lines = []
    for metric, name in NOTES.items():
        share, count = coverage(_clean(serving.banded), metric)
        lines.append([name, f"{share:.0%}", str(count)])
    parts += [
        "### Coverage of the 80 % band\n",
        "Held-out rows without suspect ones, inside the band that the estimate prints:\n",
        markdown(("", "inside", "rows with a band"), lines),
    ]
    return "\n".join(parts)


def _impossible(scored: Sequence[Scored]) -> str:
    fast = [one for one in scored if one.impossible]
    groups: dict[str, int] = defaultdict(int)
    for one in fast:
        run = one.row.run
        assert run is not None
        groups[f"{run.model} on {run.gpu} under {run.engine}" + (f" ({run.suspect})" if run.suspect else "")] += 1
    listed = "; ".join(f"{name}: {count}" for name, count in sorted(groups.items()))
    return (
        f"Rows faster than the speed of light of what they state: {len(fast)} ({listed or 'none'}). They are in the "
        "scores above and in no fit.\n"
    )


# --- open loop --------------------------------------------------------------------------------------------------------


def open_loop_section(path: Path) -> str:
    scored = price_rows(read_file(path, {})[1], Pricing())
    lines, steady = [], []
    for one in scored:
        run, found, measured = one.row.run, one.prediction, one.row.measured
        if run is None or found is None:
            continue
        load = float(one.row.cells.get("failed") or 0) / max(float(one.row.cells.get("completed") or 1), 1.0)
        overloaded = load > 0 or (measured.ttft or 0) > 10
        if not overloaded:
            steady.append(one)
        cells = [f"{one.row.cells['experiment']}, {run.rate:g}/s" + (" (overloaded)" if overloaded else "")]
        for metric in ("ttft", "tpot", "e2el"):
            value, real = getattr(found, metric), getattr(measured, metric)
            error = one.error(metric)
            cells += [f"{real * 1e3:,.1f}", f"{value * 1e3:,.1f}", f"{100 * (error or 0):+.0f}"]
        lines.append(cells)
    heads = ["stage", "TTFT ms", "predicted", "%", "TPOT ms", "predicted", "%", "end-to-end ms", "predicted", "%"]
    table = {
        f"{name}, {label}": pairs_of(rows, metric)
        for metric, name in (("ttft", "mean TTFT"), ("tpot", "mean TPOT"), ("e2el", "mean end-to-end"))
        for label, rows in (("all stages", scored), ("under capacity", steady))
    }
    return "\n".join(
        [
            "## Serving, open loop\n",
            "Constant rate, prompts that cycle and are found in the prefix cache; nothing was fitted to these rows but "
            "the latency of their client. The peer: mean TTFT off by 650 %, end-to-end by 18 %.\n",
            markdown(("", *HEADS), _scored_lines(table)),
            markdown(heads, lines),
        ]
    )


# --- static batches ---------------------------------------------------------------------------------------------------

_DEVICES = {
    "H100-80GB": "h100-sxm",
    "H100-80GB SXM": "h100-sxm",
    "H100": "h100-sxm",
    "A100-40GB": "a100-40gb-pcie",
    "A100-80GB SXM": "a100-80gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "A100": "a100-80gb-sxm",
    "L40S": "l40s",
    "H200": "h200-sxm",
    "GH200": "gh200-96gb",
    "MI300X": "mi300x",
}
_MODELS = {"LLaMA 7B": "llama-2-7b", "LLaMA 70B": "llama-2-70b", "GPT-J 6B": "gpt-j-6b", "Falcon 180B": "falcon-180b"}
_ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "llama.cpp": "llama.cpp"}


def static_run(row: dict[str, str], engine: str) -> Run:
    """What a row of a published table was run on."""
    hardware = row["hardware"].split("x ", 1)[-1]
    eight = row["precision"] == "fp8"
    return Run(
        model=_MODELS.get(row["model"], row["model"]),
        gpu=_DEVICES[hardware],
        engine=engine,
        engine_version=None,
        precision=None,
        weights="fp8" if eight else "fp16",
        experts=None,
        kv="fp8" if eight else None,
        activations=None,
        prompt=float(row["isl"]),
        output=max(float(row["osl"] or 1), 1.0),
        batch=int(float(row["batch"])),
        tp=int(float(row["tp"])),
    )


def batch_latency(run: Run) -> float:
    """Seconds until a batch that arrives at once is finished."""
    deployment, _ = deployment_of(run)
    assert run.batch is not None
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=run.batch),
        prompt=Lengths(mean=run.prompt),
        output=Lengths(mean=run.output),
        requests_count=run.batch,
    )
    found = simulate(deployment, traffic)
    return float(found.duration) if len(found.e2el) == run.batch else float("nan")


def static_section(path: Path, every: int) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith(("ARG-", "ARGT-", "TRT-"))]
    argonne: dict[str, list[tuple[float, float]]] = defaultdict(list)
    kept = [row for row in rows if row["id"].startswith("ARG-") and row["inputs"] in _ENGINES]
    refused = 0
    for row in kept[::every]:
        device = _DEVICES.get(row["hardware"].split("x ", 1)[-1])
        try:
            predicted = batch_latency(static_run(row, _ENGINES[row["inputs"]]))
        except (InferplanError, KeyError):
            refused += 1
            continue
        for name in ("all", f"{device}, {row['inputs']}"):
            argonne[name].append((predicted, float(row["value"])))
    others = sum(row["id"].startswith("ARG-") for row in rows) - len(kept)
    prefills: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        pair = _first_token(row)
        if pair is not None:
            prefills[pair[0]].append(pair[1])
    return "\n".join(
        [
            "## Static batches\n",
            "Published tables of batches that arrive at once; nothing was fitted to them. Latency of the batch, "
            "simulated (a batch that does not fit is served in turns). The A100 of that table is taken as the 40 GB "
            "card on file.\n",
            markdown(("Argonne, batch latency", *HEADS), _scored_lines(dict(sorted(argonne.items())))),
            f"Left out: {others} rows of frameworks that are not modelled, {refused} that cannot be answered.\n",
            markdown(("other published figures", *HEADS), _scored_lines(dict(sorted(prefills.items())))),
        ]
    )


def _first_token(row: dict[str, str]) -> tuple[str, tuple[float, float]] | None:
    """Published first-token times, token intervals and throughputs as (table, (predicted, measured)) in one unit."""
    kind, quantity = row["id"].split("-")[0], row["quantity"]
    engine = _ENGINES.get(row["inputs"] or "TensorRT-LLM", "") if kind == "ARGT" else "trtllm"
    wanted = ("batch prefill", "mean token interval", "1st token", "output throughput")
    if kind not in ("ARGT", "TRT") or not engine or not quantity.startswith(wanted) or not row["batch"]:
        return None
    try:
        run = static_run(row, engine)
        deployment, _ = deployment_of(run)
        load = StaticLoad(batch=float(run.batch or 1), prompt=run.prompt, output=run.output)
        estimate = Estimate(deployment=deployment, load=load)
        value = float(row["value"]) * (1e-3 if row["unit"] == "ms" else 1.0)
        if quantity.startswith(("batch prefill", "1st token")):
            return f"{kind} first token", (float(estimate.ttft), value)
        if quantity.startswith("mean token"):
            return f"{kind} token interval", (float(estimate.tpot), value)
        share = run.tp if row["unit"].endswith("GPU") else 1
        return f"{kind} output rate, {row['section']}", (float(estimate.output_rate) / share, value)
    except (InferplanError, KeyError, ValueError):
        return None


# --- kernels ----------------------------------------------------------------------------------------------------------

KERNELS = {
    "GEMM": ("matmul",),
    "decode attention": ("attention.decode",),
    "prefill attention": ("attention.prefill",),
    "MLA": ("mla.decode", "mla.prefill"),
    "experts": ("grouped_matmul",),
    "all-reduce": ("collective.all_reduce",),
    "state space": ("scan.decode", "scan.prefill", "conv"),
}


def _medians(held_out: dict[str, Any], kernels: Sequence[str], device: str | None = None) -> list[float]:
    """The median errors of kernels over libraries and formats; of a left-out ``device`` where the entries name them."""
    found = []
    for library in held_out.values():
        for kernel in kernels:
            for entry in library.get(kernel, {}).values():
                figure = entry if device is None else entry.get(device, {})
                if "median" in figure:
                    found.append(float(figure["median"]))
    return found


def kernel_section() -> str:
    own = {name: load("calibration", name, Calibration) for name in names("calibration")}
    devices = [name for name, found in own.items() if found.basis == "calibrated"]
    carried = [found for found in own.values() if found.basis == "transferred"]

    def shown(values: list[float]) -> str:
        return f"{100 * float(np.median(values)):.1f}" if values else "-"

    unseen = [
        [label, *(shown(_medians(own[device].held_out, kernels)) for device in devices)]
        for label, kernels in KERNELS.items()
    ]
    left_out = [
        [label, *(shown([v for f in carried for v in _medians(f.held_out, kernels, device)]) for device in devices)]
        for label, kernels in KERNELS.items()
    ]
    return "\n".join(
        [
            "## Kernels\n",
            "Median over kernel libraries and formats of the median error in percent, from the calibration files. On "
            "shapes held out of the fit of the same GPU:\n",
            markdown(("unseen shapes", *devices), unseen),
            "With constants carried over from the other GPUs, as a device without measurements gets them:\n",
            markdown(("unseen GPU", *devices), left_out),
        ]
    )


# --- memory -----------------------------------------------------------------------------------------------------------

_LOGS = (
    ("vLLM, Llama-3.1-8B bf16, 79.14 GiB at 0.90, 256 sequences: KV pool", "h100-sxm", "0.18", 256, 54.93),
    ("vLLM, Llama-3.1-8B bf16, 22.07 GiB at 0.90, 256 sequences: KV pool", "a10g", "0.18", 256, 4.6),
)


def memory_section() -> str:
    from inferplan.devices.engine import EngineFlags
    from inferplan.estimate.memory import Footprint
    from inferplan.validation.deploy import engine_of

    lines = []
    for name, gpu, version, sequences, logged in _LOGS:
        run = replace(_BARE, gpu=gpu, engine_version=version, slots=sequences)
        deployment, _ = deployment_of(run)
        engine, _ = engine_of("vllm", version, EngineFlags(max_sequences=sequences))
        footprint = Footprint(deployment=replace(deployment, engine=engine), batch=1.0, prompt=1.0, context=131072.0)
        pool = footprint.kv_pool / 2**30
        lines.append([name, f"{logged:.2f} GiB", f"{pool:.2f} GiB", f"{100 * (pool / logged - 1):+.1f}"])
        weights = footprint.weights / 2**30
        lines.append(
            [name.replace("KV pool", "weights"), "14.99 GiB", f"{weights:.2f} GiB", f"{weights / 14.99 - 1:+.2%}"]
        )
    return "\n".join(
        [
            "## Memory\n",
            "Start-up logs; `inferplan validate LOG --gpu ...` makes the same comparison with any other.\n",
            markdown(("log", "logged", "predicted", "%"), lines),
        ]
    )


_BARE = Run(
    model="llama-3.1-8b",
    gpu="h100-sxm",
    engine="vllm",
    engine_version=None,
    precision="bf16",
    weights=None,
    experts=None,
    kv=None,
    activations=None,
    prompt=1.0,
    output=1.0,
)


def constants_section() -> str:
    """The shared constants with the range that they take over the folds."""
    from inferplan.catalog.assemble import shared_step

    shared = shared_step()
    spread = shared.provenance.get("range_over_folds", {})
    lines = [[name, f"{low:g}", f"{high:g}"] for name, (low, high) in spread.items()]
    return "\n".join(
        [
            "## The constants that are fitted to serving rows\n",
            "All are shared by every model, device and engine (in seconds, or a ratio). The range is over the five "
            "fits that each leave a fifth of the (model, GPU) pairs out: what moves much is not told by the rows.\n",
            markdown(("constant", "least", "most"), lines),
            f"Bands that serving adds to those of the kernels: {dict(shared.bands)}.\n",
        ]
    )


def document(shared: Path, held_out: Path, today: str, every: int = 1) -> str:
    """The page."""
    prose = (Path(__file__).parent / "accuracy_notes.md").read_text(encoding="utf-8")
    rows = read_file(shared / "measured" / "serving.csv", {})[1]
    shipped, unseen = price_rows(rows[::every], Pricing()), read_held_out(held_out)
    serving = Serving(
        held_out=unseen,
        banded=with_bands(unseen[::every], shipped),
        shipped=shipped,
        roofline=price_rows(rows[::every], Pricing(ideal=True)),
    )
    head, causes = prose.split("<!-- figures -->\n")
    return "\n".join(
        [
            head.replace("DATE", today).rstrip() + "\n",
            serving_section(serving),
            constants_section(),
            open_loop_section(shared / "measured" / "serving_open_loop.csv"),
            static_section(shared / "reference" / "truths.csv", every),
            kernel_section(),
            memory_section(),
            causes.rstrip() + "\n",
        ]
    )


def _command() -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m calibrate.accuracy", description=__doc__)
    parser.add_argument("shared", type=Path, help="folder with measured/ and reference/")
    parser.add_argument("--held-out", type=Path, required=True, help="what calibrate.serving --held-out wrote")
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / "accuracy.md")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--every", type=int, default=1, help="price every n-th row and static batch")
    options = parser.parse_args()
    options.out.write_text(document(options.shared, options.held_out, options.date, options.every), encoding="utf-8")


if __name__ == "__main__":
    _command()
