"""What was published of a model's answers in narrower formats (``configs/quality.yaml``), and which checkpoints hold
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Self

from inferplan.catalog.files import config_root, load_model, on_file, spec_of
from inferplan.errors import UsageError
from inferplan.estimate.formats import NATIVE, native_precision
from inferplan.fields import SHARE, need
from inferplan.models.spec import ModelSpec
from inferplan.spec import Spec, model_validator
from inferplan.work.formats import find_format, parse_precision

_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)")
CAUTION_BELOW = 0.97
"""A checkpoint that keeps less than this share of any published score is one to be careful with."""
_SHOWN = 3
"""Benchmarks of a headline at most, those with the lowest shares."""


QUALITY = need(
    "--quality",
    SHARE,
    "Leave out narrower formats that keep less than this share of any published score, or have none.",
    "SHARE",
)
"""How the least share of every published score that a narrower format keeps is asked for."""


class QuantisedCheckpoint(Spec):
    """A checkpoint of a model in a format. checkpoint: empty where a source gives scores and no name. scores: its own,
    and those of the model in its own format (``against``: in another one). recovered: their ratio, where a source has
    that alone.
    """

    model: str
    quant: str
    checkpoint: str = ""
    against: str = ""
    scores: dict[str, tuple[float, float]] = {}
    recovered: dict[str, float] = {}
    source: str

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if twice := self.scores.keys() & self.recovered.keys():
            raise ValueError(f"{min(twice)} has scores, and their ratio once more")
        if any(min(pair) <= 0 for pair in self.scores.values()):
            raise ValueError("scores are above 0")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """By benchmark the share of the original's score that it keeps."""
        return {**{name: own / original for name, (own, original) in self.scores.items()}, **self.recovered}

    @property
    def lowest(self) -> float | None:
        """The lowest share of a score; ``None`` where nothing was published."""
        return min(self.shares.values(), default=None)

    @property
    def lowest_in_words(self) -> str:
        """``"94.5% of GSM8K"``, the benchmark of which it keeps least."""
        return _kept(dict(sorted(self.shares.items(), key=lambda one: one[1])[:1]))

    def describe(self) -> str:
        """What was published of it, in words; empty where nothing was."""
        return f"it keeps {_kept(self.shares)}{self._of} ({self.source})" if self.shares else ""

    def in_short(self, most: int = _SHOWN) -> str:
        """Its lowest shares, so many at most, with a warning where one is far below the original's."""
        shares = dict(sorted(self.shares.items(), key=lambda one: one[1]))
        shown = {name: shares[name] for name in list(shares)[:most]}
        lowest = "the lowest" if most == 1 else f"the lowest {most}"
        rest = f"{lowest} of {len(shares)} published scores" if len(shares) > most else "published scores"
        warned = "caution, " if min(shares.values()) < CAUTION_BELOW else ""
        return f"{warned}it keeps {_kept(shown)}{self._of} ({rest})"

    @property
    def _of(self) -> str:
        return f", against {self.against}" if self.against else ""

    @property
    def cited(self) -> str:
        """Its source, where the checkpoint is not named beside it."""
        return self.source.replace("its model card", f"the model card of {self.checkpoint}")


def _kept(shares: Mapping[str, float]) -> str:
    """``"98.9% of OpenLLM v1, 99.7% of HumanEval"``."""
    return ", ".join(f"{share:.1%} of {name}" for name, share in shares.items())


class _Quality(Spec):
    checkpoints: list[QuantisedCheckpoint]
    formats: dict[str, str]
    caches: dict[str, str]


@lru_cache(maxsize=1)
def _file() -> _Quality:
    return spec_of(config_root() / "quality.yaml", _Quality)


@lru_cache(maxsize=256)
def _meaning(quant: str) -> tuple[str, ...]:
    """What a format means to the answers, however it is spelled: the formats of weights, inputs and cache. AWQ, GPTQ
    and int4 are w4a16, and w8a8 is int8; a name of no shorthand stands for itself.
    """
    try:
        found = parse_precision(quant, frozenset())
    except UsageError:  # of a GGUF file, or of none
        return (quant.lower(),)
    return tuple(fmt.name.removesuffix("-gptq") for fmt in (found.weights, found.activations, found.kv))


def quantised_checkpoint(model: ModelSpec, quant: str) -> QuantisedCheckpoint | None:
    """A checkpoint of a model in a format: one whose answers were evaluated, or a release that is on file as a model of
    its own; ``None`` where none is known.
    """
    quant, means = quant.lower(), _meaning(quant)
    own = (one for one in _file().checkpoints if one.model == model.name)
    found = next((one for one in own if _meaning(one.quant) == means), None)
    if found is not None and found.checkpoint:
        return found
    path = on_file("models", f"{model.name}-{quant}")
    if path is None:
        return found
    release = load_model(str(path))
    named = _REPOSITORY.match(release.source)
    if named is None or release.made_from.named:
        return found
    if found is not None:
        return found.model_copy(update={"checkpoint": named[1]})
    return QuantisedCheckpoint(model=model.name, quant=quant, checkpoint=named[1], source=release.source)


def published(model: ModelSpec, quant: str) -> QuantisedCheckpoint | None:
    """The evaluation of a model in a format; ``None`` where no score is on file."""
    found = quantised_checkpoint(model, quant)
    return found if found is not None and found.shares else None


def is_own(model: ModelSpec, quant: str | None) -> bool:
    """Whether a format is that of the checkpoint itself, whose answers are the original's; ``None`` is, and native."""
    if quant in (None, NATIVE):
        return True
    try:
        return parse_precision(quant, frozenset(), model.native.base) == native_precision(model)
    except UsageError:  # of a GGUF file, or of none
        return False


def share_kept(model: ModelSpec, quant: str | None, mean: bool = True) -> tuple[float | None, str]:
    """The lowest share of a published score that a format keeps, and in words with the mean of several: ``"94.5% of
    GSM8K, mean of 4 98.9%"``."""
    if is_own(model, quant):
        return 1.0, "the checkpoint's own"
    found = published(model, quant or "")
    if found is None:
        return None, "none published"
    shares = list(found.shares.values())
    average = f", mean of {len(shares)} {sum(shares) / len(shares):.1%}" if mean and len(shares) > 1 else ""
    return found.lowest, f"{found.lowest_in_words}{average}"


def left_out(model: ModelSpec, quants: Iterable[str | None], share: float | None) -> dict[str, str]:
    """The formats that keep less than a share of any published score, or have none, each with that reason."""
    if share is None:
        return {}
    kept = {quant: share_kept(model, quant, mean=False) for quant in quants if quant is not None}
    return {quant: said for quant, (lowest, said) in kept.items() if lowest is None or lowest < share}


def require_kept(model: ModelSpec, quants: Iterable[str | None], share: float | None) -> None:
    """Raise ``UsageError`` for what is no share, and where none of the formats that somebody names keeps it."""
    if share is None:
        return
    SHARE.require(QUALITY["option"].name, share)
    named = dict.fromkeys(quants)
    low = left_out(model, named, share)
    if named and len(low) == len(named):
        raise UsageError(
            f"no format of --quant keeps --quality {share:g}",
            because=", ".join(f"{quant}: {said}" for quant, said in low.items()),
            hint="--quant native, or leave --quant or --quality out",
        )


def floor_line(model: ModelSpec, quants: Iterable[str | None], share: float | None) -> str:
    """Which formats a least share leaves out, and why; empty without one."""
    if share is None:
        return ""
    low = ", ".join(f"{quant} ({said})" for quant, said in left_out(model, quants, share).items())
    return f"--quality {share:g} leaves out {low or 'no format'}"


def sister(model: ModelSpec, quant: str) -> QuantisedCheckpoint | None:
    """The evaluation in a format of another model with the same layers: of several the one whose name begins most
    alike; ``None`` where there is none.
    """
    others = [one for one in _file().checkpoints if _meaning(one.quant) == _meaning(quant) and one.shares]
    alike = [one for one in others if one.model != model.name and _shapes(load_model(one.model)) == _shapes(model)]
    return max(alike, key=lambda one: _alike(one.model, model.name), default=None)


def _alike(name: str, other: str) -> int:
    """How many characters two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))


def _shapes(model: ModelSpec) -> tuple[object, ...]:
    return (model.d_model, model.vocab, model.tied, model.layers, model.native)


def quality_of(model: ModelSpec, quant: str) -> str:
    """What was published of the answers of a model in a format, in words: of it, else of one of the same layers, else
    of others in that format."""
    own = published(model, quant)
    if own is not None:
        return own.describe()
    none = _none(model, quant)
    if (like := sister(model, quant)) is not None:
        kept = like.model_copy(update={"source": like.cited}).describe()
        return f"{none}; of {like.model}, which has the same layers, {kept}"
    others = next((said for name, said in _file().formats.items() if _meaning(name) == _meaning(quant)), "")
    return f"{none}; {others}" if others else none


def quality_in_short(model: ModelSpec, quant: str) -> str:
    """The same for a headline, with a warning where any score is far below the original's."""
    own = published(model, quant)
    if own is not None:
        return f"quality in {quant}: {own.in_short()}"
    like = sister(model, quant)
    known = f"; of {like.model}, which has the same layers: {like.in_short(1)}" if like else ""
    return f"quality in {quant}: {_none(model, quant)}{known}"


def _none(model: ModelSpec, quant: str) -> str:
    return f"no evaluation of {model.name} in {quant} is on file"


def cache_line(kv: str | None, share: float | None = None) -> str:
    """What is known of answers with a cache in the format that was asked for, which ``share`` does not count; empty for
    none, and for a wide one."""
    if kv is None or find_format(kv).bits >= 16:
        return ""
    known = _file().caches.get(find_format(kv).name, "nothing published is on file")
    return f"quality with a cache in {kv}: {known}" + ("; --quality counts weights alone" if share else "")
