"""Commands and manifests say what was modelled: the checkpoint that was typed, every option as a flag or refused."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferplan.answers.anchoring import AnchorLoads, suggest
from inferplan.answers.drafting import Drafting
from inferplan.answers.emit import (
    ENGINES,
    Drafts,
    Launch,
    Pools,
    Site,
    base_note,
    changed_options,
    checkpoint_needs,
    command,
    command_line,
    launch,
    manifest,
    node_note,
    notes,
)
from inferplan.answers.emit.benchmark import facts
from inferplan.answers.emit.engines import over_nodes
from inferplan.answers.emit.options import PREDICTION, refuse_untaken
from inferplan.answers.emit.trtllm import trtllm_config
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load
from inferplan.catalog.offload import OffloadAsked
from inferplan.devices.engine import EngineFlags, EngineSpec
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.memory import Footprint
from inferplan.reports.emit import EmitAsked, launch_text
from inferplan.serving.techniques.speculation import Speculation
from inferplan.spec import Spec
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

HARDWARE = Path(__file__).parents[2] / "configs" / "hardware"


def device(engine: str) -> str:
    """One that it runs on."""
    return "mi355x" if engine == "atom" else "h100-sxm"


def request(engine: str = "vllm", quant: str | None = None, **changes: Any) -> Request:
    degrees = {name: changes.pop(name) for name in ("tp", "pp", "dp", "ep", "cp", "replicas") if name in changes}
    flags = EngineFlags(**{name: changes.pop(name) for name in tuple(changes) if name in EngineFlags.spec_fields})
    parallel = Parallelism(**({"tp": 4} | degrees))
    base = Request(model="llama-3.1-70b", gpu="h100-sxm", quant=quant, engine=engine, parallel=parallel, flags=flags)
    return replace(base, **changes)


def flags(words: str | list[str]) -> dict[str, str]:
    split = shlex.split(words) if isinstance(words, str) else words
    return {word: (split[i + 1] if i + 1 < len(split) else "") for i, word in enumerate(split) if word.startswith("-")}


def flags_of(asked: Request, **options: Any) -> dict[str, str]:
    return flags(command(launch(asked, **options)))


def test_vllm_flags_are_what_was_modelled() -> None:
    asked = request(quant="fp8", roles=(("kv", "fp8"),), max_sequences=128, token_budget=4096, block_size=32)
    started = launch(asked, context=16384)
    found = flags(command_line(started))
    footprint = Footprint(deployment=assemble(asked), batch=1.0, prompt=1.0, context=1.0)
    assert found["--tensor-parallel-size"] == "4"
    assert found["--max-model-len"] == "16384"
    assert found["--max-num-seqs"] == "128"
    assert found["--max-num-batched-tokens"] == "4096"
    assert float(found["--gpu-memory-utilization"]) == footprint.memory_fraction
    assert found["--kv-cache-dtype"] == "fp8"
    assert found["--block-size"] == "32"
    assert command(started)[2] == "meta-llama/Llama-3.1-70B"


@for_each("engine", ["vllm@0.5", "vllm@0.12", "vllm@0.13.0", "trtllm@0.17", "trtllm@0.20.0"])
def test_versions_whose_options_nobody_read_are_not_started(engine: str) -> None:
    with pytest.raises(UsageError, match="its command line is not supported"):
        command(launch(request(engine), context=4096))


@for_each("engine", list(ENGINES))
def test_every_other_version_on_file_is_started(engine: str) -> None:
    for version in load("engines", engine, EngineSpec).versions:
        if version.commands:
            asked = Request(model="llama-3.1-8b", gpu=device(engine), engine=f"{engine}@{version.version}")
            assert command(launch(asked, context=4096, checkpoint="some/where.gguf" if engine == "llama.cpp" else None))


def test_an_engine_version_brings_its_own_defaults() -> None:
    old, new = (flags_of(request(engine), context=4096) for engine in ("vllm@0.18", "vllm"))
    assert (old["--gpu-memory-utilization"], new["--gpu-memory-utilization"]) == ("0.9", "0.92")


@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_every_engine_names_budget_slots_and_context(engine: str) -> None:
    line = command_line(launch(request(engine, max_sequences=96, token_budget=2048), context=16000))
    assert "\n" not in line
    assert {"16000", "96", "2048", "4"} <= set(shlex.split(line))


# --- checkpoints


@for_each(
    ("typed", "checkpoint"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("nvidia/Llama-3.1-70B-Instruct", "nvidia/Llama-3.1-70B-Instruct"),
        ("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
    ],
)
def test_the_checkpoint_is_the_id_that_was_typed(typed: str, checkpoint: str) -> None:
    assert command(launch(request(model=typed), context=4096))[2] == checkpoint


_TUNED = "meta-llama/Llama-3.1-70B-Instruct"  # the hub's id of what Meta tuned of meta-llama/Llama-3.1-70B


@for_each(
    ("typed", "chat", "checkpoint", "said"),
    [
        ("llama-3.1-70b", True, _TUNED, f"{_TUNED} is meta-llama/Llama-3.1-70B tuned on instructions"),
        ("llama-3.1-70b", False, "meta-llama/Llama-3.1-70B", f"{_TUNED} is tuned and of its shape"),
        ("llama-3.1-70b-instruct", False, _TUNED, "tuned on instructions"),
        ("llama-3.1-70b-base", True, "meta-llama/Llama-3.1-70B", "is a base checkpoint"),
        ("meta-llama/Llama-3.1-70B", True, "meta-llama/Llama-3.1-70B", "is a base checkpoint"),
        ("unsloth/Meta-Llama-3.1-70B", True, "unsloth/Meta-Llama-3.1-70B", "is a base checkpoint"),
        (_TUNED, True, _TUNED, ""),
        ("opt-13b", True, "facebook/opt-13b", "no release of its shape that is tuned is known here"),
        ("qwen3-8b", True, "Qwen/Qwen3-8B", ""),
        ("qwen2.5-coder-7b", True, "Qwen/Qwen2.5-Coder-7B-Instruct", ""),
        ("deepseek-r1-distill-llama-70b", True, "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", ""),
    ],
)
def test_chat_starts_what_was_tuned_on_instructions(typed: str, chat: bool, checkpoint: str, said: str) -> None:
    """Base checkpoints have no chat template (vLLM's docs, openai_compatible_server: chat requests then error)."""
    started = replace(launch(request(model=typed), context=1024), chat=chat)
    assert command(started)[2] == checkpoint
    assert said in base_note(started) and bool(said) == bool(base_note(started))


@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_chat_of_every_engine_and_manifest_names_one_checkpoint(engine: str) -> None:
    started = replace(launch(request(engine), context=4096), chat=True)
    assert _TUNED in command(started)
    assert _TUNED in json.dumps(manifest(started))
    named = replace(started, named="org/own")
    assert "org/own" in command(named) and not base_note(named)


def test_a_checkpoint_in_another_format_is_made_of_the_tuned_one() -> None:
    started = replace(launch(request(quant="w4a16"), context=4096), chat=True)
    assert base_note(started).startswith(f"for chat, take a checkpoint made of {_TUNED}")
    with pytest.raises(UsageError, match="the checkpoint must hold weights in int4"):
        command(started)


def test_a_model_without_a_repository_needs_a_checkpoint() -> None:
    with pytest.raises(UsageError, match="no checkpoint of palm-8b is known"):
        command(launch(request(model="palm-8b", tp=1), context=1024))
    assert command(launch(request(model="palm-8b", tp=1), context=1024, checkpoint="/models/palm"))[2] == "/models/palm"


_RED_HAT = "RedHatAI/Meta-Llama-3.1-70B-Instruct-"


@for_each(
    ("changes", "lacking", "known"),
    [
        ({"quant": "w4a16"}, "weights in int4 (AWQ or GPTQ), inputs in bf16", f"{_RED_HAT}quantized.w4a16"),
        ({"quant": "int8"}, "weights in int8 (compressed-tensors), inputs in int8", f"{_RED_HAT}quantized.w8a8"),
        ({"roles": (("embedding", "fp8"),)}, "embedding in fp8 (compressed-tensors or ModelOpt)", ""),
        ({"roles": (("weights", "fp8"), ("activations", "bf16"))}, "weights in fp8", ""),
        ({"prune": "layers=40"}, "the pruned shape (layers=40)", ""),
        ({"quant": "w4a16", "prune": "layers=40"}, "the pruned shape (layers=40)", ""),
        ({"gpu": "b200-hgx", "quant": "nvfp4"}, "weights in nvfp4", "RedHatAI/Llama-3.1-70B-Instruct-NVFP4"),
        ({"model": "deepseek-v3", "gpu": "b300-hgx", "tp": 8, "quant": "bf16"}, "weights in bf16", ""),
    ],
)
@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_what_the_engine_cannot_make_of_the_checkpoint_needs_another(
    engine: str, changes: dict[str, Any], lacking: str, known: str
) -> None:
    """The hint is the checkpoint whose card was published (configs/quality.yaml), where one has that format."""
    started = launch(request(engine, **changes), context=2048)
    assert lacking in (checkpoint_needs(started) or "")
    with pytest.raises(UsageError, match="the checkpoint must hold") as refused:
        command(started)
    assert refused.value.hint == f"--checkpoint {known or 'ORG/NAME of one that does'}"
    assert "org/own" in command(replace(started, named="org/own"))
    assert "--quantization" not in command(replace(started, named="org/own"))


def test_a_gguf_file_is_for_engines_that_read_one() -> None:
    """gguf is in QuantizationMethods of vLLM 0.20.2 (quantization/__init__.py:21) and not of 0.33.0."""
    assert "m.gguf" in command(launch(request("vllm@0.20"), context=4096, checkpoint="m.gguf"))
    for engine in ("vllm", "trtllm"):
        with pytest.raises(UsageError, match="reads no GGUF file"):
            command(launch(request(engine), context=4096, checkpoint="m.gguf"))


def test_fp8_of_a_wide_checkpoint_is_made_as_it_loads_where_the_engine_does() -> None:
    """vLLM 0.33.0 model_executor/layers/quantization/fp8.py:108 refuses fp8 for a wide checkpoint, 0.20.2 takes it."""
    made = {engine: flags_of(request(engine, "fp8"), context=4096)["--quantization"] for engine in _FP8}
    assert made == _FP8
    with pytest.raises(UsageError, match="weights in fp8"):
        command(launch(request("trtllm", "fp8"), context=4096))
    kept = flags_of(request(model="deepseek-v3", gpu="h200-sxm", tp=8), context=4096)
    assert "--quantization" not in kept  # its checkpoint holds fp8


_FP8 = {"vllm@0.18": "fp8", "vllm@0.20": "fp8", "vllm": "fp8_per_tensor", "sglang": "fp8"}


def test_a_named_checkpoint_is_quantised_as_it_loads_unless_it_is_already() -> None:
    """A wide checkpoint that is named is not served wide where fp8 was planned."""
    for engine, method in (("vllm", "fp8_per_tensor"), ("sglang", "fp8")):
        named = launch(request(engine, "fp8"), context=4096, checkpoint="meta-llama/Llama-3.1-70B-Instruct")
        assert flags(command(named))["--quantization"] == method
        assert "--quantization" not in command(replace(named, holds=True))


def test_wide_inputs_of_fp8_weights_say_why_not() -> None:
    asked = request(roles=(("weights", "fp8"), ("activations", "bf16")))
    with pytest.raises(UsageError) as refused:
        command(launch(asked, context=4096))
    assert refused.value.because == "--quantization fp8_per_tensor makes the inputs fp8 too, and here they are bf16"


def test_another_base_format_is_a_flag() -> None:
    assert flags_of(request(quant="fp16"), context=4096)["--dtype"] == "float16"
    assert flags_of(request("sglang", quant="fp16"), context=4096)["--dtype"] == "float16"
    assert trtllm_config(launch(request("trtllm", quant="fp16"), context=4096))["dtype"] == "float16"
    assert "--dtype" not in flags_of(request(), context=4096)


# --- sizes


def test_a_model_that_states_no_context_is_left_to_its_config() -> None:
    """mamba-2.8b keeps no cache and states no limit: 2**31 tokens fit, and none of it is a plan."""
    mamba = request(model="mamba-2.8b", tp=1)
    assert "--max-model-len" not in flags_of(mamba)
    assert "--context-length" not in flags_of(replace(mamba, engine="sglang"))
    assert flags_of(mamba, context=4096)["--max-model-len"] == "4096"
    with pytest.raises(UsageError, match="not known"):
        command(launch(replace(mamba, engine="llama.cpp"), checkpoint="mamba.gguf"))


def test_vllm_starts_with_no_more_sequences_than_tokens() -> None:
    """config/scheduler.py:331 of 0.33.0: max_num_batched_tokens must be at least max_num_seqs."""
    assert flags_of(request(token_budget=512), context=4096)["--max-num-seqs"] == "512"
    with pytest.raises(UsageError, match="600 sequences and 512 tokens"):
        command(launch(request(token_budget=512, max_sequences=600), context=4096))


def test_attention_data_parallelism_counts_a_rank_in_vllm_and_all_ranks_in_sglang() -> None:
    """vLLM: config/scheduler.py:99. SGLang divides both by the ranks: parallel_hook.py:331, moe_hook.py:669."""
    asked = request(tp=2, dp=4, max_sequences=50, token_budget=2048)
    found = flags_of(asked, context=4096)
    assert [found[f"--{name}"] for name in ("data-parallel-size", "max-num-seqs", "max-num-batched-tokens")] == [
        "4",
        "50",
        "2048",
    ]
    found = flags_of(replace(asked, engine="sglang"), context=4096)
    assert [found[f"--{name}"] for name in ("tp-size", "max-running-requests", "chunked-prefill-size")] == [
        "8",
        "200",
        "8192",
    ]
    found = flags_of(request("trtllm", max_sequences=50), context=4096)
    assert found["--max_batch_size"] == "50"


def test_sequences_that_nobody_asked_for_are_left_to_sglang() -> None:
    assert "--max-running-requests" not in flags_of(
        request("sglang", model="deepseek-v3", gpu="h200-sxm", tp=1, dp=8, ep=8)
    )


def test_llama_cpp_gets_the_context_of_all_its_slots() -> None:
    small = Request(model="llama-3.1-8b", gpu="l40s", engine="llama.cpp")
    started = launch(small, context=8192, checkpoint="models/llama.gguf")
    found = flags(command_line(started))
    assert (found["-c"], found["-np"], found["-ctk"], found["-m"]) == ("32768", "4", "bf16", "models/llama.gguf")
    assert flags(command(replace(started, named="org/name-GGUF:Q8_0")))["-hf"] == "org/name-GGUF:Q8_0"
    with pytest.raises(UsageError, match="a GGUF file of the model"):
        command(launch(small, context=8192))
    with pytest.raises(UsageError, match="divides a model by layers: --pp 4, not --tp 4"):
        launch(request("llama.cpp"), context=1024, checkpoint="x.gguf")


def test_a_context_that_does_not_fit_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="no context of 200,000 tokens") as longer:
        launch(request(), context=200_000)
    assert "131,072" in longer.value.because
    with pytest.raises(InfeasibleError, match="does not hold"):
        launch(request(tp=2), context=131072)


def test_a_host_that_is_too_small_is_named_with_what_it_needs() -> None:
    """41 of 80 layers in q4_k_m on the host are more than half of 42.5 GB (llama.cpp's own file of the model), the GPU
    holds the rest with room to spare. With a host of the size that is proposed the command is written."""

    def started(memory: str) -> str:
        offload = OffloadAsked(gpu_layers=40, host="epyc-9654", host_memory=memory)
        asked = request("llama.cpp", "q4_k_m", model="llama-3.1-70b", gpu="rtx-4090", tp=1, offload=offload)
        return " ".join(command(launch(asked, context=4096, checkpoint="x.gguf")))

    with pytest.raises(InfeasibleError, match="not on epyc-9654\n") as error:
        started("8GB")
    needed = re.fullmatch(r"--host-memory (\d+)GB", error.value.hint)
    assert needed and 21 < int(needed[1]) < 28
    assert "-ngl 40" in started(f"{needed[1]}GB").replace("--n-gpu-layers", "-ngl")
    with pytest.raises(InfeasibleError):
        started(f"{int(needed[1]) - 1}GB")


def test_what_trtllm_has_no_flag_for_is_in_its_file() -> None:
    asked = request("trtllm", tp=2, dp=2, roles=(("kv", "fp8"),), block_size=64)
    with pytest.raises(UsageError, match="from a file"):
        command(launch(asked, context=4096))
    assert trtllm_config(launch(asked, context=4096)) == {
        "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64, "free_gpu_memory_fraction": 0.9},
        "enable_attention_dp": True,
    }
    assert flags(command(replace(launch(asked, context=4096), extra="t.yaml")))["--extra_llm_api_options"] == "t.yaml"
    with pytest.raises(UsageError, match="NVIDIA"):
        command(launch(request("trtllm", gpu="mi300x"), context=4096))


def test_a_format_of_the_cache_belongs_to_a_version() -> None:
    """CacheDType of config/cache.py has nvfp4 since 0.20.2, whose flashinfer.py raises for it."""
    narrow = (("kv", "nvfp4"),)
    assert flags_of(request("vllm@0.33", roles=narrow), context=4096)["--kv-cache-dtype"] == "nvfp4"
    with pytest.raises(UsageError, match=r"vllm 0.20 has no KV cache in nvfp4"):
        command(launch(request("vllm@0.20", roles=narrow), context=4096))


# --- nodes


def test_a_replica_over_nodes_is_a_command_for_each() -> None:
    """vLLM 0.33.0 entrypoints/cli/serve.py:69: the others are headless; SGLang 0.5.23 fields/parallel.py:43."""
    wide = launch(request(model="llama-3.1-405b", tp=8, pp=2), context=4096)
    first, second = over_nodes(wide)
    assert first[-6:] == ["--nnodes", "2", "--node-rank", "0", "--master-addr", "${HEAD:?address of the first node}"]
    assert second[-4:] == ["1", "--master-addr", "${HEAD:?address of the first node}", "--headless"]
    with pytest.raises(UsageError, match="16 devices, more than the 8 of one node"):
        command(wide)
    experts = request("sglang", model="deepseek-v3", gpu="h200-sxm", tp=2, dp=8, ep=16)
    ranks = [words[words.index("--node-rank") + 1] for words in over_nodes(launch(experts, context=4096))]
    assert ranks == ["0", "1"]
    with pytest.raises(UsageError, match="not started by flags alone"):
        over_nodes(launch(replace(experts, engine="vllm"), context=4096))


def test_a_release_is_no_flag() -> None:
    """SGLang's --attention-backend takes a name; kernels of a release come with that release."""
    chosen = request("sglang", backends=(("attention", "@0.5.6"),))
    with pytest.raises(UsageError, match="no flag of sglang"):
        command(launch(chosen, context=4096))


def test_slurm_starts_tensorrt_llm_on_every_node() -> None:
    """NVIDIA/TensorRT-LLM examples/llm-api/llm_mgmn_trtllm_serve.sh: 2 nodes with 8 tasks each, as many processes as
    the world is large, srun -l --mpi=pmix ... trtllm-llmapi-launch trtllm-serve MODEL --tp_size 16 ... --host 0.0.0.0.
    """
    wide = launch(request("trtllm", model="llama-3.1-405b", tp=8, pp=2), context=4096)
    (words,) = over_nodes(wide)
    assert " ".join(words).startswith(
        "srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch trtllm-serve"
    )
    assert flags(words)["--tp_size"] == "8" and flags(words)["--pp_size"] == "2"
    assert words[-2:] == ["--host", "0.0.0.0"]
    with pytest.raises(UsageError, match="16 devices, more than the 8 of one node"):
        command(wide)
    found = suggest([wide.request], AnchorLoads((4,), (512,), (64,)), 1)
    assert str(found.runs[0].server).startswith("srun --nodes 2 ")


def test_how_many_devices_a_node_holds_is_not_guessed() -> None:
    """Cards in PCIe slots: 8 is the most that a slot's link joins, and how many a host has is the site's choice."""
    sixteen = launch(request("sglang", gpu="a100-80gb-pcie", tp=8, pp=2), context=4096)
    for refused in (command, over_nodes, manifest):
        with pytest.raises(UsageError, match=r"how many a100-80gb-pcie a node holds is not known.* has 16") as error:
            refused(sixteen)
        assert "--gpus-per-node N" in error.value.hint
    assert [len(over_nodes(replace(sixteen, node=held))) for held in (4, 8, 16)] == [4, 2, 1]
    assert command(replace(sixteen, node=16)) == over_nodes(replace(sixteen, node=16))[0]
    assert not node_note(replace(sixteen, node=16))


def test_a_replica_inside_one_host_needs_no_such_fact_but_says_what_it_takes_for_given() -> None:
    four = launch(request(gpu="l40s", tp=4), context=4096)
    assert over_nodes(four) == [command(four)]
    assert node_note(four).startswith("one node is taken to hold 4 x l40s")
    assert [len(over_nodes(replace(four, node=held))) for held in (2, 4)] == [2, 1]
    assert not node_note(replace(four, node=4))
    assert not node_note(launch(request(gpu="l40s", tp=1, quant="fp8", model="llama-3.1-8b"), context=4096))
    assert not node_note(launch(request(tp=8), context=4096))


def test_what_is_stated_of_nodes_counts_before_the_file() -> None:
    """HGX boards of 4 H100 are sold beside those of 8."""
    eight = launch(request(tp=8), context=4096)
    assert [len(over_nodes(one)) for one in (eight, replace(eight, node=4))] == [1, 2]


def test_a_file_of_ones_own_says_how_many_devices_a_node_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (HARDWARE / "h100-sxm.yaml").read_text("utf-8")
    silent = "".join(line for line in text.splitlines(True) if not line.startswith(("aliases:", "node:")))
    path.write_text(silent.replace("name: h100-sxm", "name: mine", 1))
    wide = request(gpu=str(path), model="llama-3.1-405b", tp=8, pp=2)
    with pytest.raises(UsageError, match="how many mine a node holds"):
        over_nodes(launch(wide, context=4096))
    path.write_text("node: 2\n" + path.read_text())
    assert len(over_nodes(launch(wide, context=4096))) == 8


def test_a_node_of_superchips_has_four_devices() -> None:
    """configs/hardware/gb200.yaml: an OS node has 4."""
    assert len(over_nodes(launch(request(gpu="gb200", tp=8), context=4096))) == 2
    assert len(over_nodes(launch(request(gpu="gb200", tp=4), context=4096))) == 1


STARTED: list[tuple[str, str | None, dict[str, Any], str]] = [
    ("vllm", None, {"tp": 1}, "vllm serve M --max-model-len 8192 --max-num-seqs 32 --max-num-batched-tokens 2048 "
     "--gpu-memory-utilization 0.8 --kv-cache-dtype auto"),
    ("vllm", "fp8", {"tp": 2, "pp": 2, "block_size": 32}, "vllm serve M --tensor-parallel-size 2 "
     "--pipeline-parallel-size 2 --max-model-len 8192 --max-num-seqs 32 --max-num-batched-tokens 2048 "
     "--gpu-memory-utilization 0.8 --block-size 32 --kv-cache-dtype auto --quantization fp8_per_tensor"),
    ("vllm", None, {"model": "gpt-oss-120b", "tp": 1, "dp": 4, "ep": 4}, "vllm serve M --data-parallel-size 4 "
     "--enable-expert-parallel --all2all-backend deepep_low_latency --max-model-len 8192 --max-num-seqs 32 "
     "--max-num-batched-tokens 2048 --gpu-memory-utilization 0.8 --kv-cache-dtype auto"),
    ("vllm", None, {"model": "gpt-oss-120b", "tp": 2, "ep": 2, "prefill_schedule_interval": 4}, "vllm serve M "
     "--tensor-parallel-size 2 --enable-expert-parallel --prefill-schedule-interval 4 --max-model-len 8192 "
     "--max-num-seqs 32 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.8 --kv-cache-dtype auto"),
    ("sglang", None, {"tp": 1}, "python -m sglang.launch_server --model-path M --context-length 8192 "
     "--max-running-requests 32 --chunked-prefill-size 2048 --mem-fraction-static 0.8 --kv-cache-dtype auto"),
    ("sglang", "fp8", {"tp": 2, "pp": 2, "block_size": 64}, "python -m sglang.launch_server --model-path M --tp-size 2 "
     "--pp-size 2 --context-length 8192 --max-running-requests 32 --chunked-prefill-size 2048 "
     "--mem-fraction-static 0.8 --page-size 64 --kv-cache-dtype auto --quantization fp8"),
    # both flags are of all four ranks together: 4 x 32 and 4 x 2048
    ("sglang", None, {"model": "gpt-oss-120b", "tp": 1, "dp": 4, "ep": 4}, "python -m sglang.launch_server "
     "--model-path M --tp-size 4 --attn-dp-size 4 --enable-dp-lm-head --moe-dense-tp-size 1 --ep-size 4 "
     "--moe-a2a-backend deepep --deepep-mode auto --context-length 8192 --max-running-requests 128 "
     "--chunked-prefill-size 8192 --mem-fraction-static 0.8 --kv-cache-dtype auto"),
    ("sglang", None, {"model": "gpt-oss-120b", "tp": 1, "dp": 4, "ep": 1}, "python -m sglang.launch_server "
     "--model-path M --tp-size 4 --attn-dp-size 4 --enable-dp-lm-head --moe-dense-tp-size 1 --context-length 8192 "
     "--max-running-requests 128 --chunked-prefill-size 8192 --mem-fraction-static 0.8 --kv-cache-dtype auto"),
    ("sglang", None, {"model": "gpt-oss-120b", "tp": 4, "ep": 4, "prefill_decode_interval": 0}, "python -m "
     "sglang.launch_server --model-path M --tp-size 4 --ep-size 4 --prefill-decode-interval 0 --context-length 8192 "
     "--max-running-requests 32 --chunked-prefill-size 2048 --mem-fraction-static 0.8 --kv-cache-dtype auto"),
    ("atom", None, {"tp": 1}, "python -m atom.entrypoints.openai_server --model M --max-num-seqs 32 "
     "--max-num-batched-tokens 2048 --max-model-len 8192 --gpu-memory-utilization 0.8 --kv_cache_dtype bf16"),
    ("atom", None, {"model": "qwen3-235b-a22b", "tp": 8, "ep": 8, "block_size": 16}, "python -m "
     "atom.entrypoints.openai_server --model M --tensor-parallel-size 8 --enable-expert-parallel --max-num-seqs 32 "
     "--max-num-batched-tokens 2048 --max-model-len 8192 --gpu-memory-utilization 0.8 --block-size 16 "
     "--kv_cache_dtype bf16"),
    (
        "sglang",
        None,
        {
            "model": "gpt-oss-120b", "tp": 1, "dp": 4, "ep": 4, "enable_prefill_delayer": True,
            "prefill_delayer_max_delay_passes": 16,
        },
        "python -m sglang.launch_server --model-path M --tp-size 4 --attn-dp-size 4 --enable-dp-lm-head "
        "--moe-dense-tp-size 1 --ep-size 4 --moe-a2a-backend deepep --deepep-mode auto --enable-prefill-delayer "
        "--prefill-delayer-max-delay-passes 16 --context-length 8192 --max-running-requests 128 "
        "--chunked-prefill-size 8192 --mem-fraction-static 0.8 --kv-cache-dtype auto",
    ),
    (
        "trtllm",
        None,
        {"tp": 2, "pp": 2},
        "trtllm-serve M --tp_size 2 --pp_size 2 --max_seq_len 8192 --max_batch_size 32 --max_num_tokens 2048 "
        "--kv_cache_free_gpu_memory_fraction 0.8",
    ),
    (
        "trtllm",
        None,
        {"model": "qwen3-235b-a22b", "tp": 8, "ep": 8},
        "trtllm-serve M --tp_size 8 --ep_size 8 --max_seq_len 8192 --max_batch_size 32 --max_num_tokens 2048 "
        "--kv_cache_free_gpu_memory_fraction 0.8",
    ),
    (
        "atom",
        None,
        {"model": "qwen3-235b-a22b", "tp": 1, "dp": 8, "ep": 8},
        "env ATOM_ENABLE_PREFILL_DELAYER=0 python -m atom.entrypoints.openai_server --model M --tensor-parallel-size 8 "
        "--enable-dp-attention --enable-expert-parallel --all2all-backend none --max-num-seqs 32 "
        "--max-num-batched-tokens 2048 --max-model-len 8192 --gpu-memory-utilization 0.8 --kv_cache_dtype bf16",
    ),
    (
        "atom",
        None,
        {
            "model": "qwen3-235b-a22b", "tp": 1, "dp": 8, "ep": 8, "enable_prefill_delayer": True,
            "prefill_delayer_max_delay_passes": 16, "prefill_decode_interval": 2,
        },
        "env ATOM_ENABLE_PREFILL_DELAYER=1 ATOM_PREFILL_DECODE_INTERVAL=2 ATOM_PREFILL_DELAYER_TTFT_MAX_TICKS=16 "
        "python -m atom.entrypoints.openai_server --model M --tensor-parallel-size 8 --enable-dp-attention "
        "--enable-expert-parallel --all2all-backend none --max-num-seqs 32 --max-num-batched-tokens 2048 "
        "--max-model-len 8192 --gpu-memory-utilization 0.8 --kv_cache_dtype bf16",
    ),
    # all that four slots hold: 4 x 8192 tokens
    ("llama.cpp", None, {"tp": 1}, "llama-server -m m.gguf -c 32768 -np 4 -ngl all -b 2048 -ctk bf16 -ctv bf16"),
    ("llama.cpp", None, {"tp": 1, "pp": 2}, "llama-server -m m.gguf -c 32768 -np 4 -ngl all -b 2048 -ctk bf16 "
     "-ctv bf16 -sm layer"),
]  # fmt: skip


@for_each(("engine", "quant", "asked", "line"), STARTED)
def test_a_whole_command(engine: str, quant: str | None, asked: dict[str, Any], line: str) -> None:
    """Every word, in order, and no other: flags as tests/planning/test_emit_flags.py cites them; M is the checkpoint.

    An engine that is told nothing is started with its own defaults: pages, formats, degrees of 1.
    """
    own = {} if engine == "llama.cpp" else {"max_sequences": 32, "token_budget": 2048, "memory_fraction": 0.8}
    made = {"model": "llama-3.1-8b", "gpu": device(engine), **own, **asked}
    found = command(launch(request(engine, quant, **made), context=8192, checkpoint="m.gguf" if not own else None))
    named = {"llama-3.1-8b": "meta-llama/Llama-3.1-8B", "gpt-oss-120b": "openai/gpt-oss-120b"}
    named |= {"qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B"}
    assert found == [named[made["model"]] if word == "M" else word for word in line.split()]


def test_pools_start_the_kernels_of_their_role() -> None:
    """DeepEP's kernels of vLLM: of long batches for prompts, of low latency for decodes; llama.cpp has no pools."""
    spread = launch(request(model="gpt-oss-120b", tp=1, dp=4, ep=4), context=8192)
    kernels = {role: flags(command(replace(spread, role=role)))["--all2all-backend"] for role in ("prefill", "decode")}
    assert kernels == {"prefill": "deepep_high_throughput", "decode": "deepep_low_latency"}
    alone = launch(request("llama.cpp", tp=1, model="llama-3.1-8b"), context=4096, checkpoint="m.gguf")
    with pytest.raises(UsageError, match="no pools of its own"):
        command(replace(alone, role="prefill"))


def test_nodes_of_an_engine_that_flags_do_not_start_are_refused() -> None:
    """llama.cpp and ATOM have no flag for a further node; sixteen H100 fill two HGX boards."""
    with pytest.raises(UsageError, match=r"over 2 nodes .* is not started by flags alone"):
        over_nodes(launch(request("llama.cpp", tp=1, pp=16), context=4096, checkpoint="m.gguf"))
    with pytest.raises(UsageError, match=r"over 2 nodes .* is not started by flags alone"):
        over_nodes(launch(request(tp=4, dp=4, ep=16, model="gpt-oss-120b"), context=4096))
    with pytest.raises(UsageError, match="over 2 nodes"):
        over_nodes(launch(request(tp=4, pp=3), context=4096))  # twelve of sixteen


def test_facts_of_a_run_that_a_clients_file_does_not_say() -> None:
    """By the columns of docs/validate.md: kernels are the engine's newest, or those of the release that was named."""
    own = {"max_sequences": 32, "token_budget": 2048, "memory_fraction": 0.8}
    dense = facts(launch(request(quant="fp8", tp=2, pp=2, **own), context=8192))
    assert dense == {
        "gpu": "h100-sxm",
        "engine": "vllm",
        "engine_version": "0.33",
        "kernels": "vllm",
        "weights": "fp8",
        "kv": "bf16",
        "tp": "2",
        "pp": "2",
        "ep": "1",
        "dp": "1",
        "max_num_seqs": "32",
        "max_num_batched_tokens": "2048",
        "memory_fraction": "0.8",
    }
    released = facts(launch(request("sglang@0.5.6", backends=(("attention", "fa3"),), **own), context=8192))
    assert (released["engine_version"], released["kernels"]) == ("0.5", "sglang@0.5.6")
    assert released["backends"] == "attention=fa3"
    assert facts(launch(request(model="gpt-oss-120b", **own), context=8192))["experts"] == "mxfp4"


# --- drafts


def drafted(engine: str, name: str = "llama-3.2-1b", **changes: Any) -> Launch:
    asked = request(engine, **changes)
    speculation = Drafting(model=name, length=3, acceptance=0.8).on(asked, asked.parallel)
    return launch(asked, context=4096, drafts=Drafts(speculation, name))


def test_drafts_name_their_model_and_its_format() -> None:
    words = flags(command(drafted("vllm", "meta-llama/Llama-3.2-1B-Instruct", quant="fp8")))
    assert json.loads(words["--speculative-config"]) == {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 4,
        "quantization": "fp8_per_tensor",
    }
    plain = json.loads(flags(command(drafted("vllm")))["--speculative-config"])
    assert set(plain) == {"method", "model", "num_speculative_tokens", "draft_tensor_parallel_size"}
    assert "--speculative-draft-model-quantization" not in flags(command(drafted("sglang")))
    words = flags(command(drafted("sglang", quant="fp8")))
    assert words["--speculative-algorithm"] == "STANDALONE"
    assert words["--speculative-draft-model-path"] == "meta-llama/Llama-3.2-1B"
    assert words["--speculative-num-draft-tokens"] == "4"  # speculative_hook.py: num_steps + 1
    assert words["--speculative-draft-model-quantization"] == "fp8"
    with pytest.raises(UsageError, match="TensorRT-LLM drafts from the model's own prediction module"):
        command(drafted("trtllm"))


def test_the_prediction_module_and_n_grams_draft_without_a_checkpoint_of_their_own() -> None:
    """vLLM 0.33.0 config/speculative.py:1253: mtp takes the model's own; SGLang 0.5.23 speculative_hook.py:162."""
    deepseek = {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8}
    found = flags(command(drafted("vllm", "mtp", **deepseek)))
    assert json.loads(found["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 3}
    found = flags(command(drafted("sglang", "mtp", **deepseek)))
    assert found["--speculative-algorithm"] == "NEXTN"
    assert "--speculative-draft-model-path" not in found
    free = launch(request(), context=4096, drafts=Drafts(Speculation(length=3, acceptance=0.5)))
    found = flags(command(free))
    assert json.loads(found["--speculative-config"]) == {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(UsageError, match="SGLang drafts from a model"):
        command(launch(request("sglang"), context=4096, drafts=free.drafts))


def test_the_prediction_module_under_tensorrt_llm() -> None:
    """Its blog 2, "How to run DeepSeek models with MTP": a speculative_config of decoding_type MTP in the file."""
    started = drafted("trtllm", "mtp", model="deepseek-v3", gpu="h200-sxm", tp=8)
    assert trtllm_config(started)["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 3}
    with pytest.raises(UsageError, match="speculative_config from a file"):
        command(started)
    assert "--extra_llm_api_options" in flags(command(replace(started, extra="trtllm.yaml")))


def test_a_head_is_started_by_its_method(tmp_path: Path) -> None:
    """vLLM config/speculative.py:74 names eagle3 and dflash; SGLang's documentation EAGLE3, and no block draft here."""
    layer = (
        "{mixer: {kind: attention, heads: 32, kv_heads: 8, head_dim: 128, input_scale: 2}, ffn: {kind: mlp, d_ff: 64}}"
    )
    for name, vllm, sglang in (("eagle3", "eagle3", "EAGLE3"), ("dflash", "dflash", None)):
        path, block = tmp_path / f"{name}.yaml", "true" if name == "dflash" else "false"
        source = "https://huggingface.co/org/head"
        text = f"{{name: {name}, source: '{source}', features: 3, block: {block}, layers: [{layer}]}}"
        path.write_text(text, encoding="utf-8")
        asked = {"model": "llama-3.1-8b", "tp": 1}
        config = json.loads(flags(command(drafted("vllm", str(path), **asked)))["--speculative-config"])
        assert config == {
            "method": vllm,
            "model": "org/head",
            "num_speculative_tokens": 3,
            "draft_tensor_parallel_size": 1,
        }
        if sglang is None:
            with pytest.raises(UsageError, match="no algorithm for dflash"):
                command(drafted("sglang", str(path), **asked))
            continue
        found = flags(command(drafted("sglang", str(path), **asked)))
        assert found["--speculative-algorithm"] == sglang
        assert found["--speculative-draft-model-path"] == "org/head"
        assert found["--speculative-num-draft-tokens"] == "4"


def test_drafts_in_a_format_that_nobody_makes_need_their_checkpoint() -> None:
    started = replace(drafted("vllm", quant="w4a16"), named="org/w4a16")
    with pytest.raises(UsageError, match="checkpoint of the drafts must hold weights in int4"):
        command(started)
    named = replace(started, drafts=started.drafts._replace(checkpoint="org/draft-w4a16"))
    assert json.loads(flags(command(named))["--speculative-config"])["model"] == "org/draft-w4a16"


# --- no option is dropped


CHANGED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h200-sxm",
    "quant": "int8",
    "roles": (("kv", "fp8"),),
    "power_cap": 500.0,
    "sampling": "top-p",
    "nvlink_bridge": True,
    "host.step": 1e-3,
    "host.layer": 1e-3,
    "host.request": 1e-3,
    "engine": "none",
    "prune": "layers=40",
    "unfused_attention": True,
    "generation": (("block", 64),),
    "media.images": 1,
    "media.image_size": (64, 64),
    "media.video_frames": 4,
    "media.audio_seconds": 1.0,
    "media.sets": 2.0,
    "media.text": 64.0,
    "lora.rank": 16,
    "lora.modules": ("q", "v"),
    "lora.slots": 4,
    "lora.active": 1,
    "lora.folder": "tests/test_lora.py writes one",
    "flags.memory_fraction": 0.5,
    "flags.token_budget": 3072,
    "flags.max_sequences": 24,
    "flags.block_size": 64,
    "flags.backends": (("attention", "flash_attn"),),  # KERNELS
    "flags.two_batch_overlap": True,
    "flags.prefill_schedule_interval": 4,
    "flags.prefill_decode_interval": 4,
    "flags.enable_prefill_delayer": True,
    "flags.prefill_delayer_max_delay_passes": 16,
    "parallel.tp": 8,
    "parallel.pp": 2,
    "parallel.ep": 2,
    "parallel.dp": 2,
    "parallel.cp": 2,
    "parallel.replicas": 2,
    "parallel.redundant": 8,
    "parallel.spread_dense": True,
    "expert_skew": 0.5,
    "calibration": None,
    "anchor": None,
    "ideal": True,
    "memory": "79GB",
    "offload.gpu_layers": 8,
    "offload.cpu_moe_layers": 8,
    "offload.cpu_offload_gb": 2.0,
    "offload.host": "xeon-8480plus",
    "offload.host_memory": "256GB",
    "offload.host_link": "31GB/s",
}
"""A value other than the default for every option there is; ``calibration`` and ``anchor`` are files for prices."""
KERNELS = {"sglang": "flash_attention", "trtllm": "torch_flow"}
"""What other engines than vLLM call theirs."""
REPLICAS = {"parallel.replicas", "lora.folder"}
"""Said by how often a command is run, and by a manifest's ``replicas``; a folder is read in tests/test_lora.py."""


def every_option() -> list[str]:
    """The dotted name of every field of a request, of its flags and of its division."""
    base, names = Request(model="", gpu=""), []
    for field in (one for one in fields(base) if one.compare):
        value = getattr(base, field.name)
        if isinstance(value, Spec):
            names += [f"{field.name}.{name}" for name in type(value).spec_fields]
        elif is_dataclass(value):
            names += [f"{field.name}.{name}" for name in type(value).__dataclass_fields__]
        else:
            names.append(field.name)
    return names


def with_option(base: Request, name: str, value: Any) -> Request:
    group, _, last = name.rpartition(".")
    if group == "flags":
        return replace(base, flags=base.flags.model_copy(update={last: value}))
    if group == "parallel":
        return replace(base, parallel=replace(base.parallel, **{last: value}))
    if group == "lora":
        return replace(base, lora=replace(LoraAsked(rank=8), **{last: value}))
    if group == "offload":
        host = {"host": "epyc-9654", "host_memory": "384GB", "host_link": "63GB/s"}
        return replace(base, offload=OffloadAsked(**{**host, last: value}))
    return replace(base, **{name: value})


@for_each("option", every_option())
@for_each("engine", sorted(ENGINES))
def test_every_option_changes_the_command_or_is_refused(engine: str, option: str) -> None:
    """Also an option that is new tomorrow: it fails here until it has a value above, and in ``refuse_untaken``."""
    assert option in CHANGED, f"{option} is new: give it a value, and a flag or a refusal in every engine"
    if option in PREDICTION | REPLICAS:
        return
    file = "m.gguf" if engine == "llama.cpp" else None
    plain = request(engine, tp=1 if file else 4, model="llama-3.2-1b", gpu=device(engine))
    base = written(plain, file)
    try:
        kernels = (("attention", KERNELS[engine]),) if engine in KERNELS and option == "flags.backends" else None
        changed = written(with_option(plain, option, kernels or CHANGED[option]), file)
    except InferplanError as refused:
        assert isinstance(refused, UsageError) or option.startswith("parallel."), refused
    else:
        in_the_file = {"model", "quant", "prune"} if file else set()
        assert changed != base or option in {"gpu", *in_the_file}, f"{option} is dropped"


def written(asked: Request, file: str | None) -> tuple[list[str], dict[str, Any]]:
    """The words of a command and what its file holds."""
    started = launch(asked, context=2048, checkpoint=file)
    return command(replace(started, extra="extra.yaml")), trtllm_config(started) if asked.engine == "trtllm" else {}


def test_an_option_that_no_engine_knows_is_refused() -> None:
    """A field added to the request tomorrow, as seen by the engines of today."""

    @dataclass(frozen=True, kw_only=True)
    class Tomorrow(Request):
        kv_offload: int = 0

    asked = Tomorrow(model="llama-3.1-8b", gpu="h100-sxm", kv_offload=8)
    assert changed_options(asked)["kv_offload"] == 8
    for name, engine in ENGINES.items():
        own = Request(model="llama-3.1-8b", gpu=device(name), engine=name)
        started = replace(launch(own, context=1024), request=asked)
        with pytest.raises(UsageError, match="no flag for this: kv offload"):
            refuse_untaken(started, engine.takes)
    assert changed_options(Request(model="a", gpu="b", roles=(("kv", "fp8"),), ideal=True)) == {
        "model": "a",
        "gpu": "b",
        "roles.kv": "fp8",
        "ideal": True,
    }


# --- Kubernetes


def test_what_trtllm_takes_from_a_file_is_in_the_manifest() -> None:
    started = launch(request("trtllm", roles=(("kv", "fp8"),)), context=4096)
    workload, _, held = yaml.safe_load_all(yaml.safe_dump_all(manifest(started)))
    pod = workload["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    folder, file = words[words.index("--extra_llm_api_options") + 1].rsplit("/", 1)
    assert held["kind"] == "ConfigMap"
    assert yaml.safe_load(held["data"][file])["kv_cache_config"]["dtype"] == "fp8"
    assert {"name": "config", "mountPath": folder} in pod["containers"][0]["volumeMounts"]
    assert {"name": "config", "configMap": {"name": held["metadata"]["name"]}} in pod["volumes"]
    assert len(manifest(launch(request("trtllm"), context=4096))) == 2


WHOLE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama-3-1-8b, labels: {app: llama-3-1-8b}}
spec:
  replicas: 3
  selector: {matchLabels: {app: llama-3-1-8b}}
  template:
    metadata: {labels: {app: llama-3-1-8b}}
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: [vllm, serve, meta-llama/Llama-3.1-8B, --tensor-parallel-size, '2', --max-model-len, '8192',
          --max-num-seqs, '32', --max-num-batched-tokens, '2048', --gpu-memory-utilization, '0.8', --kv-cache-dtype,
          auto]
        ports: [{name: http, containerPort: 8000}]
        readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 5, failureThreshold: 3}
        volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: cache, mountPath: /cache}
        resources: {limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 2}}
        env:
        - {name: HF_HOME, value: /cache}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf-token, key: token, optional: true}}}
        - {name: VLLM_ENGINE_READY_TIMEOUT_S, value: '729'}
        startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 10, failureThreshold: 73}
        livenessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 15, failureThreshold: 4}
      volumes:
      - {name: shm, emptyDir: {medium: Memory}}
      - {name: cache, emptyDir: {}}
---
apiVersion: v1
kind: Service
metadata: {name: llama-3-1-8b, labels: {app: llama-3-1-8b}}
spec: {selector: {app: llama-3-1-8b}, ports: [{name: http, port: 80, targetPort: http}]}
"""
"""Of three replicas on two GPUs each. 8.03e9 weights in bf16 take 128.5 s at 1 Gbit/s, beside ten minutes to start."""


def test_a_whole_manifest() -> None:
    flags = {"max_sequences": 32, "token_budget": 2048, "memory_fraction": 0.8}
    started = launch(request(model="llama-3.1-8b", tp=2, replicas=3, **flags), context=8192)
    assert list(yaml.safe_load_all(yaml.safe_dump_all(manifest(started)))) == list(yaml.safe_load_all(WHOLE))


def test_the_manifest_is_a_deployment_with_a_service_and_probes() -> None:
    started = launch(request(replicas=3, max_sequences=64), context=8192)
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
    assert {mount["name"] for mount in container["volumeMounts"]} == {"shm", "cache"}
    assert {volume["name"] for volume in template["spec"]["volumes"]} == {"shm", "cache"}


def pod_of(asked: Request, **options: Any) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(launch(asked, context=4096), **options)[0]["spec"]["template"]["spec"]
    return spec


def test_a_pod_asks_for_the_gpus_of_every_stage_and_rank() -> None:
    """Four-way tensor parallelism in two stages runs on 8 GPUs; two-way with two stages and two attention ranks too."""
    for degrees in ({"tp": 4, "pp": 2}, {"tp": 2, "pp": 2, "dp": 2}):
        resources = pod_of(request(**degrees))["containers"][0]["resources"]
        assert resources == {"limits": {"nvidia.com/gpu": 8}, "requests": {"nvidia.com/gpu": 8}}, degrees


def test_image_resource_and_node_are_those_of_the_maker() -> None:
    nvidia = pod_of(request())
    assert nvidia["containers"][0]["image"] == "vllm/vllm-openai:v0.33.0"
    assert nvidia["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    amd = pod_of(request(gpu="mi300x"))
    assert amd["containers"][0]["image"] == "vllm/vllm-openai-rocm:v0.33.0"
    assert amd["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 4}
    assert amd["nodeSelector"] == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    with pytest.raises(UsageError, match=r"sglang 0\.5 for AMD"):
        pod_of(request("sglang", gpu="mi300x"))
    with pytest.raises(UsageError, match=r"no container image of vllm 0\.20 \(for 0\.25\)"):
        pod_of(request("vllm@0.25"))
    unknown = request(gpu="mi355x")
    assert "nodeSelector" not in pod_of(unknown)
    assert any("no nodeSelector" in note and "mi355x" in note for note in notes(launch(unknown, context=4096)))


def test_a_pod_has_a_token_a_cache_and_time_to_start() -> None:
    """600 s (vllm/envs.py: VLLM_ENGINE_READY_TIMEOUT_S) and 70.6e9 x 2 bytes at 125 MB/s: 1,729 s in all."""
    pod = pod_of(request())
    (container,) = pod["containers"]
    environment = {entry["name"]: entry for entry in container["env"]}
    token = environment["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": "hf-token", "key": "token", "optional": True}
    assert int(environment["VLLM_ENGINE_READY_TIMEOUT_S"]["value"]) == pytest.approx(1729, rel=0.01)
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == pytest.approx(1729, rel=0.01)
    assert {"name": "cache", "emptyDir": {}} in pod["volumes"]
    assert environment["HF_HOME"]["value"] == "/cache"
    claimed = pod_of(request(), site=Site(cache="models"))
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in claimed["volumes"]


def test_names_are_those_that_a_service_may_have() -> None:
    """RFC 1035 labels, as Kubernetes checks them: at most 63 of [a-z0-9-], a letter first."""
    started = launch(request(), context=4096)
    for name in ("01-ai/Yi_" + "x" * 80, "Qwen2.5-7B"):
        model = started.deployment.model.model_copy(update={"name": name})
        own = replace(started, deployment=replace(started.deployment, model=model))
        for entry in manifest(own, Pools(1, 1)):
            assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", entry["metadata"]["name"])


def test_a_replica_over_two_nodes_is_no_deployment() -> None:
    with pytest.raises(UsageError, match="one node"):
        manifest(launch(request(tp=8, pp=2), context=4096))


_CORE = re.compile(  # YAML 1.2.2, section 10.3.2: what the core schema reads as something else than a text
    r"null|Null|NULL|~||true|True|TRUE|false|False|FALSE|[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def test_a_text_stays_a_text_in_yaml_of_both_versions() -> None:
    """The image and the volume come back as they were typed from PyYAML, which reads 1.1, and are plain only where no
    reader of 1.2 takes them for a number, a truth value or nothing."""
    wrong = []
    for text in (
        "1e30",
        "1E5",
        "-3e+2",
        "0o17",
        "0x1F",
        "12",
        "1_000",
        "1_0e3",
        "1.5",
        "yes",
        "true",
        "null",
        "~",
        "1:30",
    ):
        printed = str(launch_text("k8s", request(), EmitAsked(image=text, cache_claim=text)))
        workload = next(iter(yaml.safe_load_all(printed)))
        pod = workload["spec"]["template"]["spec"]
        held = [pod["containers"][0]["image"], *(v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"][1:2])]
        plain = [line for line in printed.splitlines() if line.strip() in (f"image: {text}", f"claimName: {text}")]
        wrong += [] if held == [text, text] and not plain else [(text, held, plain)]
        values = re.findall(r"^[ -]*(?:[\w./-]+:|-) ([^'\"{\[|].*)$", printed, re.MULTILINE)
        texts = [value for value in values if _CORE.fullmatch(value) and not re.fullmatch("true|[0-9]+", value)]
        wrong += [(text, texts)] if texts else []
    assert wrong == []
