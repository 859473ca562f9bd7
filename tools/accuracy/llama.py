"""llama.cpp on devices that people have at home: cards left out, and rows that are in no fit."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_hardware, read_yaml
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.validation.score import Score
from inferplan.work.parallel import Parallelism
from tools.accuracy.scores import HEADS, Line, markdown, score_cells, scored_lines
from tools.fitting.published import llama

_DEEP = """Attention of a token behind many others is three to four times as fast on Apple's chips as in May 2024: rows
of pull requests of May 2025 to August 2026 (`depth` in `tools/fitting/published/llama.yaml`), all of one
chip. The constant that ships is the median of their models. Up to 4,096 tokens the newest kernel adds next
to nothing, which a share of the arithmetic does not say. Since September 2026 llama.cpp has such kernels
tuned for M1 Max, M2 Max, M2 Ultra, M3 Max, M3 Ultra, M5 and M5 Pro (pull requests 27863, 27932, 27999,
28015). How fast they are behind many tokens was found of M2 Ultra alone.
"""
Pairs = dict[str, list[tuple[float, float]]]
_CLASSES = {
    "llama.cpp-geforce": "GeForce",
    "llama.cpp-professional": "professional cards with GDDR",
    "llama.cpp-hbm": "A100, H100",
    "llama.cpp-apple": "Apple",
}
_WHATS = {"tokens": ("tg", "seconds per token"), "prompts": ("pp", "seconds of a prompt")}
_CHIPS = {
    "M1 Pro 16GB (200 GB/s, 14 GPU cores)": "m1-pro-14core",
    "M3 Pro 36GB (150 GB/s, 18 GPU cores)": "m3-pro",
    "M1 Max 24-Core GPU 32GB": "m1-max-24core",
    "M2 Ultra 76-Core GPU 192GB": "m2-ultra",
    "M3 10-Core GPU 16GB": "m3",
    "M3 Max 40-Core GPU 48GB": "m3-max",
}
_FIGURES = ("n", "mape", "median", "p90", "bias")
_SWAPPED = {("m3", "f16"), ("m1-max-24core", "f16")}
"""Weights of 12.6 GiB in 16 and 32 GB that the system and other programs share: the source's rates are of swapping."""

_ROWS = """llama-bench of May 2024 (Llama-3 8B and 70B in F16 and q4_k_m, prompts and outputs of 512 to 8,192
tokens), every card under constants fitted to the other cards of its class ([how](devices-at-home.md)). Left out, as
their longer prompts ran faster: SLOW.
"""
_CAUSES = """Both M1 take longer over q4_k_m than over other formats of as many bytes, and that M1 Max over F16 too.
Prompts of professional cards and of A100 and H100 are far apart; likely causes are boost clocks that cards of 130 to
300 W do not hold, and matrix instructions of H100 that these kernels do not use.

The constants that ship are those of later builds where such are published (launches and flash attention on GeForce
and professional cards, int8 prompts), so that the rows of May 2024 are slower than predicted there. Rows of
the 7B on Apple's chips are in no fit here, but what is published of tokens there was read off the same model on such
chips. Nothing was fitted to layers split over several cards.
"""


def llama_section(shared: Path) -> str:
    """The section of the page."""
    found = {name: read_yaml(config_root() / "calibration" / f"{name}.yaml") for name in _CLASSES}
    classes = [
        [f"{_CLASSES[name]}: {words}", *score_cells(Score(**{key: data["held_out"][what][key] for key in _FIGURES}))]
        for name, data in found.items()
        for what, (_, words) in _WHATS.items()
    ]
    cards = [_card(name, card, one) for name, data in found.items() for card, one in data["held_out"]["cards"].items()]
    slow = [run for data in found.values() for run in data["provenance"].get("left_out", [])]
    return "\n".join(
        [
            "## llama.cpp at home\n",
            _ROWS.replace("SLOW", "; ".join(slow)),
            markdown(("cards left out", *HEADS), classes),
            markdown(("card", "class", "token: median %", "bias %", "prompt: median %", "bias %"), cards),
            _CAUSES,
            markdown(("rows under the constants that ship", *HEADS), scored_lines(_shipped(shared))),
            _DEEP,
            markdown(("what tokens behind add to a token", *HEADS), scored_lines(_deep(found["llama.cpp-apple"]))),
        ]
    )


def _deep(apple: Mapping[str, Any]) -> Pairs:
    """Predicted and measured seconds by which a token takes longer at each depth, each model by the others' share."""
    found: Pairs = defaultdict(list)
    models = llama.figures()["llama.cpp-apple"].depth
    old = apple["provenance"]["fitted"]["scores"]
    for one in models:
        share = np.median([other.scores for other in models if other is not one])
        for depth in sorted(one.rates)[1:]:
            asked, measured = one.more(depth)
            found[f"{one.model} on {one.card}, share of the other models"].append((asked / share, measured))
            found["all, share of the other models"].append((asked / share, measured))
            found["all, share of May 2024"].append((asked / old, measured))
    return dict(sorted(found.items()))


def _card(name: str, card: str, one: Mapping[str, Any]) -> Line:
    errors = [one.get(what) for what, _ in _WHATS.values()]
    cells = [(f"{100 * e['median']:.1f}", f"{100 * e['bias']:+.1f}") if e else ("-", "-") for e in errors]
    return [card, _CLASSES[name], *(cell for pair in cells for cell in pair)]


def _shipped(shared: Path) -> Pairs:
    """Predicted and measured seconds: 7B on Apple's chips (2023 and 2024), and the rows of May 2024, split or not."""
    found: Pairs = defaultdict(list)
    for name, pair in (*_apple(shared / "reference" / "truths.csv"), *_rows(shared / "measured" / "published")):
        found[name].append(pair)
    return dict(sorted(found.items()))


def _apple(path: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            chip, weights = _CHIPS.get(row["hardware"]), row["precision"].lower()
            usual = row["model"] == "Llama-2-7B" and (chip, weights) not in _SWAPPED
            if chip is None or not usual or not row["id"].startswith(("MAC-", "XD-")):
                continue
            prompt = row["quantity"].startswith(("pp", "prompt"))
            bench = llama.Bench(
                card=chip,
                model="llama-2-7b",
                weights=weights,
                what="pp" if prompt else "tg",
                tokens=512 if prompt else 128,
            )
            what = "prompts" if prompt else "tokens"
            yield (
                f"Llama-2 7B on Apple, {what}",
                (_seconds(bench, 1), (512 if prompt else 1) / float(row["value"])),
            )


def _rows(folder: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    file = folder / "llama_cpp.csv"
    slow = set(llama.read_rows(file)[1])
    for row, cards in llama.all_rows(file):
        if row.what == "pp" and (cards > 1 or ", ".join(row.run) in slow):
            continue  # prompts over several cards overlap there in pieces of 512 tokens
        try:
            seconds = _seconds(row, cards)
        except InferplanError:
            continue
        split = ", layers over 2 to 8 cards" if cards > 1 else ""
        words = f"{_CLASSES[llama.class_of(row.card)]}, {'tokens' if row.what == 'tg' else 'prompts'}"
        yield f"May 2024, {words}{split}", (seconds, row.seconds)


def _seconds(row: llama.Bench, cards: int) -> float:
    """Seconds of a prompt, or of a token, with the constants that ship."""
    quant = "fp16" if row.wide else row.weights
    request = Request(model=row.model, gpu=row.card, quant=quant, engine=llama.ENGINE, parallel=Parallelism(pp=cards))
    load = StaticLoad(prompt=float(row.tokens), output=1.0)
    if row.what == "tg":
        load = StaticLoad(prompt=1.0, output=row.tokens + 1.0)
    found = Estimate(deployment=assemble(request, hardware_loader=_roomy), load=load)
    return float(found.ttft if row.what == "pp" else found.tpot)


def _roomy(name: str) -> HardwareSpec:
    """The card with room for everything: these rows ran, so that what held them is no question here."""
    card = load_hardware(name)
    return card.model_copy(update={"memory": card.memory.model_copy(update={"usable": 1e12})})
