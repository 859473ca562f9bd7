"""Bugs planted in the commands that start a deployment, each with the test that must notice."""

from __future__ import annotations

from tests.mutants_source import SourceMutant
from tests.planning import test_emit, test_emit_flags

EMIT_MUTANTS = [
    SourceMutant(
        name="a pod asks for one pipeline stage",
        place="inferplan.answers.emit.k8s:_pod",
        old="launch.deployment.parallel.ranks",
        new="launch.deployment.parallel.tp",
        changes="pods of a pipeline get half of their GPUs",
        check=test_emit.test_a_pod_asks_for_the_gpus_of_every_stage_and_rank,
    ),
    SourceMutant(
        name="a typed id becomes the catalogue's checkpoint",
        place="inferplan.answers.emit.checkpoint:repository",
        old='if "/" in name and',
        new='if "//" in name and',
        changes="a model that was typed is served as another of its name",
        check=lambda: test_emit.test_the_checkpoint_is_the_id_that_was_typed(
            "nvidia/Llama-3.1-70B-Instruct", "nvidia/Llama-3.1-70B-Instruct"
        ),
    ),
    SourceMutant(
        name="chat starts a base checkpoint",
        place="inferplan.answers.emit.checkpoint:repository",
        old="(chat and says",
        new="(not chat and says",
        changes="a plan for chat serves a checkpoint without a chat template",
        check=lambda: test_emit.test_chat_starts_what_was_tuned_on_instructions(
            "llama-3.1-70b",
            True,
            "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Llama-3.1-70B-Instruct is meta-llama/Llama-3.1-70B tuned on instructions",
        ),
    ),
    SourceMutant(
        name="fp8 weights make fp8 inputs",
        place="inferplan.answers.emit.checkpoint:online",
        old="precision.experts.name, precision.activations.name}",
        new="precision.experts.name}",
        changes="16-bit inputs of fp8 weights are quantised as the checkpoint loads",
        check=test_emit.test_wide_inputs_of_fp8_weights_say_why_not,
    ),
    SourceMutant(
        name="formats of the embedding do not matter",
        place="inferplan.answers.emit.checkpoint:changed",
        old="for role in _STORED:",
        new="for role in _STORED[:2]:",
        changes="an embedding in fp8 is sized and never served",
        check=lambda: test_emit.test_what_the_engine_cannot_make_of_the_checkpoint_needs_another(
            "vllm", {"roles": (("embedding", "fp8"),)}, "embedding in fp8"
        ),
    ),
    SourceMutant(
        name="a pruned shape needs no checkpoint",
        place="inferplan.answers.emit.checkpoint:changed",
        old="if request.prune:",
        new="if not request.prune:",
        changes="a pruned model is sized and the whole one served",
        check=lambda: test_emit.test_what_the_engine_cannot_make_of_the_checkpoint_needs_another(
            "vllm", {"prune": "layers=40"}, "the pruned shape"
        ),
    ),
    SourceMutant(
        name="an option nobody takes is dropped",
        place="inferplan.answers.emit.options:refuse_untaken",
        old="if untaken:",
        new="if len(untaken) > 1:",
        changes="an option without a flag is left out in silence",
        check=test_emit.test_an_option_that_no_engine_knows_is_refused,
    ),
    SourceMutant(
        name="the size of a page is dropped",
        place="inferplan.answers.emit.vllm:vllm",
        old="[] if asked.block_size is None else",
        new="[] if True else",
        changes="--block-size is sized and not served",
        check=lambda: test_emit.test_every_option_changes_the_command_or_is_refused("vllm", "flags.block_size"),
    ),
    SourceMutant(
        name="SGLang is given the tokens of a rank",
        place="inferplan.answers.emit.sglang:sglang",
        old="str(launch.token_budget * parallel.dp)",
        new="str(launch.token_budget)",
        changes="every rank of SGLang has a share of the tokens that were planned",
        check=test_emit.test_attention_data_parallelism_counts_a_rank_in_vllm_and_all_ranks_in_sglang,
    ),
    SourceMutant(
        name="SGLang is given a default for its sequences",
        place="inferplan.answers.emit.sglang:sglang",
        old="if asked.max_sequences is not None:",
        new="if True:",
        changes="--max-running-requests 32768 for 8 ranks",
        check=test_emit.test_sequences_that_nobody_asked_for_are_left_to_sglang,
    ),
    SourceMutant(
        name="an unknown context is written out",
        place="inferplan.answers.emit.replica:launch",
        old="known = int(longest) if limit else None",
        new="known = min(int(1e10), longest)",
        changes="--max-model-len 2147483648",
        check=test_emit.test_a_model_that_states_no_context_is_left_to_its_config,
    ),
    SourceMutant(
        name="both pools produce",
        place="inferplan.answers.emit.vllm:vllm",
        old='"decode": "kv_consumer"',
        new='"decode": "kv_producer"',
        changes="no server takes the cache in",
        check=lambda: test_emit_flags.test_pools_are_the_commands_of_both_and_a_router("vllm"),
    ),
    SourceMutant(
        name="the router misses a server",
        place="inferplan.answers.emit.k8s:_apart",
        old="for index in range(count)",
        new="for index in range(count - 1)",
        changes="a server of each pool is paid for and idle",
        check=lambda: test_emit_flags.test_pools_on_kubernetes_are_two_sets_and_a_router_that_knows_every_server(
            "vllm"
        ),
    ),
    SourceMutant(
        name="one image for every maker",
        place="inferplan.answers.emit.nodes:image",
        old="engine.defaults.version, vendor)",
        new='engine.defaults.version, "NVIDIA")',
        changes="a CUDA image on an AMD device",
        check=test_emit.test_image_resource_and_node_are_those_of_the_maker,
    ),
    SourceMutant(
        name="a pod is killed while it loads",
        place="inferplan.answers.emit.k8s:_startup",
        old="+ launch.checkpoint_bytes / _SLOW_LINK",
        new="",
        changes="a large checkpoint is never loaded in time",
        check=test_emit.test_a_pod_has_a_token_a_cache_and_time_to_start,
    ),
]
