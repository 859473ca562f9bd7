"""Bugs in how a device is told apart, timed and watched; each with what notices it."""

from __future__ import annotations

from functools import partial

from tests.calibrate import test_cuda_laps as laps
from tests.calibrate import test_device as devices
from tests.calibrate import test_health as health
from tests.calibrate import test_report as report
from tests.mutants_source import SourceMutant


def _fits() -> None:
    try:
        laps.test_the_largest_decode_step_fits_an_h200_in_both_modes()
    except MemoryError as error:
        raise AssertionError(str(error)) from error


DEVICE_MUTANTS = [
    SourceMutant(
        name="a peak of int8 is what torch reaches",
        place="calibrate.device.device:with_wider",
        old="found[name] = max(rate, peaks[wider])",
        new="found[name] = rate",
        changes="llama.cpp on a CPU is priced a tenth as fast as it is",
        check=devices.test_no_format_is_written_below_a_wider_one,
    ),
    SourceMutant(
        name="a few rows lift a peak",
        place="calibrate.session.hardware:reached",
        old=" and float(op.m) >= ROWS",
        new="",
        changes="prompts on a CPU are predicted seven times too fast",
        check=report.test_few_rows_say_nothing_of_the_peak,
    ),
    SourceMutant(
        name="two visits lift a peak",
        place="calibrate.session.hardware:reached",
        old="sum(sample.calm for sample in samples) < CALM",
        new="len(samples) < 2",
        changes="one lap of a disturbed shape becomes the peak",
        check=report.test_a_ceiling_is_at_least_what_operators_reached,
    ),
    SourceMutant(
        name="form factors are not told apart",
        place="calibrate.device.device:_same_product",
        old="told & (_VARIANTS - own) or ",
        new="",
        changes="a V100 in a PCIe slot is priced as the SXM one",
        check=partial(devices.test_catalogue_entry_of_a_reported_name, "Tesla V100-PCIE-32GB", 34079637504, 80, None),
    ),
    SourceMutant(
        name="an Apple chip by its memory",
        place="calibrate.device.device:_same_size",
        old='if device.kind == "mps":',
        new="if False:",
        changes="an M3 Max of 36 GB is in no catalogue",
        check=partial(devices.test_catalogue_entry_of_an_apple_chip, "Apple M3 Max", 40, 27e9, "m3-max"),
    ),
    SourceMutant(
        name="a lap is one replay",
        place="calibrate.device.cuda_laps:CudaLaps._of",
        old="max(1, ceil(SHORT * LAP / once))",
        new="1",
        changes="laps of small operators are shorter than a millisecond, and the step between replays is in them",
        check=partial(laps.test_a_lap_is_longer_than_a_millisecond_and_holds_no_launch, laps.SMALL),
    ),
    SourceMutant(
        name="nothing runs before the first lap",
        place="calibrate.device.cuda_laps:CudaLaps.queued",
        old="    lap()\n    for event",
        new="    for event",
        changes="the first lap holds the launch of its graph",
        check=laps.test_no_lap_of_a_queue_holds_the_launch_of_a_graph,
    ),
    SourceMutant(
        name="the stream of a failed capture stays",
        place="calibrate.device.cuda_laps:capture",
        old="torch.cuda.set_stream(before)",
        new="pass",
        changes="everything after it runs on the stream of a capture",
        check=laps.test_what_is_not_captured_is_timed_by_events_without_the_host,
    ),
    SourceMutant(
        name="the host is taken to be in time",
        place="calibrate.device.cuda_laps:CudaLaps._behind",
        old="issued < count * each",
        new="True",
        changes="launches are stored as the time of a kernel",
        check=laps.test_a_call_that_waits_for_the_device_is_marked,
    ),
    SourceMutant(
        name="results of one call are kept",
        place="calibrate.device.cuda_laps:Results.keep",
        old="self.size > self.most and",
        new="True and",
        changes="every call writes to the same buffer, which a cache holds",
        check=laps.test_results_are_written_to_more_memory_than_a_cache_holds,
    ),
    SourceMutant(
        name="the old cache stays beside the new one",
        place="calibrate.device.whole_models:WholeModels._timed",
        old="model.caches = []",
        new="pass",
        changes="the longest step is refused in the second of its two modes",
        check=_fits,
    ),
    SourceMutant(
        name="any clock is as good as another",
        place="calibrate.device.health:Monitor._judged",
        old="seen.clock < FELL * self.steady",
        new="seen.clock < 0",
        changes="a device at half its clock gives constants",
        check=health.test_fallen_clocks_are_told_with_the_reason,
    ),
    SourceMutant(
        name="this program disturbs itself in a container",
        place="calibrate.device.health:others",
        old="(0 if named else 1)",
        new="0",
        changes="every visit in a container is marked as disturbed",
        check=partial(health.test_other_processes, {4000: 0.9}, ""),
    ),
    SourceMutant(
        name="a tool is asked all the time",
        place="calibrate.device.health:Monitor.look",
        old="max(EVERY, (now - began) / (10 * SHARE if self._words else SHARE))",
        new="EVERY",
        changes="four fifths of a run are spent in nvidia-smi",
        check=health.test_readings_take_a_hundredth_of_the_time_at_most,
    ),
]
