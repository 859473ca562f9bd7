"""Bugs in the calibrator: the fit, what counts as measured, transfer, tables, the check; each with what notices it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from inferplan.errors import InferplanError
from tests import test_overlay
from tests.calibrate import test_by_hand as by_hand
from tests.calibrate import test_fit, test_host, test_llama, test_measure, test_published, test_run, test_written
from tests.mutants_source import SourceMutant


def in_a_folder(test: Callable[[Path], None]) -> None:
    """Run a test that wants an empty folder; an error of ours where it expects a result fails it."""
    with TemporaryDirectory() as folder:
        try:
            test(Path(folder))
        except InferplanError as error:
            raise AssertionError(str(error)) from error


def _price(case: tuple[str, str, str, str, str, str], folder: Path) -> None:
    test_overlay.test_the_constant_nearest_to_the_engines_kernel_prices(*case, folder)


CALIBRATE_MUTANTS = [
    SourceMutant(
        name="weights are unpacked once for a whole prompt",
        place="calibrate.published.llama:_unpacking",
        old="ceil(row.tokens / PIECE) * moved",
        new="moved",
        changes="quantised prompts of May 2024 are too fast, and the share of the peak that is fitted to them too low",
        check=test_llama.test_unpacked_weights_are_moved_for_each_piece_of_a_prompt,
    ),
    SourceMutant(
        name="llama.cpp multiplies quantised weights in 16 bits",
        place="inferplan.devices.engine:Engine.inputs",
        old="return replace(precision, activations=find_format(name))",
        new="return precision",
        changes="prompts on A100 and H100 take half the time",
        check=test_llama.test_integers_only_where_the_device_has_them,
    ),
    SourceMutant(
        name="the benchmark's batch has no least",
        place="calibrate.published.peaks:_up",
        old="max(least, step * ceil(value / step))",
        new="step * ceil(value / step)",
        changes="trtllm-bench would build for 32 sequences where it builds for 64",
        check=partial(test_host.test_the_flags_of_trtllm_bench, 1e5, 2048, 2048, (64, 2048)),
    ),
    SourceMutant(
        name="least squares without robustness",
        place="calibrate.fit:_solve",
        old='loss="soft_l1"',
        new='loss="linear"',
        changes="one disturbed row moves the constants of its kernel",
        check=by_hand.test_one_wild_row_moves_the_fit_by_the_robust_loss_only,
    ),
    SourceMutant(
        name="ten times the scale of the robust loss",
        place="calibrate.fit:_solve",
        old="f_scale=0.1",
        new="f_scale=1.0",
        changes="errors of a factor of e count by their square",
        check=by_hand.test_one_wild_row_moves_the_fit_by_the_robust_loss_only,
    ),
    SourceMutant(
        name="errors of the rows that were fitted",
        place="calibrate.fit:fit_all",
        old="figure = errors(test,",
        new="figure = errors(train,",
        changes="the held-out error is that of shapes the fit saw",
        check=by_hand.test_errors_are_those_of_the_shapes_held_out,
    ),
    SourceMutant(
        name="held out by row",
        place="calibrate.fit:shape_of",
        old='if f.name not in ("name", "count", "ranks")',
        new="",
        changes="repeats of a shape stand on both sides of the split",
        check=by_hand.test_shapes_are_held_out_whatever_they_are_called,
    ),
    SourceMutant(
        name="quartiles for the band",
        place="calibrate.fit:ratio_errors",
        old="(0.1, 0.9)",
        new="(0.25, 0.75)",
        changes="the band that is printed as 80 % holds half of the rows",
        check=by_hand.test_the_band_holds_eight_tenths_of_further_rows,
    ),
    SourceMutant(
        name="quantiles of these rows, not of further ones",
        place="calibrate.fit:ratio_errors",
        old=', method="weibull"',
        new="",
        changes="bands from few rows are too narrow",
        check=by_hand.test_the_band_holds_eight_tenths_of_further_rows,
    ),
    SourceMutant(
        name="errors of measured over predicted",
        place="calibrate.fit:ratio_errors",
        old="1.0 / ratios - 1.0",
        new="ratios - 1.0",
        changes="errors are not predicted over measured",
        check=by_hand.test_the_band_holds_eight_tenths_of_further_rows,
    ),
    SourceMutant(
        name="the device left out is in the fit",
        place="calibrate.tables.transfer:carried",
        old="if other != name",
        new="",
        changes="the error of transferred constants is that on devices they were fitted to",
        check=by_hand.test_a_device_left_out_gets_the_constants_of_the_others,
    ),
    SourceMutant(
        name="transferred constants called calibrated",
        place="calibrate.tables.transfer:banded",
        old='{"basis": "transferred", "error"',
        new='{"error"',
        changes="a device without measurements prints calibrated figures",
        check=by_hand.test_transferred_constants_carry_the_errors_of_the_devices_left_out,
    ),
    SourceMutant(
        name="padding carried from one device",
        place="calibrate.tables.transfer:carried_terms",
        old="devices == 1",
        new="devices == 0",
        changes="an RTX 4090 is bound by arithmetic at batch 1",
        check=by_hand.test_padding_is_not_carried_from_a_single_device,
    ),
    SourceMutant(
        name="all-reduce of the all-gather called calibrated",
        place="calibrate.tables.calibrations:with_fallbacks",
        old='{"basis": "transferred", "source": "all-gather, twice the bytes"}',
        new='{"source": "all-gather, twice the bytes"}',
        changes="tensor parallelism on NCCL prints calibrated all-reduces that nobody timed",
        check=by_hand.test_an_all_reduce_priced_by_the_all_gather_says_so,
    ),
    SourceMutant(
        name="16-bit constants for other formats called calibrated",
        place="calibrate.tables.calibrations:with_fallbacks",
        old='{"basis": "transferred", "source": f"{name} kernel"}',
        new='{"source": f"{name} kernel"}',
        changes="a format without rows prints calibrated figures",
        check=test_fit.test_fallbacks_are_marked_as_transferred,
    ),
    SourceMutant(
        name="launch-bound rows judged by the slowest",
        place="calibrate.tables.choose:_device",
        old="min((m.seconds for m in measured)",
        new="max((m.seconds for m in measured)",
        changes="kernels with one slow shape are thrown away",
        check=by_hand.test_kernels_that_the_host_launched_each_time_are_left_out,
    ),
    SourceMutant(
        name="launch-bound rows kept",
        place="calibrate.tables.choose:_device",
        old="and not eager",
        new="",
        changes="the constants of a kernel are those of the host that launched it",
        check=by_hand.test_kernels_that_the_host_launched_each_time_are_left_out,
    ),
    SourceMutant(
        name="impossible rows kept",
        place="calibrate.tables.choose:_device",
        old="zip(measured, ratios) if ratio > 1.0",
        new="zip(measured, ratios) if ratio > 0.0",
        changes="rows that a cache served are fitted",
        check=by_hand.test_rows_faster_than_the_data_sheet_are_left_out,
    ),
    SourceMutant(
        name="the slowest kernel of a library",
        place="calibrate.tables.choose:_device",
        old="min(kernels, key",
        new="max(kernels, key",
        changes="an engine is priced with the kernel it does not choose",
        check=by_hand.test_the_kernel_nearest_to_the_roofline_counts,
    ),
    SourceMutant(
        name="microseconds for milliseconds",
        place="calibrate.tables.read:measurement_of",
        old="float(row.latency_ms) * 1e-3",
        new="float(row.latency_ms) * 1e-6",
        changes="every row of the tables is a thousand times too fast",
        check=partial(in_a_folder, test_fit.test_a_gemm_row_is_a_matmul_and_its_quantisation),
    ),
    SourceMutant(
        name="every rank computes all rows",
        place="calibrate.tables.read:routed",
        old="return tokens * top_k / ranks, min(",
        new="return tokens * top_k, min(",
        changes="experts of a table with expert parallelism look faster than they are",
        check=by_hand.test_experts_are_divided_between_ranks,
    ),
    SourceMutant(
        name="rows dealt without a cap",
        place="calibrate.tables.read:_dealt",
        old="order[whole[order] < cap]",
        new="order",
        changes="an expert gets more rows than there are tokens",
        check=by_hand.test_rows_are_dealt_to_the_largest_remainders_within_the_cap,
    ),
    SourceMutant(
        name="disturbed laps counted",
        place="calibrate.device.timing:Laps.sample",
        old="calm if len(calm) >= 3 else self.seconds",
        new="self.seconds",
        changes="another program's work is measured",
        check=test_measure.test_disturbed_laps_are_left_out,
    ),
    SourceMutant(
        name="laps not divided by their calls",
        place="calibrate.device.timing:wall_laps",
        old="times.append(took / calls)",
        new="times.append(took)",
        changes="small operators take at least a millisecond",
        check=by_hand.test_a_lap_of_many_calls_is_divided_by_them,
    ),
    SourceMutant(
        name="the busier half of disturbed visits",
        place="calibrate.session.raw_file:Session.seconds",
        old="key=lambda s: s.waited)",
        new="key=lambda s: -s.waited)",
        changes="of disturbed visits the worst ones count",
        check=by_hand.test_a_shape_is_the_median_of_its_undisturbed_visits,
    ),
    SourceMutant(
        name="disturbed shapes always kept",
        place="calibrate.session.fitting:measurements",
        old="len(calm_rows) >= ENOUGH",
        new="len(calm_rows) >= 999",
        changes="shapes that other programs disturbed are fitted though there are enough others",
        check=by_hand.test_disturbed_shapes_count_only_where_there_are_too_few_others,
    ),
    SourceMutant(
        name="a calibration before whatever is on file",
        place="inferplan.catalog.overlay:overlaid",
        old="if near < there:",
        new="if False:",
        changes="torch's stand-in prices where the engine's own kernel was timed on the device",
        check=partial(
            in_a_folder,
            partial(
                _price,
                ("attention.decode", "bf16", "torch", "h200-sxm", "vllm", test_overlay.ON_FILE),
            ),
        ),
    ),
    SourceMutant(
        name="stand-ins with the error of this device",
        place="inferplan.catalog.overlay:_judged",
        old="if called:",
        new="if called or libraries.runs:",
        changes="the band of torch's kernels on themselves is that of an engine",
        check=partial(
            in_a_folder, partial(_price, ("norm", "any", "torch", "h200-sxm", "vllm", test_overlay.STAND_IN))
        ),
    ),
    SourceMutant(
        name="what was not measured is ideal",
        place="inferplan.catalog.overlay:overlaid",
        old="for kernel, formats in below.constants.items()",
        new="for kernel, formats in below.constants.items() if kernel in found.constants",
        changes="an fp8 cache is priced by the datasheet",
        check=partial(in_a_folder, test_overlay.test_what_was_not_measured_keeps_the_constants_on_file),
    ),
    SourceMutant(
        name="every kernel is written",
        place="calibrate.session.fitting:_fitted",
        old='figures["median"] > settings.written',
        new='figures["median"] > 1e9',
        changes="a short run prices by constants that are ten times off",
        check=test_written.test_a_kernel_that_is_far_off_on_held_out_shapes_is_not_written,
    ),
    SourceMutant(
        name="disturbed shapes that are used are not counted",
        place="calibrate.session.fitting:_provenance",
        old="seen.left_out + seen.disturbed",
        new="seen.left_out",
        changes="a noisy machine gives a confident file",
        check=test_written.test_disturbed_shapes_are_counted_whether_they_are_used_or_not,
    ),
    SourceMutant(
        name="operands as large as the reported cache",
        place="calibrate.device.memory:block_bytes",
        old="return min(size, ",
        new="return max(size, ",
        changes="a short run on a virtual machine spends its time filling 2 GB for each format",
        check=partial(
            test_measure.test_a_block_is_as_large_as_a_cpu_can_fill_in_a_tenth_of_the_run,
            rate=0.4e9,
            budget=4.0,
            short=True,
            size=160e6,
        ),
    ),
    SourceMutant(
        name="blocks filled to their end",
        place="calibrate.kernels.operands:Block.take",
        old="while self.filled < end:",
        new="while self.filled < self.memory.numel():",
        changes="one small operand of a format costs a whole block",
        check=test_measure.test_a_block_is_filled_only_as_far_as_it_is_handed_out,
    ),
    SourceMutant(
        name="a check that is over before it began",
        place="calibrate.session.check:Repeats._visit",
        old="if self._over and group in self._measured:",
        new="if self._over:",
        changes="a short check on a slow machine says that no kernel can be measured",
        check=partial(in_a_folder, test_run.test_a_check_too_short_for_a_slow_machine_still_visits_every_kernel),
    ),
    SourceMutant(
        name="a run that measures nothing",
        place="calibrate.session.run:Run.operators",
        old="== first][:PLAIN]",
        new="== first][:0]",
        changes="a short run on a slow machine has nothing to fit",
        check=partial(in_a_folder, test_run.test_a_run_too_short_for_a_slow_machine_still_fits_the_matmul),
    ),
    SourceMutant(
        name="the slower ceiling",
        place="calibrate.device.device:ceilings_of",
        old="bandwidth=max(memory)",
        new="bandwidth=min(memory)",
        changes="a kernel may be faster than the ceiling of the device",
        check=by_hand.test_the_ceiling_of_the_memory_is_the_faster_of_copy_and_read,
    ),
    SourceMutant(
        name="only touched experts in memory",
        place="calibrate.shapes:operand_bytes",
        old="op.experts * op.k",
        new="op.touched * op.k",
        changes="shapes are chosen that do not fit",
        check=by_hand.test_all_experts_of_a_rank_are_in_memory,
    ),
    SourceMutant(
        name="errors of both signs cancel in a check",
        place="calibrate.session.check:_row",
        old="np.median(np.abs(off))",
        new="np.median(off)",
        changes="a check passes when as many shapes are too slow as too fast",
        check=by_hand.test_a_check_is_of_the_median_size_of_errors,
    ),
    SourceMutant(
        name="bands added, not their squares",
        place="calibrate.serving_fit:_end",
        old="np.hypot(left * kernels, width)",
        new="left * kernels + width",
        changes="the band of TTFT is too narrow below",
        check=by_hand.test_bands_add_as_squares_of_logarithms,
    ),
    SourceMutant(
        name="one kernel's work for all devices",
        place="calibrate.fit:join",
        old="memory=np.concatenate([asked.memory for asked in column])",
        new="memory=np.concatenate([column[0].memory for asked in column])",
        changes="common constants are fitted against the first device's data sheet",
        check=by_hand.test_common_constants_are_fitted_to_the_rows_of_every_device,
    ),
    SourceMutant(
        name="a model tells its own factor",
        place="calibrate.accuracy.data_centre:one_factor",
        old="other != model",
        new="other == model",
        changes="what is left of a campaign's error is in sample",
        check=test_published.test_one_factor_comes_from_the_other_models,
    ),
]
