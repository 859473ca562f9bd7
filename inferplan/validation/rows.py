"""One measured row: what was run, what was measured, and why it cannot be priced.

Every importer turns its tool's file into *facts*: text by the names of :data:`INPUTS` and :data:`MEASURES`, which are
the columns of the plain CSV. :func:`interpret` turns facts into a :class:`Run` or refuses. A fact that a file does not
record comes from the command line; it is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferplan.errors import UsageError

Facts = dict[str, str]

NEEDED = ("model", "gpu", "engine", "isl", "osl")
"""Without one of these, or a format, or a load, a row is refused."""
INPUTS = (
    *("model", "gpu", "engine", "engine_version", "precision", "weights", "experts", "kv", "activations"),
    *("isl", "osl", "concurrency", "rate_per_s", "duration_s", "batch", "tp", "pp", "ep", "dp"),
    *("requests", "length_ratio_min", "warmup_requests"),
    *("max_num_batched_tokens", "max_num_seqs", "memory_fraction", "max_model_len"),
    *("poll_interval_steps", "batch_wait_steps", "batch_wait_fill", "suspect", "campaign"),
    *("shared_system_prompt_tokens", "distinct_system_prompts", "users_per_system_prompt", "timeout_s"),
)
MEASURES = ("ttft_ms", "tpot_ms", "e2el_ms", "output_tokens_per_s", "statistic")
"""What a row may state as measured; ``statistic`` is mean (the default), median or p99."""
SHOWN_LIMIT = 5
_EMPTY = ("", "nan", "none", "null", "n/a", "-")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What was run: a deployment in names, its engine's flags, and the load generator. ``None``: the engine's default.

    One of ``concurrency`` (closed loop), ``rate`` (open loop, requests a second) and ``batch`` (static) is set.
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
    poll_steps: int = 1
    wait_steps: int = 0
    wait_fill: float = 0.0
    suspect: str = ""
    campaign: str = ""
    system_prompt: int = 0
    system_prompts: int = 1
    users: int = 1
    timeout: float | None = None

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
class Measured:
    """Seconds, and tokens a second of the whole deployment; ``None`` where the file does not say."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None
    rate: float | None = None
    statistic: str = "mean"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a file. ``cells`` is the row as the file had it; ``refused`` says why there is no ``run``."""

    where: str
    cells: dict[str, str]
    run: Run | None
    measured: Measured
    refused: str = ""
    notes: tuple[str, ...] = field(default=())


class Unusable(ValueError):
    """A fact that is missing or cannot be read; becomes the row's reason."""


def stated(value: Any) -> str:
    """A JSON value as a fact; empty for nothing, NaN and infinity."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).strip()


def given(facts: Mapping[str, str], name: str) -> str | None:
    """The text of a fact; ``None`` when it is absent or empty."""
    text = str(facts.get(name) or "").strip()
    return None if text.lower() in _EMPTY else text


def number(facts: Mapping[str, str], name: str, low: float = 0.0) -> float | None:
    """A fact as a finite number of at least ``low``; ``None`` when it is empty. Raises ``Unusable``."""
    text = given(facts, name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise Unusable(f"{name} is {text!r}, not a number") from None
    if not math.isfinite(value) or value < low:
        raise Unusable(f"{name} is {text}, must be {low:g} or more")
    return value


def whole(facts: Mapping[str, str], name: str, low: int = 0) -> int | None:
    value = number(facts, name, low)
    if value is None:
        return None
    if value != int(value):
        raise Unusable(f"{name} is {value:g}, not a whole number")
    return int(value)


def _needed(facts: Mapping[str, str], name: str) -> str:
    text = given(facts, name)
    if text is None:
        raise Unusable(f"{name} is empty")
    return text


def _degree(facts: Mapping[str, str], name: str) -> int:
    """A degree of parallelism; empty and 0 mean that nothing is divided."""
    return whole(facts, name) or 1


def _require_inputs(facts: Mapping[str, str]) -> None:
    """Raises ``Unusable`` that names every fact without which nothing can be priced."""
    missing = [name for name in NEEDED if given(facts, name) is None]
    if given(facts, "precision") is None and given(facts, "weights") is None:
        missing.append("weights (or precision)")
    if all(given(facts, name) is None for name in ("concurrency", "rate_per_s", "batch")):
        missing.append("concurrency (or rate_per_s)")
    if whole(facts, "tp") is None:
        missing.append("tp")
    if missing:
        raise Unusable(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} empty")


def _degrees(facts: Mapping[str, str]) -> dict[str, int]:
    """The degrees of parallelism. Raises ``Unusable`` where those of the experts do not make those of the rest."""
    degrees = {name: _degree(facts, name) for name in ("tp", "pp", "ep", "dp")}
    tp, dp, sliced = degrees["tp"], degrees["dp"], whole(facts, "expert_tp")
    if sliced and given(facts, "experts") and sliced * degrees["ep"] != tp * dp:
        raise Unusable(f"expert_tp {sliced} x ep {degrees['ep']} is not tp {tp}" + (f" x dp {dp}" if dp > 1 else ""))
    return degrees


def _share(facts: Mapping[str, str], name: str) -> float | None:
    """A fact in (0, 1]; ``None`` when it is empty. Raises ``Unusable``."""
    value = number(facts, name)
    if value is not None and not 0 < value <= 1:
        raise Unusable(f"{name} is {value:g}, must be in (0, 1]")
    return value


def interpret(facts: Mapping[str, str]) -> tuple[Run, tuple[str, ...]]:
    """What the facts say was run, and notes on what they leave to defaults. Raises ``Unusable`` with the reason."""
    _require_inputs(facts)
    degrees = _degrees(facts)
    ratio = _share(facts, "length_ratio_min")
    concurrency = whole(facts, "concurrency", 1)
    requests = whole(facts, "requests", 1)
    assumed = concurrency is not None and requests is None
    notes = ("requests not stated: steady state, without the first burst",) if assumed else ()
    run = Run(
        model=_needed(facts, "model"),
        gpu=_needed(facts, "gpu"),
        engine=_needed(facts, "engine").lower(),
        engine_version=given(facts, "engine_version"),
        precision=given(facts, "precision"),
        weights=given(facts, "weights"),
        experts=given(facts, "experts"),
        kv=given(facts, "kv"),
        activations=given(facts, "activations"),
        prompt=_at_least_one(facts, "isl"),
        output=_at_least_one(facts, "osl"),
        concurrency=concurrency,
        rate=None if concurrency is not None else number(facts, "rate_per_s", 1e-9),
        duration=number(facts, "duration_s", 1e-9),
        batch=whole(facts, "batch", 1),
        **degrees,
        requests=requests,
        ratio_min=1.0 if ratio is None else ratio,
        warmup=whole(facts, "warmup_requests") or 0,
        token_budget=whole(facts, "max_num_batched_tokens") or None,
        slots=whole(facts, "max_num_seqs") or None,
        memory_fraction=number(facts, "memory_fraction") or None,
        context=whole(facts, "max_model_len") or None,
        poll_steps=whole(facts, "poll_interval_steps") or 1,
        wait_steps=whole(facts, "batch_wait_steps") or 0,
        wait_fill=number(facts, "batch_wait_fill") or 0.0,
        suspect=given(facts, "suspect") or "",
        campaign=given(facts, "campaign") or "",
        system_prompt=whole(facts, "shared_system_prompt_tokens") or 0,
        system_prompts=whole(facts, "distinct_system_prompts") or 1,
        users=whole(facts, "users_per_system_prompt") or 1,
        timeout=number(facts, "timeout_s"),
    )
    if run.memory_fraction is not None and run.memory_fraction > 1:
        raise Unusable(f"memory_fraction is {run.memory_fraction:g}, must be in (0, 1]")
    return run, notes


def _at_least_one(facts: Mapping[str, str], name: str) -> float:
    value = number(facts, name, 1.0)
    if value is None:
        raise Unusable(f"{name} is empty")
    return value


def measured(facts: Mapping[str, str]) -> Measured:
    """What the facts say was measured. Raises ``Unusable`` for what is no number above zero."""

    def seconds(name: str) -> float | None:
        value = number(facts, name)
        if value == 0.0:
            raise Unusable(f"{name} is 0")
        return None if value is None else value * 1e-3

    return Measured(
        ttft=seconds("ttft_ms"),
        tpot=seconds("tpot_ms"),
        e2el=seconds("e2el_ms"),
        rate=number(facts, "output_tokens_per_s"),
        statistic=given(facts, "statistic") or "mean",
    )


def row_of(where: str, facts: Facts, supplied: Mapping[str, str], cells: dict[str, str] | None = None) -> Row:
    """A row from facts and from what the command line supplies for those that are empty."""
    filled = dict(facts)
    for name, value in supplied.items():
        if name not in INPUTS:
            raise UsageError(f"{name} is no input of a measured row", hint=f"known: {', '.join(INPUTS)}")
        if given(filled, name) is None:
            filled[name] = value
    shown = facts if cells is None else cells
    result = Measured()
    try:
        result = measured(filled)
        run, notes = interpret(filled)
    except Unusable as error:
        return Row(where=where, cells=shown, run=None, measured=result, refused=str(error))
    return Row(where=where, cells=shown, run=run, measured=result, notes=notes)


def run_record(run: Run) -> dict[str, Any]:
    """A run as JSON, without what is left to defaults."""
    return {f.name: value for f in fields(run) if (value := getattr(run, f.name)) not in (None, "")}
