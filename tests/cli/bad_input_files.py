"""The files that the lines of ``bad_inputs.txt`` name."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from inferplan.catalog.files import config_root
from tests.builders import LLAMA_3_1_8B

DEEP = "[" * 100_000
HUGE = "9" * 5000
_DIST = re.compile(r"(?P<file>[\w.-]+\.(?:json|yaml))\[(?P<field>[\w.-]+)(?:=(?P<value>.*)|!)\]", re.DOTALL)


def _guide(kind: str, **strategy: Any) -> dict[str, Any]:
    """One benchmark of a GuideLLM file."""

    def mean(value: float) -> dict[str, Any]:
        return {"successful": {"mean": value, "median": value, "count": 100}, "errored": {"mean": 0}}

    return {
        "type_": "generative_benchmark",
        "config": {
            "strategy": {"type_": kind, **strategy},
            "backend": {"type_": "openai_http", "model": "meta-llama/Llama-3.1-8B-Instruct"},
        },
        "duration": 60.0,
        "metrics": {
            "request_totals": {"successful": 100, "errored": 0},
            "prompt_token_count": mean(1024.0),
            "output_token_count": mean(256.0),
            "time_to_first_token_ms": mean(60.0),
            "inter_token_latency_ms": mean(7.5),
            "request_latency": mean(2.0),
            "output_tokens_per_second": mean(900.0),
            "request_concurrency": mean(8.0),
        },
    }


_LOAD = {"completed": 32, "total_input_tokens": 32768, "total_output_tokens": 1024}
_MEANS = {"mean_ttft_ms": 60.0, "mean_tpot_ms": 8.9}
BENCHMARKS: dict[str, dict[str, Any]] = {
    "vllm.json": {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 32,
        "request_rate": "inf",
        "max_concurrency": 4,
        "duration": 24.0,
        **_LOAD,
        **_MEANS,
    },
    "open.json": {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "num_prompts": 32,
        "request_rate": 4.0,
        "duration": 24.0,
        **_LOAD,
        **_MEANS,
    },
    "sglang.json": {
        "random_input_len": 1024,
        "request_rate": 4.0,
        "server_info": {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "tp_size": 2, "enable_dp_attention": True},
        "duration": 100.0,
        "mean_e2e_latency_ms": 2564.8,
        **_LOAD,
        **_MEANS,
    },
    "guidellm.json": {
        "metadata": {"version": 1},
        "benchmarks": [_guide("synchronous"), _guide("concurrent", streams=8)],
    },
    "aiperf.json": {
        "input_config": {"model_names": ["llama-3.1-8b"], "loadgen": {"concurrency": 4}},
        "request_latency": {"unit": "ms", "avg": 2000.0},
        "time_to_first_token": {"unit": "ms", "avg": 60.0},
        "inter_token_latency": {"unit": "ms", "avg": 7.5},
        "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
        "output_sequence_length": {"unit": "tokens", "avg": 256.0},
    },
    "inferencex.json": {
        "hw": "h100",
        "framework": "vllm",
        "model": "llama-3.1-8b",
        "precision": "fp8",
        "conc": 4,
        "isl": 1024,
        "osl": 256,
        "tp": 1,
        "ep": 1,
        "mean_ttft": 0.06,
        "mean_tpot": 0.0075,
    },
    "llama-bench.json": {
        "model_filename": "llama-3.1-8b-Q4_K_M.gguf",
        "model_type": "llama 8B Q4_K - Medium",
        "gpu_info": "NVIDIA H100",
        "n_prompt": 512,
        "n_gen": 0,
        "n_depth": 0,
        "n_ubatch": 512,
        "avg_ns": 1e8,
    },
}
"""One whole file of each tool that writes JSON."""
_PLAN = {
    "schema_version": 2,
    "plan": {
        "deployment": {
            "model": "llama-3.1-8b",
            "gpu": "h100-sxm",
            "quant": None,
            "engine": "vllm",
            "parallel": {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1, "replicas": 1},
            "pools": None,
            "context_tokens": 8192,
            "concurrency": 8,
            "token_budget": 2048,
            "speculation": None,
            "options": {},
        }
    },
}
_ENGINE = {
    "name": "own",
    "source": "a test",
    "versions": [
        {
            "version": "1",
            "source": "a test",
            "tiers": [{"memory_at_least": "0 GiB", "token_budget": 8, "max_sequences": 8}],
        }
    ],
}


@cache
def _whole() -> dict[str, Any]:
    """The files that a line may change one value of."""
    root = config_root()

    def shipped(path: str) -> Any:
        return json.loads(json.dumps(yaml.safe_load((root / path).read_text(encoding="utf-8")), default=str))

    anchor = {
        "system": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "weights": "bf16"},
        "priced_with": "x",
        "process": shipped("anchors.yaml"),
        "rows": [{"users": 4, "prompt": 1024, "output": 256, "ttft_ln_ratio": 0.1, "tpot_ln_ratio": 0.1}],
    }
    return {
        **BENCHMARKS,
        "config.json": LLAMA_3_1_8B,
        "plan.json": _PLAN,
        "engine.json": _ENGINE,
        "anchor.json": anchor,
        "calibration.json": {"name": "own", "constants": {"norm": {"any": {"memory": 0.5}}}},
        "model.yaml": shipped("models/llama-3.1-8b.yaml"),
        "gpu.json": shipped("hardware/h100-sxm.yaml"),
        "prices.json": shipped("prices/runpod-secure.yaml"),
        "workload.json": shipped("workloads/chat.yaml"),
        "regions.json": shipped("regions/three.yaml"),
    }


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi")
)
_TRACE = "arrival_s,prompt,output\n"
_MOONCAKE = '{"timestamp": 0, "input_length": 10, "output_length": 5}\n'
TEXTS: dict[str, str | bytes] = {
    "empty.csv": "",
    "empty.json": "",
    "empty.yaml": "",
    "hello.txt": "hello",
    "rate.json": '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": []}]}}',
    **dict.fromkeys(("binary.bin", "binary.yaml"), bytes(range(256)) * 4),
    "binary.json": b"{" + bytes(range(128, 256)),
    **dict.fromkeys(("deep.json", "deep.yaml"), DEEP),
    "list.yaml": "- 1\n",
    "scalar.yaml": "42\n",
    "unclosed.yaml": "name: x\nlayers: [1\n",
    "nul.yaml": "a\0b: 1\n",
    "python.yaml": "!!python/object/apply:os.system ['true']\n",
    "twice.yaml": "name: x\nname: y\n",
    "bomb.yaml": _BOMB,
    "derive-itself.yaml": "name: x\nderive: {from: derive-itself.yaml}\n",
    "derive-nope.yaml": "name: x\nderive: {from: nope}\n",
    "derive-prune.yaml": "name: x\nderive: {from: llama-3.1-8b, prune: {layers: many}}\n",
    "list.json": "[]",
    "numbers.json": "[1, 2]",
    "object.json": '{"a": 1}',
    "cutoff.json": '{"a": [1, ',
    "digits.json": f'{{"mean_ttft_ms": {HUGE}}}',
    "cut.gguf": b"GGUF",
    "magic.gguf": b"JPEG" * 100,
    "cut.safetensors": (2**60).to_bytes(8, "little") + b"{}",
    "trace-words.csv": _TRACE + "0,ten,5\n",
    "trace-negative.csv": _TRACE + "0,-10,5\n",
    "trace-digits.csv": _TRACE + "0,１０,5\n",
    "trace-time.csv": _TRACE + "soon,10,5\n",
    "trace-heading.csv": _TRACE,
    "trace-good.csv": _TRACE + "0,10,5\n9,10,5\n",
    "mooncake-bad.jsonl": "{bad\n",
    "mooncake-deep.jsonl": _MOONCAKE + '{"timestamp": ' + DEEP + "\n",
    "mooncake-hash.jsonl": _MOONCAKE.replace("}", ', "hash_ids": ["a"]}'),
    "mooncake-huge.jsonl": _MOONCAKE.replace("10", HUGE),
    "heading.csv": "model,gpu,isl,osl,concurrency,tp\n",
    "nope.csv": "model,gpu,engine,isl,osl,concurrency,ttft_ms\nllama-3.1-8b,nope,vllm,100,100,1,5\n",
    "esc.csv": "model,gpu,engine,precision,isl,osl,concurrency,tp,ttft_ms\n\x1b[31m,h100-sxm,vllm,bf16,100,100,1,1,5\n",
    "esc.json": json.dumps(BENCHMARKS["vllm.json"] | {"model_id": "\x1b[31m"}),
    "startup.log": "INFO GPU KV cache size: many tokens\nINFO Model loading took x GiB\n",
    "journal-99": '{"inferplan": "sweep journal", "version": "99.0.0", "checksum": "crc32"}\n',
}
"""Files that are as they are."""


def placed(word: str, folder: Path) -> str:
    """A word of a command line, with the file that it names put into ``folder``."""
    found = _DIST.fullmatch(word)
    name = found["file"] if found else word
    if name in TEXTS:
        content = TEXTS[name]
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    elif name in _whole():
        data = json.loads(json.dumps(_whole()[name]))
        if found:
            _change(data, found["field"].split("."), found["value"])
        (folder / name).write_text(json.dumps(data), encoding="utf-8")
    return name


def _change(data: Any, path: list[str], text: str | None) -> None:
    """Set the value at a path to what the text says in JSON; take it out where there is no text."""
    *before, last = path
    for part in before:
        data = data[int(part) if isinstance(data, list) else part]
    if text is None:
        del data[last]
    else:
        data[int(last) if isinstance(data, list) else last] = json.loads(text)
