"""Counting the tokens of a text before it is sent: by the server's ``/tokenize``, or by the model's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from inferplan.errors import InputFileError, MissingExtraError
from inferplan.measuring.client import Client
from inferplan.measuring.dialect import Api
from inferplan.measuring.stream import MOST_TOKENS

Counter = Callable[[str], Awaitable[int | None]]


def local_counter(folder: Path) -> Counter:
    """Counts with the ``tokenizer.json`` of a model's folder. A chat's template is not counted.

    Raises ``MissingExtraError`` without the package ``tokenizers``, ``InputFileError`` for a folder without the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("--tokenizer needs tokenizers", hint="pip install tokenizers") from None
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare exceptions
        raise InputFileError(f"cannot read {path}", because=str(error)) from None

    async def count(text: str) -> int | None:
        return len(await asyncio.to_thread(lambda: tokenizer.encode(text).ids))

    return count


def remote_counter(client: Client, model: str, api: Api) -> Counter:
    """Counts with ``/tokenize``: of vLLM, a chat with its template, or of llama.cpp, which takes ``content`` and lists
    the tokens, without a template; ``None`` where a server has no such thing."""

    async def count(text: str) -> int | None:
        body: dict[str, Any] = {"model": model, "prompt": text}
        if api == "chat":
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
        url = f"{client.address.root}/tokenize"
        found = (await client.post(url, body)).json
        value = found.get("count") if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(found.get("tokens"), list) and api != "chat" and value is None:
            listed = (await client.post(url, {"content": text, "add_special": True})).json
            tokens = listed.get("tokens") if isinstance(listed, dict) else None
            value = len(tokens) if isinstance(tokens, list) else None
        return value if isinstance(value, int) and 0 < value <= MOST_TOKENS else None

    return count
