"""What the GPUs that somebody has hold of a model: in which format, divided how, with how many requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from inferplan.answers.division import engines_tried, options_on, require_possible
from inferplan.answers.fit import FitAsked, FitOption, asked_context, requests_in_words, require_format
from inferplan.answers.fit_instead import Question, instead
from inferplan.catalog.counted import devices_meant
from inferplan.catalog.files import load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InfeasibleError, UsageError
from inferplan.models.spec import ModelSpec
from inferplan.shown import Shown


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OwnedFits(Shown):
    """Each kind of GPU that was meant, in each format that was asked for, all of them together holding one replica."""

    model: ModelSpec
    asked: FitAsked
    have: str
    """As it was typed: ``"2x-a6000"``, ``"2x24GB"``."""
    count: int
    """GPUs of a kind."""
    context: int
    """Tokens of a request."""
    options: Sequence[FitOption]
    engines: Sequence[str] = ()
    """Those that were tried."""
    remarks: Sequence[str] = ()
    """Of the prices."""

    @property
    def fitting(self) -> list[FitOption]:
        """Those that hold what was asked for."""
        return [option for option in self.options if option.fitting is not None]


def fit_owned(model: str, have: str, asked: FitAsked, prices: PriceBook) -> OwnedFits:
    """What ``have`` holds over all of the GPUs, in the formats of :func:`inferplan.answers.fit.quants_tried`.

    Raises ``InfeasibleError`` where nothing of it holds one request, ``UsageError`` beside layers on the host.
    """
    if asked.offload.any:
        raise UsageError("layers on the host need a GPU named without a number", hint="--gpu NAME --tp N")
    if asked.most != FitAsked.most:
        raise UsageError(f"{have} and --most {asked.most} both state the number of GPUs", hint="leave one of them out")
    meant, spec = devices_meant(have), load_model(model)
    prices.check(one.gpu for one in meant)
    require_format(asked, spec, meant[0].gpu)
    tokens = asked_context(spec, asked.context)
    load = tokens, asked, prices
    options = options_on(spec, model, meant, load)
    require_possible(options)
    if not any(option.fitting for option in options):
        hold = "does" if (meant[0].number or 1) == 1 else "do"
        raise InfeasibleError(
            f"{have} {hold} not hold {spec.name} with {requests_in_words(asked.held, tokens)}",
            because=_nearest(options),
            hint=instead(Question(spec, model, have, meant, load), options),
        )
    return OwnedFits(
        model=spec,
        asked=asked,
        have=have,
        count=meant[0].number or 1,
        context=tokens,
        options=options,
        engines=list(dict.fromkeys(name for one in meant for name in engines_tried(spec, model, one, asked))),
        remarks=prices.remarks(option.gpu for option in options),
    )


def _nearest(options: Sequence[FitOption]) -> str:
    """Why the option that lacks least does not hold the load; of options that lack no memory why each does not run."""
    small = min(options, key=lambda option: option.short)
    if small.short < inf:
        return f"{small.gpu}, {small.quant}{' comes nearest' if len(options) > 1 else ''}: {small.reason}"
    return f"{small.gpu}: " + "; ".join(dict.fromkeys(f"{one.quant}: {one.reason}" for one in options))
