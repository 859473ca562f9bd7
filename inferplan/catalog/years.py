"""When the architecture of a model appeared (``configs/years.yaml``)."""

from __future__ import annotations

from functools import cache

from inferplan.catalog.files import config_root, spec_of
from inferplan.models.spec import ModelSpec
from inferplan.spec import Spec


class _OnFile(Spec):
    """The file: names of families and of models by year."""

    source: str
    families: dict[int, list[str]]
    models: dict[int, list[str]]


@cache
def _years() -> tuple[dict[str, int], dict[str, int]]:
    found = spec_of(config_root() / "years.yaml", _OnFile)
    both = found.families, found.models
    families, models = ({name: year for year, known in one.items() for name in known} for one in both)
    return families, models


def year_of(model: ModelSpec) -> int | None:
    """The year of a model, else that of its family; ``None`` for a family that is not on file."""
    families, models = _years()
    return models.get(model.name, families.get(model.family))


_HALVED = 16 / 12
"""Years in which half of the parameters come to do as well: half the compute in 8 months (Ho et al., 2403.05812: 5 to
14), of which parameters are the square root (2203.15556)."""


def size_by_age(model: ModelSpec) -> float:
    """The parameters that a model of the newest year on file would have for the same: what models are listed by."""
    families, models = _years()
    newest = max((*families.values(), *models.values()))
    age = newest - (year_of(model) or min(families.values()))
    return float(model.parameters["total"] * 0.5 ** (age / _HALVED))
