"""A deployment as Kubernetes objects: a Deployment, its Service, and a ConfigMap for an engine that takes a file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from inferplan.answers.emit.engines import command
from inferplan.answers.emit.replica import Launch
from inferplan.answers.emit.trtllm import trtllm_config
from inferplan.errors import UsageError

Object = dict[str, Any]
"""A Kubernetes object, or a part of one."""
IMAGES = {
    ("vllm", "0.18"): "vllm/vllm-openai:v0.18.1",
    ("vllm", "0.20"): "vllm/vllm-openai:v0.20.2",
    ("vllm", "0.33"): "vllm/vllm-openai:v0.33.0",
    ("sglang", "0.5"): "lmsysorg/sglang:v0.5.23",
    ("trtllm", "1.0"): "nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
}
"""Container images of the versions whose defaults are on file."""
PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000, "llama.cpp": 8080}
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "gpu.intel.com/xe"}
"""The resource name that each vendor's device plugin registers."""
DEVICES_OF_A_NODE = 8
_MOUNT, _CONFIG = "/etc/inferplan", "trtllm.yaml"


def manifest(launch: Launch, image: str | None = None, name: str | None = None) -> list[Object]:
    """A Kubernetes Deployment and its Service: one pod a replica, probes on the engine's health path; and a ConfigMap
    for what TensorRT-LLM takes from a file.

    Raises ``UsageError`` when a replica spans several nodes (one pod cannot), or no image is known.
    """
    label = name or re.sub(r"[^a-z0-9]+", "-", launch.deployment.model.name.lower()).strip("-")
    config = trtllm_config(launch) if launch.deployment.engine.name == "trtllm" else {}
    launch = replace(launch, extra=f"{_MOUNT}/{_CONFIG}") if config else launch
    container = _container(launch, image or _image(launch), _resource(launch))
    volumes: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    objects: list[Object] = []
    if config:
        held = f"{label}-config"
        container["volumeMounts"] += [{"name": "config", "mountPath": _MOUNT}]
        volumes.append({"name": "config", "configMap": {"name": held}})
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": held, "labels": {"app": label}},
                "data": {_CONFIG: json.dumps(config)},
            }
        )
    pod = {"containers": [container], "volumes": volumes}
    return [_deployment(label, launch.deployment.parallel.replicas, pod), _service(label), *objects]


def _image(launch: Launch) -> str:
    engine = launch.deployment.engine
    image = IMAGES.get((engine.name, engine.defaults.version))
    if image is None:
        raise UsageError(f"no container image of {engine.describe()} is on file", hint="--image REPOSITORY:TAG")
    return image


def _resource(launch: Launch) -> Object:
    """The devices of one pod. Raises ``UsageError`` for more than a node holds, and for a vendor without a plugin."""
    ranks, vendor = launch.deployment.parallel.ranks, launch.deployment.hardware.vendor
    if ranks > DEVICES_OF_A_NODE:
        raise UsageError(
            f"one replica has {ranks} devices, more than one node holds",
            because="a Deployment gives each pod to one node",
            hint="fewer devices a replica, or a LeaderWorkerSet written by hand",
        )
    if vendor not in RESOURCES:
        raise UsageError(f"no Kubernetes resource name of {vendor} devices is known")
    return {RESOURCES[vendor]: ranks}


def _container(launch: Launch, image: str, resource: Object) -> Object:
    engine = launch.deployment.engine.name
    return {
        "name": engine.replace(".", "-"),
        "image": image,
        "command": command(launch) + ([] if engine == "vllm" else ["--host", "0.0.0.0"]),
        "ports": [{"name": "http", "containerPort": PORTS[engine]}],
        "resources": {"limits": resource, "requests": dict(resource)},
        "startupProbe": _probe(period=10, failures=180),
        "readinessProbe": _probe(period=5, failures=3),
        "livenessProbe": _probe(period=15, failures=4),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def _deployment(label: str, replicas: int, pod: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": label, "labels": {"app": label}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": label}},
            "template": {"metadata": {"labels": {"app": label}}, "spec": pod},
        },
    }


def _service(label: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": label, "labels": {"app": label}},
        "spec": {"selector": {"app": label}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _probe(period: int, failures: int) -> Object:
    check = {"path": "/health", "port": "http"}
    return {"httpGet": check, "periodSeconds": period, "failureThreshold": failures}
