"""Options of speculative decoding: who drafts, how many tokens, and how many of them are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count
from inferplan.errors import MissingFactError, UsageError
from inferplan.units import parse_number

if TYPE_CHECKING:
    from inferplan.answers.drafting import Drafting
    from inferplan.catalog.assemble import Request
    from inferplan.models.spec import ModelSpec
    from inferplan.serving.techniques.speculation import Speculation

FREE = "free"
"""The word for drafts that cost nothing."""
_GIVE = "--acceptance 0.7 (0.5 to 0.9 is usual for a good draft), or --acceptance-length as engines log it"


def draft_options(several: bool = False) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Names and keywords of the options. ``several``: of a command that searches the number of drafted tokens."""
    tokens: dict[str, Any] = {"type": Count(0), "help": "Tokens drafted in sequence: the depth of the draft."}
    if several:
        tokens = {
            "metavar": "COUNTS",
            "help": "Tokens drafted in sequence, each number tried beside none: 3, 1,2,3 or 1-4. [those of a curve of "
            "--acceptance, else those whose acceptance was measured]",
        }
    each = ", one for each number of drafts" if several else ""
    model = (
        "Speculative decoding: the model that drafts; mtp for the model's own prediction module, a head by its name in "
        "the model's file or its own YAML, free for drafts that cost nothing (n-grams)."
    )
    chance = (
        "Chance that a drafted token is accepted, 0.7, or for each position given those before it, 0.8,0.6,0.4. [as "
        "measured, where that is on file]"
    )
    length = (
        f"Instead: tokens a verification yields on average, as engines report it (1 and the accepted drafts){each}."
    )
    branches = "Candidates at each depth: more than 1 is a tree. [1]"
    thinking = "Take the acceptance that was measured with or without thinking. [the first on file]"
    return [
        (("--draft-model", "--draft"), {"metavar": "MODEL", "help": model}),
        (("--draft-tokens",), tokens),
        (("--draft-branches",), {"type": Count(), "help": branches}),
        (("--acceptance",), {"metavar": "CHANCES", "help": chance}),
        (("--acceptance-length",), {"metavar": "TOKENS", "help": length}),
        (("--thinking",), {"type": click.Choice(["on", "off"]), "help": thinking}),
    ]


def draftings_of(values: dict[str, Any], target: str, several: bool = False) -> tuple[Drafting, ...]:
    """What the options describe for a model by its name: a drafting for each number of tokens, none without drafts.

    Raises ``UsageError`` for half of it and for what cannot draft for the model, ``MissingFactError`` where no
    acceptance is given and none was measured.
    """
    given = [name for name in ("acceptance", "acceptance_length", "thinking") if values[name] is not None]
    if values["draft_model"] is None:
        described = [name for name in ("draft_tokens", "draft_branches") if values[name]] + given
        if described:
            raise UsageError(
                f"--{described[0].replace('_', '-')} without a draft model",
                because="a draft costs weights, cache and time",
                hint="--draft MODEL, --draft mtp, or --draft free where drafts cost nothing (n-grams)",
            )
        return ()
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join('--' + name.replace('_', '-') for name in given)} say the same", hint="one of them only"
        )
    from inferplan.catalog.drafts import load_draft
    from inferplan.catalog.files import load_model

    model, curve = load_model(target), _chances(values["acceptance"])
    if values["draft_model"] != FREE:
        load_draft(values["draft_model"], target)
    numbers = _numbers(values, model, curve, several)
    yields = _floats(values["acceptance_length"], "--acceptance-length")
    if yields and len(yields) != len(numbers):
        raise UsageError(
            f"{len(yields)} acceptance lengths do not go with {len(numbers)} numbers of drafts", hint="one for each"
        )
    stated: list[float | tuple[float, ...] | None] = [*yields] if yields else [curve] * len(numbers)
    return tuple(_drafting(values, model, number, one) for number, one in zip(numbers, stated))


def _numbers(
    values: dict[str, Any], model: ModelSpec, curve: float | tuple[float, ...] | None, several: bool
) -> list[int]:
    """How many tokens are drafted: what is asked for, else what there is an acceptance of."""
    from inferplan.answers.sweep import parse_counts
    from inferplan.catalog.acceptance import measured_tokens

    asked = values["draft_tokens"]
    if asked is not None:
        numbers = parse_counts(asked) if several else [asked]
        return sorted({number for number in numbers if number})
    if isinstance(curve, tuple):
        return list(range(1, len(curve) + 1)) if several else [len(curve)]
    measured = [] if values["draft_model"] == FREE else measured_tokens(model.name, values["draft_model"])
    if several and measured and not values["acceptance_length"]:
        return measured
    known = f"; measured: {', '.join(map(str, measured))}" if measured else ""
    raise UsageError("speculative decoding needs --draft-tokens", hint=f"--draft-tokens 3{known}")


def _drafting(
    values: dict[str, Any], model: ModelSpec, length: int, stated: float | tuple[float, ...] | None
) -> Drafting:
    """The drafting of ``length`` tokens, with the acceptance that is stated, else the measured one."""
    from inferplan.answers.drafting import Drafting, measured_drafting, positions
    from inferplan.serving.techniques.speculation import Speculation

    name, branches = values["draft_model"], values["draft_branches"] or 1
    if stated is None:
        mode = f"thinking {values['thinking']}" if values["thinking"] else ""
        if branches > 1:
            raise MissingFactError(
                "no acceptance of trees was measured", because="those on file are of chains", hint=_GIVE
            )
        return measured_drafting(model, name, length, mode)
    if values["acceptance_length"] is not None:
        assert isinstance(stated, float)
        stated = Speculation.of_length(stated, length, branches).acceptance
    return Drafting(
        model=None if name == FREE else name,
        length=length,
        acceptance=positions(stated, length),
        branches=branches,
        basis="given",
    )


def _chances(text: str | None) -> float | tuple[float, ...] | None:
    found = _floats(text, "--acceptance")
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def _floats(text: str | None, option: str) -> list[float]:
    try:
        return [parse_number(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UsageError(f"{option}: {text!r} is no number", hint="0.7, or 0.8,0.6,0.4") from None


def speculation_of(values: dict[str, Any], request: Request) -> Speculation:
    """The speculation that the options describe, on the devices of ``request``; none without drafts."""
    from inferplan.serving.techniques.speculation import PLAIN

    asked = draftings_of(values, request.model)
    return asked[0].on(request, request.parallel) if asked else PLAIN
