"""Replicas as Kubernetes objects: a Deployment with its Service, or two pools with the router in front of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from inferplan.answers.emit.engines import ENGINES, network_command
from inferplan.answers.emit.nodes import image, node_selector, resource
from inferplan.answers.emit.pools import Pools, RoleCommand, router, router_name, server
from inferplan.answers.emit.replica import Launch
from inferplan.answers.emit.trtllm import trtllm_config
from inferplan.answers.emit.vllm import SIDE_CHANNEL

Object = dict[str, Any]
"""A Kubernetes object, or a part of one."""
_FILES, _CACHE, _CONFIG = "/etc/inferplan", "/cache", "trtllm.yaml"
_READY_SECONDS = 600
"""To compile and to capture graphs: vLLM's own limit on becoming ready (``VLLM_ENGINE_READY_TIMEOUT_S``)."""
_SLOW_LINK = 125e6
"""Bytes a second of a link of 1 Gbit/s, over which the checkpoint may have to come."""
_PYTHON = "python:3.12-slim"
"""Where the routers of vLLM and SGLang run: their releases are installed from the package index as they start."""


class Site(NamedTuple):
    """What a cluster has that a plan does not say. image: of the engine, instead of the one on file. cache: a
    PersistentVolumeClaim for checkpoints; without one every pod downloads its own copy."""

    image: str | None = None
    cache: str | None = None


def manifest(launch: Launch, pools: Pools | None = None, site: Site | None = None) -> list[Object]:
    """A Deployment with its Service, or for ``pools`` a StatefulSet and a headless Service each, so that every server
    has an address of its own, and a router with its Service.

    Raises ``UsageError`` when a replica spans several nodes (one pod cannot), or no image is known.
    """
    site = site or Site()
    label = _name(launch.deployment.model.name)
    if pools:
        return _apart(launch, pools, site, label)
    config = trtllm_config(launch) if launch.deployment.engine.name == "trtllm" else {}
    own = replace(launch, extra=f"{_FILES}/{_CONFIG}") if config else launch
    files = {_CONFIG: json.dumps(config)} if config else {}
    pod = _pod(own, RoleCommand(network_command(own), files), site, label)
    return [
        _workload("Deployment", label, {"app": label}, launch.deployment.parallel.replicas, pod),
        _service(label, {"app": label}),
        *_config_map(label, files),
    ]


def notes(launch: Launch) -> list[str]:
    """What the manifest leaves to its reader."""
    hardware = launch.deployment.hardware
    wait = f"{_startup(launch) / 60:.0f} minutes to start: {_READY_SECONDS / 60:.0f}, and the checkpoint at 1 Gbit/s"
    lines = [
        f"a pod has {wait}",
        "the token of a gated model: kubectl create secret generic hf-token --from-literal=token=...",
    ]
    if not node_selector(hardware):
        lines.append(
            f"no nodeSelector: the label of nodes with {hardware.name} is not known here; add that of your nodes"
        )
    return lines


def _name(model: str) -> str:
    """A model's name as a Service may be called: lower case, a letter first, room for what follows in 63 characters."""
    label = re.sub(r"[^a-z0-9]+", "-", model.lower())[:40].strip("-")
    return label if label[:1].isalpha() else f"model-{label}"


def _apart(launch: Launch, pools: Pools, site: Site, label: str) -> list[Object]:
    port = ENGINES[launch.deployment.engine.name].port
    objects: list[Object] = []
    hosts = {}
    for role, count, own in pools.of(launch):
        name = f"{label}-{role}"
        started = server(own, role, f"{_FILES}/")
        labels = {"app": name, "llm-d.ai/inferenceServing": "true", "llm-d.ai/model": label, "llm-d.ai/role": role}
        workload = _workload("StatefulSet", name, labels, count, _pod(own, started, site, name))
        workload["spec"] |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        objects += [workload, _service(name, {"app": name}, headless=True), *_config_map(name, started.files)]
        hosts[role] = [f"{name}-{index}.{name}:{port}" for index in range(count)]
    joined = router(launch, hosts["prefill"], hosts["decode"], f"{_FILES}/")
    workload = _workload("Deployment", label, {"app": label}, 1, _router_pod(launch, joined, site, label))
    return [*objects, workload, _service(label, {"app": label}), *_config_map(label, joined.files)]


def _pod(launch: Launch, started: RoleCommand, site: Site, label: str) -> Object:
    """A pod of one server."""
    hardware, ranks = launch.deployment.hardware, launch.deployment.parallel.ranks
    devices = {resource(hardware): ranks}
    container = _container(launch.deployment.engine.name, site.image or image(launch), started)
    container["resources"] = {"limits": devices, "requests": dict(devices)}
    container["env"] = _environment(launch, started.words)
    container["startupProbe"] = _probe(period=10, failures=ceil(_startup(launch) / 10))
    container["livenessProbe"] = _probe(period=15, failures=4)
    claimed = {"persistentVolumeClaim": {"claimName": site.cache}} if site.cache else {"emptyDir": {}}
    volumes: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "cache", **claimed}]
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": _CACHE}]
    selector = node_selector(hardware)
    return {
        **({"nodeSelector": selector} if selector else {}),
        "containers": [container],
        "volumes": volumes + _config_volume(label, started.files),
    }


def _router_pod(launch: Launch, joined: RoleCommand, site: Site, label: str) -> Object:
    engine, wait = launch.deployment.engine.name, str(ceil(_startup(launch)))
    if engine == "trtllm":
        run, words = site.image or image(launch), [*joined.words, "--server_start_timeout", wait]
    else:
        install = f'pip install --quiet {router_name(engine).replace(" ", "==")} && exec "$@"'
        run, words = _PYTHON, ["sh", "-c", install, "sh", *joined.words, "--worker-startup-timeout-secs", wait]
    container = _container(engine, run, RoleCommand(words, joined.files))
    container["startupProbe"] = _probe(period=10, failures=ceil(_startup(launch) / 10))
    return {"containers": [container], "volumes": _config_volume(label, joined.files)}


def _container(engine: str, run: str, started: RoleCommand) -> Object:
    mounts = [{"name": "config", "mountPath": _FILES}] if started.files else []
    return {
        "name": engine.replace(".", "-"),
        "image": run,
        "command": started.words,
        "ports": [{"name": "http", "containerPort": ENGINES[engine].port}],
        "readinessProbe": _probe(period=5, failures=3),
        "volumeMounts": mounts,
    }


def _environment(launch: Launch, words: list[str]) -> list[Object]:
    token = {"name": "hf-token", "key": "token", "optional": True}
    found: list[Object] = [
        {"name": "HF_HOME", "value": _CACHE},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}},
    ]
    if launch.deployment.engine.name == "vllm":
        found.append({"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": str(ceil(_startup(launch)))})
    if "--kv-transfer-config" in words:
        found.append({"name": SIDE_CHANNEL, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return found


def _startup(launch: Launch) -> float:
    """Seconds until a server must be ready."""
    return _READY_SECONDS + launch.checkpoint_bytes / _SLOW_LINK


def _workload(kind: str, name: str, labels: dict[str, str], replicas: int, pod: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": labels["app"]}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _service(name: str, selector: dict[str, str], headless: bool = False) -> Object:
    address = {"clusterIP": "None", "publishNotReadyAddresses": True} if headless else {}
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": selector},
        "spec": {**address, "selector": selector, "ports": ports},
    }


def _config_map(label: str, files: dict[str, str]) -> list[Object]:
    if not files:
        return []
    metadata = {"name": f"{label}-config", "labels": {"app": label}}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}]


def _config_volume(label: str, files: dict[str, str]) -> list[Object]:
    return [{"name": "config", "configMap": {"name": f"{label}-config"}}] if files else []


def _probe(period: int, failures: int) -> Object:
    check = {"path": "/health", "port": "http"}
    return {"httpGet": check, "periodSeconds": period, "failureThreshold": failures}
