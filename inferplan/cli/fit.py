"""``inferplan fit``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.answers.fit import Fitting, asked_context, footprint_at, smallest
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.bills import Bill
from inferplan.catalog.files import load_hardware, load_model, names
from inferplan.catalog.price_lists import PriceBook
from inferplan.cli.options import USUAL, Count, engine_option, report_options, usual_engine
from inferplan.cli.price_options import price_options
from inferplan.errors import InfeasibleError, InferplanError
from inferplan.models.spec import uncounted
from inferplan.reports.cost import bill_record
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_tokens
from inferplan.work.parallel import Parallelism

_RIGHT = frozenset({"GPUs", "KV pool", "requests", "longest context", "bytes", "share", "value", "an hour"})


@click.command("fit")
@click.argument("model")
@click.option("--gpu", help="One accelerator: its whole memory picture. Without it, every accelerator on file.")
@click.option("--quant", help="Formats [native; without --gpu also fp8 and int4].")
@click.option("--tp", type=Count(), help="Tensor parallelism [the fewest GPUs that fit].")
@click.option("--context", type=Count(), help="Tokens of a request, prompt and output [8192].")
@click.option("--users", type=Count(), default=1, show_default=True, help="Concurrent requests that must fit.")
@click.option("--most", type=Count(), default=8, show_default=True, help="Largest number of GPUs to try.")
@engine_option("Engine and version: vllm, vllm@0.20, sglang, llama.cpp, none.", show_default=USUAL)
@click.option("--memory", metavar="SIZE", help="Usable memory of one device, such as 64GB.")
@price_options
@report_options
def fit_command(gpu: str | None, **values: Any) -> Report:
    """Which GPUs hold MODEL, how many, in which format, with what context and how many requests.

    Memory only, so no GPU is needed. With --gpu the answer is one screen, with the two lines that vLLM would log. Where
    a price is on file, it is that of the instances that hold one replica.

    Example: inferplan fit llama-3.1-70b --context 32k --users 8
    """
    if not gpu:
        return _all(**values)
    return _one(gpu, **values | {"engine": usual_engine(values | {"gpu": gpu})})


def _request(model: str, gpu: str, **values: Any) -> Request:
    return Request(
        model=model, gpu=gpu, quant=values["quant"], engine=values["engine"], memory=values["memory"], ideal=True
    )


def _all(model: str, tp: int | None, context: int | None, users: int, most: int, **values: Any) -> Report:
    prices: PriceBook = values.pop("prices")
    prices.check(names("hardware"))
    spec = load_model(model)
    tokens = asked_context(spec, context)
    quants = [values.pop("quant")] if values.get("quant") else [None, "fp8", "int4"]
    values.pop("quant", None)
    rows, records, refused = [], [], 0
    for gpu in names("hardware"):
        for quant in quants:
            request = _request(model, gpu, quant=quant, **values)
            try:
                found = smallest(request, tokens, users, tp or most, tp or 1)
            except InferplanError as error:
                found = error.what
            if isinstance(found, str):
                refused += 1
                records.append({"gpu": gpu, "quant": quant or "native", "fits": False, "reason": found})
                continue
            bill = _bill(found, prices)
            records.append(_record(found, quant or "native", bill))
            rows.append(_row(found, quant or "native", bill))
    if not rows:
        raise InfeasibleError(
            f"{spec.name} with {users} x {tokens} tokens fits on no accelerator on file",
            because=f"{refused} combinations of GPU and format were tried, on {tp or f'up to {most}'} GPUs",
            hint="--most 16, a narrower --quant, or a shorter --context",
        )
    rows.sort(key=lambda row: (int(row[1]), row[0], row[2]))
    table = Table(
        title=f"{spec.name}: the fewest GPUs that hold {users} x {tokens:,} tokens ({values['engine']} defaults)",
        columns=["GPU", "GPUs", "format", "weights", "KV pool", "requests", "longest context", "an hour", "bought"],
        rows=rows,
        right=_RIGHT,
    )
    notes = [
        *(f"note: {text}" for text in uncounted(spec)),
        f"{refused} combinations do not fit or are refused; --format json says why",
        f"an hour: {prices.term} prices as things are sold, of the best documented list that has the GPU "
        "(inferplan prices); instances are paid for whole",
    ]
    if any("across instances" in row[-1] for row in rows):
        notes.append(
            "across instances: none that is sold there holds the GPUs of one tensor-parallel group; ask what links them"
        )
    return Report(
        record={"model": spec.name, "model_notes": uncounted(spec), "context_tokens": tokens, "options": records},
        tables=[table],
        notes=notes,
        rows=records,
    )


def _bill(found: Fitting, prices: PriceBook) -> Bill | None:
    """What one replica costs; ``None`` without a price."""
    parallel = found.deployment.parallel
    tariff = prices.tariff(found.deployment.hardware.name, parallel.ranks, parallel.tp)
    return None if tariff is None else tariff.bill(1)


def _record(found: Fitting, quant: str, bill: Bill | None) -> dict[str, Any]:
    footprint = found.footprint
    return {
        "gpu": found.deployment.hardware.name,
        "quant": quant,
        "fits": True,
        "devices": found.deployment.parallel.devices,
        "weights_bytes": footprint.weights,
        "kv_pool_bytes": footprint.kv_pool,
        "max_requests": found.requests,
        "max_context_tokens": found.longest,
        "cost": None if bill is None else {**bill_record(bill), "per_hour": bill.per_hour},
    }


def _row(found: Fitting, quant: str, bill: Bill | None) -> list[str]:
    footprint = found.footprint
    return [
        found.deployment.hardware.name,
        str(found.deployment.parallel.devices),
        quant,
        format_bytes(footprint.weights),
        format_bytes(footprint.kv_pool),
        f"{found.requests:,}",
        format_tokens(found.longest).removesuffix(" tokens"),
        *(("", "") if bill is None else _bought(bill)),
    ]


def _bought(bill: Bill) -> tuple[str, str]:
    """The price of an hour, and what it buys from whom."""
    bought = f"{bill.units:,} x {bill.offer.what}{' across instances' if bill.across else ''}, {bill.offer.source}"
    return f"{bill.per_hour:,.2f} {bill.offer.currency}", bought


def _one(gpu: str, model: str, tp: int | None, context: int | None, users: int, most: int, **values: Any) -> Report:
    spec, hardware = load_model(model), load_hardware(gpu)
    prices: PriceBook = values.pop("prices")
    prices.check([hardware.name])
    tokens = asked_context(spec, context)
    request = _request(model, gpu, **values)
    if tp:
        deployment = assemble(replace(request, parallel=Parallelism(tp=tp)))
    else:
        found = smallest(request, tokens, users, most)
        if isinstance(found, str):
            footprint_at(assemble(request), tokens).max_batch()  # what one device lacks has a hint of its own
            joined = max((link.domain or most + 1 for link in hardware.links), default=1)
            raise InfeasibleError(
                f"{spec.name} with {users} x {tokens:,} tokens does not fit on {hardware.name}",
                because=found,
                hint=f"{'a larger --most, ' if most < joined else ''}a narrower --quant such as "
                f"{'fp8 or ' if 'fp8' in hardware.peak else ''}int4, or a shorter --context",
            )
        deployment = found.deployment
    footprint = footprint_at(deployment, tokens)
    fitting = Fitting(deployment=deployment, footprint=footprint, context=tokens)
    if fitting.requests < users:
        raise InfeasibleError(
            f"{deployment.describe()} does not hold {users} x {tokens:,} tokens",
            because=f"the cache pool is {format_bytes(footprint.kv_pool)}, room for {fitting.requests}",
            hint="a larger --tp, a narrower --quant, or a shorter --context",
        )
    return _picture(fitting, prices)


def _picture(fitting: Fitting, prices: PriceBook) -> Report:
    bill = _bill(fitting, prices)
    footprint, deployment = fitting.footprint, fitting.deployment
    length = fitting.deployment.model.max_context or fitting.context
    length = footprint.longest_start(int(min(length, max(fitting.longest, 1))))
    concurrency, keeps = footprint.concurrency(length), not deployment.model.encodes
    log = [
        f"GPU KV cache size: {footprint.cache_tokens(length):,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x",
    ]
    parts = [
        ("weights", footprint.weights),
        ("activations", float(footprint.activations)),
        ("runtime reserve", footprint.reserve),
        ("left for KV cache and state" if keeps else "left", footprint.kv_pool),
        ("usable", footprint.usable),
    ]
    memory = Table(
        title=f"{deployment.describe()}: memory of one device ({deployment.engine.describe()} defaults)",
        columns=["", "bytes", "share"],
        rows=[[name, format_bytes(size), f"{size / footprint.usable:.1%}"] for name, size in parts],
        right=_RIGHT,
    )
    kept = [
        ["KV cache of one token, on one device", format_bytes(footprint.kv_per_token)],
        ["state of one sequence, on one device", format_bytes(footprint.state_per_sequence)],
    ]
    facts = [
        *(kept if keeps else []),
        [f"requests of {fitting.context:,} tokens", f"{fitting.requests:,}"],
        ["longest context of one request", format_tokens(fitting.longest)],
    ]
    record = {
        **_record(fitting, deployment.formats, bill),
        "model": deployment.model.name,
        "model_notes": deployment.warnings,
        "context_tokens": fitting.context,
        "activation_bytes": footprint.activations,
        "reserve_bytes": footprint.reserve,
        "usable_bytes": footprint.usable,
        "kv_bytes_per_token": footprint.kv_per_token,
        "state_bytes_per_sequence": footprint.state_per_sequence,
        "log": {"max_model_len": length, "kv_cache_tokens": footprint.cache_tokens(length), "concurrency": concurrency}
        if keeps
        else None,
    }
    capacity = Table(title="capacity", columns=["", "value"], rows=facts, right=_RIGHT)
    notes = [f"note: {text}" for text in deployment.warnings]
    notes += ["vLLM would log:", *(f"  {line}" for line in log)] if keeps and deployment.engine.name == "vllm" else []
    if bill is not None:
        notes += [f"an hour costs {bill.per_hour:,.2f} {bill.offer.currency}: {bill.describe()}", *bill.remarks]
    return Report(record=record, tables=[memory, capacity], notes=[*notes, *prices.remarks([deployment.hardware.name])])
