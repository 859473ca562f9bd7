"""Every flag that is emitted exists in the engine's source, at the version that it is emitted for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferplan.answers.drafting import Drafting
from inferplan.answers.emit import Drafts, Launch, Pools, launch, manifest, script
from inferplan.answers.emit.benchmark import benchmark
from inferplan.answers.emit.engines import command, over_nodes
from inferplan.catalog.assemble import Request, load_engine
from inferplan.catalog.offload import OffloadAsked
from inferplan.devices.anchors import AnchorLoad
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.reports.emit import EmitAsked, launch_text
from inferplan.reports.plan_file import Planned
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

VLLM_FLAGS = {
    # vllm/engine/arg_utils.py: the line of add_argument in the wheels of 0.18.1, 0.20.2 and 0.33.0
    "--tensor-parallel-size": (825, 925, 1209),
    "--pipeline-parallel-size": (812, 905, 1171),
    "--data-parallel-size": (850, 950, 1241),
    "--enable-expert-parallel": (901, 1001, 1305),
    "--all2all-backend": (910, 1010, 1318),
    "--enable-eplb": (932, 1032, 1352),
    "--eplb-config": (933, 1033, 1353),  # num_redundant_experts: config/parallel.py:77 of 0.33.0
    "--enable-dbo": (912, 1012, 1320),
    "--max-model-len": (694, 767, 991),
    "--max-num-seqs": (1182, 1291, 1754),
    "--max-num-batched-tokens": (1175, 1284, 1740),
    "--scheduling-policy": (),  # SchedulerPolicy of config/scheduler.py, as docs.vllm.ai of 0.13 to 0.28 shows it
    "--prefill-schedule-interval": (),  # the scheduler's group, beside --disable-hybrid-kv-cache-manager; from 0.24 on
    "--gpu-memory-utilization": (963, 1063, 1389),
    "--block-size": (961, 1061, 1387),
    "--kv-cache-dtype": (968, 1068, 1397),
    "--quantization": (695, 768, 992),
    "--dtype": (680, 753, 977),
    "--speculative-config": (1267, 1381, 1866),
    # of 0.18.1 and 0.20.2 alone; 0.18.1 has no --lora-target-modules
    "--enable-lora": (1097, 1203),
    "--max-loras": (1101, 1207),
    "--max-lora-rank": (1102, 1208),
    "--lora-target-modules": (1222,),
    "--kv-transfer-config": (1270, 1384, 1881),
    "--nnodes": (818, 911, 1177),
    "--node-rank": (819, 912, 1178),
    "--master-addr": (816, 909, 1175),
    "--headless": (331, 331, 445),  # entrypoints/openai/cli_args.py, in 0.33.0 entrypoints/common/cli_args.py
}
VLLM_VALUES = {
    # vllm/config/cache.py, CacheDType
    ("0.18", "--kv-cache-dtype"): {"auto", "float16", "bfloat16", "fp8", "fp8_ds_mla"},
    ("0.20", "--kv-cache-dtype"): {
        *{"auto", "float16", "bfloat16", "fp8", "fp8_ds_mla"},
        *{"int8_per_token_head", "fp8_per_token_head"},
    },
    ("0.33", "--kv-cache-dtype"): {
        *{"auto", "float16", "bfloat16", "fp8", "fp8_ds_mla"},
        *{"int8_per_token_head", "fp8_per_token_head", "nvfp4"},
    },
    # vllm/model_executor/layers/quantization/fp8.py: Fp8OnlineLinearMethod at 188 (0.18.1) and 182 (0.20.2);
    # 0.33.0 refuses it at 108 and names fp8_per_tensor, which vllm/config/quantization.py:196 has
    ("0.18", "--quantization"): {"fp8"},
    ("0.20", "--quantization"): {"fp8"},
    ("0.33", "--quantization"): {"fp8_per_tensor"},
}
"""By version and flag: the values it may have."""
SGLANG_FLAGS = {
    # sglang 0.5.23, srt/arg_groups/fields/; arg_utils.py:290 makes "--" and dashes of a field's name
    "--model-path": "model.py:51",
    "--tp-size": "parallel.py:45",
    "--pp-size": "parallel.py:59",
    "--attn-dp-size": "parallel.py:81",
    "--ep-size": "parallel.py:281",
    "--moe-a2a-backend": "exec_.py:836",
    "--deepep-mode": "exec_.py:898",
    "--enable-eplb": "exec_.py:922",
    "--ep-num-redundant-experts": "exec_.py:914",
    "--enable-two-batch-overlap": "exec_.py:1047",
    "--enable-dp-lm-head": "parallel.py:199",
    "--moe-dense-tp-size": "parallel.py:289",
    "--context-length": "model.py:110",
    "--max-running-requests": "schedule.py:31",
    "--chunked-prefill-size": "schedule.py:52",
    "--prefill-decode-interval": "schedule.py:56",
    "--enable-prefill-delayer": "schedule.py:232",
    "--prefill-delayer-max-delay-passes": "schedule.py:235",
    "--mem-fraction-static": "schedule.py:27",
    "--page-size": "schedule.py:143",
    "--kv-cache-dtype": "model.py:197",
    "--quantization": "model.py:177",
    "--dtype": "model.py:160",
    "--speculative-algorithm": "spec.py:31",
    "--speculative-draft-model-path": "spec.py:36",
    "--speculative-num-steps": "spec.py:58",
    "--speculative-eagle-topk": "spec.py:62",
    "--speculative-num-draft-tokens": "spec.py:66",
    "--speculative-draft-model-quantization": "spec.py:216",
    "--disaggregation-mode": "disagg.py:55",
    "--nnodes": "parallel.py:43",
    "--node-rank": "parallel.py:44",
    "--dist-init-addr": "parallel.py:32",
    "--host": "serving.py:65",
}
SGLANG_VALUES = {
    "--kv-cache-dtype": {"auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "nvfp4"},  # model.py:209
    "--quantization": {"fp8"},  # choices.py:34, "MOE + linear online quantization"
    "--speculative-draft-model-quantization": {"fp8", "unquant"},  # choices.py:34, 65
    "--dtype": {"auto", "half", "float16", "bfloat16", "float", "float32"},  # model.py:173
    "--disaggregation-mode": {"prefill", "decode"},  # disagg.py:56
    "--speculative-algorithm": {"STANDALONE", "NEXTN"},  # spec.py:33
}
TRTLLM_FLAGS = {
    # tensorrt_llm/commands/serve.py at 00209af: the options of serve (and -c, --server_start_timeout of disaggregated)
    *{"--tp_size", "--pp_size", "--ep_size", "--max_seq_len", "--max_batch_size", "--max_num_tokens"},
    *{"--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options", "--host", "-c", "--server_start_timeout"},
}
TRTLLM_FIELDS = {
    # tensorrt_llm/llmapi/llm_args.py (KvCacheConfig, TorchLlmArgs) and examples/disaggregated/README.md
    *{"kv_cache_config", "enable_attention_dp", "dtype", "cache_transceiver_config", "disable_overlap_scheduler"},
}
LLAMA_CPP_FLAGS = {
    # llama.cpp tools/server/README.md at 00dc805
    *{"-m", "-hf", "-c", "-np", "-ngl", "-b", "-ctk", "-ctv", "-sm", "--host"},
    "-ncmoe",  # common/arg.cpp (-ncmoe, --n-cpu-moe N)
}
ATOM_FLAGS = {
    # ROCm/ATOM atom/model_engine/arg_utils.py at 0027562b, and atom/entrypoints/openai_server.py (--host)
    *{"--model", "--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel", "--enable-dp-attention"},
    *{"--kv_cache_dtype", "--block-size", "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs"},
    *{"--gpu-memory-utilization", "--method", "--num-speculative-tokens", "--host"},
    # the same of August 2026 alone
    *{"--all2all-backend", "--draft-model"},
}
ATOM_VALUES = {
    # the choices of the same files; --all2all-backend: high-throughput, low-latency, rccl, none
    "--kv_cache_dtype": {"bf16", "fp8"},
    "--method": {"mtp", "eagle3"},
    "--all2all-backend": {"none"},
}
ROUTER_FLAGS = {
    # vllm_router/router_args.py of vllm-router 0.1.17, by line
    "vllm": {
        "--vllm-pd-disaggregation": 282,
        "--kv-connector": 449,
        "--prefill": 287,
        "--decode": 295,
        "--host": 126,
        "--port": 132,
        "--worker-startup-timeout-secs": 302,
    },
    # sglang_router/router_args.py of sglang-router 0.3.2
    "sglang": {
        "--pd-disaggregation": 346,
        "--prefill": 351,
        "--decode": 359,
        "--host": 224,
        "--port": 230,
        "--worker-startup-timeout-secs": 366,
    },
    "trtllm": TRTLLM_FLAGS,
}
FLAGS = {"vllm": VLLM_FLAGS, "sglang": SGLANG_FLAGS, "trtllm": TRTLLM_FLAGS, "llama.cpp": LLAMA_CPP_FLAGS}


def asked(engine: str, **changes: Any) -> Request:
    base = Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, flags=EngineFlags(max_sequences=64))
    return replace(base, **changes)


def launches(engine: str) -> Iterator[Launch]:
    """Commands that between them have every flag that an engine is given."""
    bare = engine.partition("@")[0]
    divided = Parallelism(pp=2) if bare == "llama.cpp" else Parallelism(tp=2, pp=2)
    yield launch(asked(engine, parallel=divided), 4096, checkpoint="a/b" if bare == "llama.cpp" else None)
    if bare == "llama.cpp":
        yield launch(asked(engine), 4096, checkpoint="m.gguf")
        host = OffloadAsked(cpu_moe_layers=8, host="epyc-9654", host_memory="384GB", host_link="63GB/s")
        yield launch(asked(engine, model="gpt-oss-20b", offload=host), 4096, checkpoint="m.gguf")
        return
    pages = EngineFlags(block_size=64, max_sequences=64)
    yield launch(asked(engine, flags=pages, roles=(("kv", "fp8"),), quant="fp16"), 4096)
    experts = Parallelism(tp=2, dp=4, ep=8)
    yield launch(asked(engine, model="deepseek-v3", gpu="h200-sxm", parallel=experts), 4096)
    for role in ("prefill", "decode"):
        yield launch(asked(engine), 4096, role=role)  # type: ignore[arg-type]
    if bare == "trtllm":
        return
    wide, both = Parallelism(dp=8, ep=8, redundant=32), EngineFlags(max_sequences=64, two_batch_overlap=True)
    yield launch(asked(engine, model="deepseek-v3", gpu="h200-sxm", parallel=wide, flags=both), 4096)
    yield launch(asked(engine, quant="fp8"), 4096)
    own = "prefill_schedule_interval" if bare == "vllm" else "prefill_decode_interval"
    if engine in ("vllm@0.33", "sglang@0.5"):
        yield launch(asked(engine, flags=EngineFlags(max_sequences=64, **{own: 4})), 4096)
    if bare == "sglang":
        delayed = EngineFlags(max_sequences=64, enable_prefill_delayer=True, prefill_delayer_max_delay_passes=16)
        ranks = Parallelism(dp=8, ep=8)
        yield launch(asked(engine, model="deepseek-v3", gpu="h200-sxm", parallel=ranks, flags=delayed), 4096)
    if bare == "vllm":
        yield replace(launch(asked(engine), 4096), queue="priority")
        yield launch(asked(engine, lora=LoraAsked(rank=16, slots=4)), 4096)
    for quant in (None, "fp8"):
        request = asked(engine, quant=quant)
        speculation = Drafting(model="llama-3.2-1b", length=3, acceptance=0.8).on(request, request.parallel)
        yield launch(request, 4096, drafts=Drafts(speculation, "llama-3.2-1b"))


@for_each("engine", ["vllm@0.18", "vllm@0.20", "vllm@0.33", "sglang@0.5", "trtllm@1.0", "llama.cpp"])
def test_every_flag_is_in_the_source_of_its_version(engine: str) -> None:
    name, _, version = engine.partition("@")
    seen = set()
    commands = [command(replace(started, extra="extra.yaml")) for started in launches(engine)]
    if name in ("vllm", "sglang"):
        wide = asked(engine, model="llama-3.1-70b", parallel=Parallelism(tp=8, pp=2))
        commands += over_nodes(launch(wide, 4096))
    for words in commands:
        for word, value in zip(words, [*words[1:], ""], strict=True):
            if not re.fullmatch(r"--?[a-z][\w-]*", word) or words[: words.index(word)] == ["python"]:
                continue
            seen.add(word)
            assert word in FLAGS[name], f"{engine} is given {word}: cite where its source has it"
            known = VLLM_VALUES.get((version, word)) if name == "vllm" else SGLANG_VALUES.get(word)
            assert known is None or name not in ("vllm", "sglang") or value in known
    later = {"--prefill-schedule-interval"} if version in ("0.18", "0.20") else set()
    unseen = {"--host", "-c", "--server_start_timeout"} | ({"--lora-target-modules"} if version == "0.18" else set())
    unseen |= later
    assert set(FLAGS[name]) - seen <= unseen, "a flag that nothing emits"


@for_each("version", ["0.18", "0.20", "0.33"])
def test_formats_of_the_cache_are_those_of_the_version(version: str) -> None:
    caches = load_engine(f"vllm@{version}").caches
    assert caches is not None
    assert {one.flag for one in caches.formats.values()} | {"auto"} == VLLM_VALUES[version, "--kv-cache-dtype"]


def on_mi355x(version: str = "", **changes: Any) -> Launch:
    """DeepSeek-R1 under ATOM, with its cache in fp8."""
    parts = {"model": "deepseek-r1", "gpu": "mi355x", "roles": (("kv", "fp8"),)} | changes
    drafting = parts.pop("drafting", None)
    request = Request(engine=f"atom{version}", **parts)
    if drafting is None:
        return launch(request, 4096)
    return launch(request, 4096, drafts=Drafts(drafting.on(request, request.parallel), drafting.model))


def test_what_starts_atom_is_in_its_source(tmp_path: Path) -> None:
    """The command of InferenceX's benchmarks/dsr1_fp8_mi355x_atom_mtp.sh: -tp, --kv_cache_dtype fp8, --method mtp."""
    whole, ranks = Parallelism(tp=8), Parallelism(dp=8, ep=8)
    mtp = Drafting(model="mtp", length=3, acceptance=0.7)
    layer = (
        "{mixer: {kind: attention, heads: 32, kv_heads: 8, head_dim: 128, input_scale: 2}, ffn: {kind: mlp, d_ff: 64}}"
    )
    head = tmp_path / "eagle3.yaml"
    head.write_text(
        f"{{name: eagle3, source: 'https://huggingface.co/org/head', features: 3, block: false, layers: [{layer}]}}"
    )
    eagle = Drafting(model=str(head), length=3, acceptance=0.7)
    pages = EngineFlags(block_size=64, max_sequences=64)
    seen = set()
    for made in (
        on_mi355x(parallel=whole, drafting=mtp),
        on_mi355x("@0.1.3", parallel=whole, flags=pages),
        on_mi355x(parallel=ranks),
        on_mi355x(parallel=Parallelism(tp=4, dp=2, ep=8)),
        on_mi355x(model="llama-3.1-8b", roles=(), drafting=eagle),
    ):
        words = command(made)
        assert "-m atom.entrypoints.openai_server --model " in " ".join(words)
        for word, value in zip(words, [*words[1:], ""], strict=True):
            if word.startswith("--"):
                seen.add(word)
                assert value in ATOM_VALUES.get(word, {value})
    assert seen == ATOM_FLAGS - {"--host"}


def test_attention_ranks_of_atom_start_as_they_are_priced() -> None:
    """No coalescer (atom/utils/envs.py: ATOM_ENABLE_PREFILL_DELAYER, on unless it is 0), no kernels of MORI."""
    words = command(on_mi355x(parallel=Parallelism(dp=8, ep=8)))
    assert words[:2] == ["env", "ATOM_ENABLE_PREFILL_DELAYER=0"]
    # engine_core_mgr.py: with --enable-dp-attention each of the tensor-parallel ranks is an attention rank
    assert words[words.index("--tensor-parallel-size") + 1] == "8" and "--enable-dp-attention" in words
    assert words[words.index("--all2all-backend") + 1] == "none"
    assert command(on_mi355x(parallel=Parallelism(tp=8)))[0] == "python"
    feeding = EngineFlags(enable_prefill_delayer=True, prefill_decode_interval=10)
    words = command(on_mi355x(parallel=Parallelism(dp=8, ep=8), flags=feeding))  # as InferenceX runs it on MI355X
    assert words[:3] == ["env", "ATOM_ENABLE_PREFILL_DELAYER=1", "ATOM_PREFILL_DECODE_INTERVAL=10"]


@for_each(
    ("changes", "error"),
    [
        ({"version": "@0.1.3", "parallel": Parallelism(dp=8, ep=8)}, "says how tokens reach their experts"),
        ({"parallel": Parallelism(tp=4, dp=2)}, "share no experts"),
        ({"parallel": Parallelism(tp=8, ep=4)}, "over all ranks or none"),
        ({"parallel": Parallelism(tp=4, pp=2)}, "--pp cannot be written"),
        ({"model": "llama-3.1-70b", "parallel": Parallelism(dp=2)}, "run every step together"),
        ({"parallel": Parallelism(tp=8), "flags": EngineFlags(block_size=24)}, "no pages of 24 tokens"),
        ({"parallel": Parallelism(tp=8), "roles": (("kv", "nvfp4"),)}, "no KV cache in nvfp4"),
    ],
)
def test_what_atom_has_no_flag_for_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        command(on_mi355x(**changes))


def test_the_client_of_atom_keeps_lengths_and_takes_facts() -> None:
    """atom/benchmarks/benchmark_serving.py at 22da013: --random-range-ratio 1 is its default, --metadata KEY=VALUE."""
    load = AnchorLoad(users=4, prompt=1024, output=512, parallel=Parallelism(tp=8))
    words = benchmark(on_mi355x(parallel=load.parallel), load, "r.json")
    assert words[:3] == ["python", "-m", "atom.benchmarks.benchmark_serving"]
    assert words[words.index("--random-range-ratio") + 1] == "1"
    assert {"engine=atom", "gpu=mi355x", "tp=8"} <= set(words[words.index("--metadata") :])


def pooled(engine: str) -> Launch:
    return launch(asked(engine, parallel=Parallelism(tp=2)), 4096)


@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_pools_are_the_commands_of_both_and_a_router(engine: str) -> None:
    lines = script(pooled(engine), Pools(2, 3)).splitlines()
    starts = [
        line for line in lines if re.search(r"vllm serve|sglang\.launch_server|trtllm-serve llama|--tp_size", line)
    ]
    assert len(starts) == 2
    router = lines[-1]
    flags = {word for word in shlex.split(router) if word.startswith("-")}
    assert flags <= set(ROUTER_FLAGS[engine])
    if engine == "trtllm":
        config = json.loads(next(line for line in lines if "context_servers" in line))
        assert [config[name]["num_instances"] for name in ("context_servers", "generation_servers")] == [2, 3]
        assert len(config["context_servers"]["urls"]) == 2
        prefill, decode = (json.loads(line) for line in lines if "cache_transceiver_config" in line)
        assert set(prefill) | set(decode) <= TRTLLM_FIELDS
        assert prefill["disable_overlap_scheduler"] is True
        assert "disable_overlap_scheduler" not in decode
    else:
        assert (router.count("--prefill "), router.count("--decode ")) == (2, 3)
        assert "${PREFILL_2:?" in router
    if engine == "vllm":
        roles = [json.loads(shlex.split(line)[-1])["kv_role"] for line in starts]
        assert roles == ["kv_producer", "kv_consumer"]  # vllm/config/kv_transfer.py:11
        assert all(line.startswith("VLLM_NIXL_SIDE_CHANNEL_HOST=") for line in starts)  # vllm/envs.py:1721
    if engine == "sglang":
        assert [shlex.split(line)[shlex.split(line).index("--disaggregation-mode") + 1] for line in starts] == [
            "prefill",
            "decode",
        ]
        assert router.count(" 8998") == 2  # disagg.py:84: the bootstrap port of a prefill server


@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_pools_on_kubernetes_are_two_sets_and_a_router_that_knows_every_server(engine: str) -> None:
    objects = manifest(pooled(engine), Pools(2, 3))
    by_kind = {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}
    name = "llama-3-1-8b"
    for role, count in (("prefill", 2), ("decode", 3)):
        workload = by_kind["StatefulSet", f"{name}-{role}"]
        assert workload["spec"]["replicas"] == count
        assert workload["spec"]["serviceName"] == f"{name}-{role}"
        # llm-d-modelservice, templates/_helpers.tpl: llm-d-modelservice.pdlabels, prefilllabels, decodelabels
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert {key: labels[key] for key in labels if key.startswith("llm-d")} == {
            "llm-d.ai/inferenceServing": "true",
            "llm-d.ai/model": name,
            "llm-d.ai/role": role,
        }
        assert by_kind["Service", f"{name}-{role}"]["spec"]["clusterIP"] == "None"
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
        addresses = [entry for entry in container["env"] if entry["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"]
        own = [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        assert addresses == (own if engine == "vllm" else [])
    router = by_kind["Deployment", name]
    (container,) = router["spec"]["template"]["spec"]["containers"]
    assert "resources" not in container
    flags = {word for word in container["command"] if word.startswith("--") or word == "-c"}
    assert flags - {"-c"} <= set(ROUTER_FLAGS[engine])
    held = json.dumps(by_kind.get(("ConfigMap", f"{name}-config"), container["command"]))
    port = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}[engine]
    for role, index in (("prefill", 0), ("prefill", 1), ("decode", 0), ("decode", 2)):
        assert f"{name}-{role}-{index}.{name}-{role}:{port}" in held
    assert f"{name}-prefill-2" not in held
    assert by_kind["Service", name]["spec"]["selector"] == {"app": name}


def test_a_queue_that_an_engine_has_no_option_for_is_said() -> None:
    """vLLM has priorities; nobody has fair queues, and of SGLang's priorities nothing is known here."""
    for engine, queue, flag in (("vllm", "priority", True), ("vllm", "fair", False), ("sglang", "priority", False)):
        planned = Planned(name="p", request=asked(engine), context=4096, pools=None, drafting=None, queue=queue)  # type: ignore[arg-type]
        made = launch_text(engine, planned, EmitAsked())
        assert ("--scheduling-policy priority" in made.text) is flag
        (note,) = (note for note in made.notes if "--queue" in note or "--scheduling-policy" in note)
        assert ("send each request with the priority" in note) is flag
    plain = launch_text(
        "vllm", Planned(name="p", request=asked("vllm"), context=4096, pools=None, drafting=None), EmitAsked()
    )
    assert "--scheduling-policy" not in f"{plain.text} {plain.notes}"
