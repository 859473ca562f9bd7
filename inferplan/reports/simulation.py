"""A simulated run and a steady state as people read them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferplan.devices.constants import late_share
from inferplan.devices.engine import CADENCE
from inferplan.devices.power import UNMEASURED
from inferplan.estimate.resting import outside_band
from inferplan.figures import Figure, side_by_side, text
from inferplan.reports.classes import class_tables, limits_by_class
from inferplan.reports.known_error import late_tokens
from inferplan.reports.sessions import session_tables
from inferplan.serving.records import FINISHED, Meter
from inferplan.serving.result import SimulationResult, limits_missed, while_counting
from inferplan.serving.run_length import WORTH
from inferplan.serving.steady import SteadyState
from inferplan.table import Report, Table
from inferplan.traffic.block_names import of_file
from inferplan.traffic.popularity import Popularity
from inferplan.units import format_bytes, format_time

_NAMES = {"ttft_s": "TTFT at the server", "tpot_s": "TPOT", "itl_s": "ITL", "e2el_s": "end to end"}
_ONE_PASS = {"e2el_s": "latency at the server"}
"""Of a model that generates nothing."""
_MORE = "raise --requests, or leave it out"
_MEANING = {
    "stable": "the queue of requests does not grow",
    "saturated": "the queue of requests does not grow, but most of the time to first token is spent in it",
    "overloaded": "the queue grows as long as the traffic lasts, or more than 10% of the clients give up; latencies "
    "have no percentiles",
    "rejecting": "some requests can never run; latencies cover the others",
    "too short to tell": f"the run ends before the system reaches its steady state; {_MORE}",
}
_REASONS = {
    "slots": "a slot in the batch",
    "adapters": "a slot for its adapter",
    "cache": "room in the cache",
    "budget": "the token budget per step",
    "batch": "the batch in progress",
    "front end": "the front end",
    "link": "the link between the pools",
}
"""What requests wait for, by the name in the record."""
_REST = "the step in progress and the server's latency"
"""What requests wait for when none of those reasons holds them."""
_ANSWERS = {
    "prompts": "as soon as the prompt is done",
    "cache": "with the cache, {steps:g} decode steps after its transfer",
    "decodes": "with the first decode step, {steps:g} others after the transfer",
}
_OVER = 1.005
"""A load of so many times the capacity is shown above 100 %."""
_SENDING = {"after": "after the prompt", "pieces": "piece by piece", "layers": "layer by layer"}
_QUEUES = {"priority": "admitted by priority", "fair": "admitted by weighted service"}
_MAIN_REASON = 0.2
"""Below this share of the wait no reason is named; the rest is where it is as much."""
_COLUMNS = ("start_s", "duration_s", "steps", "decodes", "prompt_tokens", "waiting", "kv_use")


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value)


def simulation_report(result: SimulationResult, curve: Sequence[Mapping[str, Any]] = ()) -> Report:
    """Latency percentiles, rates, queue and cache of a run, with what they are conditional on.

    curve: what one cache would find of its requests (:func:`inferplan.serving.techniques.tiers.curve_records`).
    """
    record = {**result.to_dict(), **({"hit_curve": curve} if curve else {})}
    latency = [
        [name, *(_with_error(value, (record["intervals"].get(key) or {}).get(at)) for at, value in record[key].items())]
        for key, name in (_NAMES if result.conditions.get("generates", True) else _ONE_PASS).items()
    ]
    columns = ("", "mean", "p50", "p90", "p95", "p99")
    if record["answer_ttft_s"] is not None:
        interval = record["intervals"]["answer_ttft_s"]
        waits = [_with_error(value, interval.get(at)) for at, value in record["answer_ttft_s"].items()]
        latency.insert(1, ["TTFT of the answer", *waits])
    tables = [
        Table(title="Latency", columns=columns, rows=latency, right=frozenset(columns[1:])),
        Table(title="Run", columns=("", ""), rows=_rows(result, record), right=frozenset()),
    ]
    tables[1:1] = class_tables(record["classes"]) if record["classes"] else []
    tables[1:1] = session_tables(record["sessions"]) if record["sessions"] else []
    tables += [_tiers(record["cache_tiers"])] if record["cache_tiers"] else []
    tables += [_curve(curve)] if curve else []
    return Report(record=record, tables=tables, notes=_notes(result, record), of=result)


def _with_error(value: float | None, interval: list[float] | None) -> str:
    """A time and half its 95 % confidence interval, in percent."""
    if value is None or interval is None or not value > 0:
        return _time(value)
    return f"{_time(value)} ±{(interval[1] - interval[0]) / 2 / value:.1%}"


def _rows(result: SimulationResult, record: Mapping[str, Any]) -> list[list[str]]:
    rates, kv = record["throughput"], record["kv"]
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in record["requests"].items() if count)
    refused = [[f"rejected: {reason}", f"{count:,}"] for reason, count in record["rejected_because"].items()]
    ran, cut = record["requests"]["finished"] > 0, not result.steady and result.metered is not None
    generates = result.conditions.get("generates", True)
    cached = [
        ["decode batch, mean", f"{record['batch_mean']:.1f} of {result.slots} slots"],
        *_cache_rows(kv),
        ["preemptions", f"{record['preemptions']:,}"],
        ["prefix-cache hits", f"{record['prefix_cache_hit_rate']:.1%} of the prompt tokens"],
        *_worth(record["capacity"]),
        *_adapters(record),
    ]
    return [
        *_simulated(result.conditions),
        ["load", _load(result.conditions)],
        ["verdict", _verdict(record, limits_missed(result))],
        ["run", _length(record)],
        ["while requests came", _in_time(result)] if cut else ["requests counted", counts],
        *refused,
        ["duration", format_time(record["duration_s"]) + (", while requests came" if cut else "") if ran else "-"],
        ["requests/s", f"{rates['requests_per_s']:.4g}"],
        *([["output tokens/s", f"{rates['output_tokens_per_s']:,.1f}"]] if generates else []),
        ["total tokens/s" if generates else "tokens read/s", f"{_read(rates, generates):,.1f}"],
        *_goodput(record),
        *_reasoning(record),
        ["wait until admission", _waits(record["queue"])],
        *(cached if generates else []),
        ["steps", f"{record['steps']:,}" + (f", {record['prompt_steps']:,} with prompts" if generates else "")],
    ]


def _tiers(tiers: Sequence[Mapping[str, Any]]) -> Table:
    """What came from the device's cache and from each tier below it."""
    priced = any(tier.get("currency") for tier in tiers)
    return side_by_side("Cache tiers (per device)", [_tier(tier, priced) for tier in tiers])


def _tier(tier: Mapping[str, Any], priced: bool) -> list[Figure]:
    """One tier; of the device's own cache the hits alone."""
    below = "capacity_bytes" in tier
    shared, currency = ", shared" if tier.get("shared") else "", tier.get("currency")
    cost = f"{tier['cost_per_hour']:,.3g} {currency}/h" if currency else "not priced"
    return [
        text("", tier["name"], left=True),
        Figure("", tier.get("capacity_bytes"), "capacity", lambda size: format_bytes(size) + shared, absent=""),
        Figure("", tier.get("bandwidth_bytes_per_s"), "bandwidth", lambda rate: f"{format_bytes(rate)}/s", absent=""),
        Figure("", tier.get("latency_s"), "latency", format_time, absent=""),
        Figure("", tier["hit_rate"], "hits", ".2%"),
        Figure("", tier.get("loads"), "loads", ",", absent=""),
        Figure("", tier.get("loaded_bytes"), "loaded", format_bytes, absent=""),
        Figure("", tier.get("load_mean_s"), "load, mean", format_time, absent="-" if below else ""),
        text("cost of all", cost if below else "", seen=priced),
    ]


def _curve(sizes: Sequence[Mapping[str, Any]]) -> Table:
    """What one cache of all requests would find, by its size."""
    rows = [
        [
            Figure("", size["capacity_bytes"], "bytes per device", format_bytes),
            Figure("", size["capacity_tokens"], "tokens", ","),
            Figure("", size["hit_rate"], "hits", ".2%"),
        ]
        for size in sizes
    ]
    return side_by_side("Hits of one LRU cache shared by all replicas, by its size", rows)


def _worth(capacity: Mapping[str, Any] | None) -> list[list[str]]:
    """As with how many times the GPUs requests can leave because of cache tiers; empty without them."""
    bare = None if capacity is None else capacity["without_tiers_requests_per_s"]
    if capacity is None or not bare:
        return []
    text = f"{capacity['requests_per_s']:.4g} requests/s at most, {bare:.4g} without them"
    return [["cache tiers", f"{text}: as with {capacity['requests_per_s'] / bare:.2f} times the GPUs"]]


def _adapters(record: Mapping[str, Any]) -> list[list[str]]:
    """How often adapters were there, and what it took to load the others; empty without adapters."""
    found = record["adapters"]
    if found is None or found["hit_rate"] is None:
        return []
    lora = record["conditions"]["lora"]
    return [["LoRA adapters", f"rank {lora['rank']}; {in_slots(found, lora['max_loras'])}"]]


def in_slots(found: Mapping[str, Any], slots: int) -> str:
    """How often adapters were in so many slots, in words; ``found``: as :func:`adapters_found` of results gives it."""
    text = f"{found['hit_rate']:.2%} found in {slots} slots"
    return f"{text}; {found['loaded']:,} loaded, {format_time(found['load_s'])} each"


def _read(rates: Mapping[str, float], generates: bool) -> float:
    """Tokens a second; the answer of a request to a model that generates nothing is counted as one, and is none."""
    return rates["total_tokens_per_s"] - (0.0 if generates else rates["output_tokens_per_s"])


def _cache_rows(kv: Mapping[str, Any]) -> list[list[str]]:
    """The share of the cache in use, of each pool where they are apart."""
    pools = {"KV cache used": kv}
    if kv["pools"] is not None:
        pools = {"KV cache used, prompts": kv["pools"]["prefill"], "KV cache used, decodes": kv["pools"]["decode"]}
    return [
        [name, f"mean {of['use_mean']:.1%}, peak {of['use_peak']:.1%}{_of_tokens(of['capacity_tokens'])}"]
        for name, of in pools.items()
    ]


def _simulated(conditions: Mapping[str, Any]) -> list[list[str]]:
    """What was simulated; of pools apart both, and the way of the cache between them."""
    deployment, moved, prompts = conditions["deployment"], conditions["cache_transfer"], conditions["prefill"]
    if moved is None:
        return [["simulated", str(deployment)]]
    flags = "" if prompts is None else f", {prompts['max_num_batched_tokens'] or 'any number of'} tokens per step"
    way = f"{format_bytes(moved['sent_bytes_a_rank'])} from each rank over {moved['sent_over']}, "
    way += f"{format_bytes(moved['received_bytes_a_rank'])} to each over {moved['received_over']}"
    return [
        ["prompts", f"{conditions['pools']['prefill']} x {(prompts or conditions)['deployment']}{flags}"],
        ["decodes", f"{conditions['pools']['decode']} x {deployment}"],
        ["cache of a mean prompt", f"{format_time(moved['seconds'])}, {_SENDING[moved['sending']]}: {way}"],
        ["first token", _ANSWERS[moved["first_token"]].format(steps=moved["handoff_steps"])],
    ]


def _in_time(result: SimulationResult) -> str:
    """How many requests came and finished while rates count, and how many did of all in the end."""
    arrived, finished = while_counting(result)
    ends = bytes(result.records.status).count(FINISHED)
    return f"{arrived:,} arrived, {finished:,} finished; {ends:,} of all {len(result.records.status):,} at the end"


def _of_tokens(capacity: float) -> str:
    """The size of the cache where it is counted in tokens; without pages it is counted in requests."""
    return f" of {capacity:,.0f} tokens" if capacity else ""


def _load(conditions: Mapping[str, Any]) -> str:
    """What sent the requests: arrivals, lengths, what they share, seed."""
    traffic, given = conditions.get("traffic"), []
    if conditions["queue"] != "fcfs":
        given.append(_QUEUES[conditions["queue"]])
    if conditions["prefix_hit_rate_given"]:
        given.append(f"{conditions['prefix_hit_rate_given']:.12g} of each prompt taken as cached")
    if conditions["client_timeout_s"] is not None:
        given.append(f"clients give up after {_time(conditions['client_timeout_s'])}")
    if traffic is None:
        return ", ".join(["a trace, at its own times", *given])
    arrivals, parts = traffic["arrivals"], []
    if "sessions" in traffic:
        return ", ".join([_sessions(traffic), *given, f"seed {traffic['seed']}"])
    if "rate" in arrivals:
        kind = f"{arrivals['kind']}, burstiness {arrivals['burstiness']:g}" if arrivals["kind"] == "gamma" else ""
        parts.append(f"{arrivals['rate']:.12g} requests/s ({kind or arrivals['kind']})")
    else:
        start = "who all start at once" if arrivals["burst"] else f"who start over {_time(arrivals['ramp'])}"
        parts.append(f"{arrivals['concurrency']:,} users {start}" if arrivals["concurrency"] > 1 else "1 user")
    if "prompt" not in traffic:
        return ", ".join([f"the requests of a trace, sent by {parts[0]}", *given])
    named = ("prompt", "output") if conditions.get("generates", True) else ("prompt",)
    for one in traffic["classes"] or [traffic]:
        which = f"{one['share']:.3g} {one['name']} with " if traffic["classes"] else ""
        parts.append(which + ", ".join(f"{name} {_lengths(one[name])}" for name in named))
    return ", ".join([*parts, *_shared(traffic), *given, f"seed {traffic['seed']}"])


def _sessions(traffic: Mapping[str, Any]) -> str:
    """Sessions of agents: how they come, how many, of which kinds."""
    arrivals, kinds = traffic["arrivals"], ", ".join(f"{one['share']:.3g} {one['name']}" for one in traffic["kinds"])
    if "rate" in arrivals:
        comes = f"{arrivals['rate']:.6g} sessions/s ({arrivals['kind']})"
    else:
        comes = f"{arrivals['concurrency']:,} sessions at a time"
    return f"{comes}, {traffic['sessions']:,} of {traffic['name']} ({kinds})"


def _shared(traffic: Mapping[str, Any]) -> list[str]:
    """Shared prefixes, conversations, think times and samples, where there are any, as the options write them."""
    prefix, parts = traffic["prefix"], []
    if prefix["tokens"]:
        texts = f", one of {prefix['distinct']:,} texts" if prefix["distinct"] > 1 else ""
        parts.append(f"shared prefix {prefix['tokens']}{texts}")
    if prefix["turns"] > 1:
        parts.append(f"{prefix['turns']} turns")
    if prefix["think"]["mean"]:
        think = prefix["think"]
        kind = "" if think["kind"] == "constant" else f"{think['kind']}:"
        parts.append(
            f"think time {kind}{think['mean']:.12g}s" + (f":{think['spread']:.12g}" if think["spread"] else "")
        )
    if (adapters := traffic.get("adapters")) is not None:
        parts.append(Popularity(**adapters).describe())
    if traffic["samples"] > 1:
        parts.append(f"{traffic['samples']} samples per prompt")
    return parts


def _lengths(lengths: Mapping[str, Any]) -> str:
    if lengths["kind"] == "empirical":
        return f"empirical ({len(lengths['values'])} values)"
    if lengths["kind"] == "fixed":
        return f"{lengths['mean']:.12g}"
    if lengths["kind"] == "reasoning":
        cut = "" if lengths["budget"] is None else f" cut to {lengths['budget']:,}"
        return f"{_lengths(lengths['answer'])} after a thought of {_lengths(lengths['thought'])}{cut}"
    most = "" if lengths["most"] is None else f":{lengths['most']}"
    return "{kind}:{mean:.12g}:{spread:.12g}".format(**lengths) + most


def _verdict(record: Mapping[str, Any], missed: str) -> str:
    """The verdict on the queue, the capacity that the load is measured against, and what is missed of the limits."""
    capacity, text = record["capacity"], str(record["verdict"])
    limits = f"; limits missed: {missed}" if missed else ""
    if capacity is None or capacity["load"] is None:
        return f"{text}{limits}"
    near = ", within the error of capacity" if capacity["within_error"] else ""
    share = f"{capacity['load']:,.0%} of the maximum, {capacity['requests_per_s']:.4g} requests/s"
    if capacity["load"] >= _OVER and text != "overloaded":
        return f"{text} in this run{near}, but above the maximum: {share}; in a longer run the queue grows{limits}"
    return f"{text}{near}: {share}{limits}"


def _length(record: Mapping[str, Any]) -> str:
    """How many requests were sent and left out, and whether that was enough."""
    run = record["run"]
    parts = [f"{run['sent']:,} requests sent"]
    if run["warmup"]:
        parts.append(f"{run['warmup']:,} left out as warm-up")
    if run["cooldown"]:
        parts.append(f"{run['cooldown']:,} at the end")
    if run["converged"] is None or record["verdict"] == "overloaded":
        return ", ".join(parts)
    within = f"p{run['percentile']:g} of TTFT and TPOT within {run['tolerance']:.1%}"
    return f"{', '.join(parts)}; {'converged' if run['converged'] else 'NOT converged'}: {within}"


def _goodput(record: Mapping[str, Any]) -> list[list[str]]:
    """Requests a second that meet the limits, which are named."""
    if record["goodput_requests_per_s"] is None:
        return []
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "end to end", "answer_ttft_s": "TTFT of the answer"}
    limits = ", ".join(f"{names[name]} {format_time(limit)}" for name, limit in record["slo"].items())
    share = f"{record['slo_attained'] or 0:.1%} of the requests"
    return [["goodput, requests/s", f"{record['goodput_requests_per_s']:.4g} ({share} meet {limits})"]]


def _reasoning(record: Mapping[str, Any]) -> list[list[str]]:
    """How much is thought before an answer, and how many thoughts are cut; empty where nobody thinks."""
    found = record["reasoning"]
    if found is None:
        return []
    text = f"{found['before_answer_tokens_mean']:,.0f} before an answer of {found['answer_tokens_mean']:,.0f}"
    if found["budget_tokens"] is not None:
        text += f"; a budget of {found['budget_tokens']:,} cuts {found['cut_share']:.2%} of the thoughts"
    return [["tokens, mean", text]]


def _waits(queue: Mapping[str, Any]) -> str:
    """How long requests wait until they are admitted, and mostly for what."""
    text = f"mean {_time(queue['wait_mean_s'])}, longest {_time(queue['wait_max_s'])}"
    waited, mean = queue["waited_for_s"], queue["wait_mean_s"]
    if not mean:
        return text
    total = max(mean, sum(waited.values()))
    shares = {_REASONS[reason]: seconds / total for reason, seconds in waited.items()}
    if not any(share > _MAIN_REASON for share in shares.values()):
        return text
    shares[_REST] = 1 - sum(shares.values())
    named = sorted((name for name in shares if shares[name] > _MAIN_REASON), key=shares.__getitem__, reverse=True)
    return f"{text}; of it {', '.join(f'{shares[name]:.0%} for {name}' for name in named)}"


def _anchored(result: SimulationResult) -> str:
    if result.anchor == (1.0, 1.0):
        return ""
    ttft, tpot = result.anchor
    return (
        f"; anchored to measured runs: at this load TTFT x {ttft:.3f}, TPOT x {tpot:.3f}; ITL and waits are not "
        "anchored"
    )


def _notes(result: SimulationResult, record: Mapping[str, Any]) -> list[str]:
    given = result.conditions
    flags = [
        f"{name} {given[name]}"
        for name in ("max_num_seqs", "max_num_batched_tokens", "poll_interval_steps")
        if given.get(name) is not None
    ]
    flags += [f"{name} {given[name]}" for name, default in CADENCE.items() if given.get(name, default) != default]
    engines = f", {given['replicas']} engines, {given['routing']}" if given.get("replicas", 1) > 1 else ""
    return [
        f"{record['verdict']}: {_meaning(record)}{_of_ttft(record)}",
        *([f"classes: {limits_by_class(record['classes'])}"] if record["classes"] else []),
        *_of_trace(result),
        *_without_cache(result),
        *_warnings(result, record),
        *([f"media: a request carries {media['described']}"] if (media := given.get("media")) else []),
        *([f"cap of {cap:g} W per GPU: {UNMEASURED}"] if (cap := given.get("power_cap_w")) else []),
        *([said["line"]] if (said := given.get("model_counts")) else []),
        *(f"note: {text}" for text in given.get("model_notes", ())),
        *([asked["rests_on"]] if (asked := given.get("structured")) else []),
        f"the figures hold for {given.get('engine', 'the engine')} with {', '.join(flags)}{engines}, and for this load",
        *([f"kernels: {given['kernels']}"] if given.get("kernels") else []),
        f"basis: {record['basis']}, constants {given['calibration']}{_anchored(result)}",
        *filter(None, [outside_band(given.get("rests_on", {}))]),
    ]


def _of_trace(result: SimulationResult) -> list[str]:
    """What the reader of a trace of agents concluded, and what a trace with names of blocks does not know."""
    sessions = result.records.sessions
    return [*([f"trace: {sessions.note}"] if sessions is not None and sessions.note else []), *named_blocks(result)]


def named_blocks(result: SimulationResult) -> list[str]:
    """That what prompts share is known to the blocks of a file, and what may be hidden by that; nothing where there is
    nothing to hide, or no cache to find it in."""
    names = of_file(result.records.hashes)
    if names is None or not result.conditions["prefix_caching"] or not (hidden := names.hidden):
        return []
    return [
        f"trace: it names every {names.every} tokens of a prompt, and hits are counted in blocks of {names.block}; "
        "what prompts share of a named block in which they part is not known and not found, at most "
        f"{hidden / sum(result.records.prompt):.1%} of the prompt tokens in a cache that forgets nothing"
    ]


def _without_cache(result: SimulationResult) -> list[str]:
    """That every call of a session computes its whole text again, where nothing is kept."""
    if result.records.sessions is None or result.conditions.get("prefix_caching"):
        return []
    slots = "; llama-server keeps the text of each slot" if "llama" in str(result.conditions.get("engine")) else ""
    return [f"no prefix cache: each call computes its whole prompt again{slots} (--prefix-caching)"]


def _meaning(record: Mapping[str, Any]) -> str:
    """Of the verdict; a run of sessions has more of them, not of --requests."""
    text = _MEANING[record["verdict"]]
    return text if record["sessions"] is None else text.replace(_MORE, "raise --session-count")


def _of_ttft(record: Mapping[str, Any]) -> str:
    """How long requests wait, where that is what the verdict is about."""
    wait, ttft = record["queue"]["wait_mean_s"], record["ttft_s"]["mean"]
    if record["verdict"] not in ("stable", "saturated") or not wait or not ttft:
        return ""
    until = "until their first token" if record["conditions"].get("generates", True) else "in all"
    return f"; on average they wait {_time(wait)} of {_time(ttft)} {until}"


def _warnings(result: SimulationResult, record: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures has to know about the run."""
    notes, slo = [], result.slo
    if result.tail is not None and late_share(slo.percentile) and not set(slo.limits) <= {"tpot"}:
        notes.append(f"p{slo.percentile:g}: {late_tokens(result.tail, late_share(slo.percentile))}")
    if record["run"]["converged"] is False and record["verdict"] != "overloaded":
        sent, precision = record["run"]["sent"], result.precision
        least = 0.0 if precision is None or sent >= precision.most else WORTH * precision.most
        more = f"; to settle takes more than {least:,.0f}" if least > sent else ""
        notes.append(
            f"not converged: the figures still move after {sent:,} requests, as happens near capacity{more}; the ± "
            "percentages are half of the 95 % confidence intervals"
        )
    traffic = result.conditions.get("traffic") or {}
    if result.prompt_pool[0] and traffic.get("prefix", {}).get("turns", 1) > 1:
        notes.append(
            "answers are cached where they were decoded: the pool for prompts finds earlier prompts in its cache, "
            "but computes earlier answers again"
        )
    fixed = not traffic.get("classes") and all(
        traffic.get(name, {}).get("kind") == "fixed" for name in ("prompt", "output")
    )
    if fixed and traffic["arrivals"].get("burst") and traffic["arrivals"]["concurrency"] > 1:
        notes.append(
            "all users start at once with requests of one length and stay in step: every TTFT is that of a crowd"
        )
    return notes


def steady_report(state: SteadyState, without: SteadyState | None = None) -> Table:
    """The steady state of a load that is a single point; beside it that without drafts."""
    columns = [_steady_rows(one) for one in (state, without) if one is not None]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    heads = ("", "") if without is None else ("", "value", "without drafts")
    return Table(title=f"Steady state of {float(state.load.concurrency):,.0f} users", columns=heads, rows=rows)


def _steady_rows(state: SteadyState) -> dict[str, str]:
    return {
        "users": f"{float(state.load.concurrency):,.0f}",
        "TTFT at the server, mean": _time(float(state.ttft)),
        **({"TPOT": _time(float(state.tpot))} if state.load.output > 1 else {}),
        "end to end": _time(float(state.e2el)),
        "requests/s": f"{float(state.request_rate):.4g}",
        "output tokens/s": f"{float(state.output_rate):,.1f}",
        "admitted at once": f"{float(state.admitted):,.1f} of at most {float(state.admissible):,.1f}",
        "waiting for a slot or cache": f"{float(state.queue):,.1f} users, {_time(float(state.wait))} each",
        "KV cache used": f"{float(state.kv_use):.1%}",
        "steps that hold prompts": f"{float(state.prompt_share):.1%}",
    }


def timeline_csv(meters: list[Meter]) -> str:
    """One line a step or run of alike steps, with the engine it ran on."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("engine", *_COLUMNS))
    for engine, meter in enumerate(meters):
        for entry in meter.timeline or []:
            writer.writerow((engine, *(f"{value:.9g}" for value in entry)))
    return buffer.getvalue()


def timeline_trace(meters: list[Meter]) -> str:
    """The same as a Chrome trace (chrome://tracing, Perfetto); times there are microseconds."""
    events: list[dict[str, Any]] = []
    for engine, meter in enumerate(meters):
        for start, duration, steps, decodes, tokens, waiting, use in meter.timeline or []:
            name = "prompt" if tokens else "decode"
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": engine,
                    "tid": 0,
                    "ts": start * 1e6,
                    "dur": duration * 1e6,
                    "args": {"steps": steps, "decodes": decodes, "prompt_tokens": tokens},
                }
            )
            counters = {"decodes": decodes, "waiting": waiting, "kv_use": use}
            events += [
                {"name": key, "ph": "C", "pid": engine, "ts": start * 1e6, "args": {key: value}}
                for key, value in counters.items()
            ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def timeline_tracks(meter: Meter) -> dict[str, tuple[Any, Any]]:
    """What a plot of one engine shows: name to times and values."""
    columns = np.asarray(meter.timeline or np.zeros((1, len(_COLUMNS))), dtype=np.float64).T
    return {
        "decodes": (columns[0], columns[3]),
        "waiting": (columns[0], columns[5]),
        "prompt tokens": (columns[0], columns[4]),
        "KV cache used": (columns[0], columns[6]),
    }
