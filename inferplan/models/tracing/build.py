"""A config as the model that transformers makes of it, on the meta device: shapes and code, no numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferplan.errors import InputFileError, SpecError, UsageError
from inferplan.models.checkpoint import CONFIGS, read_json
from inferplan.models.huggingface import LANGUAGE_TABLES, QUANTISED
from inferplan.models.huggingface.quantisation import Scheme
from inferplan.models.huggingface.reader import UNIMPORTANT

_AUTO = (
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_MAPPING",
)
"""The Auto classes, in the order in which a config without ``architectures`` is tried."""


@dataclass(frozen=True)
class Asked:
    """What a trace is asked for: the name and the source of the model, its operators (``timed``), and the formats that
    its config says."""

    name: str
    source: str
    timed: bool
    scheme: Scheme | None


@dataclass(frozen=True)
class Traced:
    """A model that was built and what was traced of it.

    prefixes: what the names of each layer's parameters begin with. mixers: of a layer, by its number, the module that a
    described mixer stands for. embedding, head: names of their modules, where it has them.
    """

    built: Any
    prefixes: list[str]
    mixers: Mapping[int, str]
    embedding: str
    head: str


def read_config(path: Path) -> tuple[dict[str, Any], Path]:
    """The fields of a ``config.json``, or of the one in a folder, and that file. Raises ``InputFileError``."""
    file = path / CONFIGS[0] if path.is_dir() else path
    if file.suffix != ".json":
        raise InputFileError(f"{path} has nothing to trace", hint="a config.json, or a folder with one")
    return read_json(file), file


def require_type(fields: dict[str, Any], source: str) -> None:
    """Raise ``SpecError`` for fields that name no type."""
    if not isinstance(fields.get("model_type"), str):
        raise SpecError(f"{source}: no model_type", because="transformers finds a model's class by it")


def unquantised(fields: dict[str, Any], source: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields as transformers builds them, and their quantisation: that of the language model's own table, if any.

    Raises ``SpecError`` for one that is no mapping.
    """
    rest, found = dict(fields), []
    for key in LANGUAGE_TABLES:
        inner = fields.get(key)
        if isinstance(inner, dict):
            rest[key] = dict(inner)
            found += [rest[key].pop(name, None) for name in QUANTISED]
    found += [rest.pop(name, None) for name in QUANTISED]
    said = next(filter(None, found), None)
    if said is not None and not isinstance(said, dict):
        raise SpecError(f"{source}: quantization_config = {said!r} is not understood", because="it is no mapping")
    return rest, said


def read_class(fields: dict[str, Any], source: str) -> tuple[Any, Any]:
    """The config object and the class that the checkpoint names, else the first Auto class that knows the config.

    Raises ``SpecError`` for a model whose code is not in transformers: nothing that a checkpoint brings is run.
    """
    import transformers

    kind = fields["model_type"]
    version = f"transformers {transformers.__version__}"
    if kind not in transformers.CONFIG_MAPPING:
        remote = "auto_map" in fields
        raise SpecError(
            f"{source}: {version} has no model_type {kind!r}",
            because="its code comes with the checkpoint (auto_map), which is not run unasked" if remote else "",
            hint="--trust-remote-code runs it, in a process of its own (docs/tracing.md)"
            if remote
            else "a newer transformers may have it; or describe the model as a YAML (docs/models.md)",
        )
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:
        raise SpecError(
            f"{source}: {version} does not accept it as a {kind} config", because=first_line(error)
        ) from None
    for name in fields.get("architectures") or []:
        named = getattr(transformers, str(name), None)
        wanted = getattr(named, "config_class", None)
        if isinstance(wanted, type) and isinstance(config, wanted):
            return config, named
    import transformers.models.auto.modeling_auto as auto

    for mapping in sorted(_AUTO, key=lambda one: "SEQ" not in one) if config.is_encoder_decoder else _AUTO:
        known = getattr(auto, mapping, {})
        if type(config) in known:
            try:
                found = known[type(config)]
            except ValueError:  # the mapping names a class that this version has not
                continue
            return config, found[0] if isinstance(found, tuple) else found
    raise SpecError(f"{source}: {version} has a config of {kind}, and no model of it")


def require_code(fields: dict[str, Any], file: Path) -> dict[str, str]:
    """The classes that a folder brings, by the Auto class that they stand for.

    Raises ``UsageError`` where it brings none, or where their code is not in the folder.
    """
    classes = fields.get("auto_map")
    classes = {key: name for key, name in classes.items() if isinstance(name, str)} if isinstance(classes, dict) else {}
    if "AutoConfig" not in classes:
        raise UsageError(
            f"{file}: there is no code to trust",
            because="its auto_map names no AutoConfig",
            hint="leave --trust-remote-code out",
        )
    for name in classes.values():
        if "--" in name or not (file.parent / f"{name.partition('.')[0]}.py").is_file():
            raise UsageError(
                f"{file}: the code of {name} is not in the folder", hint="download the folder with its .py files"
            )
    return classes


def read_own_class(fields: dict[str, Any], file: Path) -> tuple[Any, Any]:
    """As :func:`read_class`, from the code that the folder brings. Raises ``SpecError`` for code that does not run."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    classes = require_code(fields, file)
    known = next(
        (key for key in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModel") if key in classes), None
    )
    if known is None:
        raise SpecError(f"{file}: its auto_map names no model", because=f"it has {', '.join(classes)}")
    try:
        made = [get_class_from_dynamic_module(classes[key], str(file.parent)) for key in ("AutoConfig", known)]
        return made[0].from_dict(fields), made[1]
    except Exception as error:
        raise SpecError(f"{file}: the code of the checkpoint does not load", because=first_line(error)) from None


def _is_nowhere(name: str) -> bool:
    """Whether no class has to name a field: what is private, and what changes no count of any model."""
    return name.startswith("_") or UNIMPORTANT.fullmatch(name) is not None


def unnamed(fields: dict[str, Any], config: Any, prefix: str = "") -> list[str]:
    """Fields of a file that the config's class does not name, by their paths: it keeps them, and its code may read none
    of them."""
    try:
        named = set(type(config)().to_dict())
    except Exception:
        return []  # a class without defaults names nothing
    named |= set(getattr(config, "attribute_map", {}))
    found = [f"{prefix}{name}" for name in fields if name not in named and not _is_nowhere(name)]
    for name, inner in fields.items():
        if isinstance(inner, dict) and hasattr(getattr(config, name, None), "attribute_map"):
            found += unnamed(inner, getattr(config, name), f"{prefix}{name}.")
    return sorted(found)


def build(config: Any, model_class: Any, source: str, wide: bool = False, meta_only: bool = False) -> Any:
    """The model in bfloat16 (in float32 where it is ``wide``) on the meta device, ready to be recorded.

    meta_only: no tensor of numbers is made on the way there. Raises ``SpecError`` where it cannot be built.
    """
    import torch
    from transformers import PretrainedConfig

    from inferplan.models.tracing.record import ATTENTION, quiet

    dtype = torch.float32 if wide else torch.bfloat16
    try:
        with quiet(), torch.device("meta"):
            model = _make(model_class, config, dtype)
    except Exception as first:
        try:
            if meta_only:
                raise first
            with quiet(), _weightless():
                model = _make(model_class, config, dtype).to("meta")
        except Exception:
            raise SpecError(
                f"{source}: transformers does not build a {model_class.__name__} of it", because=first_line(first)
            ) from None
    for module in model.modules():
        inner = getattr(module, "config", None)
        if isinstance(inner, PretrainedConfig):
            inner._attn_implementation_internal = ATTENTION
            inner._experts_implementation_internal = "grouped_mm"
    return model.eval()


def _make(model_class: Any, config: Any, dtype: Any) -> Any:
    from copy import deepcopy

    return model_class._from_config(deepcopy(config), attn_implementation="eager", dtype=dtype)


@contextmanager
def _weightless() -> Iterator[None]:
    """Parameters go to the meta device as they are registered, for code that reads numbers while it builds."""
    import torch

    register = torch.nn.Module.register_parameter

    def away(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        if parameter is not None:
            kept = module._parameters[name]
            module._parameters[name] = torch.nn.Parameter(kept.to("meta"), requires_grad=False)

    torch.nn.Module.register_parameter = away
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def first_line(error: BaseException) -> str:
    """The first line of an error of a library."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
