"""A claimed speed-up taken apart: a baseline, then one ingredient at a time, each with its factor (docs/recipe.md).

An ingredient that is named is off in the baseline and on once it is added; techniques that are not named are on in
every variant. The order matters, so every subset is priced too, and each ingredient gets its mean factor over all
orders (its Shapley value, in logarithms) with the smallest and the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request, assemble, precision_of
from inferplan.catalog.drafts import smaller_draft
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import in_batches, price_batches
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import Mixer
from inferplan.models.layers.mla import MlaLayer
from inferplan.models.spec import LayerGroup, ModelSpec, require_decoder
from inferplan.serving.flags import Flags
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.speculation import PLAIN, Speculation, prompt_with_drafts, step_with_drafts
from inferplan.shown import Shown
from inferplan.table import frame
from inferplan.traffic.requests import Lengths
from inferplan.units import Num, parse_count, parse_number
from inferplan.work.step import Segment, Step

if TYPE_CHECKING:
    import pandas as pd

MOST = 9
"""Ingredients of one recipe: every subset is priced."""


@dataclass(frozen=True, kw_only=True)
class UsersAtATime:
    """Users with one request each at a time. reserved: tokens that are set aside for a request without paging."""

    users: int
    prompt: float
    output: Lengths
    reserved: int

    def __post_init__(self) -> None:
        if self.users < 1 or self.prompt < 1 or self.output.average < 2:
            raise UsageError("a recipe needs users, a prompt and two output tokens or more")
        if self.reserved < self.prompt + self.output.average:
            raise UsageError("--reserve is less than a request", hint=f"--reserve {int(self.prompt) * 2}")

    def longest(self, batch: int) -> float:
        """The mean longest output of a batch: a static batch runs until it is done. 400 batches from a fixed seed."""
        if self.output.kind == "fixed":
            return self.output.average
        draws = self.output.sample(np.random.default_rng(0), 400 * batch).reshape(400, batch)
        return float(np.mean(np.max(draws, axis=1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class RecipeSetting:
    """A deployment with everything an ingredient may change."""

    deployment: Deployment
    continuous: bool = True
    paged: bool = True
    kv_cache: bool = True
    hit_rate: float = 0.0
    speculation: Speculation = PLAIN


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Output tokens a second and device, seconds to the first token, seconds an output token, seconds of a request."""

    rate: float
    ttft: float
    tpot: float
    e2el: float
    batch: float


@dataclass(frozen=True, kw_only=True)
class Ingredient:
    """A change. ``apply`` puts it in; ``remove`` makes the baseline without it."""

    name: str
    apply: Callable[[RecipeSetting], RecipeSetting]
    remove: Callable[[RecipeSetting], RecipeSetting] = field(default=lambda setting: setting)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Recipe(Shown):
    """Ingredients in order, and the price of every subset of them."""

    base: RecipeSetting
    ingredients: Sequence[Ingredient]
    load: UsersAtATime
    baseline: str

    @cached_property
    def outcomes(self) -> dict[frozenset[int], Outcome]:
        """Every subset of the ingredients, by their positions."""
        count = len(self.ingredients)
        subsets = [frozenset(chosen) for size in range(count + 1) for chosen in combinations(range(count), size)]
        return {subset: evaluate(self._setting(subset), self.load) for subset in subsets}

    def _setting(self, chosen: frozenset[int]) -> RecipeSetting:
        setting = self.base
        for index, ingredient in enumerate(self.ingredients):
            setting = ingredient.apply(setting) if index in chosen else ingredient.remove(setting)
        return setting

    def steps(self) -> list[tuple[str, Outcome]]:
        """The baseline, and the outcome after each ingredient in the order given."""
        names = [self.baseline, *(ingredient.name for ingredient in self.ingredients)]
        return [(name, self.outcomes[frozenset(range(index))]) for index, name in enumerate(names)]

    def factors(self, index: int, measure: str = "rate") -> list[tuple[float, float]]:
        """Of one ingredient: its factor beside every subset of the others, with the share of orders that have it."""
        others = [i for i in range(len(self.ingredients)) if i != index]
        count = len(self.ingredients)
        found = []
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in combinations(others, size):
                without, having = frozenset(chosen), frozenset([*chosen, index])
                factor = getattr(self.outcomes[having], measure) / getattr(self.outcomes[without], measure)
                found.append((factor, weight))
        return found

    def shapley(self, index: int, measure: str = "rate") -> tuple[float, float, float]:
        """The mean factor of an ingredient over all orders (geometric), the smallest and the largest."""
        factors = self.factors(index, measure)
        mean = math.exp(sum(weight * math.log(factor) for factor, weight in factors))
        return mean, min(f for f, _ in factors), max(f for f, _ in factors)

    @property
    def total(self) -> float:
        """Throughput with everything over throughput of the baseline."""
        steps = self.steps()
        return steps[-1][1].rate / steps[0][1].rate

    def rows(self) -> list[dict[str, Any]]:
        """One record a step."""
        rows: list[dict[str, Any]] = []
        before: Outcome | None = None
        for index, (name, outcome) in enumerate(self.steps()):
            row: dict[str, Any] = {
                "ingredient": name,
                "output_tokens_per_s_per_device": outcome.rate,
                "ttft_s": outcome.ttft,
                "tpot_s": outcome.tpot,
                "e2el_s": outcome.e2el,
                "batch": outcome.batch,
            }
            if before is not None:
                mean, low, high = self.shapley(index - 1)
                latency = self.shapley(index - 1, "tpot")
                row |= {
                    "throughput_factor": outcome.rate / before.rate,
                    "tpot_factor": outcome.tpot / before.tpot,
                    "e2el_factor": outcome.e2el / before.e2el,
                    "shapley_throughput_factor": mean,
                    "smallest_throughput_factor": low,
                    "largest_throughput_factor": high,
                    "shapley_tpot_factor": latency[0],
                }
            rows.append(row)
            before = outcome
        return rows

    def to_frame(self) -> pd.DataFrame:
        """One row a step."""
        return frame(self.rows())


def evaluate(setting: RecipeSetting, load: UsersAtATime) -> Outcome:
    """Steady state of a setting: the closed form with continuous batching, waves of a static batch without."""
    deployment = setting.deployment
    batch = _room(setting, load)
    if batch < 1:
        raise InfeasibleError(
            f"{deployment.describe()} does not hold one request of this recipe",
            because=f"{load.reserved:,} tokens are set aside for each request" if not setting.paged else "",
            hint="more GPUs, a smaller --reserve, or another GPU",
        )
    if not setting.continuous or not setting.kv_cache:
        return _waves(setting, load, min(batch, load.users))
    users = UserLoad(
        concurrency=float(load.users), prompt=load.prompt, output=load.output.average, hit_rate=setting.hit_rate
    )
    flags = Flags(max_num_seqs=max(batch // deployment.parallel.dp, 1))
    steady = steady_state(deployment, users, flags, setting.speculation)
    return Outcome(
        rate=float(steady.output_rate) / deployment.parallel.devices,
        ttft=float(steady.ttft),
        tpot=float(steady.tpot),
        e2el=float(steady.e2el),
        batch=float(steady.admitted),
    )


def _room(setting: RecipeSetting, load: UsersAtATime) -> int:
    """Sequences that fit: by what is set aside without paging, by what they hold with it; engine slots at most."""
    deployment = setting.deployment
    held = load.prompt + load.output.average / 2 if setting.paged else float(load.reserved)
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=load.prompt, context=held, cached=setting.kv_cache)
    slots = deployment.engine.defaults.tier(deployment.hardware).max_sequences * deployment.parallel.dp
    if footprint.kv_pool <= 0:
        return 0
    return int(min(float(footprint.max_batch()), slots))


def _waves(setting: RecipeSetting, load: UsersAtATime, batch: int) -> Outcome:
    """A batch is prefilled together and decoded until its longest output is done; then the next one starts.

    Without a KV cache every step computes all that came before. A request that finds the batch running waits for half
    of it on average; those beyond the batch wait for whole ones.
    """
    deployment, spec = setting.deployment, setting.speculation
    longest = load.longest(batch) if not setting.continuous else load.output.average
    cached = load.prompt * setting.hit_rate
    ttft = float(prompt_with_drafts(deployment, spec, float(batch), load.prompt - cached, cached).total)
    step = _mean_step(setting, load, float(batch), longest) / spec.tokens
    whole = ttft + (longest - 1) * step
    waves = load.users / batch
    wait = (waves - 1) * whole if waves > 1 else 0.0
    return Outcome(
        rate=batch * load.output.average / whole / deployment.parallel.devices,
        ttft=ttft + wait,
        tpot=step,
        e2el=wait + ttft + (load.output.average - 1) * step,
        batch=float(batch),
    )


def _mean_step(setting: RecipeSetting, load: UsersAtATime, batch: float, longest: float) -> float:
    """The mean decode step from the prompt to the longest output: the two Gauss points that ``Estimate`` takes.

    Windows and chunks that a sequence grows past in between are passed over.
    """
    steps = max(longest - 1.0, 1.0)
    centre, spread = load.prompt + (steps - 1.0) / 2, math.sqrt((steps**2 - 1.0) / 12)
    return sum(_step_at(setting, batch, past) for past in (centre - spread, centre + spread)) / 2


def _step_at(setting: RecipeSetting, batch: float, past: float) -> float:
    """Seconds of one decode step of a batch; without a KV cache everything is computed again."""
    deployment, spec = setting.deployment, setting.speculation
    if not setting.kv_cache:

        def again(count: Num) -> Step:
            segment = Segment(batch=count, new=past + spec.width, past=0.0)
            return Step(segments=(segment,), logits=count * spec.width)

        return float(price_batches(deployment, in_batches(deployment, batch, again), "cycle").time)
    return float(step_with_drafts(deployment, spec, batch, past).total)


def with_heads(model: ModelSpec, change: Callable[[Mixer, int], Mixer]) -> ModelSpec:
    """The model with every mixer replaced by ``change(mixer, position)``; a counterfactual, not a real checkpoint."""
    layers = []
    for index, layer in enumerate(model.sequence):
        mixer = layer.mixer
        layers.append(layer if mixer is None else layer.model_copy(update={"mixer": change(mixer, index)}))
    values = {name: getattr(model, name) for name in model.model_fields_set}
    return ModelSpec(**{**values, "layers": _folded(layers), "made_from": model.made_from.of_another(model.name)})


def _folded(layers: list[LayerGroup]) -> list[LayerGroup]:
    """Equal neighbours as one group."""
    folded: list[LayerGroup] = []
    for layer in layers:
        single = layer.model_copy(update={"repeat": 1})
        if folded and folded[-1].model_copy(update={"repeat": 1}) == single:
            folded[-1] = single.model_copy(update={"repeat": folded[-1].repeat + 1})
        else:
            folded.append(single)
    return folded


def multi_head(model: ModelSpec) -> ModelSpec:
    """The model with keys and values for every query head: what GQA or MLA is compared with.

    A latent mixer becomes attention of as many heads, ``nope_dim + rope_dim`` wide, with values of ``value_dim``.
    """

    def change(mixer: Mixer, _: int) -> Mixer:
        if isinstance(mixer, AttentionLayer):
            return mixer.model_copy(update={"kv_heads": mixer.heads})
        if isinstance(mixer, MlaLayer):
            return AttentionLayer(
                heads=mixer.heads, kv_heads=mixer.heads, head_dim=mixer.key_dim, value_dim=mixer.value_dim
            )
        return mixer

    return with_heads(model, change)


def with_query_groups(model: ModelSpec, group: int = 8) -> ModelSpec:
    """The model with ``group`` query heads to each key and value head, where that divides."""

    def change(mixer: Mixer, _: int) -> Mixer:
        if isinstance(mixer, AttentionLayer) and mixer.heads % group == 0:
            return mixer.model_copy(update={"kv_heads": mixer.heads // group})
        return mixer

    return with_heads(model, change)


def cross_layer(model: ModelSpec, share: int = 2) -> ModelSpec:
    """The model with keys and values of one layer used by ``share`` layers in a row (CLA, 2405.12981)."""

    def change(mixer: Mixer, index: int) -> Mixer:
        if isinstance(mixer, AttentionLayer) and index % share:
            return mixer.model_copy(update={"shares_cache": True})
        return mixer

    return with_heads(model, change)


def _grouped_already(model: ModelSpec) -> bool:
    mixers = [layer.mixer for layer in model.sequence]
    return any(isinstance(m, AttentionLayer) and m.kv_heads < m.heads for m in mixers)


def _latent(model: ModelSpec) -> bool:
    return any(isinstance(layer.mixer, MlaLayer) for layer in model.sequence)


def _remodel(change: Callable[[ModelSpec], ModelSpec]) -> Callable[[RecipeSetting], RecipeSetting]:
    def apply(setting: RecipeSetting) -> RecipeSetting:
        return replace(setting, deployment=replace(setting.deployment, model=change(setting.deployment.model)))

    return apply


def ingredient(text: str, request: Request, model: ModelSpec) -> Ingredient:
    """An ingredient by name: see :data:`NAMES`; a number format is one too. Raises ``UsageError`` for anything else."""
    name, _, rest = text.partition(":")
    values = dict(part.partition("=")[::2] for part in rest.split(":") if part) if rest else {}
    _require_exactly(name, text, values, model)
    if name in _SWITCHES:
        attribute = _SWITCHES[name]
        on: dict[str, Any] = {attribute: True}
        off: dict[str, Any] = {attribute: False}
        return Ingredient(
            name=text,
            apply=lambda setting: replace(setting, **on),
            remove=lambda setting: replace(setting, **off),
        )
    try:
        made = _special(name, values, text, request, model)
    except ValueError:
        raise UsageError(f"the numbers of {text!r} cannot be read", hint=_form(name)) from None
    if made is not None:
        return made

    def quantise(setting: RecipeSetting) -> RecipeSetting:
        own = setting.deployment
        asked = replace(request, quant=name)
        return replace(setting, deployment=replace(own, precision=precision_of(asked, model, own.hardware)))

    from inferplan.work.formats import parse_precision

    try:
        parse_precision(name, frozenset({"fp8"}))
    except UsageError:
        close = get_close_matches(name, [one.partition(":")[0] for one in NAMES], n=1)
        meant = f"did you mean {_form(close[0])}? One of " if close else ""
        raise UsageError(
            f"no ingredient named {name!r}", hint=f"{meant}{', '.join(NAMES)}, or a format such as fp8"
        ) from None
    return Ingredient(name=text, apply=quantise)


def _form(name: str) -> str:
    """How an ingredient is written, with its numbers."""
    return next((form for form in NAMES if form.partition(":")[0] == name), name)


def _require_exactly(name: str, text: str, values: dict[str, str], model: ModelSpec) -> None:
    """Raise ``UsageError`` for a number that an ingredient lacks, and for one that it does not have; the draft that it
    names is on file."""
    form = _form(name)
    asked = {part.partition("=")[0] for part in form.split(":")[1:]}
    if asked != set(values):
        wrong = sorted(asked - set(values))
        unknown = sorted(set(values) - asked)
        parts = [f"it lacks {', '.join(wrong)}"] if wrong else []
        parts += [f"it has no {', '.join(unknown)}"] if unknown else []
        raise UsageError(
            f"{text!r} is not an ingredient as it is",
            because="; ".join(parts),
            hint=form.replace("NAME", smaller_draft(model) or "NAME"),
        )


_SWITCHES = {"continuous-batching": "continuous", "paged-kv": "paged", "kv-cache": "kv_cache"}
NAMES = (
    *_SWITCHES,
    "fused-attention",
    "gqa",
    "mla",
    "cla",
    "prefix-cache:hit=0.5",
    "tensor-parallel:tp=4",
    "speculative:draft=NAME:length=4:acceptance=0.7",
)


def _special(name: str, values: dict[str, str], text: str, request: Request, model: ModelSpec) -> Ingredient | None:
    if name == "fused-attention":
        return Ingredient(
            name=text,
            apply=lambda s: replace(s, deployment=replace(s.deployment, unfused_attention=False)),
            remove=lambda s: replace(s, deployment=replace(s.deployment, unfused_attention=True)),
        )
    if name in ("gqa", "mla", "cla"):
        return _attention(name, text, model)
    if name == "prefix-cache":
        hit = parse_number(values["hit"])
        if not 0 < hit < 1:
            raise UsageError("the hit rate of prefix-cache is in (0, 1)", hint="prefix-cache:hit=0.5")
        return Ingredient(name=text, apply=lambda s: replace(s, hit_rate=hit))
    if name == "tensor-parallel":
        tp = parse_count(values["tp"])

        def divide(setting: RecipeSetting) -> RecipeSetting:
            parallel = replace(setting.deployment.parallel, tp=tp)
            return replace(setting, deployment=replace(setting.deployment, parallel=parallel))

        return Ingredient(name=text, apply=divide)
    if name == "speculative":
        return _speculative(values, text, request)
    return None


def _attention(name: str, text: str, model: ModelSpec) -> Ingredient:
    """GQA, MLA, CLA: taken out of a model that has it, put into one that has not."""
    if name == "mla":
        if not _latent(model):
            raise UsageError(
                f"{model.name} has no latent attention to compare", hint="a DeepSeek or Kimi model, or gqa"
            )
        return Ingredient(name=text, apply=lambda s: s, remove=_remodel(multi_head))
    if name == "gqa":
        if _grouped_already(model):
            return Ingredient(name=text, apply=lambda s: s, remove=_remodel(multi_head))
        if with_query_groups(model).kv_elements_per_token == model.kv_elements_per_token:
            raise UsageError(f"gqa changes nothing in {model.name}", hint="a model with attention of 8 heads or more")
        return Ingredient(name=text, apply=_remodel(with_query_groups))
    if cross_layer(model).kv_elements_per_token == model.kv_elements_per_token:
        raise UsageError(f"cla changes nothing in {model.name}", hint="a model with attention in every layer")
    return Ingredient(name=text, apply=_remodel(cross_layer))


def _speculative(values: dict[str, str], text: str, request: Request) -> Ingredient:
    """Drafts of a model in its own formats, of the model's prediction module (``mtp``), or ``free``."""
    length, acceptance, name = parse_count(values["length"]), parse_number(values["acceptance"]), values["draft"]
    drafting = Drafting(model=None if name == "free" else name, length=length, acceptance=acceptance)

    def apply(setting: RecipeSetting) -> RecipeSetting:
        own = replace(request, quant=None)
        return replace(setting, speculation=drafting.on(own, setting.deployment.parallel))

    return Ingredient(name=text, apply=apply)


def recipe(request: Request, baseline: str, ingredients: Sequence[str], load: UsersAtATime) -> Recipe:
    """The recipe of a request. ``baseline``: a comma list such as ``static,bf16``; what it does not say is modern.

    Raises ``UsageError`` for an ingredient that the baseline already has, or more than :data:`MOST` of them.
    """
    words = [word.strip() for word in baseline.split(",") if word.strip()]
    wanted = [word.strip() for word in ingredients if word.strip()]
    if not wanted or len(wanted) > MOST or len(set(wanted)) < len(wanted):
        raise UsageError(f"a recipe needs 1 to {MOST} different ingredients", hint=f"--with {','.join(NAMES[:3])},fp8")
    formats = [word for word in words if word not in ("static", "continuous")]
    if len(formats) > 1:
        raise UsageError(f"--baseline {baseline} has {len(formats)} formats", hint="static,bf16")
    deployment = assemble(replace(request, quant=formats[0] if formats else request.quant))
    require_decoder(deployment.model, "recipe of techniques", "inferplan compare, or sweep")
    static = "static" in words
    base = RecipeSetting(deployment=deployment, continuous=not static, paged=not static)
    made = [ingredient(text, request, deployment.model) for text in wanted]
    return Recipe(base=base, ingredients=made, load=load, baseline=f"baseline: {baseline}")
