"""Words of commands, of launches that are written down here: what a flag needs, and what is refused without it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.answers.emit import atom as engine_of_amd
from inferplan.answers.emit import checkpoint as stored
from inferplan.answers.emit import engines, nodes, options, pools, replica, sglang, vllm
from inferplan.answers.emit.atom import atom
from inferplan.answers.emit.llama_cpp import llama_cpp
from inferplan.answers.emit.trtllm import trtllm, trtllm_config
from inferplan.catalog.assemble import load_engine
from inferplan.errors import InfeasibleError, UsageError
from inferplan.work.formats import find_format
from tests.cases import for_each

MADE, NEEDS, DRAFT = stored.online, stored.checkpoint_needs, stored.draft_checkpoint


def formats(**names: str) -> Any:
    """bf16 but for the roles that are named."""
    roles = dict.fromkeys(("base", "weights", "experts", "embedding", "head", "activations", "kv"), "bf16")
    exceptions = names.pop("exceptions", ())
    return SimpleNamespace(**{role: find_format(name) for role, name in (roles | names).items()}, exceptions=exceptions)


NATIVE = SimpleNamespace(kv=None, base="bf16")


def launch(engine: str = "vllm", version: str = "0.33", **more: Any) -> Any:
    """One device of NVIDIA, its own node of 8, 32 sequences and 2,048 tokens of a rank, all defaults; ``degrees``,
    ``asked``, ``model`` and ``draft`` change what they name."""
    degrees = {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "cp": 1, "redundant": 0, "spread_dense": False}
    parallel = SimpleNamespace(**degrees | more.pop("degrees", {}), describe=lambda: "divided")
    parallel.ranks = parallel.tp * parallel.pp * parallel.dp
    flags = {
        "max_sequences": None, "block_size": None, "two_batch_overlap": False, "backends": (),
        "prefill_schedule_interval": None, "prefill_decode_interval": None, "enable_prefill_delayer": False,
        "prefill_delayer_max_delay_passes": None,
    }  # fmt: skip
    asked = SimpleNamespace(**flags | more.pop("asked", {}))
    model = {"name": "m", "encodes": False, "encoder": None, "has_experts": True, "native": NATIVE, "tied": False,
             "sequence": ("a layer", "another")}  # fmt: skip
    of = load_engine(f"vllm@{version}" if engine == "vllm" else engine)
    deployment = SimpleNamespace(
        parallel=parallel,
        engine=SimpleNamespace(
            name=engine,
            defaults=SimpleNamespace(version=version, commands=True, makes=of.defaults.makes),
            describe=lambda: f"{engine} {version}",
            caches=of.caches, require_cache=of.require_cache, loads=of.loads,
        ),
        hardware=SimpleNamespace(name="h100", vendor=more.pop("vendor", "NVIDIA"), peak={"bf16": 1.0, "fp8": 2.0}),
        model=SimpleNamespace(**model | more.pop("model", {})), precision=more.pop("precision", formats()),
        lora=more.pop("lora", None), offload=more.pop("offload", None),
    )  # fmt: skip
    speculation = {"length": 0, "branches": 1, "draft": None} | more.pop("draft", {})
    drafts = replica.Drafts(SimpleNamespace(**speculation), "d", more.pop("draft_checkpoint", "org/draft"))  # type: ignore[arg-type]
    found = {
        "deployment": deployment, "drafts": drafts, "named": "org/m", "holds": False, "extra": None, "role": None,
        "context": 8192, "sequences": 32, "token_budget": 2048, "fraction": 0.8, "queue": "fcfs", "yarn": None,
        "devices_of_a_node": 8, "chat": False, "request": SimpleNamespace(
            model="m", flags=asked,
            offload=SimpleNamespace(cpu_offload_gb=0.0, gpu_layers=more.pop("gpu_layers", None)),
            lora=SimpleNamespace(modules=more.pop("modules", ())),
        ),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


@pytest.fixture(autouse=True)
def nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that is named holds what is modelled, and nothing is made of it as it loads."""
    for module in (stored, vllm, sglang):
        monkeypatch.setattr(module, "online", lambda launch, deployment=None: None)
    monkeypatch.setattr(stored, "checkpoint_needs", lambda launch: None)
    for module in (vllm, sglang, engine_of_amd):
        monkeypatch.setattr(module, "draft_checkpoint", lambda launch: launch.drafts.checkpoint)


def head(name: str) -> dict[str, Any]:
    return {"length": 3, "draft": SimpleNamespace(model=SimpleNamespace(name=f"m {name}"))}


SMALL = {"length": 3, "draft": SimpleNamespace(model=SimpleNamespace(name="small"))}
VLLM = (
    "vllm serve org/m{} --max-model-len 8192 --max-num-seqs 32 --max-num-batched-tokens 2048"
    " --gpu-memory-utilization 0.8 --kv-cache-dtype auto{}"
)
YARN = SimpleNamespace(rope={"rope_type": "yarn"}, theta=5.0, factor=4.0, original=2048)


@for_each(
    ("changes", "first", "last"),
    [
        ({}, "", ""),
        ({"degrees": {"tp": 2, "pp": 3}}, " --tensor-parallel-size 2 --pipeline-parallel-size 3", ""),
        ({"degrees": {"dp": 2}}, " --data-parallel-size 2", ""),
        ({"degrees": {"tp": 2, "ep": 2}}, " --tensor-parallel-size 2 --enable-expert-parallel", ""),
        (
            {"degrees": {"dp": 2, "ep": 2, "redundant": 4}, "role": "prefill"},
            " --data-parallel-size 2 --enable-expert-parallel --all2all-backend deepep_high_throughput --enable-eplb"
            ' --eplb-config {"num_redundant_experts":_4}',
            ' --kv-transfer-config {"kv_connector":_"NixlConnector",_"kv_role":_"kv_producer"}',
        ),
        (
            {"role": "decode"},
            "",
            ' --kv-transfer-config {"kv_connector":_"NixlConnector",_"kv_role":_"kv_consumer"}',
        ),
        ({"asked": {"two_batch_overlap": True, "prefill_schedule_interval": 0}}, " --enable-dbo"
         " --prefill-schedule-interval 0", ""),
        ({"yarn": YARN}, ' --hf-overrides {"rope_parameters":_{"rope_type":_"yarn",_"rope_theta":_5.0}}', ""),
        ({"draft": {"length": 3}}, "",
         ' --speculative-config {"method":_"ngram",_"num_speculative_tokens":_3}'),
        ({"draft": head("mtp")}, "", ' --speculative-config {"method":_"mtp",_"num_speculative_tokens":_3}'),
        (
            {"draft": head("eagle3"), "degrees": {"tp": 2}},
            " --tensor-parallel-size 2",
            ' --speculative-config {"method":_"eagle3",_"num_speculative_tokens":_3,_"model":_"org/draft",'
            '_"draft_tensor_parallel_size":_2}',
        ),
        (
            {"draft": SMALL},
            "",
            ' --speculative-config {"method":_"draft_model",_"num_speculative_tokens":_3,_"model":_"org/draft",'
            '_"draft_tensor_parallel_size":_1}',
        ),
        ({"lora": SimpleNamespace(rank=16, slots=4, stored=None, modules=("v", "q"))}, "",
         " --enable-lora --max-loras 4 --max-lora-rank 16 --lora-target-modules q_proj v_proj"),
        ({"lora": SimpleNamespace(rank=16, slots=4, stored=None), "version": "0.18"}, "",
         " --enable-lora --max-loras 4 --max-lora-rank 16"),
    ],
)  # fmt: skip
def test_a_command_of_vllm(changes: dict[str, Any], first: str, last: str) -> None:
    """Underscores are the spaces of JSON."""
    found = vllm.vllm(launch(**changes))
    assert found == [word.replace(":_", ": ").replace(",_", ", ") for word in VLLM.format(first, last).split()]


def test_what_a_command_of_vllm_leaves_out() -> None:
    """A context that the config has; the cache of a model that keeps none; more sequences than tokens by default."""
    found = vllm.vllm(launch(context=None, model={"encodes": True}, sequences=4096, queue="priority"))
    assert found == [
        "vllm", "serve", "org/m", "--max-num-seqs", "2048", "--max-num-batched-tokens", "2048", "--scheduling-policy",
        "priority", "--gpu-memory-utilization", "0.8",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="2049 sequences and 2048 tokens"):
        vllm.vllm(launch(asked={"max_sequences": 2049}, sequences=2049))
    assert "2048" in vllm.vllm(launch(asked={"max_sequences": 2048}, sequences=2048))
    whole = launch(asked={"block_size": 32})
    whole.request.offload.cpu_offload_gb = 7.5
    words = vllm.vllm(whole)
    assert words[words.index("--cpu-offload-gb") : words.index("--kv-cache-dtype")] == [
        "--cpu-offload-gb", "7.5", "--block-size", "32"
    ]  # fmt: skip


@for_each(
    ("changes", "hint"),
    [
        ({"draft": {"length": 3, "branches": 2}}, "--draft-branches 1"),
        ({"draft": head("other")}, "a head named eagle, eagle3, dflash, dspark"),
        ({"lora": SimpleNamespace(rank=24, slots=4, stored=None)}, "--lora-rank 32"),
        ({"lora": SimpleNamespace(rank=999, slots=4, stored=None)}, "--lora-rank 512"),
        ({"lora": SimpleNamespace(rank=16, slots=4, stored=1), "version": "0.18"}, "--engine vllm@0.20"),
        ({"lora": SimpleNamespace(rank=16, slots=4, stored=None), "version": "0.18", "modules": ("q",)},
         "--engine vllm@0.20"),
        ({"degrees": {"tp": 2, "dp": 2, "ep": 2}}, "--ep 4, or 1"),
        ({"degrees": {"cp": 2}}, "vLLM's context parallelism is not modelled flag by flag; leave --cp at 1"),
        ({"precision": formats(kv="q8_0")}, None),
    ],
)  # fmt: skip
def test_what_vllm_has_no_flag_for(changes: dict[str, Any], hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        vllm.vllm(launch(**changes))
    assert hint is None or refused.value.hint == hint


def test_checkpoints_made_as_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model and of its drafts, unless they hold it already."""
    for module in (vllm, sglang, stored):
        monkeypatch.setattr(module, "online", lambda launch, deployment=None: "fp8")
    words = vllm.vllm(launch(draft=SMALL))
    assert words[words.index("--quantization") + 1] == "fp8" and '"quantization": "fp8"' in words[-1]
    held = vllm.vllm(launch(draft=SMALL, holds=True))
    assert "--quantization" not in held and "quantization" not in held[-1]
    words = sglang.sglang(launch("sglang", draft=SMALL))
    assert words[words.index("--quantization") + 1] == "fp8"
    assert words[-2:] == ["--speculative-draft-model-quantization", "fp8"]
    assert sglang.sglang(launch("sglang", draft=SMALL, holds=True))[-2:] == ["--speculative-num-draft-tokens", "4"]
    monkeypatch.setattr(sglang, "online", lambda launch, deployment=None: None if deployment else "fp8")
    assert sglang.sglang(launch("sglang", draft=SMALL))[-1] == "unquant"


SGLANG = (
    "python -m sglang.launch_server --model-path org/m{} --context-length 8192 --chunked-prefill-size 2048"
    " --mem-fraction-static 0.8 --kv-cache-dtype auto{}"
)


@for_each(
    ("changes", "first", "last"),
    [
        ({}, "", ""),
        ({"degrees": {"tp": 2, "pp": 3}, "role": "prefill"}, " --tp-size 2 --pp-size 3",
         " --disaggregation-mode prefill"),
        ({"asked": {"two_batch_overlap": True, "enable_prefill_delayer": True, "prefill_decode_interval": 0,
                    "prefill_delayer_max_delay_passes": 0}}, " --enable-two-batch-overlap --prefill-decode-interval 0"
         " --enable-prefill-delayer --prefill-delayer-max-delay-passes 0", ""),
        ({"asked": {"backends": (("experts", "triton"), ("attention", "fa3"))}}, " --moe-runner-backend triton"
         " --attention-backend fa3", ""),
        ({"yarn": YARN}, ' --json-model-override-args {"rope_scaling":_{"rope_type":_"yarn"}}', ""),
        ({"draft": head("mtp")}, "", " --speculative-algorithm NEXTN --speculative-num-steps 3"
         " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ({"draft": head("eagle")}, "", " --speculative-algorithm EAGLE --speculative-draft-model-path org/draft"
         " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ({"draft": SMALL}, "", " --speculative-algorithm STANDALONE --speculative-draft-model-path org/draft"
         " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ({"degrees": {"redundant": 2}}, " --enable-eplb --ep-num-redundant-experts 2", ""),
    ],
)  # fmt: skip
def test_a_command_of_sglang(changes: dict[str, Any], first: str, last: str) -> None:
    found = sglang.sglang(launch("sglang", **changes))
    assert found == [word.replace(":_", ": ").replace(",_", ", ") for word in SGLANG.format(first, last).split()]


@for_each(
    ("degrees", "role", "words"),
    [
        ({"tp": 1, "dp": 2}, None, "--tp-size 2 --attn-dp-size 2 --enable-dp-lm-head --moe-dense-tp-size 1"),
        ({"tp": 2, "dp": 2, "ep": 2}, None, "--tp-size 4 --attn-dp-size 2 --enable-dp-lm-head --ep-size 2"),
        ({"dp": 2, "spread_dense": True}, None, "--tp-size 2 --attn-dp-size 2 --enable-dp-lm-head"),
        ({"dp": 2, "ep": 2}, "prefill", "--tp-size 2 --attn-dp-size 2 --enable-dp-lm-head --moe-dense-tp-size 1"
         " --ep-size 2 --moe-a2a-backend deepep --deepep-mode normal"),
        ({"dp": 2, "ep": 2}, "decode", "--tp-size 2 --attn-dp-size 2 --enable-dp-lm-head --moe-dense-tp-size 1"
         " --ep-size 2 --moe-a2a-backend deepep --deepep-mode low_latency"),
        ({"tp": 2, "ep": 2}, None, "--tp-size 2 --ep-size 2"),
    ],
)  # fmt: skip
def test_ranks_of_sglang(degrees: dict[str, Any], role: Any, words: str) -> None:
    """Sequences and tokens are of all ranks together."""
    found = sglang.sglang(launch("sglang", degrees=degrees, role=role, asked={"max_sequences": 32}))
    assert " ".join(found[5 : found.index("--context-length")]) == words
    dp = degrees.get("dp", 1)
    assert found[found.index("--max-running-requests") + 1] == str(32 * dp)
    assert found[found.index("--chunked-prefill-size") + 1] == str(2048 * dp)


@for_each(
    "changes",
    [
        {"draft": {"length": 3}},
        {"draft": SMALL | {"branches": 2}},
        {"draft": SMALL, "degrees": {"dp": 2}},
        {"draft": head("dflash")},
        {"asked": {"backends": (("attention", "@0.5.6"),)}},
        {"degrees": {"cp": 2}},
    ],
)
def test_what_sglang_has_no_flag_for(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sglang.sglang(launch("sglang", **changes))


def test_heads_of_attention_ranks_in_sglang() -> None:
    """STANDALONE alone refuses them."""
    assert "EAGLE3" in sglang.sglang(launch("sglang", draft=head("eagle3"), degrees={"dp": 2}))


def test_experts_on_the_host_of_ktransformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 cores of two sockets; the rest of the words are SGLang's for what the GPU holds."""
    monkeypatch.setattr(sglang, "native_precision", lambda model: formats(weights="fp8-block", experts="fp8-block"))
    monkeypatch.setattr(sglang, "moe_parts", lambda layer: layer == "experts")
    monkeypatch.setattr(sglang, "replace", lambda value, **new: SimpleNamespace(**vars(value) | new))
    host = SimpleNamespace(hardware=SimpleNamespace(units=64, sockets=2))

    def words(layers: int, sequence: tuple[str, ...], **names: str) -> list[str]:
        offload = SimpleNamespace(experts=layers, host=host)
        held = launch("ktransformers", precision=formats(**names), offload=offload, model={"sequence": sequence})
        return sglang.ktransformers(held)

    plain = SGLANG.format("", "").split()
    for experts, folder in (("q4_k", "with the GGUF files of the experts"), ("fp8-block", "of the checkpoint")):
        method = "LLAMAFILE" if experts == "q4_k" else "FP8"
        assert words(2, ("experts", "experts", "dense"), weights="fp8-block", experts=experts) == [
            *plain, "--kt-method", method, "--kt-weight-path", f"${{KT_WEIGHTS:?folder {folder}}}", "--kt-cpuinfer",
            "64", "--kt-threadpool-count", "2", "--kt-num-gpu-experts", "0", "--disable-shared-experts-fusion",
        ]  # fmt: skip
    with pytest.raises(UsageError, match="experts of every layer") as refused:
        words(1, ("dense", "experts"), weights="fp8-block", experts="q4_k")
    assert (refused.value.hint or "").startswith("--cpu-moe-layers 2 ")
    with pytest.raises(UsageError, match="not in q8_0"):
        words(1, ("experts", "dense"), weights="q8_0", experts="q8_0")
    assert words(1, ("experts", "dense"), weights="bf16", experts="fp8-block")
    assert sglang.ktransformers(launch("ktransformers")) == plain


def test_a_command_of_llama_cpp() -> None:
    """32 slots of 8,192 tokens are 262,144."""
    rest = "-b 2048 -ctk bf16 -ctv bf16"
    start = "llama-server -hf org/m -c 262144 -np 32 "
    for changes, words in (
        ({}, f"{start}-ngl all {rest}"),
        ({"degrees": {"pp": 2}}, f"{start}-ngl all {rest} -sm layer"),
        ({"yarn": YARN}, f"{start}--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048 -ngl all {rest}"),
        ({"offload": SimpleNamespace(layers=5, experts=0), "gpu_layers": 27}, f"{start}-ngl 27 {rest}"),
        ({"offload": SimpleNamespace(layers=0, experts=9)}, f"{start}-ngl all -ncmoe 9 {rest}"),
    ):
        assert " ".join(llama_cpp(launch("llama.cpp", **changes))) == words  # type: ignore[arg-type]
    assert llama_cpp(launch("llama.cpp", named="m.gguf", precision=formats(kv="fp16")))[1:3] == ["-m", "m.gguf"]
    for changes in ({"precision": formats(kv="fp8")}, {"context": None}, {"role": "decode"}):
        with pytest.raises(UsageError):
            llama_cpp(launch("llama.cpp", **changes))


def test_a_command_of_trtllm() -> None:
    """Attention ranks are told by its file."""
    found = trtllm(launch("trtllm", degrees={"tp": 2, "pp": 3, "dp": 4, "ep": 8}, extra="x.yaml"))
    assert " ".join(found) == (
        "trtllm-serve org/m --tp_size 8 --pp_size 3 --ep_size 8 --max_seq_len 8192 --max_batch_size 32 "
        "--max_num_tokens 2048 --kv_cache_free_gpu_memory_fraction 0.8 --extra_llm_api_options x.yaml"
    )
    bare = trtllm(launch("trtllm", context=None, extra="x.yaml"))
    assert " ".join(bare) == (
        "trtllm-serve org/m --tp_size 1 --max_batch_size 32 --max_num_tokens 2048 "
        "--kv_cache_free_gpu_memory_fraction 0.8"
    )
    for changes in ({"degrees": {"dp": 2}}, {"vendor": "AMD"}, {"degrees": {"cp": 2}}):
        with pytest.raises(UsageError):
            trtllm(launch("trtllm", **changes))  # type: ignore[arg-type]


def test_the_file_of_trtllm() -> None:
    assert trtllm_config(launch("trtllm")) == {}
    whole = launch(
        "trtllm", degrees={"dp": 2}, asked={"block_size": 64}, precision=formats(kv="fp8", base="fp16"), role="prefill",
        draft=head("mtp"),
    )  # fmt: skip
    assert trtllm_config(whole) == {
        "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64, "free_gpu_memory_fraction": 0.8},
        "enable_attention_dp": True, "dtype": "float16",
        "speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3},
        "cache_transceiver_config": {"backend": "DEFAULT"}, "disable_overlap_scheduler": True,
    }  # fmt: skip
    assert trtllm_config(launch("trtllm", role="decode")) == {"cache_transceiver_config": {"backend": "DEFAULT"}}
    for draft in (head("eagle"), head("mtp") | {"branches": 2}):
        with pytest.raises(UsageError, match="prediction module"):
            trtllm_config(launch("trtllm", draft=draft))


ATOM = (
    "{}python -m atom.entrypoints.openai_server --model org/m{} --max-num-seqs 32 --max-num-batched-tokens 2048"
    " --max-model-len 8192 --gpu-memory-utilization 0.8 --kv_cache_dtype bf16{}"
)
DELAYER = "env ATOM_ENABLE_PREFILL_DELAYER=0 "


@for_each(
    ("changes", "environment", "first", "last"),
    [
        ({}, "", "", ""),
        ({"degrees": {"tp": 2}}, "", " --tensor-parallel-size 2", ""),
        ({"degrees": {"tp": 2, "ep": 2}}, "", " --tensor-parallel-size 2 --enable-expert-parallel", ""),
        ({"degrees": {"dp": 2}}, DELAYER, " --tensor-parallel-size 2 --enable-dp-attention", ""),
        ({"degrees": {"tp": 2, "dp": 2, "ep": 4}}, DELAYER, " --tensor-parallel-size 2 --data-parallel-size 2"
         " --enable-expert-parallel --all2all-backend none", ""),
        ({"degrees": {"dp": 2}, "asked": {"enable_prefill_delayer": True, "prefill_decode_interval": 0,
                                          "prefill_delayer_max_delay_passes": 0}},
         "env ATOM_ENABLE_PREFILL_DELAYER=1 ATOM_PREFILL_DECODE_INTERVAL=0 ATOM_PREFILL_DELAYER_TTFT_MAX_TICKS=0 ",
         " --tensor-parallel-size 2 --enable-dp-attention", ""),
        ({"draft": head("mtp"), "version": "0.1"}, "", "", " --method mtp --num-speculative-tokens 3"),
        ({"draft": head("eagle3")}, "", "", " --method eagle3 --num-speculative-tokens 3 --draft-model org/draft"),
    ],
)  # fmt: skip
def test_a_command_of_atom(changes: dict[str, Any], environment: str, first: str, last: str) -> None:
    found = atom(launch("atom", **{"version": "0.2"} | changes))
    assert " ".join(found) == ATOM.format(environment, first, last)


@for_each(
    "changes",
    [
        {"degrees": {"tp": 2, "dp": 2, "ep": 2}},
        {"degrees": {"tp": 2, "dp": 2}},
        {"degrees": {"dp": 2}, "model": {"has_experts": False}},
        {"degrees": {"dp": 2, "ep": 2}, "version": "0.1"},
        {"degrees": {"pp": 2}},
        {"degrees": {"cp": 2}},
        {"draft": head("eagle3"), "version": "0.1"},
        {"draft": head("eagle")},
        {"draft": SMALL},
        {"draft": head("mtp") | {"branches": 2}},
        {"asked": {"block_size": 17}},
        {"precision": formats(base="fp16")},
        {"model": {"native": SimpleNamespace(kv=None, base="fp16")}},
    ],
)
def test_what_atom_has_no_flag_for(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        atom(launch("atom", **{"version": "0.2"} | changes))


def test_pages_of_atom() -> None:
    """One token, or a multiple of 16."""
    for size in (1, 16, 48):
        words = atom(launch("atom", asked={"block_size": size}))
        assert words[words.index("--block-size") + 1] == str(size)


# --- what they have in common


def test_formats_of_activations_and_cache() -> None:
    """fp32 is said even where the checkpoint is in fp32: engines take fp16 by themselves."""
    wide = SimpleNamespace(kv=None, base="fp32")
    assert replica.dtype(launch()) is None
    assert replica.dtype(launch(precision=formats(base="fp16"))) == "float16"
    whole = formats(base="fp32", weights="fp32")
    assert replica.dtype(launch(precision=whole, model={"native": wide})) == "float32"
    with pytest.raises(UsageError, match="runs weights in fp8"):
        replica.dtype(launch(precision=formats(base="fp32", weights="fp8")))
    for held, kv, name in ((None, "bf16", "auto"), ("bf16", "bf16", "auto"), ("fp8", "bf16", "bf16"),
                           (None, "fp8", "fp8_e4m3")):  # fmt: skip
        own = SimpleNamespace(kv=held, base="bf16")
        assert replica.kv_dtype(launch("sglang", precision=formats(kv=kv), model={"native": own})) == name
    assert replica.kv_dtype(launch("atom"), "bf16") == replica.kv_dtype(launch("llama.cpp"), None) == "bf16"
    with pytest.raises(UsageError) as refused:
        replica.kv_dtype(launch("sglang", precision=formats(kv="int8")))
    assert refused.value.hint == "--kv fp8, bf16"


def test_bytes_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of each of three stages hold 10 bytes, and 3 are streamed, or 5 lie on the host: 63, or 65."""
    parts = SimpleNamespace(weights=10.0, streamed=3.0, host=None)
    monkeypatch.setattr(replica, "_smallest", lambda deployment: parts)
    bytes_of = replica.Launch.checkpoint_bytes.fget  # type: ignore[attr-defined]
    assert bytes_of(launch(degrees={"tp": 2, "pp": 3, "dp": 9})) == 63.0
    parts.host = SimpleNamespace(weights=5.0)
    assert bytes_of(launch(degrees={"tp": 2, "pp": 3})) == 65.0


def test_a_request_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits is said with what would hold the request; beside drafts nobody has tried it. Where a host holds a part,
    it is said what either side lacks."""
    deployment = SimpleNamespace(
        model=SimpleNamespace(max_context=1000, name="m"), engine=SimpleNamespace(logs_cache=False),
        describe=lambda: "the GPU",
    )  # fmt: skip
    footprint = SimpleNamespace(max_context=lambda: longest, kv_pool=2e9)
    monkeypatch.setattr(replica, "assemble", lambda request: deployment)
    monkeypatch.setattr(replica, "_smallest", lambda deployment: footprint)
    monkeypatch.setattr(replica, "what_would_fit", lambda footprint: f"fits {footprint.context:.0f}")
    monkeypatch.setattr(replica, "Footprint", lambda **given: SimpleNamespace(**given, host=host, fits=fits))

    def short(here: Any, there: Any) -> InfeasibleError:
        return InfeasibleError("not on h100", because=f"{there} is full", hint=f"fewer than {here.context}")

    monkeypatch.setattr(replica, "sides_error", short)
    host, fits = None, False
    monkeypatch.setattr(replica, "longer_than", lambda model, context: f"one of {context}")
    asked: Any = "request"
    longest: float = 500.0
    assert replica.launch(asked).context == 500 and replica.launch(asked, context=499).context == 499
    assert replica.launch(asked, context=500).context == 500
    with pytest.raises(InfeasibleError, match="does not hold one request of 501 tokens") as refused:
        replica.launch(asked, context=501)
    assert refused.value.hint == "--context 500, or fits 501" and "2.000 GB, which holds 500" in refused.value.because
    host = "a host"
    with pytest.raises(InfeasibleError, match="not on h100") as refused:
        replica.launch(asked, context=501)
    assert (refused.value.because, refused.value.hint) == ("a host is full", "--context 500, or fewer than 501")
    fits = True
    with pytest.raises(InfeasibleError, match="does not hold one request of 501 tokens"):
        replica.launch(asked, context=501)
    host, fits = None, False
    with pytest.raises(InfeasibleError, match="no context of 1,001 tokens") as refused:
        replica.launch(asked, context=1001)
    assert refused.value.hint == "--context 1000, or one of 1001"
    longest = 1.0
    with pytest.raises(InfeasibleError) as refused:
        replica.launch(asked, context=2)
    assert refused.value.hint == "--context 1, or fits 2" and replica.launch(asked).context == 1
    longest = 0.5
    with pytest.raises(InfeasibleError, match="does not hold a request") as refused:
        replica.launch(asked)
    assert refused.value.hint == "fits 1"
    longest, deployment.model.max_context = inf, None
    assert replica.launch(asked).context is None
    longest, deployment.model.max_context = inf, 1000
    drafts = SimpleNamespace(speculation=SimpleNamespace(draft="draft"))
    refusal = replica._not_held(deployment, 5, 4.0, drafts)  # type: ignore[arg-type]
    assert refusal.hint == "a shorter --context, more GPUs or a narrower --quant"


def test_pages_of_the_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that logs its cache starts with whole pages; a draft of its own context is beside the model."""
    deployment = SimpleNamespace(engine=SimpleNamespace(logs_cache=True))
    footprint = SimpleNamespace(max_context=lambda: longest, longest_start=lambda tokens: tokens // 16 * 16)
    monkeypatch.setattr(replica, "_smallest", lambda deployment: footprint)
    monkeypatch.setattr(replica, "with_flags", lambda deployment, flags: deployment)
    monkeypatch.setattr(replica, "rules_of", lambda *words: SimpleNamespace(capacity=capacity))
    plain: Any = SimpleNamespace(draft=None)
    longest, capacity = 100.5, 90.5
    assert replica._longest(deployment, plain) == 96  # type: ignore[arg-type]
    for value in (0.5, inf):
        longest = value
        assert replica._longest(deployment, plain) == value  # type: ignore[arg-type]
    longest, deployment.engine.logs_cache = 100.5, False
    assert replica._longest(deployment, plain) == 100.5  # type: ignore[arg-type]
    for most, held in ((None, 90), (50, 50), (95, 90)):
        beside: Any = SimpleNamespace(draft=SimpleNamespace(model=SimpleNamespace(max_context=most)))
        assert replica._longest(deployment, beside) == held  # type: ignore[arg-type]


def test_heads_and_queues() -> None:
    assert replica.head_of(launch(draft=head("mtp"))) == "mtp"
    assert replica.head_of(launch(draft=SMALL)) is replica.head_of(launch()) is None
    note = replica.queue_note("priority", "vllm")
    assert note.startswith("vLLM is started with --scheduling-policy priority")
    assert replica.queue_note("priority", "sglang").startswith("--queue priority is not an option of sglang")
    assert replica.queue_note("fcfs", "vllm") == ""


def test_commands_of_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen devices are two nodes of eight."""
    monkeypatch.setattr(engines, "one_node", lambda launch: launch.deployment.parallel.ranks <= 8)
    monkeypatch.setattr(engines, "_words", lambda launch: ["start"])
    monkeypatch.setattr(engines, "command", lambda launch: ["alone"])
    where = "${HEAD:?address of the first node}"

    def over(engine: str, **changes: Any) -> list[list[str]]:
        return engines.over_nodes(launch(engine, **changes))

    assert over("vllm", degrees={"tp": 8}) == over("vllm", degrees={"tp": 16}, devices_of_a_node=None) == [["alone"]]
    assert over("vllm", degrees={"tp": 8, "pp": 2}) == [
        ["start", "--nnodes", "2", "--node-rank", "0", "--master-addr", where],
        ["start", "--nnodes", "2", "--node-rank", "1", "--master-addr", where, "--headless"],
    ]
    assert over("sglang", degrees={"tp": 8, "dp": 2})[1] == [
        "start", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", f"{where}:20000"
    ]  # fmt: skip
    assert over("trtllm", degrees={"tp": 16}) == [[
        "srun", "--nodes", "2", "--ntasks", "16", "--ntasks-per-node", "8", "--mpi=pmix", "trtllm-llmapi-launch",
        "start", "--host", "0.0.0.0",
    ]]  # fmt: skip
    for engine, degrees in (("vllm", {"tp": 8, "dp": 2}), ("vllm", {"tp": 12}), ("atom", {"tp": 16})):
        with pytest.raises(UsageError, match="over 2 nodes"):
            over(engine, degrees=degrees)
    assert engines.shell(["a b", "${X}", "c"]) == "'a b' \"${X}\" c"


# --- checkpoints


@for_each(
    ("names", "native", "model", "changes"),
    [
        ({}, {}, {}, []),
        ({"weights": "fp8", "activations": "fp8"}, {}, {},
         ["weights in fp8 (compressed-tensors or ModelOpt)", "inputs in fp8"]),
        ({"experts": "fp8"}, {}, {}, ["experts in fp8 (compressed-tensors or ModelOpt)", "inputs in bf16"]),
        ({"experts": "fp8"}, {}, {"roles": ("other",)}, []),
        ({"head": "fp8"}, {}, {"tied": True}, []),
        ({"head": "fp8"}, {}, {}, ["head in fp8 (compressed-tensors or ModelOpt)"]),
        ({"embedding": "fp8"}, {}, {"tied": True}, ["embedding in fp8 (compressed-tensors or ModelOpt)"]),
        ({"base": "fp16", "weights": "fp16", "experts": "fp16", "embedding": "fp16", "head": "fp16"}, {}, {}, []),
        ({"weights": "fp8"}, {"weights": "fp8", "activations": "fp8"}, {}, ["inputs in bf16"]),
        ({"weights": "fp8", "activations": "fp8"}, {"weights": "fp8", "activations": "fp8"}, {}, []),
        ({"activations": "fp8"}, {}, {}, []),
        ({"exceptions": (1,)}, {}, {}, ["the tensors that its format leaves in others"]),
        ({"weights": "q4_k"}, {}, {}, ["weights in q4_k", "inputs in bf16"]),
    ],
)  # fmt: skip
def test_what_a_checkpoint_has_to_hold(names: Any, native: Any, model: Any, changes: list[str]) -> None:
    roles = model.get("roles", ("experts",))
    of = SimpleNamespace(
        tied=model.get("tied", False), weights=lambda: [(SimpleNamespace(role=role), 1.0) for role in roles]
    )
    deployment: Any = SimpleNamespace(precision=formats(**names), model=of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "native_precision", lambda model: formats(**native))
        asked: Any = SimpleNamespace(prune="")
        assert stored.tensor_changes(asked, deployment) == changes
        asked.prune = "layers=2"
        assert stored.tensor_changes(asked, deployment) == [*changes, "the pruned shape (layers=2)"]


def test_folders_files_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "model.yaml").write_text("")
    model: Any = SimpleNamespace(
        yarn=None, name="m", instruct_checkpoint=None, source="https://huggingface.co/org/m at 1"
    )

    def found(name: str, **more: Any) -> str:
        return stored.repository(name, SimpleNamespace(**vars(model) | more), chat=name.startswith("chat"))  # type: ignore[arg-type]

    for name in (str(tmp_path), str(tmp_path / "model.gguf"), "other/name"):
        assert found(name) == name
    assert found(str(tmp_path / "model.yaml")) == found("m") == found("m.gguf") == "org/m"
    assert found("a/b" + stored.YARN) == "a/b" + stored.YARN
    assert found("a/b" + stored.YARN.upper(), yarn=SimpleNamespace(used=True)) == "a/b"
    assert found("a/b" + stored.YARN, yarn=SimpleNamespace(used=False)) == "a/b" + stored.YARN
    tuned = SimpleNamespace(id="org/m-instruct")
    for name, chosen in (("m", "org/m"), ("m-instruct", tuned.id), ("chat-m", tuned.id), ("chat-m-base", "org/m")):
        assert found(name, instruct_checkpoint=tuned) == chosen
    assert found("m-instruct", instruct_checkpoint=SimpleNamespace(id=None)) == "org/m"
    with pytest.raises(UsageError, match="no checkpoint of m is known"):
        found("m", source="")


def test_eplb_is_json() -> None:
    words = vllm.vllm(launch(degrees={"redundant": 4}))
    assert json.loads(words[words.index("--eplb-config") + 1]) == {"num_redundant_experts": 4}


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The formats of the released checkpoint, bf16 but for what a test puts in."""
    found: dict[str, str] = {}
    monkeypatch.setattr(stored, "native_precision", lambda model: formats(**found))
    return found


FP8 = {"weights": "fp8", "experts": "fp8", "activations": "fp8"}


def test_fp8_that_is_made_as_it_loads(native: dict[str, str]) -> None:
    """Weights and inputs of a wide checkpoint, and nothing else, by engines that do it."""

    def made(engine: str = "vllm", version: str = "0.33", **names: Any) -> str | None:
        return MADE(launch(engine, version, precision=formats(**names)))

    assert [made(version=version, **FP8) for version in ("0.18", "0.20", "0.33", "0.9")] == [
        "fp8", "fp8", "fp8_per_tensor", None
    ]  # fmt: skip
    assert made("trtllm", "1.0", **FP8) is None
    for other in ({"weights": "bf16"}, {"experts": "int8"}, {"activations": "bf16"}, {"embedding": "fp8"},
                  {"head": "fp8"}, {"exceptions": (1,)}):  # fmt: skip
        assert made(**FP8 | other) is None
    assert made() is None
    draft: Any = SimpleNamespace(precision=formats(**FP8), model="draft")
    assert MADE(launch(), draft) == "fp8_per_tensor"
    for role in ("weights", "experts"):
        native[role] = "fp8"
        assert made(**FP8) is None
        del native[role]


def test_what_must_be_in_a_checkpoint(native: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine makes as it loads need not be in it; a pruned shape must, and llama.cpp reads GGUF files."""
    changes = ["weights in fp8", "the pruned shape (layers=2)"]
    monkeypatch.setattr(stored, "tensor_changes", lambda request, deployment: list(changes))
    assert NEEDS(launch()) == "weights in fp8, the pruned shape (layers=2)"
    assert NEEDS(launch("llama.cpp")) == f"a GGUF file of the model, {', '.join(changes)}"
    file = launch("llama.cpp")
    file.request.model = "m.gguf"
    assert NEEDS(file) == ", ".join(changes)
    made = launch(precision=formats(**FP8))
    assert NEEDS(made) == changes[1]
    native["weights"] = "fp8"
    assert NEEDS(made) == ", ".join(changes)
    del native["weights"]
    changes.pop()
    assert NEEDS(made) is None


def test_which_checkpoint_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "repository", lambda name, model, chat: f"{name} {model.name} {chat}")
    assert stored.checkpoint(launch()) == "org/m" and stored.checkpoint(launch(named=None)) == "m m False"
    for engine, version, read in (("vllm", "0.33", False), ("vllm", "0.20", True), ("trtllm", "1.0", False)):
        file = launch(engine, version, named="x.gguf")
        if read:
            assert stored.checkpoint(file) == "x.gguf"
        else:
            with pytest.raises(UsageError, match="reads no GGUF file"):
                stored.checkpoint(file)
    monkeypatch.setattr(stored, "checkpoint_needs", lambda launch: "weights in fp8")
    monkeypatch.setattr(stored, "_that_does", lambda launch: "org/other")
    assert stored.checkpoint(launch()) == "org/m"

    def refused(engine: str = "vllm", version: str = "0.33", **names: Any) -> tuple[str, str | None]:
        with pytest.raises(UsageError, match="the checkpoint must hold weights in fp8") as found:
            stored.checkpoint(launch(engine, version, named=None, precision=formats(**names)))
        return found.value.because, found.value.hint

    plain = "{} does not make it of the released checkpoint as it loads"
    assert refused() == (plain.format("vllm 0.33"), "--checkpoint org/other")
    assert refused(**FP8)[0] == plain.format("vllm 0.33")
    assert refused(weights="fp8")[0] == "--quantization fp8_per_tensor makes the inputs fp8 too, and here they are bf16"
    assert refused("trtllm", "1.0", weights="fp8")[0] == plain.format("trtllm 1.0")
    assert refused("llama.cpp", "1")[1] == "--checkpoint FILE.gguf"


def test_a_checkpoint_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for tensors that were changed one by one."""
    asked: list[Any] = []
    found: list[Any] = [SimpleNamespace(checkpoint="org/fp8")]
    monkeypatch.setattr(stored, "quantised_checkpoint", lambda model, quant: asked.append(quant) or found[0])

    def name(roles: Any = (), prune: str = "", quant: str | None = "fp8") -> str:
        of = launch()
        of.request.roles, of.request.prune, of.request.quant = roles, prune, quant
        return stored._that_does(of)

    nobody = "ORG/NAME of one that does"
    assert name() == "org/fp8" and name(roles=(1,)) == name(prune="x") == nobody and name(quant=None) == "org/fp8"
    assert asked == ["fp8", ""]
    found[0] = None
    assert name() == nobody
    found[0] = SimpleNamespace(checkpoint="")
    assert name() == nobody


def test_which_of_two_checkpoints_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = ["org/m"]
    monkeypatch.setattr(stored, "repository", lambda name, model, chat: started[0])
    tuned = SimpleNamespace(id="org/m-it")

    def note(of: Any = tuned, named: str | None = None, source: str = "https://huggingface.co/org/Meta-M-hf") -> str:
        return stored.base_note(launch(named=named, model={"instruct_checkpoint": of, "source": source}))

    start = (
        "org/m is a base checkpoint, not tuned on instructions: most have no chat template, and without one "
        "/v1/chat/completions fails; "
    )
    assert note() == f"{start}org/m-it is tuned and of its shape: emit --checkpoint org/m-it"
    assert note(SimpleNamespace(id=None)) == (
        f"{start}no release of its shape that is tuned is known here: emit --checkpoint ORG/NAME"
    )
    assert note(None) == note(named="org/own") == note(source="") == ""
    started[0] = "org/another"
    assert note() == ""
    started[0] = "org/m-it"
    assert note() == (
        "org/m-it is org/Meta-M-hf tuned on instructions, as chat needs; emit --checkpoint org/Meta-M-hf starts that "
        "one"
    )
    monkeypatch.setattr(stored, "checkpoint_needs", lambda launch: "weights in fp8")
    assert note() == (
        "for chat, take a checkpoint made of org/m-it, which is tuned on instructions, not of org/Meta-M-hf"
    )
    started[0] = "m"
    assert note(SimpleNamespace(id="m")) == ""


def test_where_a_checkpoint_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "repository", lambda name, model, chat: "org/m")
    assert stored.from_catalogue(launch(named=None)) == "org/m"
    assert stored.from_catalogue(launch()) is stored.from_catalogue(launch("llama.cpp", named=None)) is None
    typed = launch(named=None)
    typed.request.model = "org/m"
    assert stored.from_catalogue(typed) is None


def test_checkpoints_of_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ["weights in fp8", "inputs in fp8"]
    monkeypatch.setattr(stored, "tensor_changes", lambda request, deployment: changes)
    monkeypatch.setattr(stored, "repository", lambda name, model, chat: f"org/{name} of {model.name}")
    drafted = launch(draft=SMALL, draft_checkpoint=None)
    drafted.request.gpu = "h100-sxm"
    with pytest.raises(UsageError, match="must hold weights in fp8, inputs in fp8"):
        DRAFT(drafted)
    named = launch(draft=SMALL)
    named.request.gpu = "h100-sxm"
    assert DRAFT(named) == "org/draft"
    changes.clear()
    assert DRAFT(drafted) == "org/d of small"
    changes.append("weights in fp8")
    monkeypatch.setattr(stored, "online", lambda launch, deployment=None: deployment and "fp8")
    assert DRAFT(drafted) == "org/d of small"


def test_servers_that_other_machines_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "command", lambda launch: ["start"])
    assert engines.network_command(launch()) == ["start"]
    assert engines.network_command(launch("sglang")) == ["start", "--host", "0.0.0.0"]


# --- pools, nodes and options


def in_pools(engine: str, monkeypatch: pytest.MonkeyPatch, prefill: int = 2, decode: int = 1, **more: Any) -> list[str]:
    monkeypatch.setattr(pools, "network_command", lambda launch: ["start", launch.role, launch.extra or ""])
    monkeypatch.setattr(pools, "in_role", lambda launch, role: SimpleNamespace(**vars(launch) | {"role": role}))
    monkeypatch.setattr(pools, "replace", lambda launch, **new: SimpleNamespace(**vars(launch) | new))
    monkeypatch.setattr(pools, "trtllm_config", lambda launch: {"role": launch.role})
    of = pools.Pools(prefill, decode, more.get("prompts"))
    return pools.script(launch(engine, degrees=more.get("degrees", {})), of).split("\n")


def test_servers_of_both_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is not set stops the shell; vLLM's servers name themselves to each other."""
    first, start, second, other, third, router = in_pools("vllm", monkeypatch)
    assert first == "# 2 prefill servers, vllm 0.33, 1 device each"
    named = 'VLLM_NIXL_SIDE_CHANNEL_HOST="${HOST:?address of this server for the others}" '
    assert (start, second, other) == (
        f"{named}start prefill ''", "# 1 decode server, vllm 0.33, 1 device each", f"{named}start decode ''"
    )  # fmt: skip
    assert third == "# the router: vllm-router 0.1.17"
    hosts = [f"http://${{{name}_{at}:?host of {name.lower()} server {at}}}:8000" for name, at in
             (("PREFILL", 1), ("PREFILL", 2), ("DECODE", 1))]  # fmt: skip
    assert router == (
        "vllm-router --vllm-pd-disaggregation --kv-connector nixl "
        f'--prefill "{hosts[0]}" --prefill "{hosts[1]}" --decode "{hosts[2]}" --host 0.0.0.0 --port 8000'
    )
    sglang_lines = in_pools("sglang", monkeypatch, 1, 2, degrees={"tp": 4, "pp": 2})
    assert sglang_lines[0] == "# 1 prefill server, sglang 0.33, 8 devices each"
    assert sglang_lines[1] == "start prefill ''" and sglang_lines[2].startswith("# 2 decode servers, ")
    assert ":30000" in sglang_lines[-1] and "DECODE_2" in sglang_lines[-1] and "PREFILL_2" not in sglang_lines[-1]
    prompts: Any = launch("vllm", degrees={"tp": 2})
    prompts.deployment.hardware.name = "l4"
    unlike = in_pools("vllm", monkeypatch, prompts=prompts)
    assert unlike[0].endswith("2 x l4 each") and unlike[2].endswith("1 x h100 each")


def test_servers_that_read_files(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = in_pools("trtllm", monkeypatch, 1, 1)
    assert lines[1:5] == ["cat > prefill.yaml <<EOF", '{"role": "prefill"}', "EOF", "start prefill prefill.yaml"]
    assert (
        lines[-1] == "trtllm-serve disaggregated -c disaggregated.yaml"
        and lines[-4] == "cat > disaggregated.yaml <<EOF"
    )
    config = json.loads(lines[-3])
    hosts = [f"${{{name}_1:?host of {name.lower()} server 1}}:8000" for name in ("PREFILL", "DECODE")]
    assert config["context_servers"] == {"num_instances": 1, "urls": hosts[:1]}
    assert config["generation_servers"] == {"num_instances": 1, "urls": hosts[1:]}
    assert pools.server(launch("trtllm"), "decode", "/etc/").words[2] == "/etc/decode.yaml"
    with pytest.raises(UsageError, match="no pools of its own"):
        pools.server(launch("atom"), "decode")
    assert pools.router_name("trtllm") == "trtllm-serve disaggregated"


def test_nodes_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [["a", "b c"], ["d"]]
    monkeypatch.setattr(pools, "over_nodes", lambda launch: commands)
    assert pools.node_script(launch()) == "# node 1 of 2\na 'b c'\n# node 2 of 2\nd"
    commands.pop()
    assert pools.node_script(launch()) == "a 'b c'"


def test_how_many_devices_a_node_holds() -> None:
    """Where nobody says, as many as a link inside it joins."""

    def one(ranks: int, each: int | None, *domains: int | None) -> Any:
        of = launch(degrees={"tp": ranks}, devices_of_a_node=each)
        of.deployment.hardware.links = [SimpleNamespace(domain=domain) for domain in domains]
        return of

    assert nodes.one_node(one(8, 8)) and not nodes.one_node(one(9, 8)) and nodes.one_node(one(1, None))
    assert nodes.one_node(one(4, None, None, 4, 2))
    for of in (one(5, None, None, 4, 2), one(2, None, None), one(2, None)):
        with pytest.raises(UsageError, match="a node holds is not known"):
            nodes.one_node(of)
    assert nodes.node_note(one(4, 8)) == nodes.node_note(one(1, None)) == ""
    assert nodes.node_note(one(4, None)).startswith("one node is taken to hold 4 x h100: ")


def test_images_on_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "IMAGES", {("vllm", "0.33", "NVIDIA"): "vllm/vllm:1"})
    of = launch()
    of.deployment.engine.asked = ""
    assert nodes.image(of) == "vllm/vllm:1"
    of.deployment.engine.asked = "0.33.1"
    other = launch(vendor="AMD")
    other.deployment.engine.asked = ""
    for refused in (of, other):
        with pytest.raises(UsageError, match="no container image"):
            nodes.image(refused)


@dataclass(frozen=True)
class Part:
    size: int = 1
    name: str = ""


@dataclass(frozen=True)
class Asked:
    """What may be asked for; what is not compared is not an option."""

    model: str = ""
    gpu: str = ""
    part: Part = Part()
    pairs: tuple[Any, ...] = ()
    plain: tuple[int, ...] = ()
    hidden: int = field(default=0, compare=False)


def test_options_that_were_asked_for() -> None:
    assert options.changed_options(Asked()) == {}  # type: ignore[arg-type]
    asked = Asked("m", "g", Part(2), (("kv", "fp8"), ("head", "int8")), (1, 2), hidden=9)
    assert options.changed_options(asked) == {  # type: ignore[arg-type]
        "model": "m", "gpu": "g", "part.size": 2, "pairs.kv": "fp8", "pairs.head": "int8", "plain": (1, 2),
    }  # fmt: skip


def test_options_that_a_command_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Drafted:
        length: int = 0

    monkeypatch.setattr(options, "PLAIN", Drafted())
    of = launch(yarn=None)
    of.request, of.drafts = Asked("m", part=Part(2, "x")), replica.Drafts(Drafted())  # type: ignore[arg-type]
    options.refuse_untaken(of, frozenset({"part.size", "part.name"}))
    with pytest.raises(UsageError, match="has no flag for this: name, size") as refused:
        options.refuse_untaken(of, frozenset())
    assert refused.value.because == "modelled with part.name, part.size, which its command line cannot say"
    of.drafts, of.yarn = replica.Drafts(Drafted(3)), "scaled"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="yarn, name, size, length"):
        options.refuse_untaken(of, frozenset())
    options.refuse_untaken(of, frozenset({"part.size", "part.name", "speculation.length", "model.yarn"}))
    with pytest.raises(UsageError, match=r"has no flag for this: length\n"):
        options.refuse_untaken(of, frozenset({"part.size", "part.name", "model.yarn"}))
