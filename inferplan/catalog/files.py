"""Names to specs: a catalogue name, an alias or a path to a YAML; errors with file, line, field and reason."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache, partial
from itertools import dropwhile
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from inferplan.catalog.file_cache import made_once, read_cached
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import (
    InputFileError,
    MissingExtraError,
    NetworkError,
    SpecError,
    UnknownNameError,
    UsageError,
)
from inferplan.files import LARGEST_SPEC, read_text
from inferplan.models.spec import YARN, ModelSpec, with_yarn
from inferplan.spec import Spec

if TYPE_CHECKING:
    from inferplan.devices.mig import MigTable
    from inferplan.models.huggingface import ConfigReading, Imported

SpecType = TypeVar("SpecType", bound=Spec)
_MAC = re.compile(r"\b(i?mac|mac-?(book|studio|mini|pro)\w*)\b")
"""Computers of Apple's, which are sold with several chips."""
_MAC_WITH_CHIP = re.compile(r"(?:i?mac|mac-?book|mac-?studio|mac-?mini)(?:-(?:studio|mini|pro|air))*-(?=m\d)")
"""A computer of Apple's in front of the name of its chip."""
_SIZED = re.compile(r"(?P<device>.+?)-(?P<size>\d+)-?gi?b")
"""A device with the memory that it is sold with: rtx-4090-24gb."""
_LABEL = re.compile(r"^  label: \D*(\d+)", re.MULTILINE)
_ALIASES = re.compile(rb"^aliases: *\[(.*?)\]", re.MULTILINE)
_LONGEST_NAME = 200
"""No file of the catalogue has a longer one, and most file systems refuse one of 256 bytes."""
_SINGULAR = {
    "models": "model",
    "hardware": "GPU",
    "engines": "engine",
    "workloads": "workload",
    "classes": "file of classes",
    "sessions": "file of sessions",
    "profiles": "profile",
    "services": "file of models",
    "horizons": "file of months",
    "regions": "file of regions",
}
PROFILE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)
"""A profile of Multi-Instance GPU, behind a device and a colon."""
_MAKERS = frozenset(("nvidia", "amd", "intel", "google", "aws", "apple", "instinct", "geforce", "tesla"))
"""Makers and their brands, which tools put before a device's name."""
_HUB_ID = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]{0,94}\w)?")
_VARIANT = re.compile(r"-(instruct|chat|it|base)(?=-)")
"""A variant inside a name: Mistral-7B-Instruct-v0.3."""
_SAYS_VARIANT = re.compile(r"-(instruct|chat|it|base)(?=-|$)", re.IGNORECASE)
_SUFFIXES = ("-hf", "-instruct", "-chat", "-base", "-it")


@cache
def config_root() -> Path:
    """The folder of the shipped configs: inside the installed package, else beside the package in a checkout."""
    package = Path(__file__).parents[1]
    for root in (package / "configs", package.parent / "configs"):
        if root.is_dir():
            return root
    raise InputFileError("the shipped configs are missing", because=f"neither in nor beside {package}")


def names(kind: str) -> list[str]:
    """Every name of a kind of config: ``models``, ``hardware``, ``engines``, ``workloads``, ``classes``, ..."""
    return sorted(path.stem for path in (config_root() / kind).glob("*.yaml"))


def normalise(name: str) -> str:
    """A name as the catalogue writes it: lower case, no vendor, no leading ``Meta-``, none of the trailing variants."""
    short = name.lower().rstrip("/").rsplit("/", 1)[-1].removeprefix("meta-")
    changed = True
    while changed:
        changed = False
        for suffix in _SUFFIXES:
            if short.endswith(suffix):
                short, changed = short.removesuffix(suffix), True
    return short


def variant(name: str) -> str | None:
    """The variant that a name states: ``"instruct"`` (of ``-chat`` and ``-it`` too), ``"base"`` or ``None``."""
    found = _SAYS_VARIANT.search(name.rstrip("/").rsplit("/", 1)[-1])
    return None if found is None else "base" if found[1].lower() == "base" else "instruct"


def aliases(kind: str) -> dict[str, str]:
    """Alias to name, from a scan of the files' text; nothing is parsed."""
    table: dict[str, str] = {}
    folder = str(config_root() / kind)
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".yaml"):
            continue
        with open(f"{folder}/{entry}", "rb", buffering=0) as file:  # hundreds of files: no decoder, no buffer
            match = _ALIASES.search(file.read(2000))
        if match:
            name, said = entry.removesuffix(".yaml"), match[1].decode()
            table |= {alias.strip(" \"'").lower(): name for alias in said.split(",") if alias.strip()}
    return table


def _exists(name: str) -> bool:
    """Whether a path exists; a name too long for the file system does not."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _candidates(kind: str, name: str) -> list[str]:
    """How a name may stand in the catalogue, as typed first; a model without its owner and variant, a device with
    dashes for blanks and without its maker."""
    typed = name.lower()
    if kind == "models":
        short = normalise(name)
        return [typed, typed.rsplit("/", 1)[-1], short, _VARIANT.sub("", short)]
    if kind != "hardware":
        return [typed]
    dashed = "-".join(typed.split())
    words = dashed.split("-")
    rest = "-".join(dropwhile(_MAKERS.__contains__, words)) or dashed
    return list(dict.fromkeys([typed, dashed, rest, _MAC_WITH_CHIP.sub("", rest, count=1)]))


def find(kind: str, name: str) -> Path:
    """The file of a name, an alias or a path. Raises ``UnknownNameError`` with close matches."""
    if name.startswith(("./", "../", "/")) and not _exists(name):
        raise InputFileError(f"cannot read {name}", because="no such file or folder")
    looks_like_path = "/" in name or name.startswith(".")
    if name.endswith((".yaml", ".yml", ".json", ".gguf")) or (looks_like_path and _exists(name)):
        return Path(name)
    if len(name) > _LONGEST_NAME:
        raise UnknownNameError(f"no name has {len(name)} characters", hint="a name or a path")
    found = on_file(kind, name)
    if found is not None:
        return found
    options = [*names(kind), *aliases(kind)]
    close = _close(_candidates(kind, name)[-1], options)
    singular = _SINGULAR.get(kind, kind)
    listing = {"models": "inferplan models", "hardware": "inferplan gpus"}.get(kind, f"one of {', '.join(options)}")
    if kind == "models" and _exists(name) and Path(name).is_dir():
        raise UnknownNameError(f"no model named {name!r}", hint=f"./{name} for the folder of that name")
    if kind == "hardware" and (sized := _with_size(_candidates(kind, name)[-1])) is not None:
        path, size = sized
        if "up to" in path.read_text(encoding="utf-8"):
            raise UnknownNameError(
                f"no GPU named {name!r}",
                hint=f"memory apart: --gpu {path.stem} --memory {size}GB, or --have 1x-{path.stem} --memory {size}GB",
            )
        raise UnknownNameError(
            f"no GPU named {name!r}", hint=f"{path.stem}, which has another memory; or see {listing}"
        )
    if kind == "hardware" and (inside := _inside(name.lower())):
        raise UnknownNameError(f"no GPU named {name!r}", hint=f"{inside}; or see {listing}")
    several = [one.strip() for one in name.split(",")]
    if kind == "engines" and len(several) > 1 and all(on_file(kind, one) for one in several):
        others = " ".join(f"--vs engine={one}" for one in several[1:])
        raise UnknownNameError("--engine takes one engine", hint=f"inferplan compare --engine {several[0]} {others}")
    path_to = "a path to a YAML" + (" or to a config.json of Hugging Face" if kind == "models" else "")
    raise UnknownNameError(
        f"no {singular} named {name!r}",
        hint=(f"did you mean {', '.join(close)}? " if close else "") + f"see {listing}, or give {path_to}",
    )


def on_file(kind: str, name: str) -> Path | None:
    """The file of a name or an alias in the catalogue; ``None`` where it has none."""
    if len(os.fsencode(name)) > _LONGEST_NAME:  # file systems count bytes
        return None
    folder, candidates = config_root() / kind, _candidates(kind, name)
    for candidate in candidates:
        path = folder / f"{candidate}.yaml"
        if "/" not in candidate and path.is_file():
            return path
    known = aliases(kind)
    found = next((folder / f"{known[one]}.yaml" for one in candidates if one in known), None)
    if found is None and kind == "hardware" and (sized := _with_size(candidates[-1])) is not None:
        path, size = sized
        label = _LABEL.search(path.read_text(encoding="utf-8"))
        return path if label is not None and label[1] == size else None
    return found


def _with_size(name: str) -> tuple[Path, str] | None:
    """The file of a device that is named with a size of memory, and the size [GB]."""
    sized = _SIZED.fullmatch(name)
    path = None if sized is None else on_file("hardware", sized["device"])
    return None if sized is None or path is None else (path, sized["size"])


def _inside(computer: str) -> str:
    """Which GPU a computer or a cloud's instance of this name has; empty for other names."""
    if _MAC.search(computer.replace(" ", "-")):
        return "the chip of the Mac: m4-max, m3-ultra (Apple menu, About This Mac)"
    sold = re.compile(rf"\{{name: {re.escape(computer)}, gpu: ([^,]+), gpus: (\d+)")
    for path in sorted((config_root() / "prices").glob("*.yaml")):
        if found := sold.search(path.read_text(encoding="utf-8")):
            return f"{computer} has {found[2]}: {found[2]}x-{found[1]}"
    return ""


def _close(name: str, known: list[str], most: int = 4, cutoff: float = 0.55) -> list[str]:
    """Those most like a name that is not known."""
    from difflib import get_close_matches

    return get_close_matches(name, known, n=most, cutoff=cutoff)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; one written as JSON, which is YAML too, is read fifty times faster.

    Raises ``InputFileError`` when it cannot be read, ``SpecError`` when it is no YAML.
    """
    text = read_text(path, LARGEST_SPEC)
    if text.startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            pass  # a flow mapping that is YAML only
        except (ValueError, RecursionError) as error:  # an integer that is none, nesting without end
            raise SpecError(f"{path}: not YAML", because=str(error)) from None
    from inferplan.catalog.yaml_text import parse

    return parse(path, text)


def at_line(path: Path, *field: str | int) -> str:
    """A file with the line on which a field of it stands: ``"own.yaml:12"``."""
    from inferplan.catalog.yaml_text import line_of  # YAML is read where a line is named, and not at start

    return f"{path}:{line_of(path, field)}"


def validate(path: Path, data: Any, spec: type[SpecType]) -> SpecType:
    """Data as a spec. Raises ``SpecError`` that lists every problem as ``file:line: field: reason``."""
    try:
        return spec.model_validate(data)
    except ValueError as error:
        from pydantic import ValidationError  # here: what is read every time is imported with the first fault

        from inferplan.catalog.yaml_text import line_of

        if not isinstance(error, ValidationError):
            raise
        problems = []
        for detail in error.errors():
            location = tuple(part for part in detail["loc"] if part != "[key]")  # a name itself: where it stands
            field = ".".join(str(part) for part in location) or "(top level)"
            line = line_of(path, location)
            reason = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "extra_forbidden":
                reason = f"unknown field{_suggest(spec, location)}"
            elif detail["type"] == "model_type" and not location:
                reason = "empty" if detail["input"] is None else f"{str(detail['input'])[:40]!r} where fields belong"
            problems.append(f"{path}:{line}: {field}: {reason}" if line else f"{path}: {field}: {reason}")
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise SpecError(
            f"{path} is not a valid {spec.__name__} ({count})", because="\n  ".join(["", *problems])
        ) from None


def _suggest(spec: type[Spec], location: tuple[str | int, ...]) -> str:
    """The field nearest to one that is unknown, of the spec that it stands in; of unions, none."""
    for part in location[:-1]:
        hint = spec.spec_hints().get(part) if isinstance(part, str) else None
        inner = _specs(hint) if hint is not None else [spec] if isinstance(part, int) else []
        if len(inner) != 1:
            return ""
        spec = inner[0]
    close = _close(str(location[-1]), list(spec.spec_fields), most=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _specs(annotation: Any) -> list[type[Spec]]:
    """The specs that a type names."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [one for part in get_args(annotation) for one in _specs(part)]


def load(kind: str, name: str, spec: type[SpecType]) -> SpecType:
    """The spec of a name, alias or path."""
    return spec_of(find(kind, name), spec)


def spec_of(path: Path, spec: type[SpecType]) -> SpecType:
    """The spec in a file. One that is shipped is read when it has changed (:mod:`inferplan.catalog.file_cache`)."""

    def read() -> tuple[SpecType, list[Path]]:
        of = Path(str(sys.modules[spec.__module__].__file__))  # rooms above this one have specs of their own
        data = read_yaml(path)
        lender = lender_of(data)
        return validate(path, data if lender is None else _borrowed(data, read_yaml(lender)), spec), [
            path,
            of,
            *([] if lender is None else [lender]),
        ]

    return read_cached(path, spec.__name__, read) if _is_shipped(path) else read()[0]


def lender_of(data: Any) -> Path | None:
    """The file of the engine whose server another one's data say that it runs (``lent``)."""
    lent = data.get("lent") if isinstance(data, dict) else None
    if not isinstance(lent, dict) or lent.get("server") is not True or not isinstance(lent.get("engine"), str):
        return None
    return find("engines", lent["engine"])


def _borrowed(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Data of an engine with what it does not state from another engine's, beneath each version its newest."""
    versions, newest = own.get("versions"), other["versions"][-1]
    if isinstance(versions, list):
        own = own | {"versions": [newest | one if isinstance(one, dict) else one for one in versions]}
    return {key: value for key, value in other.items() if key != "checkpoints"} | own


def _is_shipped(path: Path) -> bool:
    return path.is_relative_to(config_root()) and path.is_file()


def load_model(name: str) -> ModelSpec:
    """A model by name, alias or path; a config, a checkpoint folder, a GGUF file or a hub id is imported."""
    try:
        path = find("models", name)
    except (UnknownNameError, InputFileError):
        return _elsewhere(name)
    if path.is_dir() or path.suffix in (".json", ".gguf"):
        return _import_path(path).model
    if _is_shipped(path):
        return read_cached(path, "model", lambda: (_from_yaml(path), [path, *_bases(path)]))
    return _from_yaml(path)


def _from_yaml(path: Path) -> ModelSpec:
    data = read_yaml(path)
    if isinstance(data, dict) and "derive" in data:
        return _derived(path, data)
    return validate(path, data, ModelSpec)


def _elsewhere(name: str) -> ModelSpec:
    """A model whose name is not on file: one that is, with its longer context; from the hub; or a quantised sibling of
    one that is."""
    from inferplan.catalog.siblings import sibling

    if name.lower().endswith(YARN) and (base := _on_file(name[: -len(YARN)])) is not None:
        return _stretched(base)
    try:
        if not _HUB_ID.fullmatch(name):
            find("models", name)  # raises
        return _from_hub(name)
    except UnknownNameError:
        found = sibling(name, _on_file)
        if found is None:
            raise
        return found


def _stretched(model: ModelSpec) -> ModelSpec:
    """A model with the longer context of its card. Raises ``UnknownNameError`` where none is on file."""
    if (found := with_yarn(model)) is not None:
        return found
    raise UnknownNameError(
        f"no longer context of {model.name} by YaRN is on file",
        hint=f"a YAML with derive: {{from: {model.name}}} and yarn: {{context, factor, original, theta, source}}",
    )


def _on_file(name: str) -> ModelSpec | None:
    try:
        return load_model(str(find("models", name)))
    except (UnknownNameError, InputFileError):
        return None


def _from_hub(name: str) -> ModelSpec:
    """A model that is not in the catalogue, from the hub; where the hub fails, the name is unknown and it says why."""
    try:
        return find_source(name).model
    except (NetworkError, MissingExtraError) as error:
        known = [*names("models"), *aliases("models")]
        close = _close(normalise(name), known)
        raise UnknownNameError(
            f"no model named {name!r} in the catalogue, and the hub was not reached",
            because=f"{error.what}{f': {error.hint}' if error.hint else ''}",
            hint=(f"did you mean {', '.join(close)}? " if close else "see inferplan models, ")
            + "or give the path of its config.json",
        ) from None


_OWN = (
    *("name", "aliases", "source", "made_from", "licence", "notes", "vocab", "max_context", "tied", "towers", "native"),
    *("yarn", "generation", "published", "instruct_checkpoint", "drafts"),
)
"""What a derived model may say of itself; the rest is its base's."""
_NOT_OF_A_BASE = ("aliases", "made_from", "licence", "yarn", "published", "drafts", "instruct_checkpoint")
"""What a derived model does not take from its base."""


def _derived(path: Path, data: dict[str, Any]) -> ModelSpec:
    """A YAML with ``derive: {from: NAME}``: the layers of another model, pruned where ``prune`` names axes."""
    from inferplan.models.prune import prune

    rule = data["derive"]
    extra = [key for key in data if key not in (*_OWN, "derive")]
    if not isinstance(rule, dict) or not {"from"} <= set(rule) <= {"from", "prune"} or extra:
        raise SpecError(
            f"{at_line(path, 'derive')}: a derived model has {', '.join(_OWN)} and derive: {{from, prune}}",
            because=f"also found: {', '.join(extra)}" if extra else "",
            hint="derive: {from: nemotron-4-15b, prune: {d_model: 4096, d_ff: 16384}}",
        )
    cuts = rule.get("prune", {})
    axes = {str(axis): size for axis, size in cuts.items()} if isinstance(cuts, dict) else {"prune": cuts}
    wrong = [axis for axis, size in axes.items() if not _is_number(size)]
    if wrong:
        at = at_line(path, "derive", "prune", wrong[0])
        raise SpecError(f"{at}: derive.prune: {', '.join(wrong)} must be a number")
    where = f"{at_line(path, 'derive', 'from')}: derive.from"
    if not isinstance(rule["from"], str):
        raise SpecError(f"{where}: it is {rule['from']!r}, not the name of a model")
    if path.resolve() in _bases(path):
        raise SpecError(f"{where}: a model cannot derive from itself")
    try:
        base, name = load_model(rule["from"]), data.get("name") or path.stem
    except UnknownNameError as error:
        raise SpecError(f"{where}: {error.what}", because=error.because, hint=error.hint) from None
    base = prune(base, axes, name=name) if axes else base
    own = {key: value for key, value in data.items() if key != "derive"}
    kept = {key: value for key, value in base.to_dict().items() if key not in _NOT_OF_A_BASE}
    return validate(path, kept | {"name": name} | own, ModelSpec)


def _is_number(size: Any) -> bool:
    """Whether it is a finite number: no switch, and no integer beyond what a float holds."""
    try:
        return isinstance(size, (int, float)) and not isinstance(size, bool) and isfinite(size)
    except OverflowError:
        return False


def _bases(path: Path) -> list[Path]:
    """The files of a model's base, of its base and so on, as far as they are YAMLs; one that returns ends them."""
    found: list[Path] = []
    while True:
        try:
            data = read_yaml(path) if path.suffix in (".yaml", ".yml") else None
            rule = data.get("derive") if isinstance(data, dict) else None
            if not isinstance(rule, dict) or not isinstance(rule.get("from"), str):
                return found
            path = find("models", rule["from"]).resolve()
        except (InputFileError, SpecError, UnknownNameError):
            return found
        if path in found:
            return found
        found.append(path)


def find_source(name: str) -> Imported:
    """What ``inferplan import`` reads: a config, a checkpoint folder, a GGUF file or a hub id.

    Raises ``UsageError`` for the name of a model that is a YAML already.
    """
    path = Path(name)
    if _HUB_ID.fullmatch(name) and not path.exists():
        from inferplan.models.huggingface import import_hub

        return import_hub(name, _reading())
    if path.suffix in (".yaml", ".yml") or not (path.exists() or path.suffix in (".json", ".gguf")):
        raise UsageError(
            f"{name} is nothing to import",
            hint="a Hugging Face config (.json), a checkpoint folder, a GGUF file or a hub id such as Qwen/Qwen3-8B",
        )
    return _import_path(path)


def _import_path(path: Path) -> Imported:
    from inferplan.models.huggingface import import_path

    return import_path(path, _reading())


def _reading() -> ConfigReading:
    from inferplan.catalog.readings import read_either

    return partial(read_either, made_once)


def load_hardware(name: str) -> HardwareSpec:
    """An accelerator by name, alias or path; ``h100-sxm:3g.40gb`` is one of its MIG instances."""
    device, colon, profile = name.rpartition(":")
    if colon and PROFILE.fullmatch(profile):
        from inferplan.devices.mig import instance_of

        whole = load("hardware", device, HardwareSpec)
        own = (config_root() / "calibration" / f"{whole.name}.yaml").is_file()
        measured = whole.name if own or whole.relative is None else whole.relative
        return instance_of(whole, profile.lower(), mig_table(), measured)
    return load("hardware", name, HardwareSpec)


@cache
def mig_table() -> MigTable:
    """Every profile of Multi-Instance GPU on file."""
    from inferplan.devices.mig import MigTable

    return spec_of(config_root() / "mig.yaml", MigTable)


def device_name(name: str) -> str:
    """The device's own name, whatever alias was typed; a file stays a path, for it may bear the name of one on file."""
    spec = load_hardware(name)
    return spec.name if spec.part or find("hardware", name).is_relative_to(config_root()) else name
