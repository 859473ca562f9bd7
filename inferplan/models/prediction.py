"""A model's prediction module (multi-token prediction) as the model that drafts for it.

DeepSeek-V3 (2412.19437, eq. 21-23): the hidden state of the last layer and the embedding of the next token, each
normalised, are joined, projected from ``2*d_model`` to ``d_model``, and pass one more layer and the head. As a model of
its own that is an embedding, the projection (two square matrices, one for each half), the module's layers, a norm and
a head. Vocabulary tables that the module does not have of its own are read from the target's.
"""

from __future__ import annotations

from inferplan.errors import UsageError
from inferplan.models.layers.linear import LinearLayer
from inferplan.models.spec import LayerGroup, ModelSpec, Native


def prediction_model(model: ModelSpec) -> ModelSpec:
    """The module of ``model`` as a model; every drafted token is one step of it, as engines run it.

    Raises ``UsageError`` for a model without one, or with several, which no engine on file runs one after another.
    """
    module = model.mtp
    if module is None:
        raise UsageError(
            f"{model.name} has no prediction module to draft with",
            because="its file in the catalogue has no mtp",
            hint="--draft-model with a smaller model of its family, or --draft-model free for n-grams",
        )
    if module.modules > 1:
        raise UsageError(
            f"{model.name} has {module.modules} prediction modules", hint="models with one module can be priced"
        )
    projection = [LayerGroup(mixer=LinearLayer(), ffn=LinearLayer())] if module.projection else []
    borrowed = [name for name, own in (("embedding", module.own_embedding), ("head", module.own_head)) if not own]
    formats = [entry for entry in model.native.exceptions if not entry.layers]
    return ModelSpec(
        name=f"{model.name} mtp",
        source=model.source,
        d_model=model.d_model,
        vocab=model.vocab,
        max_context=model.max_context,
        norm=model.norm,
        layers=[*projection, *module.layers],
        borrowed=borrowed,
        native=Native(**{**dict(model.native), "exceptions": formats}),
    )
