"""The command that starts one replica, under the engine of its deployment."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from inferplan.answers.emit.llama_cpp import llama_cpp
from inferplan.answers.emit.replica import Launch
from inferplan.answers.emit.sglang import sglang
from inferplan.answers.emit.trtllm import trtllm
from inferplan.answers.emit.vllm import vllm
from inferplan.errors import UsageError

ENGINES: dict[str, Callable[[Launch], list[str]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "llama.cpp": llama_cpp,
}


def command(launch: Launch) -> list[str]:
    """The words of the command that starts one replica. Raises ``UsageError`` for what its flags cannot say."""
    engine = launch.deployment.engine.name
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is no engine that can be started", hint=f"--engine {', '.join(ENGINES)}")
    if launch.speculation.length and engine != "vllm":
        raise UsageError(f"drafts cannot be written as flags of {engine} here", hint="--engine vllm, or no drafts")
    return ENGINES[engine](launch)


def command_line(launch: Launch) -> str:
    """:func:`command` as one shell line."""
    return shlex.join(command(launch))
