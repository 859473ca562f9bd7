"""Which of two forms of serving wins where the ratio of their predictions may be wrong: the simpler one.

Expert parallelism, attention data parallelism, drafts, pools apart and a release of the engine that is named each have
a simpler twin: the same engine on the same devices in the same formats without it. ``configs/forms.yaml`` says by which
factor the predicted ratio of such twins was off in 4 of 5 measured pairs. A form whose predicted advantage over a twin
is within that error is not chosen, and the twin remembers by how much the other might be better. Of forms that nobody
measured in pairs nothing is said.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import exp, hypot, inf, log
from typing import Any, NamedTuple

from inferplan.catalog.files import config_root, spec_of
from inferplan.estimate.support import POOLS, forms_of
from inferplan.planning.option import RELEASE, Forgone, PlanOption
from inferplan.spec import Spec


class FormError(Spec):
    """How well predicted ratios of a form and its twin were in measured pairs.

    error: the factor within which 4 of 5 were. models: of how many models the pairs are. right, apart: pairs ordered
    rightly, of those whose figures differ by more than 5 %.
    """

    error: float
    pairs: int
    models: int
    right: int
    apart: int


class FormErrors(Spec):
    """``configs/forms.yaml``: the errors by form, those of enough pairs."""

    source: str
    provenance: dict[str, Any] = {}
    forms: dict[str, FormError]


def form_errors() -> dict[str, FormError]:
    """The errors on file."""
    return spec_of(config_root() / "forms.yaml", FormErrors).forms


class Outranked(NamedTuple):
    """An option, by its place among others, that is not chosen; the place of the simpler twin, and what it forgoes."""

    place: int
    twin: int
    forgone: Forgone


def settled(options: Sequence[PlanOption], least: float = 0.0) -> tuple[list[PlanOption], list[PlanOption]]:
    """The options, in their order, without those whose advantage in what a device carries over a simpler twin of as
    many devices is within the error of that ratio, and those; such a twin says what it might forgo.

    least: what the cheapest costs that keeps the limits in runs. A twin that costs less in closed form does not keep
    them with so few devices, so that pools, whose sizes are whole, are held to what it costs at least.
    """
    found = list(_outranked(options, lambda option, twin: _more_carried(option, twin, least)))
    lost = {one.place for one in found}
    kept = {place: option for place, option in enumerate(options) if place not in lost}
    for one in sorted(found, key=lambda one: one.forgone.advantage):
        if one.twin in kept and one.forgone.advantage > 0:
            kept[one.twin] = replace(kept[one.twin], forgone=one.forgone)
    return list(kept.values()), [option for place, option in enumerate(options) if place in lost]


def outranked(sized: Sequence[PlanOption]) -> list[Outranked]:
    """Of options that were sized in runs those whose advantage in what money buys over a simpler one is within the
    error of that ratio."""
    return list(_outranked(sized, _more_for_the_money))


def forgone_of(chosen: PlanOption, others: Sequence[PlanOption]) -> Forgone | None:
    """What a less simple form might be worth beside what was chosen: one of the ``others``, or one that was not run."""
    found = [one.forgone for one in outranked([chosen, *others]) if one.twin == 0 and one.forgone.advantage > 0]
    found += [] if chosen.forgone is None else [chosen.forgone]
    return max(found, key=lambda one: one.advantage, default=None)


def _outranked(
    options: Sequence[PlanOption], ratio: Callable[[PlanOption, PlanOption], float | None]
) -> Iterator[Outranked]:
    """:func:`outranked_among` for options; ``ratio``: how much better the first is, where both compare."""
    forms, kinds = [forms_in(option) for option in options], [_kind(option) for option in options]
    return outranked_among(forms, kinds, lambda place, twin: ratio(options[place], options[twin]))


def outranked_among(
    forms: Sequence[frozenset[str]], kinds: Sequence[Hashable], ratio: Callable[[int, int], float | None]
) -> Iterator[Outranked]:
    """Each candidate that is not chosen beside each simpler twin that is, by their places. From the simplest on: a twin
    that is not chosen itself takes no other's place.

    forms: the forms of serving of each candidate; kinds: what twins have in common; ratio: how many times as good the
    candidate at the first place is, ``None`` where the two do not compare.
    """
    errors, alike = form_errors(), defaultdict[Hashable, list[int]](list)
    for place in sorted(range(len(forms)), key=lambda place: len(forms[place])):
        alike[kinds[place]].append(place)
    for places in alike.values():
        lost = set[int]()
        for twin, place in itertools.product(places, places):
            beyond = forms[place] - forms[twin]
            if twin in lost or not forms[twin] < forms[place] or not beyond <= set(errors):
                continue
            better = ratio(place, twin)
            error = hypot(*(log(errors[form].error) for form in beyond))
            if better is not None and log(better) <= error:
                fewest = min(errors[form].pairs for form in beyond)
                gone = Forgone(
                    forms=tuple(sorted(beyond)), advantage=better - 1.0, error=exp(error) - 1.0, pairs=fewest
                )
                lost.add(place)
                yield Outranked(place, twin, gone)


def forms_in(option: PlanOption) -> frozenset[str]:
    """The forms of an option, of both its pools where they are apart."""
    forms = {form for one, _ in option.kinds for form in forms_of(one)} | set(option.forms)
    return frozenset(forms | ({RELEASE} if "@" in option.request.engine else set()))


def _kind(option: PlanOption) -> tuple[object, ...]:
    """What twins have in common: devices, engine, formats, and everything else that is no form of serving."""
    request, deployment = option.request, option.deployment
    names = tuple(sorted({one.hardware.name for one, _ in option.kinds}))
    slots = None if deployment.lora is None else deployment.lora.slots
    return names, request.engine.partition("@")[0], request.quant, request.power_cap, slots, option.tiers


def _more_carried(option: PlanOption, twin: PlanOption, least: float) -> float | None:
    """What a device carries over what one of the twin does, where replicas are of as many devices; of whole fleets
    where one has pools, whose sizes are whole. The twin has to meet the limits in closed form, and costs ``least`` at
    least."""
    if not twin.screened or option.deployment.parallel.ranks != twin.deployment.parallel.ranks:
        return None
    if POOLS not in option.forms:
        return option.per_device / twin.per_device
    return twin.devices / option.devices * max(least / (twin.cost or inf), 1.0)


def _more_for_the_money(option: PlanOption, twin: PlanOption) -> float | None:
    """What a bill buys over what that of the twin does: the same load for less, or more at capacity for as much."""
    if not option.cost or not twin.cost:
        return None
    carried = option.per_device * option.devices / (twin.per_device * twin.devices)
    return twin.cost / option.cost * max(carried, 1.0)
