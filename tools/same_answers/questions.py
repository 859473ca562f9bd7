"""Some five hundred command lines and Python calls, the same in every run.

A third is written by hand, at least one for each command and feature; the rest draws features over each other, refusals
included. Nothing here reads the catalogue, so that two checkouts are asked the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

SEED = 29


@dataclass(frozen=True, kw_only=True)
class Question:
    """One command line of ``inferplan`` or one expression of Python over ``inferplan``, whose result is compared."""

    words: tuple[str, ...] = ()
    python: str = ""

    @property
    def text(self) -> str:
        return self.python or "inferplan " + " ".join(self.words)


FILES: Mapping[str, str] = {
    "bench.csv": (
        "model,gpu,engine,precision,tp,isl,osl,concurrency,ttft_ms,tpot_ms\n"
        "llama-3.1-8b,h100-sxm,vllm,bf16,1,1024,256,8,60,7.4\n"
        "llama-3.1-8b,h100-sxm,vllm,bf16,1,1024,256,1,25,2.1\n"
        "qwen3-32b,h200-sxm,sglang,fp8,2,2048,128,16,210,14.2\n"
    ),
    "day.csv": "time,rate\n" + "".join(f"{hour}:00,{0.02 + 0.01 * (abs(hour - 12) % 7):.2f}\n" for hour in range(24)),
    "trace.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(
            f"2023-11-16 18:{second // 60:02d}:{second % 60:02d}.0000000,"
            f"{200 + 37 * second % 1500},{20 + 11 * second % 200}\n"
            for second in range(120)
        )
    ),
    "newcomer.json": json.dumps(
        {
            "model_type": "llama",
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "intermediate_size": 17408,
            "vocab_size": 128256,
            "max_position_embeddings": 65536,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    ),
    "stranger.json": json.dumps({"model_type": "llamax", "hidden_size": 64}),
}
"""Files that the questions name, written into the folder in which they are asked."""

WRITTEN = Path(__file__).with_name("written.txt").read_text().splitlines()
"""One command line a line, by hand."""

PYTHON = (
    "estimate_batch(deploy('llama-3.1-8b', 'h100-sxm'), batch=8, prompt=1024, output=128)",
    "estimate_batch(deploy('deepseek-v3', 'h200-sxm', tp=8), batch=16, prompt=4096, output=256)",
    "estimate_batch(deploy('llama-3.1-70b', 'l4'))",
    "deploy('llama-3.1-8b', 'h100-sxm', tp=3)",
    "deploy('nothing', 'h100-sxm')",
    "deploy('llama-3.1-8b', 'h100-sxm', nonsense=1)",
    "load_model('qwen3-30b-a3b').model_dump(mode='json')",
    "load_hardware('h100-sxm').model_dump(mode='json')",
    "fit('llama-3.1-70b', 'h100-sxm', quant='fp8')",
    "fit('qwen3-8b')",
    "compare_deployments({'a': deploy('llama-3.1-8b', 'l40s'), 'b': deploy('llama-3.1-8b', 'h100-sxm')}, batch=8)",
    "cost(deploy('llama-3.1-8b', 'h100-sxm'), batch=32)",
    "explain(estimate_batch(deploy('llama-3.1-8b', 'h100-sxm'), batch=8), 'tpot')",
    "run_sweep('llama-3.1-8b', ['l40s', 'h100-sxm'], batch=[1, 8])",
    "take_apart('llama-3.1-8b', 'h100-sxm', ['continuous-batching', 'gqa'], users=256)",
    "simulate(deploy('llama-3.1-8b', 'h100-sxm'), Traffic(arrivals=OpenLoop(rate=8), prompt=Lengths(mean=1024),"
    " output=Lengths(mean=128), requests_count=200), Flags(max_num_seqs=64), progress=False)",
    "simulate(deploy('qwen3-30b-a3b', 'h200-sxm'), Traffic(arrivals=ClosedLoop(concurrency=8),"
    " prompt=Lengths(mean=512), output=Lengths(mean=64), requests_count=100), progress=False)",
    "make_plan('llama-3.1-8b', 512, 128, ['h100-sxm'], rate=10, ttft=0.5, tpot=0.04, most=1, progress=False)",
    "make_plan('llama-3.1-8b', 512, 128, ['h100-sxm'], rate=10, ttft=1e-9, tpot=0.04, most=1, progress=False)",
)
"""Expressions over what ``inferplan`` exports."""

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-next-80b-a3b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "mixtral-8x7b-v0.1",
    "deepseek-v3",
    "deepseek-v2-lite",
    "gemma-3-27b",
    "gemma-2-9b",
    "mistral-7b-v0.3",
    "phi-4",
    "glm-4.5-air",
    "kimi-linear-48b-a3b",
    "jamba-v0.1",
    "falcon-mamba-7b",
    "nemotron-h-8b-base-8k",
    "granite-4.0-h-small",
    "mamba2-2.7b",
    "llama-4-scout-17b-16e",
    "minimax-m2.5",
    "opt-13b",
    "qwen2.5-7b",
    "qwen3-vl-8b",
    "deepseek-v3.2",
    "glm-5",
    "gemma-3n-e4b",
)
GPUS = (
    "h100-sxm",
    "h100-sxm",
    "h100-sxm",
    "h200-sxm",
    "h200-sxm",
    "b200-hgx",
    "l40s",
    "a100-80gb-sxm",
    "l4",
    "mi300x",
    "mi355x",
    "rtx-4090",
    "gb200",
    "a10g",
    "rtx-pro-6000-server",
    "h100-sxm:3g.40gb",
)

_QUANT = (
    "--quant fp8",
    "--quant w4a16",
    "--quant w8a8",
    "--quant nvfp4",
    "--kv fp8",
    "--quant q4_k_m --engine llama.cpp",
)
_DIVISION = (
    "--tp 2",
    "--tp 4",
    "--tp 8",
    "--tp 2 --pp 2",
    "--pp 4",
    "--tp 1 --dp 4",
    "--tp 1 --dp 8 --ep 8",
    "--tp 4 --ep 4",
)
_ENGINE = ("--engine vllm", "--engine sglang", "--engine trtllm", "--engine llama.cpp", "--engine none")
_LORA = ("--lora-rank 16 --max-loras 8", "--lora-rank 64 --max-loras 32")
_MASKS = ("--structured-share 1 --mask-time 50us --host-cores 32 --mask-bandwidth 63GB/s",)
_DRAFT = ("--draft llama-3.2-1b --acceptance 0.8,0.6", "--draft mtp --draft-tokens 2", "--draft ngram --acceptance 0.5")
_SAMPLES = ("--samples 4",)
_POWER = ("--energy", "--power-cap 500W", "--carbon DEU")
_THINKING = ("--thinking-tokens 2000", "--thinking-tokens 4000 --thinking-budget 1000")
_HOST = ("--cpu-offload-gb 10 --host epyc-9654 --host-memory 480GB",)
_LIMITS = ("--max-num-seqs 64", "--max-num-batched-tokens 2048", "--block-size 32")
_IDEAL = ("--ideal",)

STATIC: Mapping[str, Sequence[str]] = {
    "quant": _QUANT,
    "division": _DIVISION,
    "engine": _ENGINE,
    "lora": tuple(f"{text} --active-loras 4" for text in _LORA),
    "masks": _MASKS,
    "draft": _DRAFT,
    "samples": _SAMPLES,
    "power": _POWER,
    "thinking": _THINKING,
    "host": _HOST,
    "limits": _LIMITS,
    "ideal": _IDEAL,
    "memory": ("--memory 40GB",),
}
"""Features of a static batch."""
HELD: Mapping[str, Sequence[str]] = {
    "quant": _QUANT[:4],
    "division": _DIVISION[:3],
    "engine": _ENGINE[:3],
    "lora": _LORA,
    "host": _HOST,
    "context": ("--context 8192", "--context 32k"),
    "memory": ("--memory 40GB",),
    "gpu utilisation": ("--gpu-memory-utilization 0.8",),
}
"""Features of what fits, where nothing is timed."""
STARTED: Mapping[str, Sequence[str]] = {**HELD, "limits": _LIMITS, "division": _DIVISION, "lora": STATIC["lora"]}
"""Features of what is started."""
_PRICED = ("quant", "division", "engine", "samples", "limits", "ideal", "memory")
_NAMED = (*_PRICED, "lora", "power", "host")
_TURNS = "--turns 4 --think-time exponential:10s"
SERVED: Mapping[str, Sequence[str]] = {
    "quant": _QUANT,
    "division": _DIVISION,
    "engine": _ENGINE,
    "lora": tuple(f"{text} --loras 40 --lora-skew 1" for text in _LORA),
    "masks": _MASKS,
    "draft": _DRAFT[:1],
    "samples": _SAMPLES,
    "power": _POWER,
    "thinking": _THINKING,
    "host": _HOST,
    "limits": _LIMITS,
    "tiers": (f"{_TURNS} --cache-tier host:20GB:25GB/s", f"{_TURNS} --cache-tier host:5GB:25GB/s --hit-curve"),
    "turns": (_TURNS, "--shared-prefix 512"),
    "replicas": ("--replicas 3", "--replicas 3 --routing least-loaded", "--replicas 2 --routing sticky"),
    "pools": ("--prefill-replicas 1 --decode-replicas 1", "--prefill-replicas 2 --decode-replicas 1"),
    "failures": ("--replicas 2 --fail 20s --restart 5s --routing least-loaded",),
    "sessions": ("--sessions coding-agent --session-time 30s",),
    "classes": ("--classes chat-and-batch", "--classes chat-and-batch --queue priority"),
}
LOADS = (
    "--rate 2 --requests 80",
    "--rate 6 --requests 80 --workload chat",
    "--concurrency 8 --requests 60",
    "--concurrency 16 --requests 60 --think-time 1s",
    "--rate 3 --requests 80 --arrivals gamma --burstiness 0.5 --prompt lognormal:800:0.8 --output lognormal:100:0.6",
    "--trace trace.csv",
)
PLANNED: Mapping[str, Sequence[str]] = {
    "lora": ("--lora-rank 16 --loras 40 --lora-skew 1 --max-loras 4,16",),
    "masks": _MASKS,
    "samples": _SAMPLES,
    "thinking": ("--thinking-tokens 500 --thinking-budget 200,none",),
    "host": _HOST,
    "tiers": ("--turns 4 --think-time exponential:10s --cache-tier host:20GB:25GB/s:3USD/GB-month",),
    "draft": _DRAFT[:1],
    "survive": ("--survive 1 --restart 3min",),
    "power": ("--power-budget 20kW", "--power-cap 700W,500W"),
    "confidence": ("--confidence 0.9",),
    "aggregated": ("--aggregated",),
    "classes": ("--classes chat-and-batch",),
}


def questions() -> list[Question]:
    """All of them: by hand first, then drawn with one fixed seed."""
    asked = [Question(words=tuple(line.split())) for line in WRITTEN]
    asked += [Question(python=text) for text in PYTHON]
    random = Random(SEED)
    named = {name: STATIC[name] for name in _NAMED}
    asked += [_line("estimate", random, STATIC, _static_load) for _ in range(110)]
    asked += [_line("simulate", random, SERVED, lambda drawn: drawn.choice(LOADS)) for _ in range(110)]
    asked += [_line("cost", random, {name: STATIC[name] for name in _PRICED}, _static_load) for _ in range(16)]
    asked += [_line("fit", random, HELD, lambda _: "") for _ in range(24)]
    asked += [_line("explain tpot", random, named, _static_load) for _ in range(12)]
    asked += [_line("explain memory.kv", random, named, _static_load) for _ in range(8)]
    for engine in ("vllm", "sglang", "trtllm", "llama.cpp", "k8s"):
        asked += [_line(f"emit {engine}", random, STARTED, lambda _: "") for _ in range(6)]
    asked += [_planned(random) for _ in range(30)]
    return asked


def _static_load(random: Random) -> str:
    batch, prompt = random.choice((1, 4, 16, 64, 256)), random.choice((17, 128, 513, 2048, 16000))
    return f"--batch {batch} --prompt {prompt} --output {random.choice((1, 16, 200))}"


def _line(
    command: str, random: Random, features: Mapping[str, Sequence[str]], load: Callable[[Random], str]
) -> Question:
    """A command on a model and a GPU with up to three features over each other."""
    words = [*command.split(), random.choice(MODELS), "--gpu", random.choice(GPUS), *load(random).split()]
    return Question(words=(*words, *_features(random, features)))


def _planned(random: Random) -> Question:
    """A plan of a small space: one GPU kind, one format, one device or two."""
    model, gpu = (
        random.choice(("llama-3.1-8b", "qwen3-8b", "gpt-oss-20b")),
        random.choice(("l40s", "h100-sxm", "h200-sxm")),
    )
    load = random.choice(
        ("--rate 4 --prompt 512 --output 64", "--users 16 --prompt 512 --output 64", "--rate 3 --workload rag")
    )
    fixed = f"plan {model} --gpu {gpu} --quant native --most 1 --ttft 1s --tpot 60ms {load}"
    return Question(words=tuple(fixed.split() + _features(random, PLANNED)))


def _features(random: Random, features: Mapping[str, Sequence[str]]) -> list[str]:
    chosen = random.sample(sorted(features), random.choice((0, 1, 1, 2, 2, 3)))
    return [word for name in chosen for word in random.choice(features[name]).split()]
