"""Checkpoints on disk or on the hub: exact bytes of every tensor, from headers alone, and the config beside them.

A safetensors file begins with a little-endian u64, the length of a JSON header that holds shape, type and byte range of
each tensor. The header of a GGUF file is read by :mod:`inferplan.models.gguf_header`, a hub id through
``huggingface_hub`` (extra ``hub``), which honours ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from inferplan.errors import InputFileError, MissingExtraError, NetworkError, SpecError, UnknownNameError
from inferplan.files import LARGEST_SPEC, announce, parse_json, read_text
from inferplan.models.gguf_header import DamagedError, read_gguf_header

_HEADER_LIMIT = 100_000_000
"""Longest header that the safetensors format allows."""
_LARGEST, _MOST_AXES = 2**63, 64
"""One more than the longest axis that torch has, and the most axes: a product of more is a bomb, not a size."""
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("BF16", "F16", "U16", "I16"), 16),
    **dict.fromkeys(("F32", "U32", "I32"), 32),
    **dict.fromkeys(("F64", "U64", "I64"), 64),
}
"""Bits of an element (``Dtype`` of safetensors); a type that is not here is taken at the bytes of its range."""
CONFIGS = ("config.json", "hf_quant_config.json", "preprocessor_config.json")


def named_by(path: Path) -> str:
    """What a model read from a path is called: a folder's name, its ``config.json``'s too, or that of another file."""
    real = path.resolve()
    return (
        real.name if path.is_dir() else real.parent.name if path.name in CONFIGS else ""
    ).lower() or path.stem.lower()


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What is stored: every tensor, and the folder or file it is from."""

    path: Path
    tensors: list[Tensor]

    @property
    def size(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def elements(self) -> int:
        """Elements as stored; a packed type counts its containers."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def by_dtype(self) -> dict[str, int]:
        """Bytes of each stored type."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.dtype] += tensor.size
        return dict(sizes)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON. Raises ``ValueError`` for a name that is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one safetensors file; no weight is read. Raises ``InputFileError`` when it is not one."""
    try:
        announce(path)
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= _HEADER_LIMIT:
                raise InputFileError(f"{path} is not a safetensors file", because=f"its header length is {length}")
            data = path.stat().st_size - 8 - length
            if data < 0:
                raise InputFileError(f"{path} is cut short", because=f"its header has {length:,} bytes")
            header = json.loads(file.read(length), object_pairs_hook=_each_once)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InputFileError(f"{path} is not a safetensors file", because=f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise InputFileError(f"{path} is not a safetensors file", because="its header is no mapping")
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            begin, end = entry["data_offsets"]
            tensor = Tensor(name=name, dtype=str(entry["dtype"]), shape=tuple(entry["shape"]), size=end - begin)
            if not all(type(length) is int and 0 <= length < _LARGEST for length in (*tensor.shape, begin, end)):
                raise ValueError
            if len(tensor.shape) > _MOST_AXES:
                raise ValueError
            if tensor.size * 8 != tensor.elements * _BITS.get(tensor.dtype, 0) and tensor.dtype in _BITS:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InputFileError(f"{path} is not a safetensors file", because=f"the entry of {name} is wrong") from None
        if not 0 <= begin <= end <= data:
            raise InputFileError(f"{path} is cut short", because=f"{name} ends at byte {end} of {data}")
        tensors.append(tensor)
    return tensors


def read_folder(folder: Path) -> Checkpoint | None:
    """The safetensors of a folder, ``None`` when it has none. A shard that its index names must be there."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = read_json(index).get("weight_map", {})
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise SpecError(f"{index} holds no index", because="its weight_map does not say the file of each tensor")
        missing = sorted({name for name in table.values() if not (folder / name).is_file()})
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputFileError(
                f"{folder} lacks {', '.join(missing[:3])}{more}",
                because=f"{index.name} names them",
                hint=f"{folder / CONFIGS[0]} alone is read without shards",
            )
        files = sorted({folder / name for name in table.values()})
    else:
        # Mistral's folders hold the weights twice: for transformers (model*), and in its own names (consolidated*);
        # Whisper's in two types (model.fp32-00001-of-00002). An adapter beside weights of torch is no model.
        whole = folder / "model.safetensors"
        every = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("adapter")]
        files = [whole] if whole.is_file() else [file for file in every if file.name.startswith("model")] or every
    if not files:
        return None
    return Checkpoint(path=folder, tensors=[tensor for file in files for tensor in read_header(file)])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a mapping. Raises ``InputFileError`` or ``SpecError``."""
    data, _ = parse_json(read_text(path, LARGEST_SPEC), str(path), SpecError)
    if not isinstance(data, dict):
        raise SpecError(f"{path} holds no config", because="its top level is not a mapping")
    return data


_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_gguf(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    """The tensors of a GGUF file, or of every part of a split one, and the metadata of the first.

    Raises ``InputFileError`` for a file that is none, for one that claims what it does not hold, and for a part that is
    not there.
    """
    part = _PART.fullmatch(path.name)
    if part is None:
        return _read_gguf(path)
    files = [path.with_name(f"{part[1]}-{number:05}-of-{part[3]}.gguf") for number in range(1, int(part[3]) + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise InputFileError(f"{path} is one of {len(files)} parts", because=f"not beside it: {', '.join(missing[:3])}")
    read = [_read_gguf(file) for file in files]
    tensors = [tensor for checkpoint, _ in read for tensor in checkpoint.tensors]
    return Checkpoint(path=path, tensors=tensors), read[0][1]


def _read_gguf(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    if not path.is_file():
        raise InputFileError(f"cannot read {path}", because="no such file")
    try:
        announce(path)
        with path.open("rb") as file:
            start = file.read(4)
            if start != b"GGUF":
                raise InputFileError(f"{path} is not a GGUF file", because=f"it begins with {start!r}, not with GGUF")
            file.seek(0)
            entries, metadata = read_gguf_header(file, path.stat().st_size)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except DamagedError as error:
        raise InputFileError(f"{path} is cut short or damaged", because=str(error), hint="download it again") from None
    tensors = [Tensor(name=one.name, dtype=one.dtype, shape=one.shape, size=one.size) for one in entries]
    return Checkpoint(path=path, tensors=tensors), metadata


def _resolves(endpoint: str) -> bool:
    """Whether the hub has an address here: without one its client would try again for half a minute."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, None)
    except OSError:
        return False
    return True


ADAPTER = "adapter_config.json"


def require_model(folder: Path) -> None:
    """Raise ``InputFileError`` for a folder without a config; one of an adapter is told as such."""
    if (folder / CONFIGS[0]).is_file():
        return
    if (folder / ADAPTER).is_file():
        base = read_json(folder / ADAPTER).get("base_model_name_or_path")
        raise InputFileError(
            f"{folder} holds an adapter (LoRA), not a model",
            because=f"it has {ADAPTER} and no {CONFIGS[0]}",
            hint=f"give the model that it adapts: {base}" if base else "give the model that it adapts",
        )
    raise InputFileError(
        f"cannot read a model from {folder}",
        because=f"it has no {CONFIGS[0]}",
        hint="a folder as the hub has it, or a GGUF file",
    )


def hub_cache() -> Path:
    """Where what was downloaded from the hub lies (``HF_HUB_CACHE``, ``HF_HOME``)."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def cached_configs(hub_id: str) -> Path | None:
    """The folder of a hub id in the local cache, read without ``huggingface_hub``.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (refs/main names the snapshot).
    """
    repository = hub_cache() / f"models--{hub_id.replace('/', '--')}"
    try:
        snapshot = repository / "snapshots" / (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        return snapshot if (snapshot / CONFIGS[0]).is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def fetch_configs(hub_id: str, revision: str | None = None) -> Path:
    """The folder with the configs of a hub id, from its cache or the network; without the extra, from the cache alone.

    Raises ``MissingExtraError`` without ``huggingface_hub``, ``UnknownNameError`` for an id that is not there or not
    open to this token, ``NetworkError`` when the hub does not answer.
    """
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.constants import ENDPOINT
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError:
        known = cached_configs(hub_id) if revision is None else None
        if known is not None:
            return known
        raise MissingExtraError(
            f"fetching {hub_id} needs huggingface_hub", hint="pip install 'inferplan[hub]'"
        ) from None
    folder: Path | None = None
    cached = not _resolves(ENDPOINT)
    for file in CONFIGS:
        try:
            folder = Path(hf_hub_download(hub_id, file, revision=revision, local_files_only=cached)).parent
        except LocalEntryNotFoundError as error:
            if file == CONFIGS[0]:
                raise NetworkError(
                    f"cannot fetch {hub_id}",
                    because=str(error).split("\n", 1)[0],
                    hint="what its cache holds is read offline",
                ) from None
        except GatedRepoError:
            raise UnknownNameError(f"{hub_id} is gated", hint="accept its licence and set HF_TOKEN") from None
        except RepositoryNotFoundError:
            raise UnknownNameError(f"the hub has no {hub_id}", hint="or it is private: set HF_TOKEN") from None
        except EntryNotFoundError:
            if file == CONFIGS[0]:
                raise UnknownNameError(f"{hub_id} has no {file}", hint="a GGUF repository: download the file") from None
        except (HfHubHTTPError, OSError) as error:
            raise NetworkError(f"cannot fetch {hub_id}", because=str(error).split("\n", 1)[0]) from None
    assert folder is not None
    return folder
