"""The model that drafts for another: one of the catalogue, or the other's own prediction module (MTP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.models.prediction import prediction_model
from inferplan.models.spec import ModelSpec
from inferplan.work.parallel import Parallelism

MTP = "mtp"
"""The name under which a model's own prediction module drafts."""


def load_draft(name: str, target: str, loader: Callable[[str], ModelSpec] = load_model) -> ModelSpec:
    """The model that drafts for ``target``.

    Raises ``UsageError`` for ``mtp`` where the target has no prediction module, or has a vocabulary of another size.
    """
    model = loader(target)
    if name == MTP:
        return prediction_model(model)
    draft = loader(name)
    if abs(draft.vocab - model.vocab) > _PADDING:
        raise UsageError(
            f"{draft.name} cannot draft for {model.name}",
            because=f"their vocabularies differ: {draft.vocab:,} and {model.vocab:,} tokens",
            hint="a smaller model of the same family",
        )
    return draft


_PADDING = 1024
"""Rows by which two tables of one vocabulary may differ: checkpoints of one family are padded differently."""


def draft_beside(
    request: Request, name: str, parallel: Parallelism, loader: Callable[[str], ModelSpec] = load_model
) -> Deployment:
    """The draft on the devices of ``request``'s model, in its formats, divided as ``parallel`` says.

    A draft without experts is not divided into expert groups. Raises what :func:`load_draft` and a division raise.
    """
    draft = load_draft(name, request.model, loader)
    alone = replace(request, prune=None, parallel=Parallelism())
    made = assemble(alone, model_loader=lambda _: draft)
    return replace(made, parallel=parallel if draft.has_experts else replace(parallel, ep=1))
