"""``python -m tools.accuracy llama-cpp``: the run of :mod:`tools.accuracy.llama_cpp.run`, part of the CPU's page."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from calibrate.device.device import identify
from inferplan.catalog.files import config_root
from inferplan.errors import InferplanError
from inferplan.figures import Figure, side_by_side, text
from inferplan.learning.factors import is_seconds
from inferplan.table import Report, render
from inferplan.units import format_time
from inferplan.validation.score import NAMES, Scored
from tools.accuracy.llama_cpp.gguf_model import WEIGHTS
from tools.accuracy.llama_cpp.parts import HEADING, with_part
from tools.accuracy.llama_cpp.run import CONTEXT, METRICS, OUTPUT, SIZES, SLOTS, Machine, Ran, Served, run

WAYS = {"kernels": "kernels alone", "anchored": "anchored", "learned": "learned"}


def part(found: Ran, today: str, note: str = "") -> str:
    """The account of a run in Markdown; note: what its reader must know."""
    bits = [HEADING, _head(found, today), _verdict(found.served), *([note] if note else [])]
    rows = [
        _row(served, index, metric) for served in found.served for index in range(_count(served)) for metric in METRICS
    ]
    bits.append(
        render(
            Report(record={}, tables=[side_by_side("Unseen loads: measured and predicted", rows)]), "markdown"
        ).strip()
    )
    bits += [_kernels(found), _learned(found.served)]
    bits += [
        f"Refused, {served.fmt}, {WAYS[way]}: {why}" for served in found.served for way, why in served.failed.items()
    ]
    return "\n\n".join(bits) + "\n"


def _head(found: Ran, today: str) -> str:
    sizes, machine = SIZES, found.machine
    waits = ", ".join(f"{served.fmt} {served.waited:.0%}" for served in found.served)
    how = f" with `{' '.join(machine.before)}`" if machine.before else ""
    return " ".join(
        [
            f"Made on {today} by `python -m tools.accuracy llama-cpp` on {identify('cpu').describe()}, a virtual",
            f"machine that others use at the same time, in {found.seconds / 60:.1f} minutes{how}. The server of the",
            f"wheel `xllamacpp` (its build for AVX2) ran, with {machine.threads} thread and {SLOTS} slots of",
            f"{CONTEXT:,} tokens, a Llama of {sizes.parameters / 1e6:.0f} million parameters with random weights:",
            f"width {sizes.width}, {sizes.layers} layers, {sizes.heads} heads and {sizes.kv_heads} KV heads of",
            f"{sizes.head_dim}, feed-forward {sizes.inner}, vocabulary {sizes.vocab}. The loads of the table have",
            f"answers of {OUTPUT} tokens; in this share of their time the server's threads waited for a core:",
            f"{waits}.\n\n*Kernels alone*: matrices and attention of a model of other widths, timed in the same",
            "library; nothing of the server. *Anchored*: corrected by loads of one user (32 and 192 tokens in) and of",
            "four (64 in, 384 out). *Learned*: from the server's log of the former and its `/metrics` during the",
            "latter. The loads of the table are in neither.",
        ]
    )


def _errors(rows: Sequence[Scored], metric: str) -> list[float]:
    return [abs(error) for one in rows if (error := one.error(metric)) is not None]


def _verdict(served: Sequence[Served]) -> str:
    """Mean errors by way, over the loads of the formats that have a prediction of it."""
    parts, every = [], sum(_count(one) for one in served)
    for way, said in WAYS.items():
        shares, loads = [], sum(len(one.by.get(way, [])) for one in served)
        for metric in METRICS:
            errors = [error for one in served for error in _errors(one.by.get(way, []), metric)]
            if errors:
                shares.append(f"{NAMES[metric]} {sum(errors) / len(errors):.1%}")
        some = f" ({loads} of {every} loads)" if 0 < loads < every else ""
        parts.append(f"{said}{some} {', '.join(shares) or 'refused'}")
    return f"**Mean error over the unseen loads: {'; '.join(parts)}.**"


def _count(served: Served) -> int:
    return len(served.by["kernels"])


def _row(served: Served, index: int, metric: str) -> list[Figure]:
    one = served.by["kernels"][index]
    ran = one.row.run
    who = "" if ran is None else f"{ran.rate:g} requests/s" if ran.rate else f"{ran.concurrency} at a time"
    errors = []
    for way, said in WAYS.items():
        rows = served.by.get(way)
        errors.append(Figure("", rows[index].error(metric) if rows else None, said, "+.1%"))
    return [
        text("weights", served.fmt, left=True),
        text("load", who, left=True),
        Figure("", ran and ran.prompt, "prompt", ".0f"),
        text("figure", NAMES[metric], left=True),
        Figure("", one.row.measured.at(metric), "measured", format_time),
        Figure("", one.prediction and one.prediction.at(metric), "by kernels", format_time),
        *errors,
        text("suspect", ran.suspect if ran else one.row.refused, left=True),
    ]


def _kernels(found: Ran) -> str:
    waits = sorted(one.waited for one in found.timed)
    fits = "; ".join(f"{kernel} {label} {errors['mape']:.0%}" for kernel, label, _, errors in found.fits)
    f16, quantised = (found.peaks[name] / 1e9 for name in ("fp16", "int8"))
    return " ".join(
        [
            f"Kernels: {len(found.timed)} shapes. They reached {found.bandwidth / 1e9:.1f} GB/s, {f16:.0f} GFLOP/s in",
            f"f16 and {quantised:.0f} GOP/s in quantised weights; threads waited for a core in",
            f"{waits[len(waits) // 2]:.0%} of the time (median of shapes). Mean errors of the fits on their own",
            f"shapes: {fits}.",
        ]
    )


def _learned(served: Sequence[Served]) -> str:
    parts = []
    for one in served:
        if one.learned is not None:
            before, after = one.learned.held_out
            values = ", ".join(
                f"{name} {format_time(value) if is_seconds(name) else f'x {value:.2f}'}"
                for name, value in one.learned.values.items()
            )
            parts.append(f"{one.fmt} {values} (held out: {before.mean:.1%} off before, {after.mean:.1%} after)")
    return f"Learned: {'; '.join(parts) or 'nothing'}."


def main(arguments: list[str]) -> None:
    """Run, and write the part of the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy llama-cpp", description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="a Python with the package xllamacpp")
    parser.add_argument("--threads", type=int, default=1, help="of the server [1]")
    parser.add_argument("--before", default="", help="words in front of what is timed: 'chrt -f 20'")
    parser.add_argument("--formats", default=",".join(WEIGHTS), help=f"of the weights [{','.join(WEIGHTS)}]")
    parser.add_argument("--keep", type=Path, help="folder for every file of the run")
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / "accuracy-cpu.md")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--note", default="", help="what a reader of this run must know")
    options = parser.parse_args(arguments)
    machine = Machine(python=options.python, threads=options.threads, before=tuple(options.before.split()))
    try:
        with tempfile.TemporaryDirectory() as folder:
            kept = options.keep or Path(folder)
            kept.mkdir(parents=True, exist_ok=True)
            found = run(kept, machine, options.formats.split(","), lambda said: print(said, file=sys.stderr))
            options.out.write_text(with_part(options.out, part(found, options.date, options.note)), encoding="utf-8")
    except InferplanError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(_verdict(found.served))
