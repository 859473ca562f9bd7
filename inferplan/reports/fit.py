"""What holds a model, as tables for people and records for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from inferplan.answers.division import tpot_of
from inferplan.answers.fit import FitAsked, FitOption, Fits, Fitting, bill_of, first_choices, requests_in_words
from inferplan.catalog.assemble import parse_memory
from inferplan.catalog.bills import Bill
from inferplan.catalog.quality import cache_line, floor_line, is_own, share_kept
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import most_layers
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.models.spec import ModelSpec, uncounted_notes
from inferplan.reports.cost import bill_record
from inferplan.reports.people import with_people
from inferplan.serving.cold_start import start_line
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_time, format_tokens

_WITHIN = (
    "--memory without --gpu limits the total memory of a replica's GPUs; a chip sold in several sizes counts as its "
    "largest (for yours: --gpu NAME --memory SIZE)"
)
QUALITY_NOTE = (
    "quality kept: the score in that format over the unquantised model's, in the published test where it lost most "
    "(configs/quality.yaml); test answers in a narrower format yourself"
)
SPARE = ("KV pool", "weights", "longest context", "price of")
_RIGHT = frozenset({"GPUs", "KV pool", "requests", "longest context", "bytes", "share", "value", "per hour"})


def options_report(found: Fits) -> Report:
    """Every accelerator on file: the first choices, then the rest in the order of ``options``."""
    spec, options, fitting = found.model, found.options, found.fitting
    within = found.asked.within
    asked = f"{found.asked.held:,} x {found.context:,} tokens ({engines_of(fitting)} defaults)"
    first, refused = first_choices(fitting), len(options) - len(fitting)
    records = [_record(option) for option in options]
    report = Report(
        record={
            "model": spec.name,
            "model_counts": spec.made_from.to_dict(),
            "model_notes": uncounted_notes(spec),
            "context_tokens": found.context,
            "memory_together_bytes": parse_memory(found.asked.memory) if found.asked.memory else None,
            "load": load_record(found.asked),
            "first": {why: {"gpu": option.gpu, "quant": option.quant} for why, option in first.items()},
            "options": records,
        },
        tables=[
            *load_tables(found.asked, found.context),
            side_by_side(
                f"{spec.name}: what to look at first{within and f' on GPUs{within}'}, for {asked}",
                [[text("", why, left=True), *option_figures(option)] for why, option in _merged(first)],
                SPARE,
            ),
            *_rest(fitting, f"{spec.name}: the fewest GPUs{within} that hold {asked}"),
        ],
        notes=[
            spec.made_from.line,
            *(f"note: {text}" for text in uncounted_notes(spec)),
            *engine_notes(fitting),
            f"{refused:,} combinations do not fit or cannot run; --format json says why",
            *quality_notes(spec, options, found.asked),
            *([_WITHIN] if within else []),
            *_prices_notes(fitting, found.term, len({option.quant for option in fitting})),
        ],
        rows=records,
        of=found,
    )
    return of_people(report, found.asked)


def engines_of(fitting: Sequence[FitOption]) -> str:
    """The engines whose defaults hold, by name."""
    return ", ".join(dict.fromkeys(one.fitting.deployment.engine.name for one in fitting if one.fitting))


def engine_notes(fitting: Sequence[FitOption]) -> list[str]:
    """Which engine is taken for whose GPUs, where there are several; a maker's GPUs by name where it has several."""
    devices = [(one.fitting.deployment.hardware, one.fitting.deployment.engine.name) for one in fitting if one.fitting]
    makers: dict[str, set[str]] = {}
    for device, engine in devices:
        makers.setdefault(device.vendor, set()).add(engine)
    whose: dict[str, dict[str, None]] = {}
    for device, engine in devices:
        whose.setdefault(engine, {})[device.vendor if len(makers[device.vendor]) == 1 else device.name] = None
    said = "; ".join(f"{engine} on {', '.join(names)}" for engine, names in whose.items())
    return [f"engine: {said}"] if len(whose) > 1 else []


def quality_notes(model: ModelSpec, options: Iterable[FitOption], asked: FitAsked) -> list[str]:
    """What the quality of a format is, and which formats a least one leaves out."""
    quants = dict.fromkeys(option.quant for option in options)
    said = [QUALITY_NOTE] if any(not is_own(model, quant) for quant in quants) else []
    return [*said, *quality_lines(model, quants, asked)]


def quality_lines(model: ModelSpec, quants: Iterable[str | None], asked: FitAsked) -> list[str]:
    """Which formats a least quality leaves out, and what is known of the cache that was asked for."""
    return [*filter(None, [floor_line(model, quants, asked.quality), cache_line(asked.kv, asked.quality)])]


def of_people(report: Report, asked: FitAsked) -> Report:
    """The report behind the load that people make, where they are asked for."""
    return with_people(report, asked.people, asked.rate or 0.0, asked.answer_time or 0.0)


def load_tables(asked: FitAsked, context: int) -> list[Table]:
    """What a user is taken to be, and what that makes of several; nothing for one request without times."""
    if asked.people is None and asked.users == 1 and not asked.think_time and asked.answer_time is None:
        return []
    who = ["requests in flight", f"{asked.users:,} at every moment"]
    if asked.people is not None:
        who = ["people", f"{asked.people.count:,}"]
    elif asked.think_time:
        who = ["users", f"{asked.users:,}; each thinks {asked.think_time:g} s between an answer and the next request"]
    rate = "not known from memory: --answer-time 5s, or inferplan plan"
    if asked.rate is not None:
        of = f" ({asked.timed_by})" if asked.timed_by else ""
        rate = f"{asked.rate:,.4g}, where an answer takes {asked.answer_time:.4g} s{of}"
    rows = [
        who,
        ["requests/s", rate],
        ["held at once", f"{asked.held:,} x {context:,} tokens"],
    ]
    return [Table(title="the load", columns=["", "value"], rows=rows)]


def load_record(asked: FitAsked) -> dict[str, Any]:
    return {
        "users": asked.users if asked.people is None else None,
        "think_time_s": asked.think_time or 0.0,
        "answer_time_s": asked.answer_time,
        "requests_per_s": asked.rate,
        "requests_at_once": asked.held,
    }


def _merged(first: dict[str, FitOption]) -> list[tuple[str, FitOption]]:
    """One line for an option that is first in several things."""
    lines: dict[int, tuple[str, FitOption]] = {}
    for why, option in sorted(first.items(), key=lambda pair: (pair[1].quant != "native", pair[1].quant)):
        said = lines.get(id(option))
        lines[id(option)] = (f"{said[0].rpartition(', ')[0]}; {why}" if said else why, option)
    return list(lines.values())


def _rest(fitting: Sequence[FitOption], title: str) -> list[Table]:
    """One line a GPU where several formats were tried, else one an option: with a price, then without."""
    parts = [
        (f"{title}; the cheapest first", [option for option in fitting if option.bill is not None]),
        ("without a price on file", [option for option in fitting if option.bill is None]),
    ]
    if len({option.quant for option in fitting}) == 1:
        return [
            side_by_side(said, [option_figures(option) for option in group], SPARE) for said, group in parts if group
        ]
    return [
        Table(
            title=said,
            columns=["GPU", *_formats(group), *(["per hour", "price of"] if group[0].bill else [])],
            rows=_by_gpu(group, _formats(group)),
            right=_RIGHT,
            spare=SPARE,
        )
        for said, group in parts
        if group
    ]


def _formats(group: Sequence[FitOption]) -> list[str]:
    """The checkpoint's own first."""
    return sorted({option.quant for option in group}, key=lambda quant: (quant != "native", quant))


def _by_gpu(group: Sequence[FitOption], quants: Sequence[str]) -> list[list[str]]:
    """GPUs and requests of each format; the price is that of the cheapest."""
    rows = []
    for gpu in dict.fromkeys(option.gpu for option in group):
        of = {option.quant: option for option in group if option.gpu == gpu}
        cells = [_cell(of[quant]) if quant in of else "" for quant in quants]
        bill = next(iter(of.values())).bill
        rows.append([gpu, *cells, *(_bought(bill) if bill else ())])
    return rows


def _cell(option: FitOption) -> str:
    requests = option.fitting.requests if option.fitting else 0
    return f"{option.devices} GPU{'s' if option.devices > 1 else ''}, {requests:,}"


def _prices_notes(fitting: Sequence[FitOption], term: str, quants: int) -> list[str]:
    bills = [option.bill for option in fitting if option.bill is not None]
    lines = [
        *(
            ["each cell: GPUs per replica, and requests it holds at once; the price is that of the cheapest cell"]
            * (quants > 1)
        ),
        "most requests for the money: requests of all replicas on the instance you rent, divided by its price",
        f"per hour: the cheapest {term} bill over all price lists (docs/cost.md); whole instances are paid for",
    ]
    if any(bill.across for bill in bills):
        lines.append(
            "across instances: no instance sold there holds the GPUs of one tensor-parallel group; ask what links them"
        )
    return lines


def _record(option: FitOption) -> dict[str, Any]:
    if option.fitting is None:
        return {"gpu": option.gpu, "quant": option.quant, "fits": False, "reason": option.reason}
    return record(option_figures(option))


def option_figures(option: FitOption) -> list[Figure]:
    """An accelerator and a format that hold the load."""
    assert option.fitting is not None
    return _fitting(option.quant, option.fitting, option.bill, option.quant)


def _fitting(named: str, found: Fitting, bill: Bill | None, quant: str | None) -> list[Figure]:
    """What the fewest GPUs of a kind hold, and what is bought for them. named: the format, as people see it."""
    footprint, (hourly, bought) = found.footprint, _bought(bill)
    share, said = share_kept(found.deployment.model, quant)
    cost = None if bill is None else {**bill_record(bill), "per_hour": bill.per_hour}
    return [
        Figure("gpu", found.deployment.hardware.name, "GPU", left=True),
        Figure("quant", named),
        Figure("engine", found.deployment.engine.name),
        Figure("fits", True),
        Figure("devices", found.deployment.parallel.devices, "GPUs"),
        text("format", named, left=True),
        Figure("quality_kept", share, "quality kept", text=said, left=True),
        Figure("weights_bytes", footprint.weights, "weights", format_bytes, left=True),
        Figure("adapter_bytes", footprint.adapters),
        Figure("kv_pool_bytes", footprint.kv_pool, "KV pool", format_bytes),
        Figure("max_requests", found.requests, "requests", ","),
        Figure(
            "max_context_tokens",
            found.longest,
            "longest context",
            lambda tokens: format_tokens(tokens).removesuffix(" tokens"),
        ),
        Figure("cost", cost, "per hour", text=hourly),
        text("price of", bought, left=True),
    ]


def _bought(bill: Bill | None) -> tuple[str, str]:
    """The price of an hour, and what it buys from whom; empty without one."""
    if bill is None:
        return "", ""
    bought = f"{bill.units:,} x {bill.offer.what}{' across instances' if bill.across else ''}, {bill.offer.seller}"
    kind = f" ({bill.offer.kind})" if bill.offer.kind else ""
    return f"{bill.per_hour:,.2f} {bill.offer.currency}{kind}", bought


def memory_report(fitting: Fitting) -> Report:
    """The memory of one device, and what it holds."""
    prices = fitting.prices
    bill = None if prices is None else bill_of(fitting, prices)
    footprint, deployment = fitting.footprint, fitting.deployment
    quant = None if fitting.asked is None else fitting.asked.quant
    keeps = not deployment.model.encodes
    title = f"{deployment.describe()}: memory of one device ({deployment.engine.describe()} defaults)"
    memory, there = [_memory(footprint, title, keeps)], footprint.host
    memory += [] if there is None else [_memory(there, f"memory of the host, {there.deployment.hardware.name}", keeps)]
    most = None if there is None else most_layers(replace(footprint, batch=float(fitting.users)))
    seconds, basis = _seconds(fitting) if keeps else (None, "")
    whole = {
        **record(_fitting(deployment.formats, fitting, bill, quant)),
        "model": deployment.model.name,
        "model_counts": deployment.model.made_from.to_dict(),
        "model_notes": deployment.warnings,
        "context_tokens": fitting.context,
        "load": None if fitting.asked is None else load_record(fitting.asked),
        "activation_bytes": footprint.activations,
        "reserve_bytes": footprint.reserve,
        "usable_bytes": footprint.usable,
        "kv_bytes_per_token": footprint.kv_per_token,
        "state_bytes_per_sequence": footprint.state_per_sequence,
        "most_gpu_layers": most,
        "streamed_bytes": footprint.streamed,
        "host": None if footprint.host is None else record(_memory_figures(footprint.host, keeps)),
        "log": _log(fitting) if keeps else None,
        "tpot_s": seconds,
    }
    rows = [*_capacity(fitting, quant, most), *_timed(fitting, seconds)]
    capacity = Table(title="capacity", columns=["", "value"], rows=rows, right=_RIGHT)
    timed = [] if seconds is None else [f"TPOT: predicted ({basis} constants); its error: inferplan estimate"]
    notes = [*timed, *_memory_notes(fitting, quant), *log_lines(fitting), *_price_notes(fitting, bill)]
    load = [] if fitting.asked is None else load_tables(fitting.asked, fitting.context)
    report = Report(record=whole, tables=[*load, *memory, capacity], notes=notes)
    return report if fitting.asked is None else of_people(report, fitting.asked)


def _log(fitting: Fitting) -> dict[str, float]:
    """What vLLM logs of its cache as it starts."""
    footprint, longest = fitting.footprint, fitting.deployment.model.max_context or fitting.context
    length = footprint.longest_start(int(min(longest, max(fitting.longest, 1))))
    cached, times = footprint.cache_tokens(length), footprint.concurrency(length)
    asked = footprint.concurrency(fitting.context)
    return {"max_model_len": length, "kv_cache_tokens": cached, "concurrency": times, "concurrency_at_context": asked}


def log_lines(fitting: Fitting, of: str = "") -> list[str]:
    """The lines that vLLM would log; none for another engine, or a model without a cache. of: the format, in words."""
    if fitting.deployment.model.encodes or not fitting.deployment.engine.logs_cache:
        return []
    length, cached, times, asked = _log(fitting).values()
    shorter = f"; with --max-model-len {fitting.context}: {asked:.2f}x" if fitting.context < length else ""
    return [
        f"vLLM would log{of}:",
        f"  GPU KV cache size: {cached:,} tokens",
        f"  Maximum concurrency for {length:,} tokens per request: {times:.2f}x{shorter}",
    ]


def _capacity(fitting: Fitting, quant: str | None, most: int | None) -> list[list[str]]:
    """What a device holds beside the model, in what quality. most: layers that fit on it, where others do not."""
    footprint, model = fitting.footprint, fitting.deployment.model
    kept = [
        ["KV cache per token, on one device", format_bytes(footprint.kv_per_token)],
        ["state per sequence, on one device", format_bytes(footprint.state_per_sequence)],
    ]
    return [
        *([] if model.encodes else kept),
        [f"requests of {fitting.context:,} tokens", f"{fitting.requests:,}"],
        ["longest context of one request", format_tokens(fitting.longest)],
        *([] if is_own(model, quant) else [["quality kept", share_kept(model, quant)[1]]]),
        *([["weights in host memory, all GPUs", format_bytes(footprint.streamed)]] if footprint.streamed else []),
        *([] if most is None else [["most layers that fit on the GPU (--gpu-layers)", f"{most}"]]),
    ]


def _seconds(fitting: Fitting) -> tuple[float | None, str]:
    """Predicted for a step of the load, and what it rests on; ``None`` where nobody asked for it on this device, or it
    has no prediction."""
    if fitting.asked is None or fitting.context < 3:
        return None, ""
    request = fitting.asked.request(fitting.typed, fitting.deployment.hardware.name)
    return tpot_of(request, fitting, fitting.asked, fitting.context)


def _timed(fitting: Fitting, seconds: float | None) -> list[list[str]]:
    """The time per token of a step of the load."""
    load = f"{requests_in_words(fitting.users, fitting.context)} at once"
    return [] if seconds is None else [[f"time per output token (TPOT), {load}", format_time(seconds, 4)]]


def _memory_notes(fitting: Fitting, quant: str | None) -> list[str]:
    """What else was asked of the format, what the sizes rest on, and how long a start reads."""
    deployment, asked = fitting.deployment, fitting.asked
    said = [] if asked is None else quality_lines(deployment.model, [quant], asked)
    lines = [*_fewer_do_not(fitting), *said, *deployment.model_lines]
    return [*lines, *deployment.hardware.size_lines, start_line(deployment)]


def _price_notes(fitting: Fitting, bill: Bill | None) -> list[str]:
    """What it costs, from which lists; nothing where nobody asked."""
    prices, gpu = fitting.prices, fitting.deployment.hardware.name
    if prices is None:
        return []
    if bill is not None:
        each = f", {bill.per_hour / bill.bought:,.2f} per GPU" if bill.bought > bill.units else ""
        lines = [f"price: {bill.per_hour:,.2f} {bill.offer.currency} per hour{each}: {bill.line}", *bill.remarks]
        return [*lines, *prices.remarks([gpu])]
    none = [f"no price: {gpu} is in none of the lists that --prices names"] if prices.named else []
    return [*prices.remarks([gpu]), *none]


def device_lines(options: Iterable[FitOption]) -> list[str]:
    """What of its memory each GPU may use, and how another size is given; once where several say the same."""
    fitting = [option.fitting.deployment.hardware for option in options if option.fitting is not None]
    return list(dict.fromkeys(line for hardware in fitting for line in hardware.size_lines))


def _fewer_do_not(fitting: Fitting) -> list[str]:
    """That fewer GPUs hold no replica in this format, in which others they do, and what says what these hold."""
    count, gpu = fitting.deployment.parallel.devices, fitting.deployment.hardware.name
    if fitting.asked is None or fitting.asked.tp is not None or fitting.asked.offload.any or count == 1:
        return []
    narrower = ", ".join(f"in {quant} {held:,}" for quant, held in fitting.fewer.items())
    fewest = f"{count} is the fewest that hold it in this format" + (f" ({narrower})" if narrower else "")
    line = fitting.asked.line(fitting.deployment.model.name, f"--have {count}x-{gpu}", quant=None)
    return [f"{fewest}; what {count} hold, in every format: {line}"]


def _memory(footprint: Footprint, title: str, keeps: bool) -> Table:
    """What lies in one memory; ``keeps``: requests keep something there."""
    rows = [
        [figure.label or "", figure.shown, f"{figure.value / footprint.usable:.1%}"]
        for figure in _memory_figures(footprint, keeps)
        if figure.seen
    ]
    return Table(title=title, columns=["", "bytes", "share"], rows=rows, right=_RIGHT)


def _memory_figures(footprint: Footprint, keeps: bool) -> list[Figure]:
    """Bytes of one memory by what lies there."""
    adapters = footprint.adapters
    return [
        Figure("weights_bytes", footprint.weights, "weights", format_bytes),
        Figure("", adapters, "slots of LoRA adapters", format_bytes, seen=bool(adapters)),
        Figure("activation_bytes", float(footprint.activations), "activations", format_bytes),
        Figure("reserve_bytes", footprint.reserve, "runtime reserve", format_bytes),
        Figure("kv_pool_bytes", footprint.kv_pool, "left for KV cache and state" if keeps else "left", format_bytes),
        Figure("usable_bytes", footprint.usable, "usable", format_bytes),
    ]
