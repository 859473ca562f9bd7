"""The command that starts one replica, under the engine of its deployment."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

from inferplan.answers.emit import llama_cpp, sglang, trtllm, vllm
from inferplan.answers.emit.options import refuse_untaken
from inferplan.answers.emit.replica import Launch
from inferplan.errors import UsageError


class Engine(NamedTuple):
    """How an engine is started: its command, the options that its flags can say, and the port it listens at."""

    command: Callable[[Launch], list[str]]
    takes: frozenset[str]
    port: int


ENGINES = {
    "vllm": Engine(vllm.vllm, vllm.TAKES, vllm.PORT),
    "sglang": Engine(sglang.sglang, sglang.TAKES, sglang.PORT),
    "trtllm": Engine(trtllm.trtllm, trtllm.TAKES, trtllm.PORT),
    "llama.cpp": Engine(llama_cpp.llama_cpp, llama_cpp.TAKES, llama_cpp.PORT),
}


def command(launch: Launch) -> list[str]:
    """The words of the command that starts one replica. Raises ``UsageError`` for what its flags cannot say."""
    name = launch.deployment.engine.name
    if name not in ENGINES:
        raise UsageError(f"{name!r} is no engine that can be started", hint=f"--engine {', '.join(ENGINES)}")
    refuse_untaken(launch, ENGINES[name].takes)
    return ENGINES[name].command(launch)


def command_line(launch: Launch) -> str:
    """:func:`command` as one shell line."""
    return shlex.join(command(launch))


def served(launch: Launch) -> list[str]:
    """:func:`command` of a server that other machines reach; vLLM listens on every address by itself."""
    return command(launch) + ([] if launch.deployment.engine.name == "vllm" else ["--host", "0.0.0.0"])
