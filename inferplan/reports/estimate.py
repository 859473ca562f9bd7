"""An :class:`Estimate` as a report: the JSON contract, and one screen for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import starmap
from typing import Any

import numpy as np

from inferplan.estimate.anchoring import correction
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.diffusion import DiffusionEstimate
from inferplan.estimate.load import Band, StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase, by_place
from inferplan.estimate.resting import outside_band
from inferplan.estimate.roofline import Bound
from inferplan.estimate.run import fewest_experts
from inferplan.estimate.support import lacking, too_few
from inferplan.figures import Figure, labelled_texts, record, text
from inferplan.models.layers.moe import MoeLayer
from inferplan.models.lora import parameters
from inferplan.reports.overlay import file_share, file_shares, overlay_note, overlay_record
from inferplan.serving.cold_start import start_line
from inferplan.serving.first_token import FirstToken
from inferplan.serving.techniques.applied import ServedEstimate, refusal, served_first_token
from inferplan.table import Report, Table
from inferplan.units import Num, format_bytes, format_quantity, format_time, format_tokens
from inferplan.work.routing import busiest

BOUND_NAMES: dict[Bound, str] = {"math": "compute", "memory": "memory", "wire": "network", "overhead": "overhead"}
_RIGHT = frozenset({"without", "prefill", "share", "decode", "share ", "bytes", "value", "start", "mean", "end"})
UNSEEN = 1e-6
"""Share of the TTFT at the server below which a part of it is not listed: far behind the digits of the sum."""
IDEAL_NOTE = (
    "basis: roofline of an ideal device: datasheet peaks, no overhead, no queue; real times are longer "
    "(docs/accuracy.md)"
)


def deployment_record(deployment: Deployment) -> dict[str, Any]:
    """What was asked for, as JSON: names, formats by role, degrees of parallelism."""
    precision, parallel = deployment.precision, deployment.parallel
    tier = deployment.engine.defaults.tier(deployment.hardware)
    return {
        "model": deployment.model.name,
        "gpu": deployment.hardware.name,
        "devices": parallel.devices,
        "engine": deployment.engine.describe(),
        "precision": {f.name: getattr(precision, f.name).name for f in fields(precision) if f.name != "exceptions"},
        "parallel": {f.name: getattr(parallel, f.name) for f in fields(parallel)},
        "calibration": deployment.calibration.name,
        "calibration_file": overlay_record(deployment.calibration),
        "kernels": deployment.calibration.note or None,
        "max_num_seqs": tier.max_sequences,
        "max_num_batched_tokens": tier.token_budget,
        **deployment.further(),
    }


def memory_record(estimate: Estimate) -> dict[str, Any]:
    """Bytes on the fullest device, and on its host where part of the model lies there."""
    footprint = estimate.footprint
    here, streamed = _side_record(footprint), estimate.deployment.streamed
    if streamed is not None:
        held = footprint.streamed
        host = {"weights_bytes": held, "usable_bytes": streamed.host.usable, "fits": held <= streamed.host.usable}
        return {**here, "host": host}
    return here if footprint.host is None else {**here, "host": _side_record(footprint.host)}


def _side_record(footprint: Footprint) -> dict[str, Any]:
    return record(_memory_figures(footprint))


def _memory_figures(footprint: Footprint) -> list[Figure]:
    """Bytes of one memory by what lies in it."""
    decodes = not footprint.deployment.model.encodes
    return [
        Figure("weights_bytes", footprint.weights, "weights", _bytes),
        Figure("adapter_bytes", footprint.adapters, "slots of LoRA adapters", _bytes, seen=bool(footprint.adapters)),
        Figure(
            "draft_weights_bytes",
            footprint.draft_weights,
            "the draft's weights",
            _bytes,
            seen=bool(footprint.draft_weights),
        ),
        Figure("kv_bytes_per_token", footprint.kv_per_token),
        Figure("state_bytes_per_sequence", footprint.state_per_sequence),
        Figure("kv_bytes", footprint.state, "KV cache and state", _bytes, seen=decodes),
        Figure("kv_allocated_bytes", footprint.state_allocated),
        Figure("activation_bytes", footprint.activations, "activations", _bytes),
        Figure("reserve_bytes", footprint.reserve, "runtime reserve", _bytes),
        Figure("total_bytes", footprint.total, "total", _bytes),
        Figure("usable_bytes", footprint.usable, "usable", _bytes),
        Figure("fits", footprint.fits_here),
    ]


def _memory_rows(footprint: Footprint) -> list[list[str]]:
    """The same for people, with shares of what is usable."""
    return [
        [figure.label or "", figure.shown, f"{float(figure.value) / footprint.usable:.1%}"]
        for figure in _memory_figures(footprint)
        if figure.seen and figure.label
    ]


def phase_record(phase: Phase) -> dict[str, Any]:
    """One step: FLOP and bytes over all ranks, wall seconds, and where the time goes."""
    sides = {"places_s": by_place(phase)} if phase.deployment.offload else {}
    return {**record(_phase_figures(phase)), "operators_s": phase.by_operator(), **sides}


def _phase_figures(phase: Phase) -> list[Figure]:
    """Work and bounds of one step."""
    ridge = f"ridge point ({phase.deployment.math})"
    return [
        Figure("flop", phase.flop, "FLOP", lambda flop: format_quantity(float(flop), "FLOP")),
        Figure("bytes", phase.bytes, "bytes moved", _bytes),
        Figure("wire_bytes", phase.wire),
        Figure(
            "intensity_flop_per_byte",
            phase.intensity,
            "arithmetic intensity",
            lambda ratio: f"{float(ratio):,.1f} FLOP/B",
        ),
        Figure("time_s", phase.time),
        text(ridge, f"{phase.deployment.ridge:,.1f} FLOP/B"),
        Figure("bound", BOUND_NAMES[phase.bound], "bound by"),
        Figure("mfu", phase.mfu, "MFU, MBU", lambda mfu: f"{float(mfu):.1%}, {float(phase.mbu):.1%}"),
        Figure("mbu", phase.mbu),
    ]


_HEADLINE = ("ttft_s", "ttft_at_server_s", "tpot_s", "e2el_s", "output_tokens_per_s", "max_batch", "max_context_tokens")
"""What is said of the same batch without its serving techniques."""


def estimate_record(estimate: Estimate) -> dict[str, Any]:
    """The JSON of ``inferplan estimate`` (docs/json.md)."""
    load, encodes = estimate.load, estimate.deployment.model.encodes
    return {
        **deployment_record(estimate.deployment),
        "rests_on": estimate.rests_on,
        "load": {
            "batch": int(load.batch),
            "samples": int(load.samples),
            "prompt_tokens": int(load.prompt),
            "media_tokens": int(load.media_tokens),
            "output_tokens": 0 if encodes else int(load.output),
            "before_answer_tokens": int(load.before),
            "kv_cache": load.kv_cache,
            "all_logits": load.all_logits,
        },
        "memory": memory_record(estimate),
        "prefill": phase_record(estimate.prefill),
        "decode": None if encodes else phase_record(estimate.decode),
        "ridge_flop_per_byte": estimate.deployment.ridge,
        **_latency_record(estimate),
        **({"diffusion": record(_blocks(estimate))} if isinstance(estimate, DiffusionEstimate) else {}),
        "rejected_because": _refusal(estimate) or None,
        **({"without": _without(estimate)} if isinstance(estimate, ServedEstimate) else {}),
        "basis": estimate.basis,
        "basis_shares": {name: phase.by_basis() for name, phase in _phases(estimate)},
        "calibration_file_shares": file_shares(estimate),
        "anchor": _correction(estimate),
    }


def _latency_record(estimate: Estimate) -> dict[str, Any]:
    """Latencies and throughput, and the largest batch and context."""
    footprint = estimate.footprint
    most = {"max_batch": int(footprint.max_batch()), "max_context_tokens": footprint.max_context()}
    return {**record(_latency_figures(estimate)), **most}


def _without(estimate: ServedEstimate) -> dict[str, Any]:
    found = _latency_record(estimate.without)
    return {name: found[name] for name in _HEADLINE}


def _phases(estimate: Estimate) -> list[tuple[str, Phase]]:
    """Its phases by name: the one pass of a model that generates nothing is its prefill."""
    first = ("prefill", estimate.prefill)
    return [first] if estimate.deployment.model.encodes else [first, ("decode", estimate.decode)]


def _first_word(estimate: Estimate) -> str:
    """What the time of the prefill is called: without a token it is the latency."""
    return "latency" if estimate.deployment.model.encodes else "TTFT"


def _refusal(estimate: Estimate) -> str:
    """Why the engine would not run the batch with its drafts, see :func:`refusal`."""
    width = estimate.techniques.speculation.width if isinstance(estimate, ServedEstimate) else 1
    return refusal(estimate.deployment, estimate.load, width)


@lru_cache(maxsize=2)
def server_of(estimate: Estimate) -> FirstToken | None:
    """One request of the batch on an idle server, with the techniques of the estimate; ``None`` where it is unknown."""
    return served_first_token(estimate, estimate.techniques if isinstance(estimate, ServedEstimate) else None)


def server_record(estimate: Estimate) -> dict[str, Any]:
    """TTFT at the server, of one request when nobody else is there; null where nothing is known of the server."""
    first, band = server_of(estimate), estimate.band("ttft")
    seconds = None if first is None else float(np.max(first.at_server))
    low, high = (None, None) if seconds is None or band is None else (seconds * band[0], seconds * band[1])
    return {
        "ttft_at_server_s": seconds,
        "ttft_at_server_low_s": low,
        "ttft_at_server_high_s": high,
        "ttft_at_server_parts_s": None if first is None else first.parts(),
    }


def band_record(estimate: Estimate, metric: str | None) -> dict[str, Any]:
    """Between which seconds 80 % of measurements of a latency lie; null where no held-out error is known."""
    name = metric or "tpot"
    band = estimate.band(metric) if metric else None
    low, high = band or (None, None)
    value = getattr(estimate, name)
    return {
        f"{name}_low_s": None if low is None else value * low,
        f"{name}_high_s": None if high is None else value * high,
    }


def band_note(estimate: Estimate) -> str:
    """The bands in one line, or that none is known."""
    first = server_of(estimate)
    word = _first_word(estimate)
    ttft = (word, float(estimate.ttft)) if first is None else (f"{word} at the server", float(np.max(first.at_server)))
    metrics = [(*ttft, "ttft"), *([("TPOT", float(estimate.tpot), "tpot")] if np.all(estimate.load.output > 1) else [])]
    known = within_line(estimate.deployment, [(name, value, estimate.band(metric)) for name, value, metric in metrics])
    if known:
        return f"error: {known}"
    if estimate.basis == "roofline":
        return "error: unknown; no measurement supports these times"
    if missing := lacking(estimate.deployment, estimate.forms):
        return f"error: unknown; {too_few(missing)} (docs/accuracy.md)"
    phases = [("prefill", estimate.prefill), *([("decode", estimate.decode)] if len(metrics) > 1 else [])]
    return f"error: unknown; {'; '.join(_why_unknown(name, phase) for name, phase in phases)}"


def within_line(deployment: Deployment, figures: Sequence[tuple[str, float, Band | None]]) -> str:
    """Between which seconds 80 % of measurements of these figures lie, each by its own band; empty without any."""
    parts = [
        f"{name} {format_time(value * band[0])} to {format_time(value * band[1])}"
        for name, value, band in figures
        if band is not None
    ]
    if not parts:
        return ""
    if deployment.calibration.anchor is not None:
        return f"80 % of unseen runs of a system measured like this lie within {', '.join(parts)} (docs/anchors.md)"
    return f"80 % of held-out measurements lie within {', '.join(parts)} (docs/accuracy.md)"


def _why_unknown(name: str, phase: Phase) -> str:
    """Which kernels of a phase nobody has held out; or their band, where it is what a step adds that has no error."""
    if phase.band is not None:
        low, high = phase.band
        return f"kernels of {name} x {low:.2f} to x {high:.2f}, but the error of the rest of a step is not known"
    without = [cost for cost in phase.costs if cost.band is None]
    spent, whole = (sum(float(np.sum(cost.total)) for cost in costs) for costs in (without, phase.costs))
    kernels = ", ".join(sorted({cost.op.kernel for cost in without}))
    return f"the error of {kernels}, {spent / whole:.0%} of {name}, is not known"


def estimate_report(estimate: Estimate) -> Report:
    """One screen: latency, memory, roofline and operators, and what the numbers rest on."""
    return Report(
        record=estimate_record(estimate),
        tables=[_latency(estimate), _memory(estimate), *_host(estimate), _roofline(estimate), _operators(estimate)],
        notes=_notes(estimate),
        of=estimate,
    )


def _latency(estimate: Estimate) -> Table:
    load, deployment = estimate.load, estimate.deployment
    rows, columns = labelled_texts(_latency_figures(estimate)), ["latency and throughput", "value"]
    if isinstance(estimate, ServedEstimate):
        columns.append("without")
        without = labelled_texts(_latency_figures(estimate.without))
        rows = [[*row, before] for row, (_, before) in zip(rows, without, strict=True)]
    copies = f", {deployment.parallel.replicas} replicas" if deployment.parallel.replicas > 1 else ""
    out = "" if deployment.model.encodes else f", {load.output:.0f} out"
    cache = "" if load.kv_cache else ", no KV cache"
    title = f"{deployment.describe()}: {load.describe()}{copies}, {load.prompt:.0f} tokens in{out}{cache}"
    if isinstance(estimate, ServedEstimate):
        title += f"; {estimate.techniques.describe()}"
    return Table(title=title, columns=columns, rows=rows, right=_RIGHT)


def _latency_figures(estimate: Estimate) -> list[Figure]:
    """Latencies and throughput of the batch."""
    load, first, encodes = estimate.load, server_of(estimate), estimate.deployment.model.encodes
    word, decoding, several = _first_word(estimate), bool(np.all(load.output > 1)), bool(np.all(load.samples > 1))
    tpot = estimate.tpot if decoding else None
    answer = estimate.answer_ttft if load.before else None
    steps = f"{_time(estimate.tpot_start)}, {_time(estimate.tpot_end)}" if decoding else ""
    idle = "idle" if load.batch == 1 else "one request, idle"
    return [
        Figure("ttft_s", estimate.ttft, f"{word} of the batch alone ({'one pass' if encodes else 'prefill'})", _time),
        *_band(estimate, "ttft"),
        *(Figure(key, value) for key, value in server_record(estimate).items()),
        text(f"{word} at the server, {idle}", "" if first is None else _time(first.at_server), seen=first is not None),
        text("requests per second", f"{float(estimate.request_rate):,.1f}", seen=encodes),
        Figure("tpot_s", tpot, "time per output token (TPOT), mean", _time, seen=decoding and not encodes),
        *_band(estimate, "tpot" if decoding else None),
        Figure("tpot_start_s", estimate.tpot_start if decoding else None),
        Figure("tpot_end_s", estimate.tpot_end if decoding else None),
        text("  first step, last step", steps, seen=decoding and not encodes),
        *(starmap(text, labelled_texts(_blocks(estimate))) if isinstance(estimate, DiffusionEstimate) else []),
        text(
            f"TTFT of the answer alone, after {load.before:,.0f} tokens",
            "" if answer is None else _time(answer),
            seen=answer is not None and not encodes,
        ),
        Figure(
            "e2el_s",
            estimate.e2el,
            "total latency, TTFT + (output - 1) TPOT",
            _time,
            seen=not encodes,
        ),
        *_band(estimate, "e2el"),
        Figure("answer_ttft_s", answer),
        Figure(
            "output_tokens_per_s",
            None if encodes else estimate.output_rate,
            f"output tokens per second{', all samples' if several else ''}",
            lambda rate: f"{float(rate):,.1f}",
            seen=not encodes,
        ),
        Figure(
            "total_tokens_per_s",
            estimate.total_rate,
            "tokens read per second" if encodes else "input and output tokens per second",
            lambda rate: f"{float(rate):,.1f}",
        ),
        Figure(
            "requests_per_s",
            estimate.request_rate,
            "requests per second",
            lambda rate: f"{float(rate):,.2f}",
            seen=several and not encodes,
        ),
        text(
            f"output tokens per second per {'sample' if several else 'user'}, after the first",
            "-" if tpot is None else f"{1 / float(tpot):,.1f}",
            seen=not encodes,
        ),
    ]


def _band(estimate: Estimate, metric: str | None) -> list[Figure]:
    return [Figure(key, value) for key, value in band_record(estimate, metric).items()]


def _blocks(estimate: DiffusionEstimate) -> list[Figure]:
    """What a diffusion model adds: its blocks, passes and their times (docs/diffusion.md)."""
    generation = estimate.generation
    block = f"block of {generation.block} tokens in {generation.steps}"
    return [
        Figure("block_tokens", generation.block),
        Figure("steps_per_block", generation.steps),
        Figure("block_cache", generation.block_cache),
        Figure("blocks", estimate.blocks),
        Figure("denoising_step_s", estimate.step_time, "denoising pass, mean", _time),
        Figure("block_s", estimate.block_time, block, _time),
    ]


def _host(estimate: Estimate) -> list[Table]:
    """What lies in the host's memory, and where a step's kernels run; nothing where the device has everything."""
    there, streamed = estimate.footprint.host, estimate.deployment.streamed
    if streamed is not None:
        rows = [
            ["weights of all devices", _bytes(estimate.footprint.streamed)],
            ["usable", _bytes(streamed.host.usable)],
        ]
        return [
            Table(title=f"memory of the host, {streamed.host.name}", columns=["", "bytes"], rows=rows, right=_RIGHT)
        ]
    if there is None:
        return []
    columns, title = ["", "bytes", "share"], f"memory of the host, {there.deployment.hardware.name}"
    memory = Table(title=title, columns=columns, rows=_memory_rows(there), right=_RIGHT)
    prefill, decode = by_place(estimate.prefill), by_place(estimate.decode)
    rows = [
        [name, *_part(prefill[name], sum(prefill.values())), *_part(decode[name], sum(decode.values()))]
        for name in prefill
    ]
    columns = ["kernels on", "prefill", "share", "decode", "share "]
    return [memory, Table(title="time by place", columns=columns, rows=rows, right=_RIGHT)]


def _memory(estimate: Estimate) -> Table:
    footprint = estimate.footprint
    rows = _memory_rows(footprint)
    batch, context = ["", ""]
    if isinstance(estimate, ServedEstimate):
        plain = estimate.without.footprint
        batch, context = (
            f"without: {float(plain.max_batch()):,.0f}",
            f"without: {format_tokens(plain.max_context()).removesuffix(' tokens')}",
        )
    unit = ", in requests" if estimate.load.samples > 1 else ""
    rows.append([f"largest batch at this context{unit}", f"{float(footprint.max_batch()):,.0f}", batch])
    rows.append(["longest context at this batch", format_tokens(footprint.max_context()), context])
    title = f"memory of one device ({estimate.deployment.engine.describe()} defaults)"
    return Table(title=title, columns=["", "bytes", "share"], rows=rows, right=_RIGHT)


def _roofline(estimate: Estimate) -> Table:
    phases = _phases(estimate)
    columns = [labelled_texts(_phase_figures(phase)) for _, phase in phases]
    rows = [[lines[0][0], *(shown for _, shown in lines)] for lines in zip(*columns, strict=True)]
    drafted = isinstance(estimate, ServedEstimate) and estimate.techniques.speculation.length > 0
    step = "one verification, without the drafts," if drafted else "one step"
    both = f"prefill: the whole batch; decode: {step} at the mean context"
    return Table(
        title=f"roofline ({'the pass of the whole batch' if len(phases) == 1 else both})",
        columns=["", *(name for name, _ in phases)],
        rows=rows,
        right=_RIGHT,
    )


def _operators(estimate: Estimate) -> Table:
    """Time and share of each operator in each phase, and what bounds it in the last one."""
    phases = _phases(estimate)
    spent = [(found := phase.by_operator(), sum(found.values()) or 1.0) for _, phase in phases]
    bounds = {cost.op.name: BOUND_NAMES[cost.bound] for cost in phases[-1][1].costs}
    rows = [
        [
            name,
            *(cell for of, whole in spent for cell in _part(of.get(name), whole)),
            bounds.get(name, "overhead") if name in spent[-1][0] else "-",
        ]
        for name in dict.fromkeys(name for of, _ in spent for name in of)
    ]
    shares = [heading for place, (name, _) in enumerate(phases) for heading in (name, "share" + " " * place)]
    bound = "bound" if len(phases) == 1 else "decode bound"
    return Table(title="time by operator", columns=["operator", *shares, bound], rows=rows, right=_RIGHT)


def _part(seconds: Num | None, whole: Num) -> tuple[str, str]:
    """The time of an operator and its share of a phase; dashes where the phase does not run it."""
    return ("-", "-") if seconds is None else (_time(seconds), f"{float(seconds / whole):.1%}")


def pruning_table(pruned: Estimate, whole: Estimate) -> Table:
    """What pruning saves: weights, cache, FLOP and time of both, and their ratio."""
    encodes = whole.deployment.model.encodes
    lines: list[tuple[str, Callable[[Estimate], float], Callable[[float], str]]] = [
        ("parameters", lambda e: e.deployment.model.parameters["total"], lambda v: f"{v:,.0f}"),
        ("weights per device", lambda e: e.footprint.weights, format_bytes),
        *([] if encodes else [("KV cache per token", lambda e: e.footprint.kv_per_token, format_bytes)]),
        ("prefill FLOP", lambda e: float(e.prefill.flop), lambda v: format_quantity(v, "FLOP")),
        (f"{_first_word(whole)} of the batch alone", lambda e: float(e.ttft), format_time),
        *([] if encodes else [("decode step", lambda e: float(e.decode.time), format_time)]),
    ]
    rows = []
    for name, value, shown in lines:
        before, after = value(whole), value(pruned)
        rows.append([name, shown(before), shown(after), f"{after / before:.3f}"])
    columns = ["", "before", "after", "ratio"]
    title = f"pruning {whole.deployment.model.name}"
    return Table(title=title, columns=columns, rows=rows, right=frozenset({"before", "after", "ratio"}))


def basis_note(estimate: Estimate) -> str:
    """One line that says what the times rest on."""
    calibration = estimate.deployment.calibration
    if not calibration.constants:
        return IDEAL_NOTE
    shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(estimate.decode.by_basis().items()))
    if calibration.overlay is not None:
        shares += f"; {file_share(estimate.decode):.0%} by {calibration.overlay.file}"
    step = "" if estimate.deployment.model.encodes else "decode "
    described = f"{calibration.described} ({step}time: {shares})"
    if calibration.name == "transferred":  # those of a class of memory
        gpu = estimate.deployment.hardware.name
        return f"basis: {estimate.basis}: {gpu} was not measured, its constants are other GPUs'{_anchored(estimate)}"
    return f"basis: {estimate.basis}, constants {described}{_anchored(estimate)}"


def _correction(estimate: Estimate) -> dict[str, Any] | None:
    """What measured runs make of this load, and how many they are; ``None`` without any."""
    anchor, load = estimate.deployment.calibration.anchor, estimate.load
    if anchor is None:
        return None
    ttft, tpot = correction(estimate.deployment, load.batch, load.prompt, load.output)
    return {"runs": len(anchor.rows), "ttft": float(np.mean(ttft)), "tpot": float(np.mean(tpot))}


def _anchored(estimate: Estimate) -> str:
    found = _correction(estimate)
    if found is None:
        return ""
    factors = f"TTFT x {found['ttft']:.3f}, TPOT x {found['tpot']:.3f}"
    return f"; anchored to {found['runs']} measured runs: at this load {factors}"


def server_note(estimate: Estimate) -> str:
    """What the TTFT at the server is made of, or why it is not known."""
    first, engine = server_of(estimate), estimate.deployment.engine
    if first is None and engine.serving.source:
        return ""
    if first is None:
        return (
            "at the server: unknown; no constants of the front end and scheduler are on file for --engine "
            f"{engine.name}"
        )
    if not np.any(first.server):
        why = "its front end was not measured" if engine.defaults.serving else "ideal"
        return f"at the server: nothing is added ({why})"
    named = {
        "alone": first.alone,
        "latency": first.latency,
        "front end": first.front_end,
        "launches": first.launches,
        "seen late": first.seen_late,
    }
    seen = {name: seconds for name, seconds in named.items() if np.any(np.asarray(seconds) > UNSEEN * first.at_server)}
    parts = " + ".join(f"{name} {_time(seconds)}" for name, seconds in seen.items())
    whose = "" if np.all(estimate.load.batch == 1) else " of one request"
    return f"{_first_word(estimate)} at the server{whose} = {parts} (docs/glossary.md)"


def idle_note(estimate: Estimate) -> str:
    """What the first token of its request takes when nobody else is there; empty where that is not known."""
    first = server_of(estimate)
    if first is None or not np.any(first.server):
        return ""
    tokens = int(np.max(estimate.load.prompt))
    return f"on an idle server, {tokens:,} tokens in {_time(first.at_server)}: {server_note(estimate)}"


def routing_note(estimate: Estimate) -> str:
    """How popular experts are taken to be, and how much more than the mean the busiest rank has in a decode step."""
    deployment = estimate.deployment
    layers = (part for layer in deployment.model.sequence for part in layer.parts if isinstance(part, MoeLayer))
    layer, parallel, routing = next(layers, None), deployment.parallel, deployment.routing
    if layer is None:
        return ""
    skew = routing.skew_of(layer.skew)
    source = "measured" if layer.skew is not None else "configs/routing.yaml" if routing.usual else "uniform"
    text = f"routing: skew {skew:g} ({source if routing.asked is None else '--expert-skew'})"
    if parallel.ep == 1 or deployment.calibration.fused:
        return text
    tokens = float(estimate.load.sequences)
    most = busiest(layer.experts, layer.top_k, parallel.ep, parallel.redundant, skew).rows(tokens)
    times = float(most) / (tokens * layer.top_k / parallel.ep)
    return f"{text}; the busiest of {parallel.ep} expert groups has {times:.3g} times the mean rows in a decode step"


def media_note(deployment: Deployment) -> str:
    """What every request carries beside text, and as how many tokens of its prompt; empty for text alone."""
    return "" if deployment.media is None else f"media: a request carries {deployment.media.describe()}"


def samples_note(load: StaticLoad) -> str:
    """What the answers of a prompt share; empty for one answer."""
    if load.samples == 1:
        return ""
    return (
        f"samples: {load.samples:.0f} answers per prompt; the prompt is computed and kept once, and each answer reads "
        "it in every step (no cascade attention, docs/sampling.md)"
    )


def lora_note(deployment: Deployment) -> str:
    """Which adapters there are; empty without any. What their times rest on is a warning of the deployment."""
    if deployment.lora is None:
        return ""
    size = format_bytes(deployment.lora.format.width * parameters(deployment.lora, deployment.model))
    return f"LoRA: {deployment.lora.describe()}; an adapter has {size}"


def _notes(estimate: Estimate) -> list[str]:
    hardware = estimate.deployment.hardware
    refused = _refusal(estimate)
    notes = [
        f"warning: {refused}" if refused else "",
        server_note(estimate),
        basis_note(estimate),
        overlay_note(estimate),
        media_note(estimate.deployment),
        lora_note(estimate.deployment),
        samples_note(estimate.load),
        *estimate.deployment.model_lines,
        estimate.deployment.calibration.note,
        band_note(estimate),
        outside_band(estimate.rests_on),
        routing_note(estimate),
        f"hardware: {hardware.name}, confidence {hardware.confidence}",
        *hardware.size_lines,
        _host_note(estimate.deployment),
        _fewer_note(estimate),
        start_line(estimate.deployment),
    ]
    return [note for note in notes if note]


def _host_note(deployment: Deployment) -> str:
    """What the times of the host rest on; empty where it computes nothing."""
    each = "; each replica has its own host" if deployment.parallel.replicas > 1 else ""
    if deployment.streamed is not None:
        device = deployment.streamed.over(deployment.hardware, deployment.parallel.ranks)
        rate = format_quantity(device.to_host.bandwidth, "B/s")
        return f"host: {deployment.streamed.host.name}, weights over {device.to_host.name} at {rate} per device{each}"
    if deployment.offload is None:
        return ""
    host, link = deployment.offload.host, deployment.offload.link
    rate = f"{link.name} of {format_quantity(link.bandwidth, 'B/s')}{each}"
    constants = host.calibration.described if host.calibration.constants else "none, its roofline"
    return f"host: {host.hardware.name}, confidence {host.hardware.confidence}, constants {constants}; over {rate}"


def _fewer_note(estimate: Estimate) -> str:
    """The fewest layers whose experts have to lie on the host, and the time per token with them; empty where no fewer
    do."""
    fewer = fewest_experts(estimate.footprint)
    if fewer is None or not np.all(estimate.load.output > 1):
        return ""
    with_them = _time(replace(estimate, deployment=fewer).tpot)
    if fewer.offload is None:
        return f"the GPU holds all: without layers on the host it has a TPOT of {with_them}"
    return f"the GPU has room: --cpu-moe-layers {fewer.offload.experts} fits, with a TPOT of {with_them}"


def _time(value: Num) -> str:
    return format_time(float(value))


def _bytes(value: Num) -> str:
    return format_bytes(float(value))
