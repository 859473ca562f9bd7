"""Speculative decoding as it is asked for: who drafts, how many tokens, and how many of them are accepted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from inferplan.catalog.assemble import Request
from inferplan.catalog.files import load_model
from inferplan.errors import MissingFactError, UsageError
from inferplan.fields import Text, Topic, Whole, Words, ask, need
from inferplan.lists import parse_counts
from inferplan.models.spec import ModelSpec
from inferplan.serving.techniques.speculation import PLAIN, Speculation, acceptance_of
from inferplan.units import parse_number
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    from inferplan.catalog.drafts import DraftDeployments


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """Drafts of ``length`` tokens; ``model`` is absent for drafts that cost nothing.

    acceptance: a chance for each token, or one for each position. basis: where it is from, in words.
    """

    model: str | None
    length: int
    acceptance: float | tuple[float, ...]
    branches: int = 1
    basis: str = ""

    def __post_init__(self) -> None:
        self.beside(None)

    def beside(self, drafts: DraftDeployments | None) -> Speculation:
        """The drafting with its model on given devices; ``None`` for drafts that cost nothing."""
        from inferplan.catalog.acceptance import texts_apart

        return Speculation(
            length=self.length,
            acceptance=self.acceptance,
            branches=self.branches,
            draft=drafts and drafts.whole,
            first=drafts and drafts.first,
            later=drafts and drafts.later,
            block=drafts is not None and drafts.block,
            basis=self.basis,
            texts=texts_apart(self.model),
        )

    def on(self, request: Request, parallel: Parallelism) -> Speculation:
        """The drafting on the devices of ``request``'s model.

        Raises ``InferplanError`` where it cannot be divided.
        """
        if self.model is None:
            return self.beside(None)
        return self.beside(_alone(replace(request, parallel=Parallelism()), self.model).over(parallel))

    def describe(self) -> str:
        """The drafting in words: ``"llama-3.2-1b drafts of 4 tokens, acceptance 0.7"``."""
        tree = f" x {self.branches}" if self.branches > 1 else ""
        return f"{self.model or 'free'} drafts of {self.length}{tree} tokens, {self.beside(None).accepted}"


def measured_drafting(model: ModelSpec, name: str, length: int, mode: str = "") -> Drafting:
    """Drafts of ``model`` by its module or head ``name``, accepted as was measured of that many of them.

    mode: see :func:`inferplan.catalog.acceptance.acceptance_for`. Raises ``MissingFactError`` where none is on file.
    """
    from inferplan.catalog.acceptance import acceptance_for, measured_tokens

    found, known = acceptance_for(model.name, name, length, mode), measured_tokens(model.name, name)
    spread = f", {found.low:g} to {found.high:g} over all that is on file" if found.low < found.high else ""
    basis = f"acceptance length {found.length:g} {found.basis}{spread} ({found.source})"
    basis += f"; on file for {known[0]} to {known[-1]} drafts: --draft-tokens" if len(known) > 1 else ""
    return Drafting(model=name, length=length, acceptance=acceptance_of(found.length, length), basis=basis)


def positions(acceptance: float | tuple[float, ...], length: int) -> float | tuple[float, ...]:
    """The acceptance of the first ``length`` positions of a curve; one chance holds for as many as are asked for.

    Raises ``UsageError`` for a curve that is shorter.
    """
    if isinstance(acceptance, float):
        return acceptance
    if len(acceptance) < length:
        raise UsageError(
            f"an acceptance of {len(acceptance)} positions does not go with {length} drafted tokens",
            hint=f"--draft-tokens {len(acceptance)}, or one chance for all positions",
        )
    return acceptance[:length]


FREE = "free"
"""The word for drafts that cost nothing."""


@dataclass(frozen=True, kw_only=True)
class DraftsAsked:
    """Speculative decoding as its options ask for it, with one number of drafted tokens."""

    topic: ClassVar = Topic(
        "speculative decoding",
        "no draft model is named",
        "--draft MODEL, --draft mtp, or --draft free where drafts cost nothing (n-grams)",
    )
    model: str = field(
        metadata=need(
            "--draft-model",
            Text(),
            "Speculative decoding: the model that drafts; mtp for the model's own prediction module, a head by its "
            "name in the model's file or its own YAML, free for drafts that cost nothing (n-grams).",
            metavar="MODEL",
            also=("--draft",),
        )
    )
    tokens: int | tuple[int, ...] | None = ask(
        "--draft-tokens",
        Whole(0),
        "Tokens drafted in sequence: the depth of the draft [the fewest with a measured acceptance].",
        None,
    )
    branches: int = ask("--draft-branches", Whole(), "Candidates at each depth: more than 1 is a tree. [1]", 1)
    acceptance: tuple[float, ...] = ask(
        "--acceptance",
        Text(lambda text: _numbers_of(text, "--acceptance")),
        "Chance that a drafted token is accepted, 0.7, or per position, given that the ones before it were "
        "accepted, 0.8,0.6,0.4. [as measured, if on file]",
        (),
        metavar="CHANCES",
    )
    yields: tuple[float, ...] = ask(
        "--acceptance-length",
        Text(lambda text: _numbers_of(text, "--acceptance-length")),
        "Instead: mean tokens per verification, as engines report it (1 plus the accepted drafts); if several "
        "numbers of drafts are tried, one for each.",
        (),
        metavar="TOKENS",
    )
    thinking: str | None = ask(
        "--thinking",
        Words(("on", "off")),
        "Use the acceptance measured with or without thinking. [the first on file]",
        None,
    )

    def __post_init__(self) -> None:
        said = {"acceptance": self.acceptance, "acceptance-length": self.yields, "thinking": self.thinking}
        given = [f"--{name}" for name, value in said.items() if value]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} state the same", hint="leave one out")

    def on(self, request: Request) -> Speculation:
        """The speculation on the devices of ``request``."""
        found = self.draftings(request.model)
        return found[0].on(request, request.parallel) if found else PLAIN

    def draftings(self, target: str) -> tuple[Drafting, ...]:
        """A drafting for each number of tokens, for a model by its name.

        Raises ``UsageError`` for what cannot draft for the model, ``MissingFactError`` where no acceptance is given and
        none was measured.
        """
        from inferplan.catalog.drafts import load_draft

        model = load_model(target)
        if self.model != FREE:
            load_draft(self.model, target)
        numbers = self._numbers(model)
        if self.yields and len(self.yields) != len(numbers):
            raise UsageError(
                f"{len(self.yields)} acceptance lengths do not go with {len(numbers)} numbers of drafts",
                hint="one for each",
            )
        lengths = self.yields or (None,) * len(numbers)
        return tuple(self._drafting(model, number, length) for number, length in zip(numbers, lengths))

    def _known_numbers(self, measured: list[int]) -> list[int]:
        """Numbers of which there is an acceptance, where none are asked for."""
        if self.acceptance:
            return [len(self.acceptance)] if len(self.acceptance) > 1 else []
        return [] if self.yields else measured[:1]

    def _numbers(self, model: ModelSpec) -> list[int]:
        """How many tokens are drafted: what is asked for, else what there is an acceptance of."""
        from inferplan.catalog.acceptance import measured_tokens

        if self.tokens is not None:
            asked = (self.tokens,) if isinstance(self.tokens, int) else self.tokens
            return sorted({number for number in asked if number})
        measured = [] if self.model == FREE else measured_tokens(model.name, self.model)
        if known := self._known_numbers(measured):
            return known
        hint = "--draft-tokens 3" if self.acceptance or self.yields else f"--draft-tokens 3 {_GIVE}"
        raise UsageError("speculative decoding needs --draft-tokens", hint=hint)

    def _drafting(self, model: ModelSpec, length: int, yielded: float | None) -> Drafting:
        """The drafting of ``length`` tokens, with the acceptance that is stated, else the measured one."""
        if not self.acceptance and yielded is None:
            if self.branches > 1:
                raise MissingFactError(
                    "no acceptance of trees was measured", because="the acceptances on file are for chains", hint=_GIVE
                )
            return measured_drafting(model, self.model, length, f"thinking {self.thinking}" if self.thinking else "")
        stated = self.acceptance[0] if len(self.acceptance) == 1 else self.acceptance
        if yielded is not None:
            stated = Speculation.of_length(yielded, length, self.branches).acceptance
        return Drafting(
            model=None if self.model == FREE else self.model,
            length=length,
            acceptance=positions(stated, length),
            branches=self.branches,
            basis="given",
        )


@dataclass(frozen=True, kw_only=True)
class DraftsTried(DraftsAsked):
    """The same where a search tries several numbers of drafted tokens, each beside none."""

    tokens: int | tuple[int, ...] | None = ask(
        "--draft-tokens",
        Text(lambda text: tuple(parse_counts(text))),
        "Tokens drafted in sequence; each number is compared with no drafts: 3, 1,2,3 or 1-4. [the positions of "
        "--acceptance, else the measured numbers]",
        None,
        metavar="COUNTS",
    )

    def _known_numbers(self, measured: list[int]) -> list[int]:
        curve = len(self.acceptance)
        return [*range(1, curve + 1)] if curve > 1 else [] if self.yields else measured


_GIVE = "--acceptance 0.7 (0.5 to 0.9 is usual for a good draft), or --acceptance-length as engines log it"


def _numbers_of(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(parse_number(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number", hint="0.7, or 0.8,0.6,0.4") from None


@lru_cache(maxsize=64)
def _model(name: str) -> ModelSpec:
    return load_model(name)


@lru_cache(maxsize=256)
def _alone(request: Request, name: str) -> DraftDeployments:
    from inferplan.catalog.drafts import draft_alone

    return draft_alone(request, name, _model)
