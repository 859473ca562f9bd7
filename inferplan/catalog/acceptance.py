"""Measured acceptance lengths (``configs/acceptance.yaml``): how many tokens a verification yields, of which drafts."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Self

from inferplan.catalog.files import config_root, spec_of
from inferplan.errors import MissingFactError
from inferplan.spec import Spec, model_validator


class MeasuredAcceptance(Spec):
    """Mean acceptance lengths of one draft on one model, by drafted tokens: tokens a verification, the model's own too.

    ``also``: models that the figures are taken for beside the one measured. ``range``: their spread where it is stated.
    """

    model: str
    draft: str
    also: list[str] = []
    mode: str = ""
    lengths: dict[int, float]
    range: dict[int, tuple[float, float]] = {}

    @model_validator(mode="after")
    def _possible(self) -> Self:
        wrong = [tokens for tokens, length in self.lengths.items() if not 1 <= length <= tokens + 1]
        if wrong:
            raise ValueError(f"with {wrong[0]} drafted tokens a verification yields 1 to {wrong[0] + 1}")
        return self


class _Source(Spec):
    """What one publication measured, on which data and where."""

    source: str
    data: str
    where: str
    measured: list[MeasuredAcceptance]


class _Texts(Spec):
    """How far texts differ in the acceptance of one draft (:mod:`inferplan.serving.techniques.speculation`)."""

    source: str
    draft: str
    exponent: float


class _File(Spec):
    texts: list[_Texts]
    sources: list[_Source]


class Acceptance(NamedTuple):
    """A measured mean acceptance length. low, high: its spread over everything that was measured of such drafts.

    basis: what it is of, in words. source: where it is published.
    """

    length: float
    low: float
    high: float
    basis: str
    source: str


@lru_cache(maxsize=1)
def _file() -> _File:
    return spec_of(config_root() / "acceptance.yaml", _File)


def texts_apart(draft: str | None) -> float:
    """How far texts differ in the acceptance of such drafts; 0 where nobody measured it."""
    return next((one.exponent for one in _file().texts if one.draft == draft), 0.0)


def _entries(model: str, draft: str) -> list[tuple[_Source, MeasuredAcceptance]]:
    """What was measured of such drafts for this model, in the order of the file; of the model itself first."""
    found = [(source, one) for source in _file().sources for one in source.measured if one.draft == draft]
    own = [entry for entry in found if entry[1].model == model]
    return own + [entry for entry in found if model in entry[1].also]


def measured_tokens(model: str, draft: str) -> list[int]:
    """The numbers of drafted tokens of which an acceptance length is on file, rising."""
    return sorted({tokens for _, one in _entries(model, draft) for tokens in one.lengths})


def acceptance_for(model: str, draft: str, tokens: int, mode: str = "") -> Acceptance:
    """The measured acceptance length of ``tokens`` drafts of a model by its name in the catalogue.

    draft: how they are made (``mtp``, ``eagle3``, ``dspark``). mode: only entries whose mode begins so, such as
    ``"thinking off"``; the first on file where none is asked for. Raises ``MissingFactError`` where nothing is on file.
    """
    found = [(source, one) for source, one in _entries(model, draft) if tokens in one.lengths]
    asked = [(source, one) for source, one in found if one.mode.startswith(mode)]
    if not asked:
        numbers = ", ".join(map(str, measured_tokens(model, draft)))
        modes = " or ".join(sorted({repr(one.mode) for _, one in found if one.mode}))
        known = f"on file for {numbers} drafted tokens" if numbers else f"none is on file for {draft} drafts of it"
        other = f"--draft-tokens {numbers.split(', ')[-1]}, " if numbers and not found else ""
        raise MissingFactError(
            f"no acceptance of {tokens} {draft} drafts of {model} was measured",
            because=f"measured: {modes}" if found else known,
            hint=f"{other}--acceptance 0.7 (a chance for each token), or --acceptance-length as engines log it",
        )
    source, one = asked[0]
    spread = [length for _, other in found for length in (other.lengths[tokens], *other.range.get(tokens, ()))]
    of = "" if one.model == model else f" of {one.model}"
    parts = [f"measured{of} on {source.data}", *([one.mode] if one.mode else []), source.where]
    return Acceptance(one.lengths[tokens], min(spread), max(spread), ", ".join(parts), source.source)
