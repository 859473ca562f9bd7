"""One measured row: what was run, what was measured, and why it cannot be priced.

Every importer turns its tool's file into *facts*: text by the names of :data:`INPUTS` and :data:`MEASURES`, which are
the columns of the plain CSV. :func:`interpret` turns facts into a :class:`Run` or refuses. A fact that a file does not
record comes from the command line; it is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, get_args

from inferplan.devices.engine import CADENCE
from inferplan.devices.releases import release_order
from inferplan.errors import UsageError
from inferplan.units import MOST, parse_number
from inferplan.validation.clients import script_facts
from inferplan.validation.names import catalogue_name
from inferplan.validation.parts import AWAY, COLUMNS, WHOLE, Parts
from inferplan.validation.releases import release_of
from inferplan.work.ops import Meeting

Facts = dict[str, str]

NEEDED = ("model", "gpu", "engine", "isl", "osl")
"""Without one of these, or a format, or a load, a row is refused."""
INPUTS = (
    *("model", "gpu", "engine", "engine_version", "precision", "weights", "experts", "kv", "activations"),
    *("isl", "osl", "concurrency", "rate_per_s", "duration_s", "batch", "tp", "pp", "ep", "dp"),
    *("requests", "length_ratio_min", "warmup_requests"),
    *("max_num_batched_tokens", "max_num_seqs", "memory_fraction", "max_model_len"),
    *("poll_interval_steps", "batch_wait_steps", "batch_wait_fill", "suspect", "campaign"),
    *("attention_dp_balance_steps", *CADENCE),
    *("prefix_hit_rate", "timeout_s"),
    *("shared_system_prompt_tokens", "distinct_system_prompts", "users_per_system_prompt"),
    *("decode_ranks", "dp_attention", "workers", "gpus", "redundant_experts", "speculation", "draft_tokens"),
    *("disaggregated", "decode_batch_per_rank", "prefill_ranks", "prefill_dp_attention", "prefill_workers"),
    *("prefill_gpus", "prefill_tp", "prefill_ep", "prefill_redundant_experts", "prefill_max_num_batched_tokens"),
    *("prefill_max_num_seqs", "prefill_memory_fraction", "expert_copies_in_order", "dispatch_format"),
    *("exchange", "prefill_exchange", "prefill_dispatch_format"),
    *("kernels", "backends", "date", *COLUMNS),
)
MEASURES = (
    *("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "output_tokens_per_s", "statistic"),
    *("tokens_per_s_per_gpu", "output_tokens_per_s_per_gpu", "power_w", "joules_per_output_token"),
)
"""What a row may state as measured; ``statistic`` of its latencies is mean (the default), median, p90, p95 or p99.
A latency may state several at once: ``ttft_mean_ms``, ``ttft_p99_ms``."""
SHOWN_LIMIT = 5
_EMPTY = ("", "nan", "none", "null", "n/a", "-")


LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Seconds, each with its statistics over requests (over gaps: ``itl``)."""
STATISTICS = ("mean", "median", "p90", "p95", "p99")
MEANS = ("rate", "throughput", "output", "power", "energy")
"""Figures of a whole run, which have no statistic but their mean: output tokens a second of the deployment; tokens a
second and GPU, prompts and outputs; output tokens a second and GPU that decodes; watts a GPU; J an output token."""


@dataclass(frozen=True, kw_only=True)
class StatisticValues:
    """Numbers by (metric, statistic), in SI units. ``statistic``: which of them stands for a latency as such."""

    figures: Mapping[tuple[str, str], float] = field(default_factory=dict)
    statistic: str = "mean"

    def at(self, metric: str, statistic: str | None = None) -> float | None:
        """One of :data:`LATENCIES` at a statistic (by default the own one), or one of :data:`MEANS`."""
        which = "mean" if metric in MEANS else statistic or self.statistic
        return self.figures.get((metric, which))

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return self.at("ttft")

    @property
    def tpot(self) -> float | None:
        """Seconds a further token."""
        return self.at("tpot")

    @property
    def e2el(self) -> float | None:
        """Seconds from end to end."""
        return self.at("e2el")

    @property
    def rate(self) -> float | None:
        """Output tokens a second of the whole deployment."""
        return self.at("rate")


@dataclass(frozen=True, kw_only=True)
class Measured(StatisticValues):
    """What a file says was measured; a figure that it does not have is absent."""


class Waits(NamedTuple):
    """What an engine waits for, in steps; ``None``: as its version does."""

    poll: int = 1
    """Between two looks at the queue."""
    batch: int = 0
    """For prompts that fill the share ``fill`` of the token budget."""
    fill: float = 0.0
    balance: int = 0
    """For a prompt at every attention rank."""
    schedule: int | None = None
    """Between two steps that may hold prompts (vLLM)."""
    rounds: int | None = None
    """That only decode behind a step with prompts (SGLang, ATOM)."""
    delayer: bool = False
    """For prompts of other attention ranks (SGLang, ATOM) ..."""
    passes: int | None = None
    """... for so many at most."""


class Spread(NamedTuple):
    """How experts lie on the ranks, and how tokens get there."""

    slots: int = 0
    """Places for experts over all ranks, those of copies too; 0: one for each."""
    in_order: bool = False
    """No balancer has placed the copies."""
    dispatch: str | None = None
    """The format in which tokens travel to their experts; ``None``: the engine's."""
    exchange: Meeting | None = None
    """How they meet the ranks of their experts; ``None``: as the engine has it."""


class Shared(NamedTuple):
    """What prompts have in common."""

    system_prompt: int = 0
    """Tokens of the system prompts, through which a client cycles ..."""
    system_prompts: int = 1
    """... so many of them ..."""
    users: int = 1
    """... with so many users each."""
    hit_rate: float = 0.0
    """Share of each prompt found in a prefix cache."""


@dataclass(frozen=True, kw_only=True)
class PromptWorkers:
    """Workers that serve prompts only, each of ``ranks`` GPUs."""

    workers: int
    tp: int
    dp: int = 1
    ep: int = 1
    expert_slots: int = 0
    token_budget: int | None = None
    slots: int | None = None
    memory_fraction: float | None = None
    dispatch: str | None = None
    exchange: Meeting | None = None

    @property
    def ranks(self) -> int:
        """GPUs of one worker."""
        return self.tp * self.dp


@dataclass(frozen=True, kw_only=True)
class Run:
    """What was run: a deployment in names, its engine's flags, and the load generator. ``None``: the engine's default.

    One of ``concurrency`` (closed loop), ``rate`` (open loop, requests a second) and ``batch`` (static) is set. Where
    prompts and decodes are served apart ``prefill`` has the workers of the prompts, and the division, flags and
    ``workers`` of the run are those of the decodes. kernels: whose they are, ``engine`` for the newest or
    ``engine@release``: another engine's that flags name, or of the release that a version, an image or a day tells.
    backends: kernels that flags chose, as pairs of a role and a name. parts: what else is asked for. draft: the head
    that drafts, ``draft_tokens`` a step.
    """

    model: str
    gpu: str
    engine: str
    engine_version: str | None
    precision: str | None
    weights: str | None
    experts: str | None
    kv: str | None
    activations: str | None
    prompt: float
    output: float
    concurrency: int | None = None
    rate: float | None = None
    duration: float | None = None
    batch: int | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    requests: int | None = None
    ratio_min: float = 1.0
    warmup: int = 0
    token_budget: int | None = None
    slots: int | None = None
    memory_fraction: float | None = None
    context: int | None = None
    waits: Waits = Waits()
    suspect: str = ""
    campaign: str = ""
    shared: Shared = Shared()
    timeout: float | None = None
    workers: int = 1
    prefill: PromptWorkers | None = None
    spread: Spread = Spread()
    kernels: str | None = None
    backends: tuple[tuple[str, str], ...] = ()
    parts: Parts = Parts()
    draft: str | None = None
    draft_tokens: int | None = None

    @property
    def library(self) -> str:
        """The engine whose kernels run, with its release where that is known (``name@release``)."""
        return self.kernels or self.engine

    @property
    def devices(self) -> int:
        """GPUs of all workers, those of both pools."""
        prefill = self.prefill.workers * self.prefill.ranks if self.prefill else 0
        return self.decoding_devices + prefill

    @property
    def decoding_devices(self) -> int:
        """GPUs of the workers that decode."""
        return self.workers * self.tp * self.pp * self.dp

    @property
    def form(self) -> str:
        """How it is served, in words: aggregated or disaggregated, attention-DP, drafts."""
        parts = ["aggregated" if self.prefill is None else "disaggregated"]
        parts += ["attention-DP"] if self.dp > 1 else []
        return ", ".join(parts + ([self.draft.upper()] if self.draft else []))

    @property
    def closed(self) -> bool:
        return self.concurrency is not None

    @property
    def pair(self) -> tuple[str, str]:
        """What is left out together when accuracy on the unseen is measured."""
        return self.model, self.gpu

    @property
    def label(self) -> str:
        """Its formats in short: linear weights, and the experts' where they differ."""
        weights = self.weights or self.precision or "native"
        return weights if not self.experts or self.experts == weights else f"{weights}, experts {self.experts}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a file. ``cells`` is the row as the file had it; ``refused`` says why there is no ``run``; ``opposed``
    what it states otherwise than the command line, in words.
    """

    where: str
    cells: dict[str, str]
    run: Run | None
    measured: Measured
    refused: str = ""
    notes: tuple[str, ...] = field(default=())
    opposed: tuple[str, ...] = ()


class Unusable(ValueError):
    """A fact that is missing or cannot be read; becomes the row's reason."""


def fact_of(value: Any) -> str:
    """A JSON value as a fact; empty for nothing, NaN and infinity."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).strip()


def text_of(facts: Mapping[str, str], name: str) -> str | None:
    """The text of a fact; ``None`` when it is absent or empty."""
    text = str(facts.get(name) or "").strip()
    return None if text.lower() in _EMPTY else text


def number(facts: Mapping[str, str], name: str, low: float = 0.0) -> float | None:
    """A fact as a finite number of at least ``low``; ``None`` when it is empty. Raises ``Unusable``."""
    text = text_of(facts, name)
    if text is None:
        return None
    try:
        value = parse_number(text)
    except ValueError:
        raise Unusable(f"{name} is {text!r}, not a number") from None
    if not low <= value <= MOST:
        raise Unusable(f"{name} is {text}, must be {low:g} to {MOST:.0e}")
    return value


def whole_number(facts: Mapping[str, str], name: str, low: int = 0) -> int | None:
    value = number(facts, name, low)
    if value is None:
        return None
    if value != int(value):
        raise Unusable(f"{name} is {value:g}, not a whole number")
    return int(value)


def _needed(facts: Mapping[str, str], name: str) -> str:
    text = text_of(facts, name)
    if text is None:
        raise Unusable(f"{name} is empty")
    return text


def _degree(facts: Mapping[str, str], name: str) -> int:
    """A degree of parallelism; empty and 0 mean that nothing is divided."""
    return whole_number(facts, name) or 1


def _require_inputs(facts: Mapping[str, str]) -> None:
    """Raises ``Unusable`` that names every fact without which nothing can be priced."""
    missing = [name for name in NEEDED if text_of(facts, name) is None]
    if text_of(facts, "precision") is None and text_of(facts, "weights") is None:
        missing.append("weights (or precision)")
    if all(text_of(facts, name) is None for name in ("concurrency", "rate_per_s", "batch")):
        missing.append("concurrency (or rate_per_s)")
    if whole_number(facts, "tp") is None and text_of(facts, "decode_ranks") is None:
        missing.append("tp")
    if missing:
        raise Unusable(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} empty")


def _degrees(facts: Mapping[str, str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The degrees of parallelism, and a note where a label does not say them.

    Raises ``Unusable`` where those of the experts do not make those of the rest.
    """
    if text_of(facts, "decode_ranks") is not None:
        degrees, note = _ranked(facts, "")
        return degrees | {"pp": _degree(facts, "pp")}, note
    degrees = {name: _degree(facts, name) for name in ("tp", "pp", "ep", "dp")}
    tp, dp, sliced = degrees["tp"], degrees["dp"], whole_number(facts, "expert_tp")
    if sliced and text_of(facts, "experts") and sliced * degrees["ep"] != tp * dp:
        raise Unusable(f"expert_tp {sliced} x ep {degrees['ep']} is not tp {tp}" + (f" x dp {dp}" if dp > 1 else ""))
    return degrees, ()


def _ranked(facts: Mapping[str, str], pool: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """The division of a worker of so many ranks: data-parallel attention or tensor parallelism over all of them.

    A label ``ep`` counts where the label ``tp`` is the ranks. Campaigns that label both 1 for attention-DP over
    several ranks ran experts whole, spread over the ranks: that is what the engines' large-scale recipes do.
    """
    ranks = whole_number(facts, f"{pool or 'decode_'}ranks", 1)
    if ranks is None:
        raise Unusable(f"{pool}ranks is empty")
    spread = truth(facts, f"{pool}dp_attention")
    labelled = _degree(facts, f"{pool}tp") == ranks
    ep = _degree(facts, f"{pool}ep") if labelled else ranks if spread else 1
    if ranks % ep:
        raise Unusable(f"{pool}ep {ep} does not divide {ranks} ranks")
    note = f"{pool or 'decode '}ep not labelled: experts over all ranks of attention-DP, else sliced"
    degrees = {"tp": 1, "dp": ranks, "ep": ep} if spread else {"tp": ranks, "dp": 1, "ep": ep}
    return degrees, () if labelled else (note.replace("_", " "),)


def _pools(facts: Mapping[str, str]) -> tuple[PromptWorkers | None, int, tuple[str, ...]]:
    """The pool of prompts where there is one, the number of (decode) workers, and notes."""
    workers = whole_number(facts, "workers")
    if not truth(facts, "disaggregated"):
        return None, workers or 1, ()
    prompts = whole_number(facts, "prefill_workers")
    if not workers or not prompts:
        raise Unusable("disaggregated, and the number of workers of a pool is not known")
    degrees, notes = _ranked(facts, "prefill_")
    pool = PromptWorkers(
        workers=prompts,
        tp=degrees["tp"],
        dp=degrees["dp"],
        ep=degrees["ep"],
        expert_slots=whole_number(facts, "prefill_redundant_experts") or 0,
        token_budget=whole_number(facts, "prefill_max_num_batched_tokens") or None,
        slots=whole_number(facts, "prefill_max_num_seqs") or None,
        memory_fraction=share(facts, "prefill_memory_fraction"),
        dispatch=text_of(facts, "prefill_dispatch_format"),
        exchange=_meeting(facts, "prefill_exchange"),
    )
    return pool, workers, notes


def _drafts(facts: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The head that drafts, and the tokens that it drafts a step. Raises ``Unusable`` where nobody says how many."""
    draft = text_of(facts, "speculation")
    if draft is None or draft.lower() in ("none", "false", "0"):
        return None, None
    count = whole_number(facts, "draft_tokens", 1)
    if count is None:
        raise Unusable(f"draft_tokens is empty: the number of drafts per step of {draft}")
    return draft.lower(), count


def truth(facts: Mapping[str, str], name: str) -> bool:
    """A fact that is yes or no; empty is no. Raises ``Unusable``."""
    text = (text_of(facts, name) or "0").lower()
    if text not in ("0", "1", "0.0", "1.0", "true", "false"):
        raise Unusable(f"{name} is {text!r}, not 0 or 1")
    return text in ("1", "1.0", "true")


def _meeting(facts: Mapping[str, str], name: str) -> Meeting | None:
    """How tokens meet the ranks of their experts; ``None`` when it is empty. Raises ``Unusable``."""
    text = text_of(facts, name)
    if text is None:
        return None
    known: dict[str, Meeting] = {how: how for how in get_args(Meeting)}
    if text.lower() not in known:
        raise Unusable(f"{name} is {text!r}, not one of {', '.join(known)}")
    return known[text.lower()]


def share(facts: Mapping[str, str], name: str) -> float | None:
    """A fact in (0, 1]; ``None`` when it is empty. Raises ``Unusable``."""
    value = number(facts, name)
    if value is not None and not 0 < value <= 1:
        raise Unusable(f"{name} is {value:g}, must be in (0, 1]")
    return value


def interpret(facts: Mapping[str, str]) -> tuple[Run, tuple[str, ...]]:
    """What the facts say was run, and notes on what they leave to defaults. Raises ``Unusable`` with the reason."""
    _require_inputs(facts)
    degrees, told = _degrees(facts)
    prefill, workers, paired = _pools(facts)
    draft, drafted = _drafts(facts)
    ratio = share(facts, "length_ratio_min")
    concurrency = whole_number(facts, "concurrency", 1)
    requests = whole_number(facts, "requests", 1)
    assumed = concurrency is not None and requests is None
    steady = ("number of requests not stated: steady state, without the first burst",) if assumed else ()
    release, dated = release_of(_needed(facts, "engine").lower(), facts)
    run = Run(
        model=_needed(facts, "model"),
        gpu=_needed(facts, "gpu"),
        engine=_needed(facts, "engine").lower(),
        engine_version=text_of(facts, "engine_version"),
        precision=text_of(facts, "precision"),
        weights=text_of(facts, "weights"),
        experts=text_of(facts, "experts"),
        kv=text_of(facts, "kv"),
        activations=text_of(facts, "activations"),
        prompt=_at_least_one(facts, "isl"),
        output=_at_least_one(facts, "osl"),
        concurrency=concurrency,
        rate=None if concurrency is not None else number(facts, "rate_per_s", 1e-9),
        duration=number(facts, "duration_s", 1e-9),
        batch=whole_number(facts, "batch", 1),
        tp=degrees["tp"],
        pp=degrees["pp"],
        ep=degrees["ep"],
        dp=degrees["dp"],
        workers=workers,
        prefill=prefill,
        spread=Spread(
            slots=whole_number(facts, "redundant_experts") or 0,
            in_order=truth(facts, "expert_copies_in_order"),
            dispatch=text_of(facts, "dispatch_format"),
            exchange=_meeting(facts, "exchange"),
        ),
        kernels=text_of(facts, "kernels") or (f"{_needed(facts, 'engine').lower()}@{release}" if release else None),
        backends=_backends(facts),
        parts=_parts(facts),
        draft=draft,
        draft_tokens=drafted,
        requests=requests,
        ratio_min=1.0 if ratio is None else ratio,
        warmup=whole_number(facts, "warmup_requests") or 0,
        suspect=text_of(facts, "suspect") or "",
        campaign=text_of(facts, "campaign") or "",
        **_flags(facts),
    )
    return run, (*steady, *dict.fromkeys((*told, *paired)), *dated)


def _parts(facts: Mapping[str, str]) -> Parts:
    """Adapters, weights on the host, sampling and a cap. Raises ``Unusable``."""
    whole = {name: whole_number(facts, name) for name in (*WHOLE, *AWAY[:2])}
    real = {name: number(facts, name) for name in ("cpu_offload_gb", "power_cap_w")}
    text = {name: text_of(facts, name) for name in ("host", "host_memory", "host_link", "sampling")}
    told = {name: value for name, value in (whole | real | text).items() if value is not None}
    try:
        return Parts.stated(told)
    except UsageError as error:
        raise Unusable(error.what) from None


def _backends(facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Kernels that flags chose: ``experts=triton,attention=fa3``. Raises ``Unusable``."""
    pairs = [part.strip().partition("=") for part in (text_of(facts, "backends") or "").split(",") if part.strip()]
    wrong = ["".join(pair) for pair in pairs if not all(pair)]
    if wrong:
        raise Unusable(f"backends {wrong[0]!r} is not ROLE=NAME")
    return tuple((role, name) for role, _, name in pairs)


def _flags(facts: Mapping[str, str]) -> dict[str, Any]:
    """What the facts say of the engine's flags and of shared prompts; ``None`` where they leave the default."""
    fraction = share(facts, "memory_fraction") if number(facts, "memory_fraction") else None
    return {
        "token_budget": whole_number(facts, "max_num_batched_tokens") or None,
        "slots": whole_number(facts, "max_num_seqs") or whole_number(facts, "decode_batch_per_rank") or None,
        "memory_fraction": fraction,
        "context": whole_number(facts, "max_model_len") or None,
        "waits": Waits(
            poll=whole_number(facts, "poll_interval_steps") or 1,
            batch=whole_number(facts, "batch_wait_steps") or 0,
            fill=number(facts, "batch_wait_fill") or 0.0,
            balance=whole_number(facts, "attention_dp_balance_steps") or 0,
            schedule=whole_number(facts, "prefill_schedule_interval"),
            rounds=whole_number(facts, "prefill_decode_interval"),
            delayer=truth(facts, "enable_prefill_delayer"),
            passes=whole_number(facts, "prefill_delayer_max_delay_passes"),
        ),
        "shared": Shared(
            system_prompt=whole_number(facts, "shared_system_prompt_tokens") or 0,
            system_prompts=whole_number(facts, "distinct_system_prompts") or 1,
            users=whole_number(facts, "users_per_system_prompt") or 1,
            hit_rate=_hit_rate(facts),
        ),
        "timeout": number(facts, "timeout_s"),
    }


def _hit_rate(facts: Mapping[str, str]) -> float:
    """The share of prompts found in a prefix cache. Raises ``Unusable`` for all of them, or more."""
    value = number(facts, "prefix_hit_rate") or 0.0
    if value >= 1:
        raise Unusable(f"prefix_hit_rate is {value:g}, must be in [0, 1)")
    return value


def _at_least_one(facts: Mapping[str, str], name: str) -> float:
    value = number(facts, name, 1.0)
    if value is None:
        raise Unusable(f"{name} is empty")
    return value


_PLAIN = {
    "output_tokens_per_s": "rate",
    "tokens_per_s_per_gpu": "throughput",
    "output_tokens_per_s_per_gpu": "output",
    "power_w": "power",
    "joules_per_output_token": "energy",
}
"""Columns whose figure has no statistic and needs no conversion."""


def measured_values(facts: Mapping[str, str]) -> Measured:
    """What the facts say was measured. Raises ``Unusable`` for what is no number above zero.

    A latency without a statistic in its name has that of ``statistic``. The headline is the mean where one is stated,
    else the first statistic that is.
    """
    named = text_of(facts, "statistic") or "mean"
    if named not in STATISTICS:
        raise Unusable(f"statistic is {named!r}, not one of {', '.join(STATISTICS)}")
    found: dict[tuple[str, str], float] = {}
    for metric in LATENCIES:
        for statistic in STATISTICS:
            plain = _positive(facts, f"{metric}_ms") if statistic == named else None
            value = plain if plain is not None else _positive(facts, f"{metric}_{statistic}_ms")
            if value is not None:
                found[metric, statistic] = value * 1e-3
    for name, metric in _PLAIN.items():
        if (value := number(facts, name)) is not None:
            found[metric, "mean"] = value
    stated = {statistic for metric, statistic in found if metric in LATENCIES}
    return Measured(figures=found, statistic=next((name for name in STATISTICS if name in stated), named))


def _positive(facts: Mapping[str, str], name: str) -> float | None:
    value = number(facts, name)
    if value == 0.0:
        raise Unusable(f"{name} is 0")
    return value


def row_of(where: str, facts: Facts, supplied: Mapping[str, str], cells: dict[str, str] | None = None) -> Row:
    """A row from facts and from what the command line supplies for those that are empty."""
    filled, opposed = dict(facts), []
    for name, value in supplied.items():
        if name not in INPUTS:
            raise UsageError(f"{name} is not an input of a measured row", hint=f"known: {', '.join(INPUTS)}")
        own = text_of(filled, name)
        if own is None:
            filled[name] = value
        elif not _alike(name, own, value):
            opposed.append(f"{name} {own}, not {value}")
    shown = facts if cells is None else cells
    result = Measured()
    other, told = script_facts(filled)
    try:
        result = measured_values(filled)
        run, notes = interpret({**filled, **other})
    except Unusable as error:
        return Row(where=where, cells=shown, run=None, measured=result, refused=str(error))
    stands = tuple(f"the file says {words}" for words in opposed)
    return Row(
        where=where,
        cells=shown,
        run=run,
        measured=result,
        notes=(*notes, *told, *stands),
        opposed=tuple(opposed),
    )


def _alike(name: str, one: str, other: str) -> bool:
    """Whether a fact of a file and one of the command line say the same: names, numbers, or words."""
    kind = {"model": "models", "gpu": "hardware"}.get(name)
    if kind is not None:
        return catalogue_name(kind, one) == catalogue_name(kind, other)
    if name == "engine_version" and release_order(one) is not None:
        return release_order(one) == release_order(other)
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower().strip() == other.lower().strip()


def run_record(run: Run) -> dict[str, Any]:
    """A run as JSON, without what is left to defaults."""
    record = {f.name: value for f in fields(run) if (value := getattr(run, f.name)) not in (None, "")}
    record |= {"waits": run.waits._asdict(), "spread": run.spread._asdict(), "parts": run.parts.record}
    if run.parts == Parts():
        del record["parts"]
    return record | ({"prefill": asdict(run.prefill)} if run.prefill else {})
