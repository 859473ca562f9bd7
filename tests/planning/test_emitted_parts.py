"""Kubernetes objects and benchmark commands, as documents that are written down here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.answers.emit import benchmark as clients
from inferplan.answers.emit import k8s
from inferplan.answers.emit.nodes import node_note, node_selector, one_node, resource
from inferplan.answers.emit.pools import RoleCommand
from inferplan.devices.anchors import AnchorLoad
from inferplan.errors import UsageError
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

HEALTH = {"path": "/health", "port": "http"}


def launch(engine: str = "vllm", gpu: str = "h100-sxm", vendor: str = "NVIDIA", ranks: int = 4, **more: Any) -> Any:
    """125 GB of a checkpoint: 1,000 s over 1 Gbit/s, beside 600 s to be ready."""
    hardware = SimpleNamespace(name=gpu, vendor=vendor, part=None, links=[SimpleNamespace(domain=8)])
    deployment = SimpleNamespace(
        engine=SimpleNamespace(
            name=engine, asked="", defaults=SimpleNamespace(version="0.33"), describe=lambda: engine
        ),
        hardware=hardware,
        parallel=SimpleNamespace(ranks=ranks, replicas=3, tp=ranks, pp=1, ep=1, dp=1),
        model=SimpleNamespace(name="Llama 3.1-8B", has_experts=False),
        precision=SimpleNamespace(
            **{name: SimpleNamespace(name=f"{name} format") for name in ("weights", "experts", "kv")}
        ),
        calibration=SimpleNamespace(release=None),
    )
    found: dict[str, Any] = {
        "deployment": deployment, "checkpoint_bytes": 125e9, "devices_of_a_node": 8, "sequences": 64,
        "token_budget": 2048, "fraction": 0.9, "request": SimpleNamespace(flags=SimpleNamespace(backends=())),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def probe(period: int, failures: int) -> dict[str, Any]:
    return {"httpGet": HEALTH, "periodSeconds": period, "failureThreshold": failures}


TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
HOME = {"name": "HF_HOME", "value": "/cache"}


def test_a_pod_of_a_server() -> None:
    """1,600 s are 160 looks of 10 s each."""
    started = RoleCommand(["vllm", "serve", "--kv-transfer-config", "x"], {"a.yaml": "b"})
    pod = k8s._pod(launch(), started, k8s.Site(image="own:1", cache="claim"), "label")
    port = k8s.ENGINES["vllm"].port
    assert pod == {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        "containers": [
            {
                "name": "vllm",
                "image": "own:1",
                "command": started.words,
                "ports": [{"name": "http", "containerPort": port}],
                "readinessProbe": probe(5, 3),
                "volumeMounts": [
                    {"name": "config", "mountPath": "/etc/inferplan"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "cache", "mountPath": "/cache"},
                ],
                "resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": 4}},
                "env": [
                    HOME,
                    TOKEN,
                    {"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": "1600"},
                    {"name": k8s.SIDE_CHANNEL, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "startupProbe": probe(10, 160),
                "livenessProbe": probe(15, 4),
            }
        ],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "config", "configMap": {"name": "label-config"}},
        ],
    }
    bare = k8s._pod(launch("llama.cpp", gpu="own"), RoleCommand(["x"], {}), k8s.Site(image="own:1"), "label")
    assert "nodeSelector" not in bare and bare["volumes"][1:] == [{"name": "cache", "emptyDir": {}}]
    (container,) = bare["containers"]
    assert container["name"] == "llama-cpp" and container["env"] == [HOME, TOKEN]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["shm", "cache"]


def test_a_pod_of_a_router() -> None:
    joined = RoleCommand(["route", "x"], {"a.yaml": "b"})
    pod = k8s._router_pod(launch(), joined, k8s.Site(), "label")
    name = k8s.router_name("vllm").replace(" ", "==")
    (container,) = pod["containers"]
    assert container["command"] == [
        "sh", "-c", f'pip install --quiet {name} && exec "$@"', "sh", "route", "x", "--worker-startup-timeout-secs",
        "1600",
    ]  # fmt: skip
    assert (container["image"], container["startupProbe"]) == ("python:3.12-slim", probe(10, 160))
    assert pod["volumes"] == [{"name": "config", "configMap": {"name": "label-config"}}]
    trt = k8s._router_pod(launch("trtllm"), joined, k8s.Site(image="own:1"), "label")["containers"][0]
    assert (trt["image"], trt["command"]) == ("own:1", ["route", "x", "--server_start_timeout", "1600"])


def test_services_and_workloads() -> None:
    assert k8s._service("s", {"app": "a"}, headless=True) == {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "labels": {"app": "a"}},
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "a"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }  # fmt: skip
    assert "clusterIP" not in k8s._service("s", {})["spec"]
    assert k8s._workload("Deployment", "w", {"app": "a", "b": "c"}, 3, {"pod": 1}) == {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "labels": {"app": "a", "b": "c"}},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a", "b": "c"}}, "spec": {"pod": 1}},
        },
    }  # fmt: skip
    assert k8s._config_map("l", {}) == [] == k8s._config_volume("l", {})
    (files,) = k8s._config_map("l", {"a": "b"})
    assert files == {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "l-config", "labels": {"app": "l"}},
        "data": {"a": "b"},
    }  # fmt: skip


def test_pools_with_a_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers for prompts and one for decodes, each with an address of its own."""
    asked: list[Any] = []
    monkeypatch.setattr(k8s, "server", lambda own, role, files: RoleCommand([role, files], {"f": role}))
    monkeypatch.setattr(k8s, "router", lambda *words: asked.extend(words[1:]) or RoleCommand(["route"], {}))
    monkeypatch.setattr(k8s, "_pod", lambda own, started, site, label: {"pod": [own, started.words, label]})
    monkeypatch.setattr(k8s, "_router_pod", lambda own, joined, site, label: {"router": [joined.words, label]})
    pools: Any = SimpleNamespace(of=lambda one: [("prefill", 2, "p"), ("decode", 1, "d")], __bool__=lambda: True)
    objects = k8s._apart(launch(), pools, k8s.Site(), "m")
    port = k8s.ENGINES["vllm"].port
    assert [(one["kind"], one["metadata"]["name"]) for one in objects] == [
        ("StatefulSet", "m-prefill"), ("Service", "m-prefill"), ("ConfigMap", "m-prefill-config"),
        ("StatefulSet", "m-decode"), ("Service", "m-decode"), ("ConfigMap", "m-decode-config"),
        ("Deployment", "m"), ("Service", "m"),
    ]  # fmt: skip
    assert asked == [
        [f"m-prefill-0.m-prefill:{port}", f"m-prefill-1.m-prefill:{port}"], [f"m-decode-0.m-decode:{port}"],
        "/etc/inferplan/",
    ]  # fmt: skip
    first, last = objects[0], objects[6]
    assert first["spec"]["serviceName"] == "m-prefill" and first["spec"]["podManagementPolicy"] == "Parallel"
    assert (first["spec"]["replicas"], last["spec"]["replicas"]) == (2, 1)
    labels = {
        "app": "m-prefill",
        "llm-d.ai/inferenceServing": "true",
        "llm-d.ai/model": "m",
        "llm-d.ai/role": "prefill",
    }
    assert first["metadata"]["labels"] == labels
    assert first["spec"]["template"]["spec"] == {"pod": ["p", ["prefill", "/etc/inferplan/"], "m-prefill"]}
    assert last["spec"]["template"]["spec"] == {"router": [["route"], "m"]}
    assert objects[1]["spec"]["clusterIP"] == "None" and objects[7]["spec"]["selector"] == {"app": "m"}


def test_notes_and_names() -> None:
    wait = "a pod has 27 minutes to start: 10, and the checkpoint at 1 Gbit/s"
    gated = "the token of a gated model: kubectl create secret generic hf-token --from-literal=token=..."
    assert k8s.notes(launch()) == [wait, gated]
    unknown = "no nodeSelector: the label of nodes with own is not known here; add that of your nodes"
    assert k8s.notes(launch(gpu="own")) == [wait, gated, unknown]
    assert [k8s._name(name) for name in ("Llama 3.1-8B", "7b_x", "x" * 50, "--a--")] == [
        "llama-3-1-8b", "model-7b-x", "x" * 40, "a"
    ]  # fmt: skip


@for_each(
    ("gpu", "vendor", "name"),
    [
        ("h100-sxm", "NVIDIA", "nvidia.com/gpu"),
        ("mi300x", "AMD", "amd.com/gpu"),
        ("gaudi3", "Intel", "habana.ai/gaudi"),
        ("max-1550", "Intel", "gpu.intel.com/i915"),
        ("arc-b580", "Intel", "gpu.intel.com/xe"),
    ],
)
def test_what_a_device_is_called(gpu: str, vendor: str, name: str) -> None:
    assert resource(SimpleNamespace(name=gpu, vendor=vendor, part=None)) == name  # type: ignore[arg-type]


def test_devices_without_a_name() -> None:
    part = SimpleNamespace(profile="1g.10gb")
    assert resource(SimpleNamespace(name="x", vendor="NVIDIA", part=part)) == "nvidia.com/mig-1g.10gb"  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        resource(SimpleNamespace(name="tpu-v5e", vendor="Google", part=None))  # type: ignore[arg-type]
    assert node_selector(SimpleNamespace(name="mi300x")) == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}  # type: ignore[arg-type]
    assert node_selector(SimpleNamespace(name="x")) == {}  # type: ignore[arg-type]


def test_replicas_over_nodes() -> None:
    assert one_node(launch(ranks=8)) and not one_node(launch(ranks=9))
    assert one_node(launch(ranks=8, devices_of_a_node=None))
    with pytest.raises(UsageError):
        one_node(launch(ranks=9, devices_of_a_node=None))
    assert node_note(launch()) == node_note(launch(ranks=1, devices_of_a_node=None)) == ""
    assert node_note(launch(ranks=2, devices_of_a_node=None)) == (
        "one node is taken to hold 2 x h100-sxm: how many it does is not on file; a smaller one: --gpus-per-node N"
    )


FACTS = (
    "gpu=h100-sxm engine={0} engine_version=0.33 kernels={0} weights=weights_format kv=kv_format tp=4 pp=1 ep=1 dp=1 "
    "max_num_seqs=64 max_num_batched_tokens=2048 memory_fraction=0.9"
)
SENT = (
    "--dataset-name random --random-input-len 1024 --random-output-len 128 --max-concurrency 8 --num-prompts 80"
)  # fmt: skip
COMMANDS = {
    "vllm": (
        "vllm bench serve --port {port} --model org/m {sent} --random-range-ratio 0 --num-warmups 16 --ignore-eos "
        "--save-result --result-filename out.json --metadata {facts} warmup_requests=16"
    ),
    "sglang": (
        "python3 -m sglang.bench_serving --backend sglang --port {port} --model org/m {sent} --random-range-ratio 1 "
        "--warmup-requests 16 --output-file out.json"
    ),
    "trtllm": (
        "python3 -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai --port {port} --model org/m {sent} "
        "--random-ids --ignore-eos --save-result --result-filename out.json --metadata {facts}"
    ),
    "atom": (
        "python -m atom.benchmarks.benchmark_serving --port {port} --model org/m {sent} --random-range-ratio 1 "
        "--num-warmups 16 --percentile-metrics ttft,tpot,itl,e2el --ignore-eos --save-result "
        "--result-filename out.json --metadata {facts} warmup_requests=16"
    ),
}


@for_each("engine", COMMANDS)
def test_the_client_of_an_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 users, ten requests each after two."""
    monkeypatch.setattr(clients, "checkpoint", lambda launch: "org/m")
    load = AnchorLoad(8.0, 1024.0, 128.0, Parallelism())
    words = [word.replace(" ", "_") for word in clients.benchmark(launch(engine), load, "out.json")]
    port = clients.ENGINES[engine].port
    assert " ".join(words) == COMMANDS[engine].format(port=port, sent=SENT, facts=FACTS.format(engine))


def test_what_a_result_file_does_not_say() -> None:
    one = launch(request=SimpleNamespace(flags=SimpleNamespace(backends=(("experts", "triton"), ("attention", "fa3")))))
    one.deployment.model.has_experts, one.deployment.calibration.release = True, "vllm@0.20"
    one.deployment.engine.asked = "0.20.1"
    found = clients.facts(one)
    assert found["backends"] == "experts=triton,attention=fa3" and found["experts"] == "experts format"
    assert (found["kernels"], found["engine_version"]) == ("vllm@0.20", "0.20.1")
    with pytest.raises(UsageError):
        clients.benchmark(launch("llama.cpp"), AnchorLoad(8.0, 1024.0, 128.0, Parallelism()), "x")
