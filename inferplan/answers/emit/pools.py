"""Prompts and decodes on servers of their own: the command of each, and of the router that joins them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from inferplan.answers.emit.engines import ENGINES, network_command, over_nodes, shell
from inferplan.answers.emit.replica import Launch, Role, in_role
from inferplan.answers.emit.sglang import ROUTER as SGLANG_ROUTER
from inferplan.answers.emit.sglang import sglang_router
from inferplan.answers.emit.trtllm import ROUTER as TRTLLM_ROUTER
from inferplan.answers.emit.trtllm import trtllm_config, trtllm_router_config
from inferplan.answers.emit.vllm import ROUTER as VLLM_ROUTER
from inferplan.answers.emit.vllm import SIDE_CHANNEL, vllm_router
from inferplan.errors import UsageError

ROUTERS: dict[str, tuple[str, Callable[[list[str], list[str]], list[str]]]] = {
    "vllm": (VLLM_ROUTER, vllm_router),
    "sglang": (SGLANG_ROUTER, sglang_router),
}
"""The router of an engine with its version, and its command for the addresses of both pools."""
ROUTER_FILE = "disaggregated.yaml"


class Pools(NamedTuple):
    """How many servers compute prompts and how many decode. prompts: how the former are started, where not alike."""

    prefill: int
    decode: int
    prompts: Launch | None = None

    def of(self, launch: Launch) -> list[tuple[Role, int, Launch]]:
        """Each role with its servers and how one is started, beside servers that decode and are started so."""
        return [("prefill", self.prefill, self.prompts or launch), ("decode", self.decode, launch)]


class RoleCommand(NamedTuple):
    """The command of the servers of one role (or of the router), and the files it reads: name to content, as JSON."""

    words: list[str]
    files: dict[str, str]


def server(launch: Launch, role: Role, folder: str = "") -> RoleCommand:
    """How each server of a pool is started. folder: where it finds its files.

    Both pools make the same drafts: the draft's cache of a prompt comes with the model's (vLLM's NixlConnector matrix,
    docs.vllm.ai/en/stable/features/nixl_connector_compatibility; SGLang's pull request 26445; TensorRT-LLM's
    docs/source/features/feature-combination-matrix.md). Raises ``UsageError`` for an engine without pools.
    """
    engine = launch.deployment.engine.name
    if engine != "trtllm" and engine not in ROUTERS:
        raise UsageError(f"{engine} has no pools of its own for prompts and decodes", hint="plan with --aggregated")
    own = in_role(launch, role)
    if engine != "trtllm":
        return RoleCommand(network_command(own), {})
    name = f"{role}.yaml"
    return RoleCommand(network_command(replace(own, extra=f"{folder}{name}")), {name: json.dumps(trtllm_config(own))})


def router(launch: Launch, prefill: list[str], decode: list[str], folder: str = "") -> RoleCommand:
    """How the router is started. prefill, decode: ``host:port`` of every server."""
    engine = launch.deployment.engine.name
    if engine == "trtllm":
        config = json.dumps(trtllm_router_config(prefill, decode))
        return RoleCommand(["trtllm-serve", "disaggregated", "-c", f"{folder}{ROUTER_FILE}"], {ROUTER_FILE: config})
    _, made = ROUTERS[engine]
    return RoleCommand(made([f"http://{host}" for host in prefill], [f"http://{host}" for host in decode]), {})


def router_name(engine: str) -> str:
    """The router of an engine, with its version."""
    return ROUTERS[engine][0] if engine in ROUTERS else TRTLLM_ROUTER


def script(launch: Launch, pools: Pools) -> str:
    """The commands of both pools and of their router as shell text; hosts are variables that must be set.

    A shell stops at a variable that is not set and says which: no host is guessed.
    """
    engine, port = launch.deployment.engine, ENGINES[launch.deployment.engine.name].port
    parts = []
    hosts: dict[Role, list[str]] = {}
    for role, count, own in pools.of(launch):
        devices = _devices(own, pools.prompts is not None)
        parts.append(f"# {count} {role} server{'s' if count > 1 else ''}, {engine.describe()}, {devices} each")
        name = f'{SIDE_CHANNEL}="${{HOST:?address of this server for the others}}" ' if engine.name == "vllm" else ""
        parts.append(_shell(server(own, role), name))
        hosts[role] = [
            f"${{{role.upper()}_{index}:?host of {role} server {index}}}:{port}" for index in range(1, count + 1)
        ]
    parts.append(f"# the router: {router_name(engine.name)}")
    parts.append(_shell(router(launch, hosts["prefill"], hosts["decode"])))
    return "\n".join(parts)


def _devices(launch: Launch, named: bool) -> str:
    """``"2 devices"``, or with their name where the pools are not alike."""
    ranks = launch.deployment.parallel.ranks
    if named:
        return f"{ranks} x {launch.deployment.hardware.name}"
    return "1 device" if ranks == 1 else f"{ranks} devices"


def node_script(launch: Launch) -> str:
    """The command of each node of one replica as shell text."""
    commands = over_nodes(launch)
    if len(commands) == 1:
        return shell(commands[0])
    lines = [f"# node {rank} of {len(commands)}\n{shell(words)}" for rank, words in enumerate(commands, 1)]
    return "\n".join(lines)


def _shell(server: RoleCommand, prefix: str = "") -> str:
    """A command with the files it reads before it, as here-documents (in which the shell fills in variables)."""
    files = [f"cat > {name} <<EOF\n{content}\nEOF\n" for name, content in server.files.items()]
    return "".join(files) + prefix + shell(server.words)
