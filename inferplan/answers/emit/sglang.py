"""The command of SGLang (``srt/arg_groups/fields/*.py``)."""

from __future__ import annotations

from inferplan.answers.emit.replica import Launch, kv_dtype, online_format, refuse_degrees


def sglang(launch: Launch) -> list[str]:
    """``python -m sglang.launch_server``. Raises ``UsageError`` for context parallelism."""
    parallel = launch.deployment.parallel
    refuse_degrees(launch, cp="SGLang's context parallelism is not modelled flag by flag; leave --cp at 1")
    flags = ["python", "-m", "sglang.launch_server", "--model-path", launch.checkpoint]
    ranks = parallel.tp * parallel.dp
    flags += [] if ranks == 1 else ["--tp-size", str(ranks)]
    flags += [] if parallel.pp == 1 else ["--pp-size", str(parallel.pp)]
    flags += [] if parallel.dp == 1 else ["--attn-dp-size", str(parallel.dp)]
    flags += [] if parallel.ep == 1 else ["--ep-size", str(parallel.ep)]
    flags += ["--context-length", str(launch.context), "--max-running-requests", str(launch.slots)]
    flags += ["--chunked-prefill-size", str(launch.token_budget), "--mem-fraction-static", f"{launch.fraction:g}"]
    flags += ["--kv-cache-dtype", kv_dtype(launch, {"fp8": "fp8_e4m3"})]
    online = online_format(launch)
    return flags + (["--quantization", online] if online else [])
