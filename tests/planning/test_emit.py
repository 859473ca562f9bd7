"""Flags and manifests say what was modelled, and nothing else is on stdout."""

from __future__ import annotations

import shlex

import pytest
import yaml

from inferplan.answers.emit import command, command_line, launch, manifest, quantised_checkpoint
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.memory import Footprint
from inferplan.work.parallel import Parallelism


def request(engine: str = "vllm", quant: str | None = None, **degrees: int) -> Request:
    return Request(
        model="llama-3.1-70b", gpu="h100-sxm", quant=quant, engine=engine, parallel=Parallelism(**({"tp": 4} | degrees))
    )


def flags(line: str) -> dict[str, str]:
    words = shlex.split(line)
    return {word: (words[i + 1] if i + 1 < len(words) else "") for i, word in enumerate(words) if word.startswith("-")}


def test_vllm_flags_are_what_was_modelled() -> None:
    deployment = assemble(request(quant="w8a8kv8"))
    started = launch(deployment, context=16384, slots=128, token_budget=4096)
    found = flags(command_line(started))
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)
    assert found["--tensor-parallel-size"] == "4"
    assert found["--max-model-len"] == "16384"
    assert found["--max-num-seqs"] == "128"
    assert found["--max-num-batched-tokens"] == "4096"
    assert float(found["--gpu-memory-utilization"]) == footprint.memory_fraction
    assert found["--kv-cache-dtype"] == "fp8"
    assert command(started)[2] == "meta-llama/Llama-3.1-70B"


def test_an_engine_version_brings_its_own_defaults() -> None:
    old, new = (
        flags(command_line(launch(assemble(request(engine)), context=4096))) for engine in ("vllm@0.18", "vllm")
    )
    assert (old["--gpu-memory-utilization"], new["--gpu-memory-utilization"]) == ("0.9", "0.92")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_engine_names_budget_slots_and_context(engine: str) -> None:
    line = command_line(launch(assemble(request(engine)), context=16000, slots=96, token_budget=2048))
    assert "\n" not in line
    assert {"16000", "96", "2048", "4"} <= set(shlex.split(line))


def test_llama_cpp_gets_the_context_of_all_its_slots() -> None:
    small = Request(model="llama-3.1-8b", gpu="l40s", engine="llama.cpp")
    found = flags(command_line(launch(assemble(small), context=8192, slots=4)))
    assert (found["-c"], found["-np"], found["-ctk"]) == ("32768", "4", "bf16")
    with pytest.raises(UsageError, match="cannot be written"):
        command(launch(assemble(request("llama.cpp")), context=1024))


def test_attention_data_parallelism_counts_slots_a_rank() -> None:
    found = flags(command_line(launch(assemble(request(tp=4, dp=2)), context=4096, slots=100)))
    assert (found["--data-parallel-size"], found["--max-num-seqs"]) == ("2", "50")


def test_what_has_no_flag_is_refused_not_dropped() -> None:
    with pytest.raises(UsageError, match="from a file"):
        command(launch(assemble(request("trtllm", quant="w8a8kv8")), context=4096))
    with pytest.raises(UsageError, match="--cp"):
        command(launch(assemble(request(tp=2, cp=2)), context=4096))


def test_a_context_that_does_not_fit_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="does not hold"):
        launch(assemble(request(tp=2)), context=131072)


def test_formats_that_an_engine_cannot_make_need_a_checkpoint() -> None:
    assert quantised_checkpoint(launch(assemble(request(quant="int4")), context=4096)) == "int4"
    assert quantised_checkpoint(launch(assemble(request(quant="fp8")), context=4096)) is None


def test_what_trtllm_takes_from_a_file_is_in_the_manifest() -> None:
    started = launch(assemble(request("trtllm", quant="w8a8kv8")), context=4096)
    workload, _, held = yaml.safe_load_all(yaml.safe_dump_all(manifest(started)))
    pod = workload["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    folder, file = words[words.index("--config") + 1].rsplit("/", 1)
    assert held["kind"] == "ConfigMap"
    assert yaml.safe_load(held["data"][file])["kv_cache_config"]["dtype"] == "fp8"
    assert {"name": "config", "mountPath": folder} in pod["containers"][0]["volumeMounts"]
    assert {"name": "config", "configMap": {"name": held["metadata"]["name"]}} in pod["volumes"]
    assert len(manifest(launch(assemble(request("trtllm")), context=4096))) == 2


def test_the_manifest_is_a_deployment_with_a_service_and_probes() -> None:
    deployment = assemble(request(replicas=3))
    started = launch(deployment, context=8192, slots=64)
    workload, service = yaml.safe_load_all(yaml.safe_dump_all(manifest(started)))
    assert (workload["apiVersion"], workload["kind"]) == ("apps/v1", "Deployment")
    assert workload["spec"]["replicas"] == 3
    template = workload["spec"]["template"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert container["command"] == command(started)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health"
        assert container[probe]["httpGet"]["port"] in ports
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["targetPort"] in ports
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in template["spec"]["volumes"]}


def test_a_replica_over_two_nodes_is_no_deployment() -> None:
    with pytest.raises(UsageError, match="one node"):
        manifest(launch(assemble(request(tp=8, pp=2)), context=4096))
