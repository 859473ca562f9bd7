"""What was published of a model's answers in narrower formats (``configs/quality.yaml``), and which checkpoints hold
them."""

from __future__ import annotations

import re
from functools import lru_cache

from inferplan.catalog.files import config_root, load_model, on_file, spec_of
from inferplan.models.spec import ModelSpec
from inferplan.spec import Spec

_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)")


class QuantisedCheckpoint(Spec):
    """A checkpoint of a model in a format. recovered: its scores over those of the model in its own format."""

    model: str
    quant: str
    checkpoint: str
    recovered: dict[str, float] = {}
    source: str

    def describe(self) -> str:
        """What was published of it, in words; empty where nothing was."""
        if not self.recovered:
            return ""
        scores = ", ".join(f"{share:.1%} of {name}" for name, share in self.recovered.items())
        return f"it keeps {scores} ({self.source})"


class _Quality(Spec):
    checkpoints: list[QuantisedCheckpoint]
    formats: dict[str, str]


@lru_cache(maxsize=1)
def _file() -> _Quality:
    return spec_of(config_root() / "quality.yaml", _Quality)


def quantised_checkpoint(model: ModelSpec, quant: str) -> QuantisedCheckpoint | None:
    """A checkpoint of a model in a format: one whose answers were evaluated, or a release that is on file as a model of
    its own; ``None`` where none is known.
    """
    found = next((one for one in _file().checkpoints if (one.model, one.quant) == (model.name, quant)), None)
    if found is not None:
        return found
    path = on_file("models", f"{model.name}-{quant}")
    if path is None:
        return None
    release = load_model(str(path))
    named = _REPOSITORY.match(release.source)
    if named is None or release.made_from.named:
        return None
    return QuantisedCheckpoint(model=model.name, quant=quant, checkpoint=named[1], source=release.source)


def quality_of(model: ModelSpec, quant: str) -> str:
    """What was published of the answers of a model in a format, in words: of it, else of others in that format."""
    found = quantised_checkpoint(model, quant)
    own = "" if found is None else found.describe()
    if own:
        return own
    others = _file().formats.get(quant)
    none = f"no evaluation of {model.name} in {quant} is on file"
    return f"{none}; {others}" if others else none
