"""Options by the names that other tools give them, said where a command does not know an option.

Spellings of vLLM, SGLang, TensorRT-LLM, llama.cpp, GuideLLM, AIPerf and AIConfigurator. A name stands here only where
it means what ours does: a share of the memory that is left beside the weights, for one, has no option here.
"""

from __future__ import annotations

import click

SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpus", "gpu-type", "gpu-name", "accelerator", "hardware", "system"), ("gpu",)),
    **dict.fromkeys(
        ("isl", "input-len", "input-length", "random-input-len", "random-input", "input-tokens", "prompt-tokens"),
        ("prompt", "isl"),
    ),
    **dict.fromkeys(("prompt-len", "synthetic-input-tokens-mean", "n-prompt"), ("prompt", "isl")),
    **dict.fromkeys(
        ("osl", "output-len", "output-length", "random-output-len", "random-output", "output-tokens", "max-tokens"),
        ("output", "osl"),
    ),
    **dict.fromkeys(("max-new-tokens", "output-tokens-mean", "n-gen", "n-predict"), ("output", "osl")),
    **dict.fromkeys(("request-rate", "rps", "qps", "requests-per-second"), ("rate",)),
    **dict.fromkeys(
        (
            "in-flight",
            "concurrency",
            "max-concurrency",
            "users",
            "num-users",
            "concurrent-users",
            "concurrent-requests",
        ),
        ("in-flight", "concurrency"),
    ),
    "streams": ("in-flight", "concurrency"),
    **dict.fromkeys(("headcount", "employees", "developers", "seats"), ("people",)),
    **dict.fromkeys(("num-prompts", "num-prompt", "num-requests", "request-count"), ("requests",)),
    "max-requests": ("requests",),
    "random-range-ratio": ("length-ratio-min",),
    **dict.fromkeys(("tensor-parallel-size", "tp-size", "tensor-parallel"), ("tp",)),
    **dict.fromkeys(("pipeline-parallel-size", "pp-size", "pipeline-parallel"), ("pp",)),
    **dict.fromkeys(("expert-parallel-size", "ep-size", "moe-ep-size"), ("ep",)),
    **dict.fromkeys(
        ("quantization", "quantize", "quantisation", "precision", "gemm-quant-mode", "format-weights"),
        ("quant",),
    ),
    **dict.fromkeys(("kv-cache-dtype", "kv-dtype", "kvcache-quant-mode"), ("kv",)),
    **dict.fromkeys(("max-model-len", "context-length", "max-seq-len"), ("max-model-len", "context")),
    **dict.fromkeys(("max-num-batched-tokens", "max-num-tokens"), ("max-num-batched-tokens", "token-budget")),
    **dict.fromkeys(("max-running-requests", "max-batch-size", "parallel"), ("max-num-seqs",)),
    "gpu-memory-utilization": ("gpu-memory-utilization", "memory-fraction"),
    **dict.fromkeys(("batch-size", "num-sequences"), ("batch",)),
    **dict.fromkeys(("speculative-model", "draft", "model-draft", "speculative-draft-model-path"), ("draft-model",)),
    **dict.fromkeys(("num-speculative-tokens", "speculative-num-steps", "draft-max"), ("draft-tokens",)),
    **dict.fromkeys(("enable-prefix-caching", "prefix-cache"), ("prefix-caching",)),
    "enable-chunked-prefill": ("chunked-prefill",),
    **dict.fromkeys(("n-gpu-layers", "ngl"), ("gpu-layers",)),
    "n-cpu-moe": ("cpu-moe-layers",),
    "page-size": ("block-size",),
    **dict.fromkeys(("model-path", "model-name"), ("model",)),
    "think": ("think-time",),
    **dict.fromkeys(("ttft-slo", "max-ttft"), ("ttft",)),
    **dict.fromkeys(("tpot-slo", "max-tpot"), ("tpot",)),
    **dict.fromkeys(("e2e-latency", "request-latency", "e2el"), ("e2e",)),
}
"""A name to those of our options that mean it, the first that a command has."""
_OTHERWISE = {("plan", "requests"), ("report", "requests")}
"""Options that mean something else in a command: there --requests are those of an offline job."""
_ELSEWHERE = {
    ("recipe", "draft-model"): "drafts are an ingredient: --with speculative:draft=NAME:length=4:acceptance=0.7",
    ("fit", "prompt"): "--context counts prompt and output together",
    ("fit", "output"): "--context counts prompt and output together",
}
"""What a command has instead of an option."""
_PEOPLE = "; people who read and type between answers are --people"
_BESIDE = {
    "gpus": "; how many work together is --tp",
    **dict.fromkeys(("users", "num-users", "concurrent-users"), _PEOPLE),
}
"""What else a name may have meant."""
_SHOWN = 4
"""Commands that are named."""


def meant(name: str, command: click.Command, others: dict[str, click.Command]) -> str:
    """What an option that ``command`` does not have is called there, else which of ``others`` has it; empty where none
    has.
    """
    name = name.lstrip("-")
    ours = SYNONYMS.get(name, (name,))
    for one in ours:
        option = None if (command.name, one) in _OTHERWISE else _option(command, one)
        if option is not None:
            return f"{option.opts[0]} here{_BESIDE.get(name, '')}"
        if (argument := _argument(command, one)) is not None:
            return f"{argument} is an argument: write it without --{name}"
    for one in dict.fromkeys((*ours, name)):
        if (command.name, one) in _ELSEWHERE:
            return _ELSEWHERE[command.name or "", one]
        having = [key for key, other in others.items() if _option(other, one) and (key, one) not in _OTHERWISE]
        if having:
            which = ", ".join(having[:_SHOWN]) + (" and others" if len(having) > _SHOWN else "")
            have = "has" if len(having) == 1 else "have"
            return f"inferplan {command.name} does not take it; {which} {have} --{one}"
    return ""


def _option(command: click.Command, name: str) -> click.Option | None:
    """The option of that name, if the help of the command shows one."""
    options = (one for one in command.params if isinstance(one, click.Option) and not one.hidden)
    return next((one for one in options if f"--{name}" in one.opts), None)


def _argument(command: click.Command, name: str) -> str | None:
    """The argument of that name, as the usage line writes it."""
    for one in command.params:
        if isinstance(one, click.Argument) and one.name in (name, f"{name}s"):
            return (one.name or "").upper()
    return None
