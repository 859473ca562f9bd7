"""Bugs in layers, operators, roofline, memory and the bill, each with the test that notices."""

from __future__ import annotations

from functools import partial

from inferplan.work.parallel import Parallelism
from tests import (
    test_bands,
    test_bill,
    test_hardware_catalogue,
    test_kv_pools,
    test_precision,
    test_roofline,
    test_wide_ep,
    test_wire,
)
from tests.calibrate import test_relatives
from tests.layers import test_context_parallel, test_routing
from tests.mutants_source import SourceMutant
from tests.serving import test_two_batches

_STATIC = (0.8, 0.8 * test_kv_pools.USABLE - test_kv_pools.WEIGHTS)
_attention = test_roofline.attention
_count = test_roofline.test_terms_count_what_they_say

MODEL_MUTANTS = [
    SourceMutant(
        name="copies of experts weigh nothing",
        place="inferplan.work.parallel:Parallelism.expert_slots",
        old="(experts + self.redundant)",
        new="experts",
        changes="redundant slots are not in memory",
        check=test_wide_ep.test_copies_are_weights,
    ),
    SourceMutant(
        name="the emptiest group of experts",
        place="inferplan.work.parallel:Parallelism.expert_slots",
        old="-(-(experts + self.redundant) // self.ep)",
        new="(experts + self.redundant) // self.ep",
        changes="where experts do not divide, the rank with fewest counts",
        check=test_wide_ep.test_the_fullest_rank_counts_where_experts_do_not_divide,
    ),
    SourceMutant(
        name="no rank is busier than the mean",
        place="inferplan.models.layers.moe:MoeLayer._load",
        old="parallel.ep == 1 or context.routing.even",
        new="True",
        changes="a step does not wait for the busiest rank of experts",
        check=test_wide_ep.test_skew_slows_spread_experts_and_copies_make_up_for_it,
    ),
    SourceMutant(
        name="work of the busiest rank on all",
        place="inferplan.estimate.phase:Phase._even",
        old="deployment.parallel.ep == 1 or deployment.calibration.fused",
        new="True",
        changes="FLOP of a replica are those of its busiest rank times its ranks",
        check=test_wide_ep.test_work_of_all_ranks_does_not_depend_on_who_is_busiest,
    ),
    SourceMutant(
        name="copies packed in their order",
        place="inferplan.work.routing:balanced",
        old="(work + chance, rank)",
        new="(0.0, rank)",
        changes="the balancer fills the ranks one after another",
        check=test_routing.test_the_published_gain_of_balancing_lies_within_the_experts,
    ),
    SourceMutant(
        name="halves hide all of the wire",
        place="inferplan.estimate.phase:Overlap.slot",
        old="np.maximum(wire, own + self.computes * wire)",
        new="own + self.computes * wire",
        changes="overlapping halves never wait for an exchange",
        check=test_two_batches.test_slots_by_hand,
    ),
    SourceMutant(
        name="MLA gathers only the new latents",
        place="inferplan.models.layers.mla:MlaLayer._core",
        old="(segment.past + segment.new) * self.latent_dim",
        new="segment.new * self.latent_dim",
        changes="a chunk of a prompt under context parallelism leaves the past out of its gather",
        check=partial(test_context_parallel.test_a_chunk_of_latent_attention_gathers_every_latent_so_far, 2),
    ),
    SourceMutant(
        name="MLA merges without the sums",
        place="inferplan.models.layers.mla:MlaLayer._core",
        old="heads * (self.kv_lora + 1)",
        new="heads * self.kv_lora",
        changes="partial softmaxes are merged without their normalisers",
        check=test_context_parallel.test_a_decode_merges_one_output_and_one_sum_a_head,
    ),
    SourceMutant(
        name="keys not shared in a decode",
        place="inferplan.models.layers.attention:AttentionLayer._core",
        old="key_shards=1 if segment.wide else cp",
        new="key_shards=1",
        changes="context parallelism does not divide the keys of a decode",
        check=partial(
            test_context_parallel.test_ranks_share_a_prompts_queries_and_a_decodes_keys, test_context_parallel.GQA
        ),
    ),
    SourceMutant(
        name="a pipeline sends on the near link",
        place="inferplan.estimate.graph:_send",
        old="2 * context.ranks",
        new="1",
        changes="stages on different nodes talk over the link inside a node",
        check=partial(
            test_wire.test_a_stage_sends_to_the_next_over_the_link_that_joins_both, tp=8, bandwidth=test_wire.RAIL
        ),
    ),
    SourceMutant(
        name="switch reduces for nothing",
        place="inferplan.work.routes:route",
        old="min(1.0 / below, 2.0 * share) if adds else 2.0 * share",
        new="2.0 * share",
        changes="a reducing switch sends every byte twice",
        check=partial(
            test_wire.test_an_all_reduce_sends_each_byte_twice_round_a_ring_or_once_to_a_switch,
            tp=8,
            switch=True,
            factor=1.0,
        ),
    ),
    SourceMutant(
        name="32 heads a work item",
        place="inferplan.estimate.roofline:_items",
        old="/ 16)",
        new="/ 32)",
        changes="items count twice the query heads a block takes",
        check=partial(_count, _attention(kv_heads=1), "items", 4 * 2 / 100),
    ),
    SourceMutant(
        name="a block for every query head",
        place="inferplan.estimate.roofline:_items",
        old="op.kv_heads * np.ceil(op.heads / op.kv_heads / 16)",
        new="op.heads",
        changes="items do not group the query heads of a KV head",
        check=partial(_count, _attention(), "items", 4 * 8 / 100),
    ),
    SourceMutant(
        name="merges without the one",
        place="inferplan.estimate.roofline:_merges",
        old="np.log2(1.0 + _reach(op) / TILE)",
        new="np.log2(_reach(op) / TILE)",
        changes="rounds of a merge are one too few",
        check=partial(_count, _attention(), "merges", 3.169925001442312),
    ),
    SourceMutant(
        name="blocks under every mask",
        place="inferplan.estimate.roofline:_windowed",
        old="and op.mask.size else 0.0",
        new="else 0.0",
        changes="the windowed term is paid without a window",
        check=partial(_count, _attention(), "windowed", 0),
    ),
    SourceMutant(
        name="a band over a fifth of unknown kernels",
        place="inferplan.estimate.load:UNKNOWN_SHARE",
        old="= 0.02",
        new="= 0.2",
        changes="a band is printed where a tenth of the time has no known error",
        check=partial(test_bands.test_more_than_two_percent_of_unknown_error_hides_the_band, 0.1, False),
    ),
    SourceMutant(
        name="bands add as logs",
        place="inferplan.estimate.load:widened",
        old="np.hypot(np.log(max(kernels[1], 1.0)), np.log(max(step[1], 1.0)))",
        new="np.log(max(kernels[1], 1.0)) + np.log(max(step[1], 1.0))",
        changes="independent errors are taken as if they went together",
        check=test_bands.test_independent_errors_add_as_squares_of_logs,
    ),
    SourceMutant(
        name="the fraction of free memory is the reserve",
        place="inferplan.estimate.reserve:reserve",
        old="fixed + unused * free",
        new="fixed + (1.0 - unused) * free",
        changes="TensorRT-LLM keeps a ninth of its cache",
        check=test_kv_pools.test_a_fraction_of_what_is_free,
    ),
    SourceMutant(
        name="vLLM's fraction of what is free",
        place="inferplan.estimate.reserve:reserve",
        old="fixed + unused * usable",
        new="fixed + unused * (usable - weights)",
        changes="gpu_memory_utilization counts from what weights leave",
        check=test_kv_pools.test_a_fraction_of_the_total,
    ),
    SourceMutant(
        name="SGLang's activations beside what is held back",
        place="inferplan.estimate.reserve:reserve",
        old="usable * unused - activations)",
        new="usable * unused)",
        changes="the static fraction pays for activations twice",
        check=partial(
            test_kv_pools.test_a_static_fraction_for_weights_and_cache,
            0.8,
            0.8 * test_kv_pools.USABLE - test_kv_pools.WEIGHTS,
        ),
    ),
    SourceMutant(
        name="communicators on one device",
        place="inferplan.estimate.reserve:reserve",
        old="if deployment.parallel.ranks > 1:",
        new="if True:",
        changes="a single device sets collective buffers aside",
        check=test_kv_pools.test_collective_buffers_are_taken_where_there_is_more_than_one_device,
    ),
    SourceMutant(
        name="one graph batch for every width",
        place="inferplan.estimate.reserve:memory_fraction",
        old="512 if parallel.tp >= 4 else 256",
        new="256",
        changes="SGLang's static fraction at TP 4 is that of TP 1",
        check=test_kv_pools.test_sglang_computes_its_static_fraction_from_the_device,
    ),
    SourceMutant(
        name="one pool for all attention ranks",
        place="inferplan.estimate.memory:Footprint.max_batch",
        old=" * self.deployment.parallel.dp",
        new="",
        changes="the largest batch is that of one attention rank",
        check=partial(test_kv_pools.test_sequences_that_fit_are_those_of_the_tightest_rank, Parallelism(dp=4), 4),
    ),
    SourceMutant(
        name="layers counted once",
        place="inferplan.estimate.stage_memory:StageMemory.weights",
        old="self.tensor_bytes(weight, layer) * count for",
        new="self.tensor_bytes(weight, layer) for",
        changes="identical layers are counted once",
        check=test_kv_pools.test_weights_and_activations_are_those_of_the_hand_count,
    ),
    SourceMutant(
        name="pages cut off",
        place="inferplan.estimate.stage_memory:StageMemory.state",
        old="np.ceil(tokens / block)",
        new="np.floor(tokens / block)",
        changes="the last page of a sequence is not allocated",
        check=test_kv_pools.test_pages_are_whole,
    ),
    SourceMutant(
        name="a month of thirty days",
        place="inferplan.answers.cost:HOURS_PER_MONTH",
        old="= 730.0",
        new="= 720.0",
        changes="the monthly bill is 1.4 % low",
        check=test_bill.test_a_month_is_a_twelfth_of_a_year,
    ),
    SourceMutant(
        name="fp16 is bf16 on every device",
        place="inferplan.work.formats:held_by",
        old="if name not in peaks and other in peaks",
        new="if other in peaks",
        changes="checkpoints in fp16 run in bf16 where the device has both",
        check=partial(test_precision.test_sixteen_bits_that_the_device_multiplies, "llama-2-7b", "h100-sxm", "fp16"),
    ),
    SourceMutant(
        name="a message of 8 MiB is too large",
        place="inferplan.estimate.roofline:_fallback",
        old="> OWN_LIMIT",
        new=">= OWN_LIMIT",
        changes="a full buffer of an engine's own all-reduce pays for the library's",
        check=partial(test_roofline.test_large_all_reduces_fall_back_to_the_library, 1024.0, 0.0),
    ),
    SourceMutant(
        name="every relative is a twin",
        place="inferplan.catalog.assemble:_carried",
        old="pairs.same_chip if hardware.same_chip else pairs.other_chip",
        new="pairs.same_chip",
        changes="H20's band is that of H100 and H200",
        check=partial(test_relatives.test_its_band_is_that_of_chips_as_alike_that_were_measured, "h20", "other_chip"),
    ),
    SourceMutant(
        name="a core of a TPU takes blocks",
        place="inferplan.devices.hardware:HardwareSpec.multiprocessors",
        old="self.units if self.thread_blocks else None",
        new="self.units",
        changes="decode attention on a TPU waits for its blocks one by one",
        check=partial(test_hardware_catalogue.test_a_few_large_cores_take_no_thread_blocks, "tpu-v6e"),
    ),
]
