"""The command that measures one load on a server that has been started, with the client of its engine.

The clients write files that ``inferplan anchor fit`` and ``validate`` read. Lengths are fixed, users begin together,
ten requests each, as in most published runs. Where flags were read: ``vllm/benchmarks/serve.py`` and ``datasets.py``
(``--random-range-ratio 0`` keeps lengths), ``sglang/bench_serving.py`` (there 1 does), ``tensorrt_llm/serve/scripts/
benchmark_serving.py`` (lengths are kept by default), ``atom/benchmarks/benchmark_serving.py`` at 22da013 (1 keeps
them).
"""

from __future__ import annotations

from collections.abc import Callable

from inferplan.answers.emit.checkpoint import checkpoint
from inferplan.answers.emit.engines import ENGINES
from inferplan.answers.emit.replica import Launch
from inferplan.devices.anchors import AnchorLoad
from inferplan.errors import UsageError

REQUESTS_OF_A_USER = 10
WARMUP_OF_A_USER = 2


def benchmark(launch: Launch, load: AnchorLoad, result: str) -> list[str]:
    """The words of the command; ``result`` is the file that it writes.

    Raises ``UsageError`` for an engine of which no client is known here.
    """
    name = launch.deployment.engine.name
    if name not in CLIENTS:
        raise UsageError(
            f"no benchmark client of {name} is known here",
            hint="measure with one of your own and write the CSV of docs/validate.md",
        )
    return CLIENTS[name](launch, load, result)


def facts(launch: Launch) -> dict[str, str]:
    """What a result file does not say of the server by itself, by the names of docs/validate.md."""
    deployment, parallel = launch.deployment, launch.deployment.parallel
    precision = deployment.precision
    experts = {"experts": precision.experts.name} if deployment.model.has_experts else {}
    return {
        "gpu": deployment.hardware.name,
        "engine": deployment.engine.name,
        "engine_version": deployment.engine.asked or deployment.engine.defaults.version,
        "kernels": deployment.calibration.release or deployment.engine.name,
        **({"backends": chosen} if (chosen := chosen_kernels(launch)) else {}),
        "weights": precision.weights.name,
        **experts,
        "kv": precision.kv.name,
        **{degree: str(getattr(parallel, degree)) for degree in ("tp", "pp", "ep", "dp")},
        "max_num_seqs": str(launch.sequences),
        "max_num_batched_tokens": str(launch.token_budget),
        "memory_fraction": f"{launch.fraction:g}",
    }


def chosen_kernels(launch: Launch) -> str:
    """The kernels that ``--backend`` chose, as one fact: ``experts=triton,attention=fa3``."""
    return ",".join(f"{role}={name}" for role, name in launch.request.flags.backends)


def _random(load: AnchorLoad) -> list[str]:
    users = round(float(load.users))
    return [
        *("--dataset-name", "random", "--random-input-len", f"{load.prompt:.0f}"),
        *("--random-output-len", f"{load.output:.0f}", "--max-concurrency", str(users)),
        *("--num-prompts", str(REQUESTS_OF_A_USER * users)),
    ]


def _warmup(load: AnchorLoad) -> str:
    return str(WARMUP_OF_A_USER * round(float(load.users)))


def _saved(result: str, told: dict[str, str]) -> list[str]:
    """The flags by which a client writes its figures, with what is told of the run beside them."""
    said = [f"{name}={value}" for name, value in told.items()]
    return ["--save-result", "--result-filename", result, "--metadata", *said]


def _vllm(launch: Launch, load: AnchorLoad, result: str) -> list[str]:
    warmup = _warmup(load)
    return [
        *("vllm", "bench", "serve", "--port", str(ENGINES["vllm"].port), "--model", checkpoint(launch)),
        *(*_random(load), "--random-range-ratio", "0", "--num-warmups", warmup, "--ignore-eos"),
        *_saved(result, {**facts(launch), "warmup_requests": warmup}),
    ]


def _sglang(launch: Launch, load: AnchorLoad, result: str) -> list[str]:
    warmup = _warmup(load)
    return [
        *("python3", "-m", "sglang.bench_serving", "--backend", "sglang", "--port", str(ENGINES["sglang"].port)),
        *("--model", checkpoint(launch), *_random(load), "--random-range-ratio", "1"),
        *("--warmup-requests", warmup, "--output-file", result),
    ]


def _trtllm(launch: Launch, load: AnchorLoad, result: str) -> list[str]:
    return [
        *("python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving", "--backend", "openai"),
        *("--port", str(ENGINES["trtllm"].port), "--model", checkpoint(launch), *_random(load), "--random-ids"),
        *("--ignore-eos", *_saved(result, facts(launch))),
    ]


def _atom(launch: Launch, load: AnchorLoad, result: str) -> list[str]:
    warmup = _warmup(load)
    return [
        *("python", "-m", "atom.benchmarks.benchmark_serving", "--port", str(ENGINES["atom"].port)),
        *("--model", checkpoint(launch), *_random(load), "--random-range-ratio", "1", "--num-warmups", warmup),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--ignore-eos"),
        *_saved(result, {**facts(launch), "warmup_requests": warmup}),
    ]


CLIENTS: dict[str, Callable[[Launch, AnchorLoad, str], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "atom": _atom,
}
SILENT = frozenset({"sglang"})
"""Clients whose files do not take the facts: they are given to ``anchor fit``."""
