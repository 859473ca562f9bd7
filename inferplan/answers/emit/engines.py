"""The command that starts one replica, under the engine of its deployment."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

from inferplan.answers.emit import atom, llama_cpp, sglang, trtllm, vllm
from inferplan.answers.emit.nodes import one_node
from inferplan.answers.emit.options import refuse_untaken
from inferplan.answers.emit.replica import Launch
from inferplan.errors import UsageError


class EngineCommand(NamedTuple):
    """How an engine is started: its command, the options that its flags can say, and the port it listens at."""

    command: Callable[[Launch], list[str]]
    takes: frozenset[str]
    port: int


ENGINES = {
    "vllm": EngineCommand(vllm.vllm, vllm.TAKES, vllm.PORT),
    "sglang": EngineCommand(sglang.sglang, sglang.TAKES, sglang.PORT),
    "trtllm": EngineCommand(trtllm.trtllm, trtllm.TAKES, trtllm.PORT),
    "atom": EngineCommand(atom.atom, atom.TAKES, atom.PORT),
    "ktransformers": EngineCommand(sglang.ktransformers, sglang.TAKES_EXPERTS, sglang.PORT),
    "llama.cpp": EngineCommand(llama_cpp.llama_cpp, llama_cpp.TAKES, llama_cpp.PORT),
}


def command(launch: Launch) -> list[str]:
    """The words of the command that starts one replica. Raises ``UsageError`` for what its flags cannot say, and for a
    replica over several nodes, which takes one command each (:func:`over_nodes`)."""
    if not one_node(launch):
        ranks = launch.deployment.parallel.ranks
        raise UsageError(
            f"one replica has {ranks} devices, more than the {launch.devices_of_a_node} of one node",
            because="one command, and one pod, starts on one node",
            hint="fewer devices per replica; inferplan emit vllm, sglang or trtllm prints the commands of all nodes",
        )
    return _words(launch)


def _words(launch: Launch) -> list[str]:
    name, model = launch.deployment.engine.name, launch.deployment.model
    if model.encodes and launch.deployment.engine.name != "vllm":
        raise UsageError(
            f"flags for a model that generates nothing, such as {model.name}, are known only for vLLM", hint="emit vllm"
        )
    if model.encoder is not None:
        raise UsageError(
            f"flags for an encoder-decoder such as {model.name} are not supported",
            because="engines count its context and batch by the decoder only, and support it differently",
            hint="use inferplan estimate, simulate or plan instead",
        )
    if name not in ENGINES:
        raise UsageError(f"{name!r} is not an engine that emit can start", hint=f"--engine {', '.join(ENGINES)}")
    if not launch.deployment.engine.defaults.commands:
        raise UsageError(
            f"{launch.deployment.engine.describe()} is priced, but its command line is not supported",
            hint=f"--engine {name} for a version that is",
        )
    refuse_untaken(launch, ENGINES[name].takes)
    return ENGINES[name].command(launch)


def over_nodes(launch: Launch) -> list[list[str]]:
    """The commands of one replica, one for each of its nodes; one alone where it has a single node, and for
    TensorRT-LLM, whose processes Slurm starts on all of them.

    Raises ``UsageError`` for nodes that are not filled, for an engine whose nodes are not started by flags, and where
    nobody says how many devices a node holds.
    """
    engine, parallel, each = launch.deployment.engine, launch.deployment.parallel, launch.devices_of_a_node
    if each is None or one_node(launch):
        return [command(launch)]
    nodes = -(-parallel.ranks // each)
    started = engine.name in (*_NODES, "trtllm")
    if parallel.ranks % each or not started or (parallel.dp > 1 and engine.name == "vllm"):
        raise UsageError(
            f"{engine.describe()} over {nodes} nodes ({parallel.describe()}) is not started by flags alone",
            because=f"a node has {each} devices; vLLM, SGLang and TensorRT-LLM fill whole nodes, vLLM without --dp",
            hint="fewer devices per replica, or another division",
        )
    words = _words(launch)
    if engine.name == "trtllm":
        return [[*trtllm.slurm(nodes, each), *words, "--host", "0.0.0.0"]]
    return [[*words, *_NODES[engine.name](nodes, rank)] for rank in range(nodes)]


_HEAD = "${HEAD:?address of the first node}"
_NODES: dict[str, Callable[[int, int], list[str]]] = {
    "vllm": lambda nodes, rank: [
        *("--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", _HEAD),
        *(["--headless"] if rank else []),
    ],
    "sglang": lambda nodes, rank: [
        *("--nnodes", str(nodes), "--node-rank", str(rank), "--dist-init-addr", f"{_HEAD}:20000"),
    ],
}
"""What tells the nodes of one replica apart."""


def command_line(launch: Launch) -> str:
    """:func:`command` as one shell line."""
    return shell(command(launch))


def shell(words: list[str]) -> str:
    """Words as a line of shell, in which ``${...}`` is left to the shell to fill in."""
    return " ".join(f'"{word}"' if "${" in word else shlex.quote(word) for word in words)


def network_command(launch: Launch) -> list[str]:
    """:func:`command` of a server that other machines reach; vLLM listens on every address by itself."""
    return command(launch) + ([] if launch.deployment.engine.name == "vllm" else ["--host", "0.0.0.0"])
