"""``inferplan models``, ``gpus``, ``formats``, ``prices`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from inferplan.catalog import files as catalog
from inferplan.catalog.bills import PRICE_AGE, Bill, Offer, Tariff
from inferplan.catalog.counted import counted
from inferplan.catalog.price_files import update_prices
from inferplan.catalog.price_lists import PriceList, every_list
from inferplan.catalog.search import Number, Value, parse_filter, parse_size
from inferplan.cli.layers import Layered
from inferplan.cli.options import report_options
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError, UnknownNameError, UsageError
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.models.spec import YARN, ModelSpec
from inferplan.reports.cost import price_record
from inferplan.reports.price_update import updated_report
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_parameters, format_quantity, parse_quantity

_RIGHT = frozenset({"count", "value"})


@click.command("models", cls=Layered)
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="WORD|FIELD<VALUE",
    help="A word of a name, an alias or the family, or FIELD=WORD, FIELD<NUMBER, FIELD>=NUMBER with family, licence, "
    "kind (dense, experts, encode, encoder-decoder), parameters, active, context; all that are given must hold.",
)
@report_options
def models_command(conditions: tuple[str, ...]) -> Report:
    """Every model on file: parameters, active parameters, KV elements per token, context, licence.

    Example: inferplan models --filter qwen --filter 'parameters<40B' --filter 'context>=128k'
    """
    filters = [parse_filter(text, ("family", "licence", "kind"), _NUMBERS) for text in conditions]
    specs = [catalog.load_model(name) for name in catalog.names("models")]
    found = [spec for spec in specs if all(one.holds(_facts(spec), _words(spec)) for one in filters)]
    if not found:
        raise UnknownNameError(
            f"none of the {len(specs)} models on file meets {', '.join(map(repr, conditions))}",
            hint="fewer conditions; kinds: dense, experts, encode, encoder-decoder; some licences are not on file",
        )
    rows = [_model_row(spec) for spec in found]
    title = (
        f"{len(rows)} model{'' if len(rows) == 1 else 's'} (KV elements per token: inside / beyond the sliding windows)"
    )
    return _listed("models", title, rows)


def _listed(key: str, title: str, rows: list[list[Figure]], notes: Sequence[str] = ()) -> Report:
    """Rows as a table and under a key of JSON; a narrow terminal goes without some of the columns."""
    records = [record(row) for row in rows]
    return Report(record={key: records}, tables=[side_by_side(title, rows, _SPARE)], rows=records, notes=notes)


def _model_row(spec: ModelSpec) -> list[Figure]:
    counts = spec.parameters
    return [
        Figure("name", spec.name, "model", left=True),
        Figure("source", spec.source),
        Figure("licence", spec.licence or None),
        *(Figure(name, value) for name, value in model_counts(spec).items()),
        text("parameters", format_parameters(counts["total"])),
        text("active", format_parameters(counts["active"])),
        text("KV/token", f"{spec.kv_elements_per_token:,}"),
        text("beyond windows", f"{spec.kv_elements_per_token_beyond_windows:,}"),
        text("context", str(spec.max_context or "-"), left=True),
        text("licence", spec.licence or "-", left=True),
    ]


_SPARE = (
    "note",
    "confidence",
    "beyond windows",
    "licence",
    "currency",
    "instance",
    "date",
    "KV/token",
    "source",
    "fp8",
)
_NUMBERS: dict[str, Number] = dict.fromkeys(("parameters", "active", "context"), parse_size)


def _facts(spec: ModelSpec) -> dict[str, Value]:
    """What ``models --filter`` compares."""
    kinds = {"experts": spec.has_experts, "dense": not spec.has_experts, "encode": spec.encodes}
    kinds["encoder-decoder"] = spec.encoder is not None
    return {
        "family": spec.family,
        "licence": spec.licence or None,
        "kind": tuple(kind for kind, is_so in kinds.items() if is_so),
        "parameters": float(spec.parameters["total"]),
        "active": float(spec.parameters["active"]),
        "context": spec.max_context,
    }


def _words(spec: ModelSpec) -> str:
    return " ".join([spec.name, *spec.aliases, spec.family]).lower()


_GPU_NUMBERS: dict[str, Number] = {
    "memory": partial(parse_quantity, dimension="bytes"),
    "bandwidth": partial(parse_quantity, dimension="bytes/s"),
    "year": parse_size,
}


def _gpu_facts(spec: HardwareSpec) -> dict[str, Value]:
    """What ``gpus --filter`` compares; memory is the figure on the label, by which people know a device."""
    labelled = spec.memory.labelled
    return {
        "vendor": spec.vendor,
        "segment": spec.segment,
        "format": tuple(spec.peak),
        "memory": None if labelled is None else labelled * 1e9,
        "bandwidth": spec.memory.bandwidth,
        "year": None if spec.year is None else float(spec.year),
    }


@click.command("gpus", cls=Layered)
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="WORD|FIELD<VALUE",
    help="A word of a name, an alias or the vendor, or FIELD=WORD, FIELD<NUMBER, FIELD>=NUMBER with vendor, segment, "
    "format (fp8: it has a peak in it), memory (of the label), bandwidth, year; all that are given must hold.",
)
@report_options
def gpus_command(conditions: tuple[str, ...]) -> Report:
    """Every accelerator on file: memory, bandwidth, dense peaks, confidence.

    Example: inferplan gpus --filter nvidia --filter format=fp8 --filter 'memory>=80GB'
    """
    filters = [parse_filter(text, ("vendor", "segment", "format"), _GPU_NUMBERS) for text in conditions]
    every = [catalog.load_hardware(name) for name in catalog.names("hardware")]
    words = {spec.name: " ".join([spec.name, *spec.aliases, spec.vendor, spec.product]).lower() for spec in every}
    specs = [spec for spec in every if all(one.holds(_gpu_facts(spec), words[spec.name]) for one in filters)]
    if not specs:
        raise UnknownNameError(
            f"none of the {len(every)} accelerators on file meets {', '.join(map(repr, conditions))}",
            hint=(
                "an instance of MIG is named after its GPU: h100-sxm:3g.40gb (docs/mig.md); "
                if "mig" in conditions
                else ""
            )
            + "fewer conditions; segments are "
            + ", ".join(sorted({spec.segment for spec in every if spec.segment is not None})),
        )
    rows = [_gpu_row(spec) for spec in specs]
    title = (
        f"{len(rows)} accelerator{'' if len(rows) == 1 else 's'} (usable memory as reported; in brackets the label, "
        "if no reading is on file)"
    )
    return _listed("gpus", title, rows)


def _gpu_row(spec: HardwareSpec) -> list[Figure]:
    memory, peak = spec.memory, spec.peak
    return [
        *(Figure(name, value) for name, value in hardware_record(spec).items()),
        text("GPU", spec.name, left=True),
        text("memory", format_bytes(memory.usable) if memory.usable else f"({memory.label})"),
        text("bandwidth", format_quantity(memory.bandwidth, "B/s")),
        *(text(math, format_quantity(peak[math], "FLOP/s") if math in peak else "-") for math in ("bf16", "fp8")),
        text("confidence", spec.confidence, left=True),
    ]


@click.command("formats", cls=Layered)
@report_options
def formats_command() -> Report:
    """Every number format: bits of an element with its scales, the arithmetic it runs in, where it is from.

    Give one to --weights, --experts, --kv, --embedding or --head. The last line lists what else --quant takes.

    Example: inferplan formats
    """
    from inferplan.models.gguf_formats import FILE_TYPES
    from inferplan.work.formats import FORMATS

    rows = [
        [
            Figure("name", fmt.name, "format", left=True),
            Figure("bits_per_element", 8 * fmt.width, "bits", ".5g"),
            Figure("math", fmt.math, "math", left=True),
            Figure("source", fmt.source, "source", left=True),
        ]
        for fmt in FORMATS.values()
    ]
    notes = [
        f"--quant also takes: w8a8, w4a16kv8 and similar, and the GGUF file types {', '.join(FILE_TYPES)}; q4_k-pure "
        "and similar keep every matrix in one format (docs/formats.md)"
    ]
    return _listed("formats", f"{len(rows)} formats", rows, notes)


@click.command("prices", cls=Layered)
@click.argument("gpu", required=False)
@click.option(
    "--update",
    metavar="FILE|URL",
    help="Store a price list of your own: a YAML, or a CSV as --format csv writes it. A list of the same name is "
    "replaced.",
)
@report_options
def prices_command(gpu: str | None, update: str | None) -> Report:
    """The prices on file, with their dates and sources: all, or those of one GPU; for several GPUs also the bill.

    Lists stored with --update are used like the shipped ones.

    Example: inferplan prices 2x-h100
    """
    if update is not None:
        if gpu is not None:
            raise UsageError(
                f"--update stores all of {update}; {gpu} would be ignored",
                hint=f"inferplan prices --update {update}, then inferplan prices {gpu}",
            )
        return updated_report(update_prices(update))
    count, named = counted(gpu) if gpu else (None, None)
    wanted = catalog.load_hardware(named).name if named else None
    offers = [(offer, listing) for listing in every_list() for offer in listing.offers(wanted)]
    offers.sort(key=lambda pair: (pair[0].gpu, pair[0].per_device))
    notes = [
        "GPUs: per instance; any: sold one by one; unknown: the source does not say how many are sold together",
        f"prices move within weeks (* marks those older than {PRICE_AGE.days} days); state your own: --price gpu=2.49, "
        "or --price gpu=19.92/8 for an instance of 8",
    ]
    sold = {offer.gpu for listing in every_list() for offer in listing.offers()}
    if lacking := [one for one in ([wanted] if wanted else _for_data_centres()) if one not in sold]:
        notes.append(f"no list on file sells {', '.join(lacking)}: --price {lacking[0]}=2.49 states your own")
    title = f"{len(offers)} hourly prices" + (f": {wanted}" if wanted else "")
    return _listed("prices", title, [_price_row(*pair, count) for pair in offers], notes)


def _for_data_centres() -> list[str]:
    """The accelerators of data centres that can be had."""
    specs = map(catalog.load_hardware, catalog.names("hardware"))
    return [spec.name for spec in specs if spec.segment == "datacenter" and not spec.preliminary]


def _price_row(offer: Offer, listing: PriceList, count: int | None) -> list[Figure]:
    row = {**price_record(offer), "confidence": listing.confidence, "source": listing.source}
    row |= {"provider": listing.provider, "host_gpus": offer.host}
    shown = {
        "gpu": row["gpu"],
        "instance": row["instance"] or "",
        "GPUs": str(row["instance_gpus"]),
        "per hour": f"{offer.per_hour:,.3f}",
        "per GPU": f"{offer.per_device:,.3f}",
        **({} if count is None else {f"{count} GPUs": f"{_bill(offer, count).per_hour:,.3f}"}),
        "currency": offer.currency,
        "term": f"{offer.term}, {offer.length}" if offer.length else offer.term,
        "list": offer.source,
        "date": row["date"] + " *" * offer.stale,
        "confidence": listing.confidence,
        "note": offer.note,
    }
    numbers = {"GPUs", "per hour", "per GPU", f"{count} GPUs"}
    columns = [text(label, said, left=label not in numbers) for label, said in shown.items()]
    return [*(Figure(key, value) for key, value in row.items()), *columns]


def _bill(offer: Offer, count: int) -> Bill:
    """What so many GPUs cost as this is sold: instances are paid for whole."""
    return Tariff(offers=(offer,), devices=count).bill(1)


@click.command("show", cls=Layered)
@click.argument("name")
@report_options
def show_command(name: str) -> Report:
    """One model or accelerator in full. NAME is a name, an alias or a path to a YAML or a Hugging Face config.

    Example: inferplan show llama-3.1-8b
    """
    if Path(name).suffix in (".yaml", ".yml") and Path(name).exists():
        data = catalog.read_yaml(Path(name))
        if isinstance(data, dict) and "memory" in data:
            return _hardware(catalog.load_hardware(name))
    try:
        return _model(catalog.load_model(name))
    except UnknownNameError as unknown:
        try:
            return _hardware(catalog.load_hardware(name))
        except UnknownNameError:
            raise unknown from None


def model_counts(spec: ModelSpec) -> dict[str, Any]:
    """The exact counts that ``show --format json`` promises."""
    return {
        "parameters": spec.parameters,
        **_kept(spec),
        "layers": len(spec.sequence),
        "d_model": spec.d_model,
        "vocab": spec.vocab,
        "max_context_tokens": spec.max_context,
    }


_KEPT = ("kv_elements_per_token", "kv_elements_per_token_beyond_windows", "state_elements_per_sequence")


def _kept(spec: ModelSpec) -> dict[str, float | None]:
    """What a sequence keeps, in elements; ``None`` where it is not known."""
    try:
        return {name: getattr(spec, name) for name in _KEPT}
    except MissingFactError:
        return dict.fromkeys(_KEPT)


def _elements(found: float | None) -> str:
    return "not known: its notes say why" if found is None else f"{found:,}"


def _active(parameters: dict[str, int]) -> str:
    return f"{parameters['active']:,}" if "active" in parameters else "not known: its notes say why"


def hardware_record(spec: HardwareSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "product": spec.product,
        "source": spec.source,
        "confidence": spec.confidence,
        "usable_bytes": spec.memory.usable,
        "bandwidth_bytes_per_s": spec.memory.bandwidth,
        "peak_flop_per_s": spec.peak,
        "links": [{"name": x.name, "domain": x.domain, "bandwidth_bytes_per_s": x.bandwidth} for x in spec.links],
        "bridge_bytes_per_s": None if spec.bridge is None else spec.bridge.bandwidth,
        "devices_per_node": spec.node,
        "power_w": spec.power,
    }


def _model(spec: ModelSpec) -> Report:
    counts = model_counts(spec)
    facts = [
        ["parameters", f"{counts['parameters']['total']:,}"],
        ["active per token (both vocabulary tables included)", _active(counts["parameters"])],
        ["embedding", f"{counts['parameters']['embedding']:,}"],
        ["head", f"{counts['parameters']['lm_head']:,}" if not spec.tied else "tied to the embedding"],
        *([f"in addition: {tower.name} tower", f"{tower.parameters:,}"] for tower in spec.towers),
        ["KV elements per token", _elements(counts["kv_elements_per_token"])],
        ["  beyond every window", _elements(counts["kv_elements_per_token_beyond_windows"])],
        ["state elements per sequence", _elements(counts["state_elements_per_sequence"])],
        ["width, vocabulary", f"{spec.d_model:,}, {spec.vocab:,}"],
        ["context", _context(spec)],
        *([["generates", "nothing (docs/encoders.md)"]] if spec.encodes else []),
        ["licence", spec.licence or "not on file"],
    ]
    tables = [
        Table(title=spec.name, columns=["", "value"], rows=facts, right=_RIGHT),
        _layers(f"{counts['layers']} layers", spec.distinct),
    ]
    if (encoder := spec.encoder) is not None:
        title = f"{encoder.depth} layers of the encoder, to which the others attend (cross_attention)"
        tables.append(_layers(title, encoder.distinct))
    made = spec.made_from
    whole = {"name": spec.name, "source": spec.source, "model_counts": made.to_dict(), **counts, "spec": spec.to_dict()}
    lines = [f"source: {spec.source}", *([f"made from: {made.file}"] if made.file not in ("", spec.source) else [])]
    return Report(record=whole, tables=tables, notes=[*lines, made.line, *spec.notes])


def _context(spec: ModelSpec) -> str:
    """The longest context in words; of an encoder-decoder what it reads and what it writes."""
    if not spec.max_context:
        return "not stated"
    if spec.encoder is None or spec.encoder.max_context is None:
        yarn = spec.yarn if spec.yarn and not spec.yarn.used else None
        longer = f"; {yarn.context:,} by YaRN, as {yarn.source} has it: {spec.name}{YARN}" if yarn else ""
        return f"{spec.max_context:,} tokens{longer}"
    read = spec.encoder.max_context
    return f"{read:,} tokens read, {spec.max_context - read:,} written"


def _layers(title: str, distinct: Iterable[tuple[Any, int]]) -> Table:
    """Layers that are alike, and how many there are; a decoder's attend to its encoder beside what their row says."""
    rows = [[str(count), _describe(layer.mixer), _describe(layer.ffn)] for layer, count in distinct]
    return Table(title=title, columns=["count", "mixer", "feed-forward"], rows=rows, right=_RIGHT)


def _describe(part: Any) -> str:
    if part is None:
        return "-"
    data = part.dump()
    kind, listed = data.pop("kind"), ("tensors", "operators") if part.kind in ("traced", "untimed") else ()
    fields = [f"{key} {len(value) if key in listed else value}" for key, value in data.items() if key != "mixers"]
    beside = " and ".join(map(_describe, getattr(part, "mixers", ())))
    return f"{kind} {beside}{', '.join(fields)}"


def _hardware(spec: HardwareSpec) -> Report:
    rows = [
        ["memory usable", format_bytes(spec.memory.usable) if spec.memory.usable else "not on file (--memory)"],
        ["memory label", spec.memory.label],
        ["bandwidth", format_quantity(spec.memory.bandwidth, "B/s")],
        *([f"dense {math}", format_quantity(peak, "FLOP/s")] for math, peak in spec.peak.items()),
        *([f"ridge {math}", f"{spec.ridge(math):,.1f} FLOP/B"] for math in spec.peak),
        *(
            [f"link {link.name}", f"{format_quantity(link.bandwidth, 'B/s')}, joins {link.domain or 'any number'}"]
            for link in spec.links
        ),
        *(
            [
                f"{link.name}, sold apart",
                f"{format_quantity(link.bandwidth, 'B/s')}, joins {link.domain} (--nvlink-bridge)",
            ]
            for link in filter(None, [spec.bridge])
        ),
        ["devices per node", f"{spec.node}" if spec.node else "not on file"],
        ["power", f"{spec.power:.0f} W" if spec.power else "not on file"],
    ]
    table = Table(title=f"{spec.name}: {spec.product}", columns=["", "value"], rows=rows, right=_RIGHT)
    notes = [f"confidence: {spec.confidence}", f"source: {spec.source}", *spec.notes]
    return Report(record=hardware_record(spec), tables=[table], notes=notes)
