"""Speculative decoding as it is asked for: who drafts, how many tokens, and how many of them are accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

from inferplan.catalog.acceptance import acceptance_for
from inferplan.catalog.assemble import Request
from inferplan.catalog.drafts import DraftDeployments, draft_alone
from inferplan.catalog.files import load_model
from inferplan.errors import UsageError
from inferplan.models.spec import ModelSpec
from inferplan.serving.techniques.speculation import Speculation, acceptance_of
from inferplan.work.parallel import Parallelism


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
        return Speculation(
            length=self.length,
            acceptance=self.acceptance,
            branches=self.branches,
            draft=drafts and drafts.whole,
            first=drafts and drafts.first,
            later=drafts and drafts.later,
            block=drafts is not None and drafts.block,
            basis=self.basis,
        )

    def on(self, request: Request, parallel: Parallelism) -> Speculation:
        """The drafting on the devices of ``request``'s model.

        Raises ``InferplanError`` where it cannot be divided, and where the model is anchored to runs without drafts.
        """
        if request.anchor is not None:
            refuse_anchor()
        if self.model is None:
            return self.beside(None)
        return self.beside(_alone(replace(request, parallel=Parallelism()), self.model).over(parallel))

    def describe(self) -> str:
        """The drafting in words: ``"llama-3.2-1b drafts of 4 tokens, acceptance 0.7"``."""
        tree = f" x {self.branches}" if self.branches > 1 else ""
        return f"{self.model or 'free'} drafts of {self.length}{tree} tokens, {self.beside(None).accepted}"


def refuse_anchor() -> NoReturn:
    """Raise ``UsageError``: measured runs are of steps that make one token."""
    raise UsageError(
        "an anchor is of runs without drafts",
        because="a step that verifies drafts is another than those that were measured",
        hint="leave --anchor out, or the drafts",
    )


def measured_drafting(model: ModelSpec, name: str, length: int, mode: str = "") -> Drafting:
    """Drafts of ``model`` by its module or head ``name``, accepted as was measured of that many of them.

    mode: see :func:`inferplan.catalog.acceptance.acceptance_for`. Raises ``MissingFactError`` where none is on file.
    """
    found = acceptance_for(model.name, name, length, mode)
    spread = f", {found.low:g} to {found.high:g} over all that is on file" if found.low < found.high else ""
    basis = f"acceptance length {found.length:g} {found.basis}{spread} ({found.source})"
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


@lru_cache(maxsize=64)
def _model(name: str) -> ModelSpec:
    return load_model(name)


@lru_cache(maxsize=256)
def _alone(request: Request, name: str) -> DraftDeployments:
    return draft_alone(request, name, _model)
