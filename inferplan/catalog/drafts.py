"""The model that drafts for another: one of the catalogue, or the other's own prediction module (MTP) or head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from inferplan.catalog.assemble import Request, assemble, cache_format, precision_of
from inferplan.catalog.backends import Backends, with_backends
from inferplan.catalog.files import load_hardware, load_model, names, read_yaml, validate
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import native_precision
from inferplan.models.prediction import MTP, DraftModels, draft_models, head_models
from inferplan.models.spec import DraftHead, ModelSpec
from inferplan.work.adapters import LoraAsked
from inferplan.work.formats import Precision, find_format, held_by
from inferplan.work.parallel import Parallelism

_PADDING = 1024
"""Rows by which two tables of one vocabulary may differ: checkpoints of one family are padded differently."""
_MUCH_SMALLER = 5
STATED = "--draft-tokens 3 --acceptance 0.7"
"""What a draft without a measured acceptance is stated by."""
_HEADS = {"eagle", "eagle2", "eagle3", "peagle", "dflash", "dspark", "medusa", "hydra"}
"""Names of published kinds of heads, without dashes."""
_HEAD_FIELDS = {"features", "joins_embedding"}
"""What the file of a head has and that of a model has not."""


class DraftDeployments(NamedTuple):
    """A draft on its devices: ``whole``, with all that it keeps there; what runs in the first pass, and in the others.

    block: all tokens come from one pass after the first. reads_states: it takes hidden states of the model.
    """

    whole: Deployment
    first: Deployment
    later: Deployment
    block: bool
    reads_states: bool

    def over(self, parallel: Parallelism) -> DraftDeployments:
        """The same, divided as the model is.

        A draft without experts is not divided into expert groups; one that reads hidden states is on the last stage of
        a pipeline. Raises ``IndivisibleError``.
        """
        division = replace(parallel, pp=1) if self.reads_states else parallel
        if not self.whole.model.has_experts:
            division = replace(division, ep=1, redundant=0)
        known: dict[int, Deployment] = {}
        for part in self[:3]:
            known.setdefault(id(part), replace(part, parallel=division))
        whole, first, later = (known[id(part)] for part in self[:3])
        return self._replace(whole=whole, first=first, later=later)


def load_draft(name: str, target: str, loader: Callable[[str], ModelSpec] = load_model) -> ModelSpec:
    """The model that drafts for ``target``: ``mtp``, one of its ``drafts``, the YAML of a head, or a model.

    Raises ``UsageError`` for ``mtp`` where the target has no prediction module, or has a vocabulary of another size.
    """
    return _load(name, loader(target), loader)[0].whole


def _load(name: str, model: ModelSpec, loader: Callable[[str], ModelSpec]) -> tuple[DraftModels, bool]:
    """The draft as models, and whether it reads hidden states of ``model``."""
    found = draft_models(model, name) or _head_file(name, model)
    if found is not None:
        return found, True
    try:
        draft = loader(name)
    except UnknownNameError as error:
        raise _no_draft(name, model, error, loader) from None
    if abs(draft.vocab - model.vocab) > _PADDING:
        raise UsageError(
            f"{draft.name} cannot draft for {model.name}",
            because=f"their vocabularies differ: {draft.vocab:,} and {model.vocab:,} tokens",
            hint="a smaller model of the same family",
        )
    return DraftModels(draft, draft, draft), False


def _no_draft(name: str, model: ModelSpec, error: UnknownNameError, loader: Callable[[str], ModelSpec]) -> Exception:
    """The error that a draft is not on file: which are, and how a head is stated."""
    own = [*([MTP] if model.mtp else []), *(head.name for head in model.drafts)]
    known = f"--draft {' or '.join(own)} of {model.name} itself, " if own else ""
    if name.lower().replace("-", "") not in _HEADS:
        return UnknownNameError(error.what, error.because, f"{known}--draft free for n-grams; {error.hint}")
    small = smaller_draft(model, loader)
    known += f"--draft {small} {STATED} (a smaller model of its family; 0.5 to 0.9 is usual), " if small else ""
    return UnknownNameError(
        f"no {name} head of {model.name} is on file",
        because="heads are trained for one model each, and their shape is stated in its file or in one of its own",
        hint=f"{known}--draft free {STATED} for n-grams; or state its shape in five lines, --draft head.yaml "
        "(docs/techniques/speculation.md)",
    )


def smaller_draft(model: ModelSpec, loader: Callable[[str], ModelSpec] = load_model) -> str:
    """The smallest model on file of the same family and vocabulary, with a fifth of the parameters at most; empty
    without one."""
    begins, own = model.name.split("-")[0], model.parameters["total"]
    found = [loader(name) for name in names("models") if name.split("-")[0] == begins and name != model.name]
    found = [one for one in found if one.family == model.family and not one.encodes]
    alike = [one for one in found if abs(one.vocab - model.vocab) <= _PADDING]
    alike = [one for one in alike if one.parameters["total"] <= own / _MUCH_SMALLER]
    return min(alike, key=lambda one: one.parameters["total"]).name if alike else ""


def _head_file(name: str, model: ModelSpec) -> DraftModels | None:
    """The head in a YAML of its own; ``None`` for anything else."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    data = read_yaml(path)
    if not isinstance(data, dict) or not _HEAD_FIELDS & data.keys():
        return None
    return head_models(model, validate(path, data, DraftHead))


def draft_alone(request: Request, name: str, loader: Callable[[str], ModelSpec] = load_model) -> DraftDeployments:
    """The draft beside ``request``'s model, on one device.

    A model, and a prediction module, is in the formats asked for; a head in those that it is stored in, with a cache in
    the model's. Raises what :func:`load_draft` raises.
    """
    model = loader(request.model)
    models, reads_states = _load(name, model, loader)
    backends = Backends(engine=request.engine, chosen=request.flags.backends, path=request.calibration)
    skew = request.expert_skew if models.whole.has_experts else None
    alone = replace(
        request, anchor=None, prune=None, generation=(), parallel=Parallelism(), flags=request.flags.of_one_device
    )
    alone = replace(alone, expert_skew=skew, lora=LoraAsked())  # engines change the served model alone by adapters
    if reads_states and name != MTP:
        served = precision_of(replace(request, prune=None), model, load_hardware(request.gpu))
        whole = assemble(replace(alone, quant=None, roles=()), model_loader=lambda _: models.whole)
        whole = replace(whole, precision=head_formats(models.whole, served))
        return deployments(with_backends(whole, backends, strict=False), models, reads_states)
    whole = assemble(alone, model_loader=lambda _: models.whole)
    if name == MTP:
        whole = replace(whole, precision=draft_precision(whole.precision, model))
    return deployments(with_backends(whole, backends, strict=False), models, reads_states)


def head_beside(served: Deployment, name: str) -> DraftDeployments | None:
    """The module or head of that name beside the model of a deployment, on one of its devices; ``None`` where the model
    has no such head.

    Formats are those of :func:`draft_alone`; a module's are the served ones, without exceptions for single layers.
    """
    models = draft_models(served.model, name)
    if models is None:
        return None
    if name == MTP:
        exceptions = tuple(entry for entry in served.precision.exceptions if not entry[2])
        precision = draft_precision(replace(served.precision, exceptions=exceptions), served.model)
    else:
        precision = head_formats(models.whole, served.precision)
    whole = replace(served, model=models.whole, precision=precision, parallel=Parallelism(), media=None, lora=None)
    return deployments(whole, models, True)


def deployments(whole: Deployment, models: DraftModels, reads_states: bool) -> DraftDeployments:
    """A draft of which ``whole`` is on a device, with what runs in its passes there; what is the same is one object."""
    parts = {id(models.whole): whole}
    for one in (models.first, models.later):
        parts.setdefault(id(one), replace(whole, model=one))
    return DraftDeployments(whole, parts[id(models.first)], parts[id(models.later)], models.block, reads_states)


def head_formats(head: ModelSpec, served: Precision) -> Precision:
    """The formats of a head: those that it is stored in, 16 bits as the model's, with a cache in that of the model."""
    kept = "fp8" if served.kv.name == "fp8-ds-mla" else served.kv.name  # of latents
    return replace(held_by(native_precision(head), (served.base.name,)), kv=cache_format(find_format(kept), head))


def draft_precision(precision: Precision, model: ModelSpec) -> Precision:
    """The formats of the prediction module of ``model``: releases in NVFP4 leave it in the base format, or its experts
    in the format that the model's file names.

    ``exclude_modules`` of nvidia's NVFP4 checkpoints names it (DeepSeek-V3.1, V3.2 and V4, GLM-5, 5.1 and 5.2, Qwen3.5
    and 3.6, Nemotron 3.5 Lightning), and SGLang runs it unquantised (``deepseek_nextn.py``).
    """
    base = precision.base
    narrow = [role for role in ("weights", "experts", "activations") if getattr(precision, role).name == "nvfp4"]
    exceptions = tuple(entry for entry in precision.exceptions if entry[1].name != "nvfp4")
    found = dict.fromkeys(narrow, base)
    kept = model.mtp.experts if model.mtp is not None else None
    if kept is not None and "experts" in narrow:
        found["experts"] = find_format(kept)
    if "weights" not in narrow and "activations" in narrow:  # its matrices stay as they are, and so do their inputs
        found["activations"] = find_format(precision.weights.math)
    return replace(precision, exceptions=exceptions, **found)
