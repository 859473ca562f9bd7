"""Files of several models on one fleet, YAML, by name in ``configs/services`` or by path: docs/several-models.md."""

from __future__ import annotations

from typing import Literal, NamedTuple

from inferplan.catalog.assemble import Request, usual_engine
from inferplan.catalog.files import at_line, find, spec_of
from inferplan.catalog.limits import LengthsText, LimitsSpec
from inferplan.devices.engine import EngineFlags
from inferplan.errors import SpecError, UsageError
from inferplan.spec import Field, Spec
from inferplan.traffic.popularity import MOST_ADAPTERS, Popularity
from inferplan.traffic.requests import Slo, parse_lengths
from inferplan.traffic.stages import ModelStage, require_tree
from inferplan.units import BytesPerSecond, Seconds
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism

_NO_ADAPTERS = LoraAsked()


class AnswerSpec(Spec):
    """Limits of whole answers, of all the models that a request goes through."""

    ttft: Seconds | None = Field(default=None, gt=0)
    e2e: Seconds | None = Field(default=None, gt=0)
    percentile: float = Field(default=95.0, gt=0, lt=100)


class SwapSpec(Spec):
    """Models that share GPUs and of which one at a time is awake, as in vLLM's sleep mode (docs/several-models.md).

    level: 1 keeps the weights of those that sleep in host memory, 2 drops them. bandwidth: of level 1 between a device
    and host memory, one way; of level 2 of the storage that all devices of a replica read from. keep_alive: seconds for
    which one that has nothing to do stays awake while others wait. overhead: of a switch, beyond the weights.
    """

    level: Literal[1, 2]
    bandwidth: BytesPerSecond = Field(gt=0)
    keep_alive: Seconds = Field(ge=0)
    overhead: Seconds = Field(ge=0)


class ReplicaSpec(Spec):
    """Where a replica of a model runs, as on the command line."""

    gpu: str
    quant: str | None = None
    kv: str | None = None
    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)
    engine: str | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)

    def request(self, model: str, lora: LoraAsked = _NO_ADAPTERS) -> Request:
        """One of them."""
        return Request(
            model=model,
            gpu=self.gpu,
            lora=lora,
            quant=self.quant,
            roles=(("kv", self.kv),) if self.kv else (),
            parallel=Parallelism(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp),
            engine=self.engine or usual_engine(model, self.gpu, self.quant),
            flags=EngineFlags(
                memory_fraction=self.gpu_memory_utilization,
                token_budget=self.max_num_batched_tokens,
                max_sequences=self.max_num_seqs,
            ),
        )


class AdaptersSpec(Spec):
    """LoRA adapters beside a model, as ``--lora-rank``, ``--max-loras``, ``--loras``, ``--lora-skew`` and
    ``--lora-bandwidth`` state them."""

    rank: int = Field(ge=1, le=1024)
    slots: int = Field(ge=1, le=1024)
    named: int = Field(ge=1, le=MOST_ADAPTERS)
    skew: float = Field(default=0.0, ge=0, le=100, allow_inf_nan=False)
    bandwidth: BytesPerSecond | None = Field(default=None, gt=0)

    @property
    def asked(self) -> LoraAsked:
        """What a replica has room for."""
        return LoraAsked(rank=self.rank, slots=self.slots)


class ServiceModel(ReplicaSpec, LimitsSpec):
    """One model: where it runs, what comes to it, its limits."""

    name: str = Field(min_length=1, max_length=40, pattern=r"^\S(.*\S)?$")
    model: str
    alternatives: list[ReplicaSpec] = Field(default=[], max_length=8)
    """Replicas of other kinds: the kind that makes the whole cheapest is taken."""
    replicas: int | None = Field(default=None, ge=1, le=1000)
    rate: float | None = Field(default=None, gt=0, le=1e6)
    after: str | None = None
    share: float | None = Field(default=None, ge=0, le=1)
    shares: str | None = None
    """The model on whose GPUs it runs too."""
    swap: SwapSpec | None = None
    """How models that share its GPUs take turns there; absent: all are resident."""
    prompt: LengthsText | None = None
    output: LengthsText
    adapters: AdaptersSpec | None = None
    """Those that its requests name."""
    answer: AnswerSpec | None = None

    @property
    def lora(self) -> LoraAsked:
        """What its replicas have beside it."""
        return _NO_ADAPTERS if self.adapters is None else self.adapters.asked


class ServiceSpec(Spec):
    """A file of models."""

    name: str = ""
    source: str = ""
    notes: list[str] = []
    models: list[ServiceModel] = Field(min_length=1, max_length=24)


class ServiceEntry(NamedTuple):
    """One model of a file. alternatives: replicas of other kinds, of which one may be taken. replicas: ``None`` where
    their number is to be found. swap: of those that share its GPUs.
    """

    stage: ModelStage
    request: Request
    alternatives: tuple[Request, ...]
    replicas: int | None
    swap: SwapSpec | None


def load_service(name: str) -> tuple[ServiceEntry, ...]:
    """The models of a name or a path. Raises ``SpecError`` with file and line."""
    path = find("services", name)
    spec, made = spec_of(path, ServiceSpec), list[ServiceEntry]()
    known: dict[str, int] = {}
    for place, one in enumerate(spec.models):
        try:
            stage = _stage(one, known)
            kinds = tuple(other.request(one.model, one.lora) for other in one.alternatives)
            made.append(ServiceEntry(stage, one.request(one.model, one.lora), kinds, one.replicas, one.swap))
            require_tree([entry.stage for entry in made])
        except UsageError as error:
            at = at_line(path, "models", place)
            raise SpecError(f"{at}: {error.what}", because=error.because, hint=error.hint) from None
        known.setdefault(one.name, place)
    for place, one in enumerate(spec.models):
        tied = [other.name for other in spec.models if one.name in (other.after, other.shares)]
        tied += [name for name in (one.after, one.shares) if name is not None]
        if one.alternatives and (tied or one.replicas is not None):
            with_whom = f"{one.name} goes with {', '.join(tied)}" if tied else f"the replicas of {one.name} are given"
            raise SpecError(
                f"{at_line(path, 'models', place)}: alternatives are for a model that stands alone and is sized",
                because=with_whom,
                hint="leave alternatives out, or ask for each kind in a file of its own",
            )
        if one.adapters is not None and any(one.name == other.shares or one.shares for other in spec.models):
            raise SpecError(
                f"{at_line(path, 'models', place, 'adapters')}: {one.name} shares its GPUs with another model",
                because="slots of adapters are followed for models that have GPUs of their own",
                hint="shares: or adapters: alone",
            )
        if one.swap is not None and not any(other.shares == one.name for other in spec.models):
            at = at_line(path, "models", place)
            raise SpecError(
                f"{at}: swap needs models that share GPUs, and no model shares the GPUs of {one.name}",
                hint=f"shares: {one.name} in another model, or leave swap out",
            )
    return tuple(made)


def _stage(one: ServiceModel, known: dict[str, int]) -> ModelStage:
    if one.after is not None and one.after not in known:
        raise UsageError(
            f"{one.name} is asked after {one.after!r}, which is not a model before it in the file",
            hint=f"one of {', '.join(known)}" if known else "rate: of the first model",
        )
    if (one.share is None) != (one.after is None):
        raise UsageError(
            f"{one.name}: share needs after: it is a share of that model's answers",
            hint="after: NAME and share: 0.2, or rate: alone",
        )
    if one.shares is not None and one.shares not in known:
        raise UsageError(
            f"{one.name} shares the GPUs of {one.shares!r}, which is not a model before it in the file",
            hint=f"one of {', '.join(known)}" if known else "shares: in the second of them",
        )
    if one.shares is not None and one.replicas is not None:
        raise UsageError(
            f"{one.name} has the same number of replicas as {one.shares}, whose GPUs it shares",
            hint="replicas: there alone",
        )
    if one.answer is not None and one.after is not None:
        raise UsageError(f"{one.name}: the limits of whole answers belong to the first model", hint="answer: there")
    whole = one.answer or AnswerSpec()
    return ModelStage(
        name=one.name,
        output=parse_lengths(one.output),
        prompt=None if one.prompt is None else parse_lengths(one.prompt),
        rate=one.rate,
        after=None if one.after is None else known[one.after],
        share=1.0 if one.share is None else one.share,
        shares=None if one.shares is None else known[one.shares],
        adapters=None if (named := one.adapters) is None else Popularity(count=named.named, skew=named.skew),
        lora_bandwidth=None if named is None else named.bandwidth,
        limits=Slo(ttft=one.ttft, tpot=one.tpot, e2el=one.e2e, percentile=one.percentile),
        answer=Slo(ttft=whole.ttft, e2el=whole.e2e, percentile=whole.percentile),
    )
