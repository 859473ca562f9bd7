"""Bugs of scale: pipelines, attention ranks, context parallelism in a step; each with what notices."""

from __future__ import annotations

from functools import partial

from tests import test_explain, test_mig, test_releases, test_routes, test_step_time
from tests.mutants_source import SourceMutant
from tests.serving import test_pipeline as pipeline
from tests.serving import test_scheduling_rules as rules
from tests.validate import test_scale_out

_STEP = "inferplan.estimate.phase:StepTime"
_RANKS = "inferplan.serving.ranks:Ranks"
_PIPELINE = "inferplan.serving.pipeline:Pipeline"
_replay = partial(pipeline.test_every_request_agrees_with_the_replay, 2, 1, "vllm")

SCALE_MUTANTS = [
    SourceMutant(
        name="a version has its engine's host",
        place="inferplan.devices.engine:EngineSpec.running",
        old="step=defaults.step or self.step",
        new="step=self.step",
        changes="vLLM of 2024 schedules as fast as that of today",
        check=test_releases.test_versions_before_a_rewrite_have_a_host_of_their_own,
    ),
    SourceMutant(
        name="defaults last for ever",
        place="inferplan.devices.engine:EngineSpec.at",
        old="if not entry.until or wanted < _key(entry.until)",
        new="",
        changes="vLLM 0.9 has the host of 0.5",
        check=test_releases.test_versions_before_a_rewrite_have_a_host_of_their_own,
    ),
    SourceMutant(
        name="a rank gathers its own tokens",
        place="inferplan.models.exchange:exchange",
        old="context.stage_tokens * width",
        new="context.tokens * width",
        changes="an all-gather over four ranks carries a quarter of the tokens",
        check=test_scale_out.test_pools_without_an_all_to_all_gather_tokens,
    ),
    SourceMutant(
        name="stages wait for nobody",
        place="inferplan.estimate.phase:send",
        old="(ready if ready > clock else clock) + stations",
        new="clock + stations",
        changes="batches pass through each other on a stage",
        check=pipeline.test_two_batches_share_the_stages,
    ),
    SourceMutant(
        name="pieces in flight together",
        place="inferplan.serving.ranks:_in_flight",
        old="partial is None",
        new="True",
        changes="TensorRT-LLM schedules a request that is in flight",
        check=pipeline.test_pieces_of_a_prompt_follow_each_other_through_the_stages,
    ),
    SourceMutant(
        name="the fastest rank ends the step",
        place=f"{_RANKS}.seconds",
        old="list(map(max, *ranks))",
        new="list(map(min, *ranks))",
        changes="ranks that share experts do not wait for the slowest",
        check=pipeline.test_ranks_that_share_experts_wait_for_the_slowest,
    ),
    SourceMutant(
        name="a lone prompt crowds everybody",
        place="inferplan.work.ops:Exchange.sent",
        old="np.maximum(self.crowding * self.mean_share, 1.0)",
        new="self.crowding",
        changes="an exchange of one rank's rows waits as if every rank had as many",
        check=partial(
            test_routes.test_all_wait_for_the_fullest_sender_or_the_busiest_receiver,
            "low_latency",
            1.5,
            1 / 16,
            (1.0, 1.0),
        ),
    ),
    SourceMutant(
        name="experts of one rank's rows",
        place=f"{_RANKS}.seconds",
        old="/ len(loads)",
        new="",
        changes="every rank's experts take the rows of all ranks",
        check=pipeline.test_experts_take_the_rows_of_all_ranks,
    ),
    SourceMutant(
        name="a batch alone pays a round",
        place=f"{_STEP}.passage",
        old="sum(self.fullest[1:], start=self.fullest[0])",
        new="max(self.fullest)",
        changes="a prompt passes the slowest stage only",
        check=partial(test_step_time.test_a_batch_alone_passes_every_station, (1.0, 2.0, 3.0)),
    ),
    SourceMutant(
        name="the floor of a stage adds up",
        place="inferplan.estimate.phase:launched",
        old="*(_fourth(seconds, floor) for",
        new="*(seconds + floor for",
        changes="launches of a stage are never hidden behind its kernels",
        check=test_step_time.test_launches_are_hidden_where_kernels_take_longer,
    ),
    SourceMutant(
        name="pipelines never fill",
        place=f"{_STEP}.weights",
        old="return [(1.0 - others * slow, others * slow * self.microbatches) for slow in slowest]",
        new="return [(0.0, slow * self.microbatches) for slow in slowest]",
        changes="fill and drain of a pipeline cost nothing",
        check=partial(test_step_time.test_batches_fill_and_drain_the_stages, (1.0, 2.0, 3.0), 3),
    ),
    SourceMutant(
        name="a pipeline drained after each token",
        place=f"{_STEP}.weights",
        old="full * slow * self.microbatches",
        new="full * slow * (self.microbatches + 1.0)",
        changes="batches that take turns wait for a drain",
        check=partial(test_step_time.test_batches_that_take_turns, (1.0, 2.0, 3.0), 3),
    ),
    SourceMutant(
        name="every batch at the pace of the slowest station",
        place=f"{_STEP}.interval",
        old="np.maximum(self.fullest[0] + slowest, self.passage / stages)",
        new="self.passage",
        changes="prompts follow each other only when the one before is through",
        check=partial(test_step_time.test_batches_follow_each_other, (1.0, 2.0, 3.0)),
    ),
    SourceMutant(
        name="the host of all ranks",
        place="inferplan.estimate.phase:price_batches",
        old="sequences=(batches.fullest.sequences,",
        new="sequences=(batches.fullest.sequences * deployment.parallel.dp,",
        changes="one scheduler handles the sequences of every attention rank",
        check=test_step_time.test_each_rank_has_a_scheduler_of_its_own,
    ),
    SourceMutant(
        name="uneven ranks are the mean",
        place="inferplan.estimate.phase:in_batches",
        old="own = np.ceil(batch / dp) if dp > 1 else batch",
        new="own = batch / dp",
        changes="five sequences on four ranks take the time of one and a quarter",
        check=partial(test_step_time.test_the_fullest_rank_ends_the_step, 5.0, 2),
    ),
    SourceMutant(
        name="one device's bandwidth",
        place="inferplan.estimate.phase:Phase._possible",
        old="* rate * ranks",
        new="* rate",
        changes="MBU and MFU of eight devices are eight times too high",
        check=partial(test_explain.test_decoding_alone_uses_nearly_all_bandwidth_at_the_roofline, 8),
    ),
    SourceMutant(
        name="places over all stages",
        place="inferplan.serving.scheduler:Scheduler.plan",
        old="decodes.size * self.width if self.mixed",
        new="len(self.admitted.running) * self.width if self.mixed",
        changes="decodes of other lanes take the token budget of this one",
        check=rules.test_a_lane_has_the_budget_for_itself,
    ),
    SourceMutant(
        name="a run passes an arrival",
        place=f"{_PIPELINE}._alike",
        old="bound = min(bound, queue.inbox[0][0])",
        new="pass",
        changes="lanes go round although a request has arrived",
        check=_replay,
    ),
    SourceMutant(
        name="a batch that is back has to wait",
        place=f"{_PIPELINE}.advance",
        old="(self.tried or self.flying[0].back <= self.clock)",
        new="self.tried",
        changes="another lane is filled before the batch that is back is looked at",
        check=partial(pipeline.test_every_request_agrees_with_the_replay, 4, 1, "vllm"),
    ),
    SourceMutant(
        name="a cycle repeats before it is even",
        place="inferplan.serving.flow_shop:FlowShop.cycles",
        old="if steady and repeats > 0",
        new="if repeats > 0",
        changes="the first cycle of lanes is taken for all that follow",
        check=pipeline.test_cycles_repeat_once_they_are_alike,
    ),
    SourceMutant(
        name="SGLang's lanes share the slots",
        place="inferplan.serving.scheduler:Scheduler.__init__",
        old="max(rules.slots // lanes, 1)",
        new="rules.slots",
        changes="one lane of SGLang takes every slot",
        check=pipeline.test_sglang_gives_each_lane_its_share_of_the_slots,
    ),
    SourceMutant(
        name="a static batch in one lane",
        place="inferplan.serving.scheduler:Scheduler._may_form_batch",
        old=" / len(self.lanes)",
        new="",
        changes="a static batch is not spread over the stages",
        check=pipeline.test_a_static_batch_is_spread_over_the_stages,
    ),
    SourceMutant(
        name="lanes grow one at a time",
        place="inferplan.serving.scheduler:Scheduler.growth",
        old="sum([lane.taken(1) for lane in self.lanes])",
        new="self.decodes.taken(1)",
        changes="admission keeps no room for the requests that decode in other lanes",
        check=_replay,
    ),
    SourceMutant(
        name="bandwidth by compute slices",
        place="inferplan.devices.mig:_memory",
        old="profile.memory_slices / EIGHTHS",
        new="profile.units / (whole.units or 1)",
        changes="an instance streams its weights as fast as it multiplies",
        check=test_mig.test_an_instance_by_hand,
    ),
    SourceMutant(
        name="instances sold one by one",
        place="inferplan.catalog.price_lists:sliced",
        old="offer.size * part.instances",
        new="offer.gpus",
        changes="an instance costs as much as its GPU",
        check=test_mig.test_whole_gpus_are_bought,
    ),
    SourceMutant(
        name="the whole's error for its part",
        place="inferplan.catalog.calibrations:_carried_errors",
        old="if found.name != hardware.relative or hardware.part is not None:",
        new="if found.name != hardware.relative:",
        changes="a MIG instance has an error band that nobody measured",
        check=test_mig.test_no_error_is_known,
    ),
]
