"""Hugging Face configs to :class:`~inferplan.models.spec.ModelSpec`. The one home of vendor field names.

A field that matters and is not understood is refused by name; so is a load-bearing field that is absent. What does not
matter is listed in :attr:`Imported.ignored`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from inferplan.errors import SpecError, UndescribedError, UnknownFamilyError
from inferplan.models.checkpoint import (
    ADAPTER,
    CONFIGS,
    Checkpoint,
    fetch_configs,
    fetch_headers,
    named_by,
    read_folder,
    read_json,
    require_model,
)
from inferplan.models.huggingface.context import context
from inferplan.models.huggingface.families import ALIASES, FAMILIES, UNKNOWN
from inferplan.models.huggingface.families.absent import absent
from inferplan.models.huggingface.heads import decoder_ends
from inferplan.models.huggingface.inert import inert
from inferplan.models.huggingface.media import with_media
from inferplan.models.huggingface.original_formats import in_tables
from inferplan.models.huggingface.quantisation import apply, read_scheme
from inferplan.models.huggingface.reader import DTYPES, MEDIA, Reader
from inferplan.models.huggingface.stored import compare
from inferplan.models.huggingface.towers import (
    BESIDE,
    SPEAKING,
    TIED_BY_DEFAULT,
    TIED_BY_EITHER,
    TIED_BY_NESTED,
    TIED_BY_NONE,
    UNFLAGGED,
    text_defaults,
    towers,
)
from inferplan.models.spec import ModelSpec, Native

__all__ = [
    "ConfigReading",
    "Imported",
    "UndescribedError",
    "import_config",
    "import_hub",
    "import_path",
    "model_from_config",
]

LANGUAGE_TABLES = ("text_config", "llm_config", "language_config")
"""Fields of a config with towers that describe its language model."""
QUANTISED = ("quantization_config", "quantization")
"""Fields that hold a quantisation; MLX writes its own as the second too."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPEECH = ("talker_config", "token2wav_config", "code2wav_config", "enable_audio_output", "enable_talker")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model and the fields of its config that did not matter."""

    model: ModelSpec
    ignored: list[str]

    def read_from(self, **said: object) -> Self:
        """The same, which says what it was read from: fields of ``made_from``."""
        made = self.model.made_from.model_copy(update=said)
        return replace(self, model=self.model.model_copy(update={"made_from": made}))

    def noting(self, notes: list[str]) -> Self:
        """The same, with notes behind those that the model has."""
        return replace(self, model=self.model.model_copy(update={"notes": [*self.model.notes, *notes]}))


ConfigReading = Callable[[dict[str, Any], str, str, dict[str, Any] | None, dict[str, Any] | None], Imported]
"""What :func:`import_config` is: a config, a name, a source and the two files beside it, to a model."""


def model_from_config(config: dict[str, Any], name: str, source: str) -> ModelSpec:
    """The model that a config describes. Raises ``SpecError`` that names a field it does not understand."""
    return import_config(config, name, source).model


def import_config(
    config: dict[str, Any],
    name: str,
    source: str,
    quantization: dict[str, Any] | None = None,
    preprocessor: dict[str, Any] | None = None,
) -> Imported:
    """As :func:`model_from_config`, with the list of fields that did not matter.

    quantization: the content of ``hf_quant_config.json``, used where the config itself says nothing. preprocessor: that
    of ``preprocessor_config.json``. Raises ``SpecError`` for a value that no config of its kind holds: what it broke is
    its cause.
    """
    tables, said = in_tables(config, name)
    outer, reader = _readers(tables, name)
    try:
        found = _described((outer, reader), tables, source, quantization, preprocessor)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        last = f", after {' and '.join(outer.trail)}" if outer.trail else ""
        raise SpecError(
            f"{name}: the config holds a value that is not understood",
            because=f"{type(error).__name__}: {error}{last}",
            hint="correct the field, or let transformers build it: inferplan import --trace",
        ) from error
    return found.noting([*said, *_own_code(config, found.model.family)])


def _own_code(config: dict[str, Any], family: str) -> list[str]:
    """A note where the checkpoint brings modelling code of its own, which nobody here has read."""
    named = config.get("auto_map")
    classes = [str(value) for key, value in named.items() if "Model" in str(key)] if isinstance(named, dict) else []
    if not classes:
        return []
    whole = next((one for one in classes if one.rpartition(".")[2] in (config.get("architectures") or [])), classes[0])
    return [f"the checkpoint brings code of its own (auto_map: {whole}), which was not read: counted as {family}"]


def _described(
    readers: tuple[Reader, Reader],
    config: dict[str, Any],
    source: str,
    quantization: dict[str, Any] | None,
    preprocessor: dict[str, Any] | None,
) -> Imported:
    """The model that a config describes, by its readers."""
    outer, reader = readers
    name = reader.name
    family = _family(outer, reader)
    dialect = FAMILIES[family]
    text_defaults(outer, reader, family)
    filled = absent(reader)
    fields = dialect.build(reader, dialect)
    if "generation" not in fields:
        fields |= decoder_ends(outer, fields, {str(one.get("model_type")) for one in (outer, reader)})
    fields["max_context"], stretched = context(reader, fields["max_context"], family)
    tied, contradiction = _tied(outer, reader, dialect.tied)
    beside, notes = (fields.pop("towers", []), []) if dialect.whole else towers(outer, reader, int(fields["d_model"]))
    own = fields.pop("native", {})
    native = {"base": _dtype(outer, reader)} | own
    said = _quantised(outer, reader) or quantization
    _understood(outer, reader, family)
    ignored = sorted({*reader.ignored(), *outer.ignored()} - set(LANGUAGE_TABLES))
    try:
        model = ModelSpec.model_validate(
            {
                "name": name,
                "family": family,
                "source": source,
                "tied": tied,
                "notes": [
                    *_unserved(config),
                    *reader.taken(),
                    *filled,
                    *stretched,
                    *contradiction,
                    *fields.pop("notes", []),
                    *notes,
                ],
                **fields,
                "towers": [*fields.get("towers", []), *with_media(beside, outer, preprocessor)],
                "native": native,
            }
        )
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg'].removeprefix('Value error, ')}"
            for detail in error.errors()
        )
        raise SpecError(f"{name}: the config gives no valid model", because=problems) from None
    if said:
        stored, remarks = apply(read_scheme(said, name), model, nested=outer is not reader)
        native_formats = Native.model_validate(own | stored)
        model = model.model_copy(update={"native": native_formats, "notes": [*model.notes, *remarks]})
    return Imported(model=model, ignored=ignored)


def _understood(outer: Reader, reader: Reader, family: str) -> None:
    """Raises ``UndescribedError`` that names the fields which nobody has read and which are not known to be inert."""
    for one in (outer, reader):
        one.skip(*inert(family), *inert(one.config.get("model_type")))
    around = outer.unread() if outer is not reader else []
    reader.require_read(f"{family} config", [f"{outer.prefix}{key}" for key in around if not MEDIA.fullmatch(key)])


def _readers(config: dict[str, Any], name: str) -> tuple[Reader, Reader]:
    """The whole config, and the part that describes the language model: of a model that speaks, within its thinker."""
    prefix = ""
    if isinstance(config.get("thinker_config"), dict):
        config, prefix = _thinker(config, name), "thinker_config."
    outer = Reader(config, name, prefix)
    row = FAMILIES.get(str(config.get("model_type") or "").lower())
    for key in LANGUAGE_TABLES if row is None or not row.whole else ():
        if isinstance(config.get(key), dict):
            outer.skip(key)
            return outer, Reader(config[key], name, f"{prefix}{key}.", outer.trail)
    return outer, outer


def _quantised(outer: Reader, reader: Reader) -> dict[str, Any] | None:
    """The quantisation table."""
    for candidate in (reader, outer):
        table = candidate.get(*QUANTISED)
        if table is not None and not isinstance(table, dict):
            raise candidate.refuse("quantization_config", f"it is {table!r}, not a mapping")
        if table:
            return dict(table)
    return None


def _unserved(config: dict[str, Any]) -> list[str]:
    """What is beside the thinker of a model that speaks, in words."""
    counted = config.get("model_type") in SPEAKING
    beside = [name for name in _SPEECH if isinstance(config.get(name), dict) and not counted]
    return [f"what speaks ({', '.join(beside)}) is not counted"] if "thinker_config" in config and beside else []


def _thinker(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The thinker of a model that speaks, with what speaks where that is counted.

    Raises ``SpecError`` for a new field beside it.
    """
    whole = Reader(config, name)
    whole.skip("thinker_config", *_SPEECH)
    whole.require_read()
    speaks = {key: config[key] for key in _SPEECH if key in config and config.get("model_type") in SPEAKING}
    return {"dtype": config.get("dtype") or config.get("torch_dtype"), **config["thinker_config"], **speaks}


def _family(outer: Reader, reader: Reader) -> str:
    """The row of the table that the config belongs to."""
    for candidate in (reader, outer):
        kind = candidate.get("model_type")
        if kind is not None:
            kind = str(kind).lower()
            kind = ALIASES.get(kind, kind)
            if kind in FAMILIES:
                return kind
            raise UnknownFamilyError(
                f"{reader.name}: the model_type {kind!r} is not understood",
                because=UNKNOWN.get(kind, "counts of a family that is not known would be guesses"),
                hint="give the folder with its tensors, or write the model as a YAML (docs/models.md)"
                + ("; inferplan import --trace --trust-remote-code runs its own code" * ("auto_map" in outer.config)),
            )
    raise UnknownFamilyError(
        f"{reader.name}: the config has no {outer.prefix}model_type", because="the counts depend on it"
    )


def _tied(outer: Reader, reader: Reader, default: bool) -> tuple[bool, list[str]]:
    """The tie flag of the outer or the nested config, the family's default when neither has it; and a note.

    Where they contradict, the outer one holds: transformers ties by it (``get_expanded_tied_weights_keys`` of
    modeling_utils.py), and saves configs whose nested flag it never reads. Some of its classes tie where either says
    so, or know the nested one alone. vLLM goes by the nested one, and so does a config without an outer one.
    """
    names = ("tie_word_embeddings", "weight_tying")
    whole, nested = outer.get(*names), reader.get(*names)
    for said in (whole, nested):
        if said not in (None, True, False):
            raise outer.refuse(f"tie_word_embeddings = {said!r}", "it is neither true nor false")
    kind = str(outer.get("model_type") or "").lower()
    if kind in TIED_BY_NONE:
        notes = ["tie_word_embeddings is true, and its class has a head of its own: taken as false"]
        return False, notes if whole or nested else []
    if outer is not reader and whole is None and kind in BESIDE and kind not in TIED_BY_NESTED | UNFLAGGED:
        return _outer_absent(outer, nested, default)
    if outer is not reader and nested is None and kind in TIED_BY_EITHER | TIED_BY_NESTED:
        nested = default
    if whole is not None and nested is not None and bool(whole) != bool(nested):
        tied = kind in TIED_BY_EITHER or bool(nested if kind in TIED_BY_NESTED else whole)
        said = f"tie_word_embeddings is {whole}, and {nested} in the nested config"
        return tied, [f"{said}: taken as {tied}, as transformers does; vLLM goes by the nested one"]
    said = nested if whole is None else whole
    return default if said is None else bool(said), []


def _outer_absent(outer: Reader, nested: bool | None, default: bool) -> tuple[bool, list[str]]:
    """The tie flag where the outer config has none and its class would take one; a note where the two differ.

    Where the nested config has none either, its class's holds: transformers 4 leaves out what is as its class has it,
    and ties by the nested config; transformers 5, which ties by the outer one, saves both flags.
    """
    kind = str(outer.get("model_type")).lower()
    tied = default if nested is None else bool(nested)
    taken = kind in TIED_BY_DEFAULT or (kind in TIED_BY_EITHER and tied)
    if taken == tied:
        return tied, []
    said = (
        f"tie_word_embeddings is not in the outer config, and {'not' if nested is None else nested} in the nested one"
    )
    return tied, [f"{said}: taken as {tied}, as vLLM does; transformers takes {taken} for the outer one"]


def _dtype(outer: Reader, reader: Reader) -> str:
    """The format of the unquantised tensors; bf16 when the config does not say."""
    said = reader.get("torch_dtype", "dtype") or outer.get("torch_dtype", "dtype") or "bfloat16"
    if not isinstance(said, str) or said not in DTYPES:
        raise outer.refuse(f"torch_dtype = {said!r}", f"only {', '.join(DTYPES)} are known")
    return DTYPES[said]


def import_path(path: Path, read: ConfigReading = import_config) -> Imported:
    """The model of a config file, a checkpoint folder or a GGUF file, and what did not matter.

    Raises ``InputFileError`` when it cannot be read. read: how a config becomes a model. A folder's safetensors headers
    are compared with its config; the config of a GGUF file is its metadata.
    """
    if path.suffix == ".gguf":
        from inferplan.models.gguf import import_gguf

        return Imported(model=import_gguf(path), ignored=[])
    if not path.is_dir():
        config = read_json(path)
        if isinstance(config, dict) and {"schema_version", "plan"} <= config.keys():
            raise SpecError(f"{path} is a plan, not a model", hint=f"inferplan emit vllm {path} (without --gpu)")
        found = read(config, named_by(path), str(path), None, None)
        return found.read_from(file=str(path), sha256=sha256(path.read_bytes()).hexdigest())
    stored = read_folder(path)
    main, beside = path / CONFIGS[0], path / CONFIGS[1]
    if stored is not None and not main.is_file() and not (path / ADAPTER).is_file():
        return Imported(model=_told(path, stored, {}, f"the folder has no {CONFIGS[0]}"), ignored=[])
    require_model(path)
    quantization = read_json(beside) if beside.is_file() else None
    media = path / CONFIGS[2]
    preprocessor = read_json(media) if media.is_file() else None
    fields = read_json(main)
    try:
        found = read(fields, named_by(path), str(main), quantization, preprocessor)
    except UnknownFamilyError as unknown:
        if stored is None:
            raise
        return Imported(model=_told(path, stored, fields, unknown.what), ignored=[])
    found = found.read_from(file=str(main), sha256=sha256(main.read_bytes()).hexdigest())
    if stored is None:
        return found
    said, equal = compare(found.model, stored)
    return found.read_from(tensors=equal).noting(said)


def _told(path: Path, stored: Checkpoint, fields: dict[str, Any], why: str) -> ModelSpec:
    """The model of tensors whose config nobody understands. why: the reason."""
    from inferplan.models.from_tensors import Config, model_of_tensors

    name, kind = named_by(path), fields.get("model_type")
    said = {"name": name, "source": str(path), "family": kind if isinstance(kind, str) else ""}
    return model_of_tensors(stored, Config(fields, name), said, why)


def import_hub(hub_id: str, read: ConfigReading = import_config) -> Imported:
    """The model of a hub id: its configs alone are fetched; of a family that nobody has described, headers too."""
    folder = fetch_configs(hub_id)
    commit = folder.name if _COMMIT.fullmatch(folder.name) else "main"  # the hub's cache has a folder for each
    try:
        found = import_path(folder, read)
    except UnknownFamilyError as unknown:
        stored = fetch_headers(hub_id, commit)
        if stored is None:
            raise
        found = Imported(model=_told(folder, stored, read_json(folder / CONFIGS[0]), unknown.what), ignored=[])
    source = f"https://huggingface.co/{hub_id}/blob/{commit}/config.json"
    name, made = hub_id.rsplit("/", 1)[-1].lower(), found.model.made_from
    if made.file:
        made = made.model_copy(update={"file": source})
    return replace(found, model=found.model.model_copy(update={"name": name, "source": source, "made_from": made}))
