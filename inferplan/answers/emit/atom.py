"""The command of ATOM (``atom/model_engine/arg_utils.py``; where each flag is: tests/planning/test_emit_flags.py)."""

from __future__ import annotations

from inferplan.answers.emit.checkpoint import checkpoint, draft_checkpoint
from inferplan.answers.emit.replica import Launch, dtype, head_of, kv_dtype, refuse_degrees
from inferplan.errors import UsageError
from inferplan.models.prediction import MTP

TAKES = frozenset(
    {f"parallel.{degree}" for degree in ("tp", "pp", "dp", "ep", "cp")}
    | {"flags.memory_fraction", "flags.block_size", "flags.prefill_decode_interval", "flags.enable_prefill_delayer"}
    | {"flags.prefill_delayer_max_delay_passes"}
    | {f"speculation.{field}" for field in ("length", "branches", "draft", "first", "later", "block")}
)
PORT = 8000
_OF_0_1 = "0.1"
"""Its releases up to 0.1.3: no flag chooses how experts are reached, and MTP alone drafts."""
_DELAYER = "ATOM_ENABLE_PREFILL_DELAYER"
"""Whether attention ranks hold prompts back for each other (``atom/utils/envs.py``): 1 where nothing says 0."""


def atom(launch: Launch) -> list[str]:
    """``python -m atom.entrypoints.openai_server``. Raises ``UsageError`` for what its flags cannot say: pipelines and
    contexts that are divided, activations in another format than the checkpoint's, and drafts other than MTP's and
    EAGLE-3's.

    ``--max-num-seqs`` and ``--max-num-batched-tokens`` are of one attention rank: each has a scheduler of its own
    (``docs/distributed_guide.md``).
    """
    asked, block = launch.request.flags, launch.request.flags.block_size
    alone = "how ATOM divides it is not modelled flag by flag"
    refuse_degrees(launch, pp=f"{alone}; leave --pp at 1", cp=f"{alone}; leave --cp at 1")
    if launch.deployment.precision.base.name != "bf16" or dtype(launch):
        raise UsageError(
            f"no flag of ATOM gives activations in {launch.deployment.precision.base.name} that is known here",
            hint="a model in bf16, or --engine vllm",
        )
    if block is not None and block % 16 and block != 1:
        raise UsageError(f"ATOM has no pages of {block} tokens", hint="--block-size 1, or a multiple of 16")
    flags = [*_ranks(launch), "--max-num-seqs", str(launch.sequences)]
    flags += ["--max-num-batched-tokens", str(launch.token_budget)]
    flags += [] if launch.context is None else ["--max-model-len", str(launch.context)]
    flags += ["--gpu-memory-utilization", f"{launch.fraction:g}"]
    flags += [] if asked.block_size is None else ["--block-size", str(asked.block_size)]
    return [*flags, "--kv_cache_dtype", kv_dtype(launch, "bf16"), *_drafts(launch)]


def _ranks(launch: Launch) -> list[str]:
    """The command as far as the division.

    ``--enable-dp-attention`` makes an attention rank of every device (``engine_core_mgr.py``); larger ranks share
    experts where these are spread over all (``-dp``).
    """
    parallel, version = launch.deployment.parallel, launch.deployment.engine.defaults.version
    ranks = parallel.tp * parallel.dp
    server = ["python", "-m", "atom.entrypoints.openai_server", "--model", checkpoint(launch)]
    if parallel.ep not in (1, ranks):
        raise UsageError("ATOM spreads experts over all ranks or none", hint=f"--ep {ranks}, or 1")
    experts = [] if parallel.ep == 1 else ["--enable-expert-parallel"]
    if parallel.dp == 1:
        return [*server, *(["--tensor-parallel-size", str(ranks)] if ranks > 1 else []), *experts]
    if not launch.deployment.model.has_experts:
        raise UsageError(
            "attention ranks of ATOM run every step together; without experts they are modelled separately",
            hint="--replicas in the place of --dp",
        )
    if parallel.tp > 1 and parallel.ep == 1:
        raise UsageError("attention ranks of several devices share no experts in ATOM", hint=f"--ep {ranks}, or --tp 1")
    if parallel.ep > 1 and version == _OF_0_1:
        raise UsageError(
            f"no flag of {launch.deployment.engine.describe()} says how tokens reach their experts",
            because="it takes MORI's kernels where they are installed, which are not on file",
            hint="--engine atom for the newest, or --ep 1",
        )
    divided = ["--tensor-parallel-size", str(ranks), "--enable-dp-attention"]
    if parallel.tp > 1:
        divided = ["--tensor-parallel-size", str(parallel.tp), "--data-parallel-size", str(parallel.dp)]
    gathered = ["--all2all-backend", "none"] if experts else []
    return [*_environment(launch), *server, *divided, *experts, *gathered]


def _environment(launch: Launch) -> list[str]:
    """The variables that say how attention ranks feed prompts."""
    asked = launch.request.flags
    interval, passes = asked.prefill_decode_interval, asked.prefill_delayer_max_delay_passes
    words = ["env", f"{_DELAYER}={int(asked.enable_prefill_delayer)}"]
    words += [] if interval is None else [f"ATOM_PREFILL_DECODE_INTERVAL={interval}"]
    return words if passes is None else [*words, f"ATOM_PREFILL_DELAYER_TTFT_MAX_TICKS={passes}"]


def _drafts(launch: Launch) -> list[str]:
    """Drafts of the model's own prediction module, or of an EAGLE-3 head, one at each depth."""
    speculation = launch.drafts.speculation
    if not speculation.length:
        return []
    head, engine = head_of(launch), launch.deployment.engine
    known = (MTP,) if engine.defaults.version == _OF_0_1 else (MTP, "eagle3")
    if head is None or head not in known or speculation.branches > 1:
        raise UsageError(
            f"{engine.describe()} drafts from {' or '.join(known)}, one candidate at each depth, as modelled here",
            hint="--draft-model mtp with --draft-branches 1, or --engine vllm",
        )
    flags = ["--method", head, "--num-speculative-tokens", str(speculation.length)]
    return flags if head == MTP else [*flags, "--draft-model", draft_checkpoint(launch)]
