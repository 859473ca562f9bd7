"""llama.cpp's kernels from published llama-bench rows: a few constants for each class of devices.

llama-bench times two things of one sequence: a prompt (``pp512``) and generated tokens after none (``tg128``). With
seconds at the datasheet's rates, a class of devices has (docs/devices-at-home.md)

    token  = bytes/stream + cache/(its share of the bandwidth) + layers*layer
    prompt = FLOP/(share of its arithmetic) + attention FLOP/attention + bytes/stream + layers*layer

where Apple's attention of a token is bound by its FLOP in place of its bytes (``scores``), and CUDA of May 2024 wrote
quantised weights in 16 bits before it multiplied them: bytes for each 512 tokens of a prompt, no share of their own.
Sums are linear in the reciprocals, so each fit is weighted least squares of relative errors, and so is each fit with a
card left out.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.fit import ratio_errors
from inferplan.catalog.assemble import load_engine
from inferplan.catalog.calibrations import own_kernels
from inferplan.catalog.files import load_hardware, load_model, read_yaml, validate
from inferplan.devices.constants import ANY, Calibration, Constants, Fit, StepConstants
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import Phase, decode_phase, prefill_phase
from inferplan.estimate.support import ANY_DEVICE, families_of
from inferplan.models.gguf_formats import file_precision
from inferplan.spec import Spec
from inferplan.units import Array
from inferplan.work.formats import uniform
from inferplan.work.ops import Matmul
from inferplan.work.parallel import Parallelism

ENGINE = "llama.cpp"
FIGURES = Path(__file__).parent / "llama.yaml"
CARDS = {
    "3070 8GB": "rtx-3070",
    "3080 10GB": "rtx-3080",
    "3080 Ti 12GB": "rtx-3080-ti",
    "3090 24GB": "rtx-3090",
    "4070 Ti 12GB": "rtx-4070-ti",
    "4080 16GB": "rtx-4080",
    "4090 24GB": "rtx-4090",
    "RTX A6000 48GB": "rtx-a6000",
    "A40 48GB": "a40",
    "L40S 48GB": "l40s",
    "RTX 4000 Ada 20GB": "rtx-4000-ada",
    "RTX 5000 Ada 32GB": "rtx-5000-ada",
    "RTX 6000 Ada 48GB": "rtx-6000-ada",
    "A100 PCIe 80GB": "a100-80gb-pcie",
    "A100 SXM 80GB": "a100-80gb-sxm",
    "H100 PCIe 80GB": "h100-pcie",
    "M1 7-Core GPU 8GB": "m1-7core",
    "M1 Max 32-Core GPU 64GB": "m1-max",
    "M2 Ultra 76-Core GPU 192GB": "m2-ultra",
    "M3 Max 40-Core GPU 64GB": "m3-max",
}
"""Devices of the rows by the name that their source gives them."""
PROMPT = ("llama-2-7b", "q4_0", 512)
"""What the published shares of the int8 peak are of: the usual test of scoreboards."""
PIECE = 512
"""Tokens of a prompt that go through the model at once (``n_ubatch``)."""
_WARMS_UP = 1.1
"""A prompt sixteen times as long that is faster by more: attention only adds work, so the short one was too slow."""
_ROBUST, _ROUNDS = 0.1, 15
"""Relative error from which a row counts less than squared, and rounds of its weights."""
Known = Mapping[str, float]


class Deep(Spec):
    """One model's tokens behind many others, of a later build: ``rates`` are tokens/s by how many (``llama-bench
    -d``)."""

    card: str
    model: str
    weights: str
    rates: dict[int, float]
    made: int
    """Tokens that were generated at each depth."""
    source: str

    def row(self, depth: int) -> Bench:
        """The mean token of those made behind ``depth`` others."""
        return Bench(
            card=self.card,
            model=self.model,
            weights=self.weights,
            what="tg",
            tokens=2 * depth + self.made,
            seconds=1.0 / self.rates[depth],
        )

    def more(self, depth: int) -> tuple[float, float]:
        """By how much a token takes longer than behind the fewest: seconds at the datasheet's arithmetic, and measured
        ones."""
        near, far = self.row(min(self.rates)), self.row(depth)
        return demand(far)["scores"] - demand(near)["scores"], far.seconds - near.seconds

    @property
    def scores(self) -> float:
        """The share of its arithmetic that attention reaches at the largest depth."""
        asked, measured = self.more(max(self.rates))
        return asked / measured


class Published(Spec):
    """What is published of a class: shares and seconds that are taken as they are."""

    vendors: list[str]
    stream: float | None = None
    layer: float | None = None
    unpacks: bool = False
    """Builds of May 2024 wrote quantised weights in 16 bits before they multiplied them, for each piece of a prompt."""
    scores: bool = False
    """Attention of a token is bound by its arithmetic, not by the bytes of its cache."""
    integers: float | None = None
    """Of the int8 peak what a whole prompt of :data:`PROMPT` reaches, and on which devices."""
    measured_on: list[str] = []
    today: dict[str, float] = {}
    """What later builds have in place of what the rows say."""
    depth: list[Deep] = []
    """Rows of later builds behind many tokens."""
    source: str

    @property
    def later(self) -> dict[str, float]:
        """``today``, and the ``scores`` of the rows of ``depth``: the median of the models."""
        deep = {"scores": float(f"{np.median([one.scores for one in self.depth]):.3g}")} if self.depth else {}
        return self.today | deep


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A row of llama-bench: seconds of a prompt of ``tokens``, or for each of so many generated after none."""

    card: str
    model: str
    weights: str
    what: Literal["pp", "tg"]
    tokens: int
    seconds: float = 0.0
    integers: bool = False
    """Quantised weights are multiplied in int8: of later builds than that of May 2024."""
    unpacked: bool = False
    """Quantised weights are written in 16 bits first, and multiplied like those that are stored so."""

    @property
    def run(self) -> tuple[str, str, str]:
        return self.card, self.model, self.weights

    @property
    def wide(self) -> bool:
        """Whether the weights are multiplied as they are stored."""
        return self.weights == "f16"


def read_rows(path: Path) -> tuple[list[Bench], list[str]]:
    """The rows of one device, and what was left out: runs whose short prompts were not at speed."""
    found = [row for row, cards in all_rows(path) if cards == 1]
    slow = _not_at_speed(found)
    return [row for row in found if row.what == "tg" or row.run not in slow], [", ".join(run) for run in sorted(slow)]


def all_rows(path: Path) -> list[tuple[Bench, int]]:
    """Every row, and over how many cards its layers were split."""
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            prompt, tokens = line["quantity"].startswith("pp"), int(line["quantity"][2:])
            row = Bench(
                card=CARDS[line["hardware"]],
                model=line["model"].lower(),
                weights=line["weights"],
                what="pp" if prompt else "tg",
                tokens=tokens,
                seconds=(tokens if prompt else 1.0) / float(line["value"]),
                unpacked=line["weights"] != "f16" and figures()[class_of(CARDS[line["hardware"]])].unpacks,
            )
            found.append((row, int(line["gpus"])))
    return found


def _not_at_speed(rows: Iterable[Bench]) -> set[tuple[str, str, str]]:
    rates: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.what == "pp":
            rates[row.run][row.tokens] = row.tokens / row.seconds
    return {run for run, found in rates.items() if found[max(found)] > _WARMS_UP * found[min(found)]}


def deployment_of(row: Bench) -> Deployment:
    """What a row ran on, without constants."""
    model, engine = load_model(row.model), load_engine(ENGINE)
    if not row.integers:
        engine = engine.model_copy(update={"defaults": engine.defaults.model_copy(update={"block_inputs": ""})})
    return Deployment(
        model=model,
        hardware=load_hardware(row.card),
        precision=uniform("fp16") if row.wide else file_precision(model, row.weights),
        parallel=Parallelism(),
        engine=engine,
        calibration=Calibration(name="the datasheet"),
    )


def load_of(row: Bench) -> StaticLoad:
    """A prompt of so many tokens; or the step of the mean context, half of the tokens."""
    prompt = row.tokens if row.what == "pp" else row.tokens / 2
    return StaticLoad(batch=1.0, prompt=float(prompt), output=1.0 if row.what == "pp" else 2.0)


@cache
def demand(row: Bench) -> dict[str, float]:
    """Seconds at the datasheet's rates that each constant divides, and the layers that launch."""
    deployment, load = deployment_of(row), load_of(row)
    if row.what == "tg":
        phase = decode_phase(deployment, load, load.prompt)
        return {
            "stream": _seconds(phase, "time_memory", lambda kind: kind != "attention"),
            "cache": _seconds(phase, "time_memory", lambda kind: kind == "attention"),
            "scores": _seconds(phase, "time_math", lambda kind: kind == "attention"),
            "layer": float(phase.layers[0]),
        }
    phase = prefill_phase(deployment, load)
    return {
        "wide" if row.wide or row.unpacked else "quantised": _seconds(
            phase, "time_math", lambda kind: kind == "matmul"
        ),
        "attention": _seconds(phase, "time_math", lambda kind: kind == "attention"),
        "stream": _seconds(phase, "time_memory", lambda kind: kind not in ("matmul", "attention"))
        + (_unpacking(row, phase) if row.unpacked else 0.0),
        "layer": float(phase.layers[0]),
    }


def _unpacking(row: Bench, phase: Phase) -> float:
    """Seconds to read the quantised weights of prompts and write them in 16 bits, once for each piece of the prompt."""
    products = [cost.op for cost in phase.costs if isinstance(cost.op, Matmul) and float(cost.op.m) > 1.0]
    moved = sum(op.batch * op.k * op.n * (op.weight.width + op.output.width) * float(op.count) for op in products)
    return ceil(row.tokens / PIECE) * moved / phase.deployment.hardware.memory.bandwidth


def _seconds(phase: Phase, part: str, holds: Callable[[str], bool]) -> float:
    """Seconds of the operators whose kind ``holds``: of their arithmetic, or of their bytes (``part``)."""
    return sum(float(getattr(cost, part)) * float(cost.op.count) for cost in phase.costs if holds(cost.op.kind))


def predicted(row: Bench, values: Known) -> float:
    """Seconds of a row under the constants of its class."""
    asked = demand(row)
    shares = sum(asked[name] / values.get(name, np.inf) for name in asked if name != "layer")
    return shares + asked["layer"] * values["layer"]


def fit_class(rows: Sequence[Bench], known: Known) -> dict[str, float]:
    """The constants of a class of devices; those of ``known`` stay. Tokens tell theirs first, then prompts the rest."""
    values = dict(known)
    for what in ("tg", "pp"):
        chosen = [row for row in rows if row.what == what]
        names = sorted({name for row in chosen for name in demand(row)} - set(values))
        values |= _solve(chosen, names, values)
    return {name: float(f"{value:.4g}") for name, value in values.items() if value < np.inf}


def _solve(rows: Sequence[Bench], names: Sequence[str], known: Known) -> dict[str, float]:
    """Least squares of relative errors with the weights of a soft-L1 loss; shares are at most 1."""
    seconds = np.array([row.seconds for row in rows])
    rest = np.array(
        [
            predicted(row, {**known, **dict.fromkeys(names, np.inf), **({"layer": 0.0} if "layer" in names else {})})
            for row in rows
        ]
    )
    table = np.array([[demand(row).get(name, 0.0) for name in names] for row in rows]) / seconds[:, None]
    target, least = 1.0 - rest / seconds, np.array([0.0 if name == "layer" else 1.0 for name in names])
    weights = np.ones(len(rows))
    for _ in range(_ROUNDS):
        found = lsq_linear(table * weights[:, None], target * weights, (least, np.inf), method="bvls", tol=1e-12).x
        weights = (1.0 + ((table @ found - target) / _ROBUST) ** 2) ** -0.25
    return {name: float(value if name == "layer" else 1.0 / value) for name, value in zip(names, found)}


@cache
def figures() -> dict[str, Published]:
    """What is published, by file of constants."""
    return {name: validate(FIGURES, entry, Published) for name, entry in read_yaml(FIGURES).items()}


def given(one: Published) -> dict[str, float]:
    """The constants of a class that are published and not fitted, and which side of attention does not bind."""
    stated = {name: value for name in ("stream", "layer") if (value := getattr(one, name)) is not None}
    return stated | {"cache" if one.scores else "scores": np.inf}


def integers(one: Published, values: Known) -> float:
    """The share of the int8 peak that matmuls reach, where a whole prompt reaches the published one."""
    model, weights, tokens = PROMPT
    found = []
    for card in one.measured_on:
        row = Bench(card=card, model=model, weights=weights, what="pp", tokens=tokens, integers=True)
        products = demand(row)["quantised"]
        rest = predicted(row, {**values, "quantised": np.inf})
        found.append(products / (products / (one.integers or np.inf) - rest))
    return float(f"{np.mean(found):.4g}")


@cache
def class_of(card: str) -> str:
    """The name of the file that has the constants of a device."""
    own = own_kernels(load_hardware(card), ENGINE)
    assert own is not None  # the engine names one for every device
    return own.file


def left_out(rows: Sequence[Bench], known: Known) -> dict[str, dict[str, Array]]:
    """Measured over predicted seconds, tokens and prompts apart, of each card under the constants of the others."""
    found: dict[str, dict[str, Array]] = {}
    for card in sorted({row.card for row in rows}):
        values = fit_class([row for row in rows if row.card != card], known)
        own = [row for row in rows if row.card == card]
        found[card] = {
            what: np.array([row.seconds / predicted(row, values) for row in own if row.what == what])
            for what in ("tg", "pp")
        }
    return found


def together(ratios: Mapping[str, Mapping[str, Array]], what: str) -> dict[str, float]:
    """The errors over all cards left out (:func:`calibrate.fit.ratio_errors`), with how many rows there are."""
    all_of = np.concatenate([one[what] for one in ratios.values()])
    return ratio_errors(all_of) | {"n": float(len(all_of))}


def calibration(name: str, rows: Sequence[Bench]) -> Calibration:
    """The constants of a class with the errors of its cards left out, one at a time."""
    one = figures()[name]
    known = given(one)
    values, ratios = fit_class(rows, known), left_out(rows, known)
    tokens, prompts = together(ratios, "tg"), together(ratios, "pp")
    error = {key: value for key, value in tokens.items() if key != "n"}
    held = {card: {what: ratio_errors(ratio) for what, ratio in found.items()} for card, found in ratios.items()}
    return Calibration(
        name=f"{ENGINE} on {name.removeprefix(f'{ENGINE}-')}",
        basis="transferred",
        vendors=one.vendors,
        constants=_constants(values | one.later, one, error),
        step=StepConstants(layer=(values | one.later)["layer"]),
        bands={"ttft": _beside(prompts, tokens), "tpot": (1.0, 1.0)},
        systems=systems_of(rows),
        held_out={"tokens": tokens, "prompts": prompts, "cards": held},
        provenance={
            "fitted": {key: value for key, value in values.items() if key not in known},
            "given": {key: value for key, value in known.items() if value < np.inf},
            "today": one.later,
        },
    )


def systems_of(rows: Sequence[Bench]) -> dict[str, dict[str, int]]:
    """How many systems (model, card) stand behind the bands of a class, whose cards were left out one at a time."""
    systems = {(row.model, row.card) for row in rows}
    families = Counter(family for model, _ in systems for family in families_of(load_model(model)))
    return {"device": {ANY_DEVICE: len(systems)}, "family": dict(sorted(families.items()))}


def _beside(prompts: Known, tokens: Known) -> tuple[float, float]:
    """What prompts have beyond the band of the kernels, which is that of tokens: squares of logarithms add."""
    low, high = (
        float(np.sqrt(max(np.log(prompts[side]) ** 2 - np.log(tokens[side]) ** 2, 0.0))) for side in ("low", "high")
    )
    return float(f"{np.exp(-low):.4f}"), float(f"{np.exp(high):.4f}")


def _constants(values: Known, one: Published, error: dict[str, float]) -> Constants:
    """Kernels by format: weights as they are stored, quantised in 16 bits, quantised in int8; attention; vectors."""
    stream = values["stream"]
    products = {
        ANY: Fit(math=values.get("quantised", values["wide"]), memory=stream, error=error),
        **{name: Fit(math=values["wide"], memory=stream, error=error) for name in ("fp16", "bf16", "fp32")},
    }
    if one.integers is not None:
        products[f"{ANY}xq8_1"] = Fit(
            math=integers(one, values), memory=stream, error=error, source="published share of a whole prompt"
        )
    unmeasured = {"basis": "transferred", "source": "its matmuls, experts were not measured", "error": {}}
    latent = unmeasured | {"source": "its other attention, latent attention was not measured"}
    vector = {ANY: Fit(memory=stream, error=error)}
    scores, cache = values.get("scores", values["attention"]), values.get("cache", values["stream"])
    decode = Fit(math=scores, memory=cache, error=error)
    if one.depth:
        cards = ", ".join(sorted({deep.card for deep in one.depth}))
        few = f"median of {len(one.depth)} models behind many tokens on {cards}"
        decode = decode.model_copy(update={"basis": "transferred", "source": few})
    prefill = Fit(math=values["attention"], memory=stream, error=error)
    return {
        "matmul": products,
        "grouped_matmul": {label: fit.model_copy(update=unmeasured) for label, fit in products.items()},
        "attention.decode": {ANY: decode},
        "attention.prefill": {ANY: prefill},
        # many heads share each key, as the rows of a prompt do
        "mla.decode": {ANY: decode.model_copy(update=latent | {"math": prefill.math})},
        "mla.prefill": {ANY: prefill.model_copy(update=latent)},
        **dict.fromkeys(("norm", "elementwise", "copy", "gather"), vector),
    }
