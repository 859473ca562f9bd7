"""Checkpoints on disk or on the hub: exact bytes of every tensor, from headers alone, and the config beside them.

Headers are read by :mod:`inferplan.models.safetensors_header` and :mod:`inferplan.models.gguf_header`, a hub id through
``huggingface_hub`` (extra ``hub``), which honours ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from inferplan.errors import InputFileError, MissingExtraError, NetworkError, SpecError, UnknownNameError
from inferplan.extras import installs
from inferplan.files import LARGEST_SPEC, announce, parse_json, read_text, reason
from inferplan.models.gguf_header import read_gguf_header
from inferplan.models.header_bytes import DamagedError, Tensor
from inferplan.models.safetensors_header import read_safetensors_header, read_safetensors_index

Header = TypeVar("Header")

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
CONFIGS = ("config.json", "hf_quant_config.json", "preprocessor_config.json")


def named_by(path: Path) -> str:
    """What a model read from a path is called: a folder's name, its ``config.json``'s too, or that of another file."""
    real = path.resolve()
    return (
        real.name if path.is_dir() else real.parent.name if path.name in CONFIGS else ""
    ).lower() or path.stem.lower()


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


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one safetensors file; no weight is read. Raises ``InputFileError`` when it is not one."""
    return _of_header(path, read_safetensors_header, "safetensors")


def _of_header(path: Path, read: Callable[[BinaryIO, int], Header], kind: str) -> Header:
    """What a reader of headers finds in a file. Raises ``InputFileError`` where it is damaged or cannot be read."""
    if not path.is_file():
        raise InputFileError(f"cannot read {path}", because="no such file")
    try:
        announce(path)
        with path.open("rb") as file:
            return read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=reason(error)) from None
    except DamagedError as error:
        raise _damaged(path, kind, error) from None


def _damaged(where: object, kind: str, error: DamagedError) -> InputFileError:
    return InputFileError(f"{where} is no {kind} file, or is cut short or damaged", because=str(error))


def read_folder(folder: Path) -> Checkpoint | None:
    """The safetensors of a folder, ``None`` when it has none.

    Raises ``InputFileError`` where a shard that its index names is not there or lacks a tensor, and where two files
    hold a tensor of one name.
    """
    index, table = folder / INDEX, {}
    if index.is_file():
        table = _of_header(index, read_safetensors_index, "index")
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
        whole = folder / WHOLE
        every = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("adapter")]
        files = [whole] if whole.is_file() else [file for file in every if file.name.startswith("model")] or every
    if not files:
        return None
    return Checkpoint(path=folder, tensors=_together({file.name: read_header(file) for file in files}, table, folder))


def _together(shards: dict[str, list[Tensor]], table: dict[str, str], where: Path) -> list[Tensor]:
    """The tensors of several files. table: which file an index says that each is in.

    Raises ``InputFileError`` for a tensor that two files hold, and for one that is not in its file.
    """
    place: dict[str, str] = {}
    for file, tensors in shards.items():
        for tensor in tensors:
            if (other := place.setdefault(tensor.name, file)) != file:
                raise InputFileError(f"{where / other} and {file} both hold {tensor.name}", hint="keep one of the two")
    absent = [name for name, file in table.items() if place.get(name) != file]
    if absent:
        because = f"{INDEX} says that it has {absent[0]}" + (f" and {len(absent) - 1} more" if absent[1:] else "")
        raise InputFileError(f"{where / table[absent[0]]} lacks tensors", because=because, hint="download it again")
    return [tensor for tensors in shards.values() for tensor in tensors]


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
        raise InputFileError(
            f"{path} is one of {len(files)} parts", because=f"missing next to it: {', '.join(missing[:3])}"
        )
    read = [_read_gguf(file) for file in files]
    tensors = [tensor for checkpoint, _ in read for tensor in checkpoint.tensors]
    return Checkpoint(path=path, tensors=tensors), read[0][1]


def _read_gguf(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    tensors, metadata = _of_header(path, read_gguf_header, "GGUF")
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
    """The folder of a hub id in the local cache, read without ``huggingface_hub`` or a network.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (refs/main names the snapshot).
    """
    repository = hub_cache() / f"models--{hub_id.replace('/', '--')}"
    try:
        snapshot = repository / "snapshots" / (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        return snapshot if (snapshot / CONFIGS[0]).is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def fetch_configs(hub_id: str) -> Path:
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
        known = cached_configs(hub_id)
        if known is not None:
            return known
        raise MissingExtraError(f"fetching {hub_id} needs huggingface_hub", hint=installs("hub")) from None
    folder: Path | None = None
    cached = not _resolves(ENDPOINT)
    for file in CONFIGS:
        try:
            folder = Path(hf_hub_download(hub_id, file, local_files_only=cached)).parent
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


def fetch_headers(hub_id: str, commit: str = "main") -> Checkpoint | None:
    """The tensors of a hub id, from the headers of its safetensors alone; ``None`` where it has none, and
    without ``huggingface_hub`` or a network.

    Ranges of its files are fetched as :mod:`inferplan.models.safetensors_header` asks for them: of each the first
    megabyte, mostly. Raises ``InputFileError`` for headers that are damaged, ``NetworkError`` when the hub does not
    answer.
    """
    try:
        from huggingface_hub import HfFileSystem
        from huggingface_hub.constants import ENDPOINT
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        return None
    hub = HfFileSystem()

    def read(name: str, header: Callable[[BinaryIO, int], Header], kind: str) -> Header:
        try:
            with hub.open(f"{hub_id}@{commit}/{name}", "rb", block_size=2**20) as file:
                return header(file, int(file.size))
        except DamagedError as error:
            raise _damaged(f"{hub_id}/{name}", kind, error) from None

    try:
        try:
            table = read(INDEX, read_safetensors_index, "index")
        except FileNotFoundError:
            table = {}
        names = sorted(set(table.values())) or [WHOLE]
        shards = {name: read(name, read_safetensors_header, "safetensors") for name in names}
    except FileNotFoundError:
        return None
    except (HfHubHTTPError, OSError) as error:
        if not _resolves(ENDPOINT):
            return None
        raise NetworkError(f"cannot fetch the headers of {hub_id}", because=str(error).split("\n", 1)[0]) from None
    return Checkpoint(path=Path(hub_id), tensors=_together(shards, table, Path(hub_id)))
