"""The JSON file of a plan read back (written by :mod:`inferplan.reports.plan_record`)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ValidationError

from inferplan.answers.drafting import Drafting
from inferplan.answers.emit import Drafts, Pools
from inferplan.catalog.assemble import Request
from inferplan.catalog.host_times import HostTimes
from inferplan.devices.engine import EngineFlags
from inferplan.errors import SpecError, UsageError
from inferplan.files import LARGEST_SPEC, parse_json, read_text
from inferplan.serving.waiting import QueueOrder
from inferplan.spec import Field, Spec
from inferplan.table import SCHEMA_VERSION
from inferplan.units import MOST
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import MOST_DEGREE, Parallelism

_Model = TypeVar("_Model", bound=Spec)


class _Strict(Spec):
    model_config = {"strict": True}


Degree = Annotated[int, Field(ge=1, le=MOST_DEGREE)]


class _Parallel(_Strict):
    tp: Degree
    pp: Degree
    ep: Degree
    dp: Degree
    cp: Degree
    replicas: Degree
    redundant: int = Field(default=0, ge=0, le=MOST_DEGREE)
    spread_dense: bool = False


class _Pools(_Strict):
    prefill: Degree
    decode: Degree


Chance = Annotated[float, Field(allow_inf_nan=False)]


class _Prefill(_Strict):
    """What computes prompts, apart from what decodes. max_num_seqs: of a rank; ``None``, as ``options``: as for those
    that decode."""

    gpu: str
    quant: str | None
    parallel: _Parallel
    token_budget: int = Field(ge=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    options: dict[str, str | int | float | bool | None] | None = None


class _Drafting(_Strict):
    model: str | None
    length: int
    acceptance: Chance | list[Chance]
    branches: int = 1
    basis: str = ""

    def drafting(self) -> Drafting:
        """What the planner was asked to try."""
        chances = self.acceptance
        acceptance = tuple(chances) if isinstance(chances, list) else chances
        return Drafting(**{**dict(self), "acceptance": acceptance})


class _Deployment(_Strict):
    """``plan.deployment`` of a plan's JSON. options: what else was asked for, by its dotted name."""

    model: str
    gpu: str
    quant: str | None
    engine: str
    parallel: _Parallel
    pools: _Pools | None
    prefill: _Prefill | None = None
    context_tokens: int | None = Field(ge=1)
    concurrency: int = Field(ge=1)
    token_budget: int = Field(ge=1)
    queue: QueueOrder = "fcfs"
    chat: bool = False
    speculation: _Drafting | None
    cache_tiers: list[dict[str, Any]] | None = None
    options: dict[str, str | int | float | bool | None] = {}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a plan says is to be started. name: of its file, or what it is. request: with the token budget and the
    sequences of a rank. prefill: of servers that compute prompts, where they are not as those that decode. chat:
    requests are messages."""

    name: str
    request: Request
    context: int | None
    pools: Pools | None
    drafting: Drafting | None
    prefill: Request | None = None
    queue: QueueOrder = "fcfs"
    chat: bool = False

    def drafts(self, request: Request) -> Drafts:
        """The drafts on the devices of a request."""
        if self.drafting is None:
            return Drafts()
        return Drafts(self.drafting.on(request, request.parallel), self.drafting.model or "")


def read_plan(path: str) -> Planned:
    """The deployment that a plan's JSON describes.

    Raises ``InputFileError`` where it cannot be read, ``SpecError`` where it is no plan, is of another version or a
    field is not what it should be.
    """
    return planned_of(plan_json(path), path)


def plan_data(path: str) -> dict[str, Any]:
    """The JSON of a plan, of which ``plan.deployment`` is an object. Raises as :func:`read_plan`."""
    data = plan_json(path)
    _require_plan(data, path)
    return data


def planned_of(data: dict[str, Any], path: str) -> Planned:
    """The deployment that the JSON of a plan describes; ``path`` names it in errors."""
    deployment = checked_part(path, _Deployment, _require_plan(data, path), "plan.deployment")
    if deployment.cache_tiers:
        raise UsageError(
            f"{path} is a plan with cache tiers, and their options are not known for any engine",
            because="without them the plan would not keep its limits",
            hint="a plan without --cache-tier, or the command in this plan's report with your engine's own options",
        )
    return _planned(path, deployment)


def _require_plan(data: dict[str, Any], path: str) -> dict[str, Any]:
    """``plan.deployment`` of the JSON of a plan."""
    version = data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise SpecError(
            f"{path} is of version {version!r}, and this reads version {SCHEMA_VERSION}",
            because="keys of another version mean something else, or are gone",
            hint="make the plan again: inferplan plan ... -o plan.json",
        )
    plan = data.get("plan")
    if not isinstance(plan, dict) or not isinstance(plan.get("deployment"), dict):
        raise SpecError(f"{path} is not the JSON of a plan", hint="inferplan plan ... -o plan.json")
    deployment: dict[str, Any] = plan["deployment"]
    return deployment


def checked_part(path: str, kind: type[_Model], data: dict[str, Any], where: str) -> _Model:
    """The fields of a part of the file. Raises ``SpecError`` that names the first which is not what it should be."""
    try:
        return kind.model_validate(data, strict=True)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}, not {_shown(one['input'])}" for one in error.errors()
        ]
        raise SpecError(
            f"{path} is not the JSON of a plan: {where}.{problems[0]}",
            because="; ".join(problems[1:]),
            hint="inferplan plan ... -o plan.json",
        ) from None


def _shown(value: Any) -> str:
    """A value as Python writes it, cut to 40 characters; a number with too many digits in words."""
    if isinstance(value, int) and abs(value) > MOST:
        return "a number that large"
    return f"{value!r:.40}"


def plan_json(path: str) -> dict[str, Any]:
    """The object of a plan's file. Raises ``InputFileError`` and ``SpecError``."""
    data, _ = parse_json(read_text(Path(path), LARGEST_SPEC), path, SpecError)
    if not isinstance(data, dict):
        raise SpecError(f"{path} is not the JSON of a plan", hint="inferplan plan ... -o plan.json")
    return data


def _planned(path: str, found: _Deployment) -> Planned:
    parallel = Parallelism(**found.parallel.model_dump())
    request = Request(
        model=found.model,
        gpu=found.gpu,
        quant=found.quant,
        engine=found.engine.replace(" ", "@"),
        parallel=parallel,
        flags=EngineFlags(token_budget=found.token_budget, max_sequences=-(-found.concurrency // parallel.dp)),
    )
    plain = request
    request = _with_options(path, request, found.options)
    drafting = found.speculation.drafting() if found.speculation else None
    pools = Pools(found.pools.prefill, found.pools.decode) if found.pools else None
    prefill = _for_prompts(path, found.prefill, request, plain) if found.prefill and pools else None
    return Planned(
        name=path,
        request=request,
        context=found.context_tokens,
        pools=pools,
        drafting=drafting,
        prefill=prefill,
        queue=found.queue,
        chat=found.chat,
    )


def _for_prompts(path: str, found: _Prefill, decodes: Request, plain: Request) -> Request:
    """The servers that compute prompts, beside those that decode; ``plain`` are these without further options."""
    request = decodes if found.options is None else plain
    flags = {"token_budget": found.token_budget, "max_sequences": found.max_num_seqs or request.flags.max_sequences}
    request = replace(
        request,
        gpu=found.gpu,
        quant=found.quant,
        parallel=Parallelism(**found.parallel.model_dump()),
        flags=request.flags.model_copy(update=flags),
    )
    return _with_options(path, request, found.options or {})


def _with_options(path: str, request: Request, options: dict[str, Any]) -> Request:
    """A request with more options; what makes adapters, a rank or a folder, before the rest of them."""
    for name in sorted(options, key=lambda name: name not in ("lora.rank", "lora.folder")):
        request = _with_option(path, request, name, options[name])
    return request


def _with_option(path: str, request: Request, name: str, value: Any) -> Request:
    """A request with one more option, by the dotted name of :func:`inferplan.answers.emit.changed_options`."""
    group, _, last = name.rpartition(".")
    if group == "flags.backends":
        group, last, value = "flags", "backends", (*request.flags.backends, (last, value))
    if group == "flags" and last in EngineFlags.spec_fields:
        flags = request.flags.model_dump() | {last: value}
        try:
            return replace(request, flags=checked_part(path, EngineFlags, flags, "plan.deployment.options.flags"))
        except UsageError as error:
            where = f"plan.deployment.options.{name}"
            raise SpecError(f"{path} is not the JSON of a plan: {where}: {error.what}") from None
    if group == "lora":
        return _with_adapters(path, request, last, value)
    if group == "offload" and isinstance(value, _ON_HOST.get(last, ())) and not isinstance(value, bool):
        there: dict[str, Any] = {last: value}
        return replace(request, offload=replace(request.offload, **there))
    if group == "host" and last in _HOST and isinstance(value, float):
        seconds: dict[str, Any] = {last: value}
        return replace(request, host=replace(request.host, **seconds))
    field, changed, kind = name, value, _PLAIN.get(name)
    if group in ("roles", "generation"):
        field, changed, kind = group, (*getattr(request, group), (last, value)), str if group == "roles" else int
    if kind is None:
        raise SpecError(
            f"{path} was planned with {name}, which is not known here", hint="inferplan plan ... -o plan.json"
        )
    if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value <= MOST_DEGREE):
        raise SpecError(f"{path} is not the JSON of a plan: plan.deployment.options.{name} cannot be {_shown(value)}")
    more: dict[str, Any] = {field: changed}
    return replace(request, **more)


def _with_adapters(path: str, request: Request, name: str, value: Any) -> Request:
    """A request with one more option about LoRA adapters; without a rank or a folder there are none."""
    kind = _OF_ADAPTERS.get(name)
    if kind is None or not isinstance(value, kind) or isinstance(value, bool):
        where = f"plan.deployment.options.lora.{name}"
        raise SpecError(f"{path} is not the JSON of a plan: {where} cannot be {_shown(value)}")
    asked = dict(vars(request.lora))
    changed = tuple(str(value).split(",")) if name == "modules" else value
    try:
        return replace(request, lora=LoraAsked(**{**asked, name: changed}))
    except UsageError as error:
        raise SpecError(f"{path} is not the JSON of a plan: {error.what}") from None


_ON_HOST: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("gpu_layers", "cpu_moe_layers"), int),
    **dict.fromkeys(("host", "host_memory", "host_link"), str),
    "cpu_offload_gb": (int, float),
}
_HOST = frozenset(field.name for field in fields(HostTimes))
"""Seconds of a host of one's own."""
_OF_ADAPTERS: dict[str, type] = {"rank": int, "modules": str, "slots": int, "folder": str}
_PLAIN: dict[str, type] = {
    "calibration": str,
    "ideal": bool,
    "power_cap": float,
    "sampling": str,
    "memory": str,
    "nvlink_bridge": bool,
    "unfused_attention": bool,
    "prune": str,
    "expert_skew": float,
}
"""Options of a request that have no group, and what their values are."""
