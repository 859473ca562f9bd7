"""Bugs planted in power, each with the value or the law that must notice."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

from tests import test_power as power
from tests.mutants_source import SourceMutant
from tests.planning import test_day_energy as day_energy
from tests.planning import test_power_budget as budget

POWER_MUTANTS = [
    SourceMutant(
        name="power: the answers of a prompt are one",
        place="inferplan.answers.energy:StaticEnergy.per_token",
        old="self.estimate.load.sequences",
        new="self.estimate.load.batch",
        changes="with --samples 4 a token takes four times its joules",
        check=power.test_each_answer_to_a_prompt_has_its_share_of_a_decode_step,
    ),
    SourceMutant(
        name="power: a lower clock slows memory too",
        place="inferplan.estimate.roofline:IdealTime.at",
        old="self._replace(math=self.math / clock)",
        new="self._replace(math=self.math / clock, memory=self.memory / clock)",
        changes="a cap slows decode as much as the prefill",
        check=power.test_clocks_of_memory_and_arithmetic,
    ),
    SourceMutant(
        name="power: kernels above TDP count in full",
        place="inferplan.devices.power:PowerShares.dynamic",
        old="left - moved)",
        new="left + moved)",
        changes="a kernel at TDP is slowed by a cap more than it has to be",
        check=power.test_the_clock_of_a_kernel_in_closed_form,
    ),
    SourceMutant(
        name="power: voltage is never lowered",
        place="inferplan.devices.power:PowerCap.drawn",
        old="np.power(clock, self.shares.voltage)",
        new="np.power(clock, 0.0 * self.shares.voltage)",
        changes="a cap costs more clock than its law says",
        check=power.test_laws_of_voltage_in_closed_form,
    ),
    SourceMutant(
        name="power: one device is on",
        place="inferplan.estimate.draw:step_joules",
        old='("power", "idle")) * ranks * seconds',
        new='("power", "idle")) * seconds + 0.0 * ranks',
        changes="a replica of two GPUs is on for one",
        check=power.test_two_devices_are_on_for_the_same_time,
    ),
    SourceMutant(
        name="power: a lower clock saves nothing of being on",
        place="inferplan.estimate.draw:_worked",
        old="memory - saved",
        new="memory - 0.0 * saved",
        changes="a capped GPU draws more than its cap",
        check=power.test_lower_caps_are_never_faster_and_never_draw_more,
    ),
    SourceMutant(
        name="power: the host stands outside the facility",
        place="inferplan.answers.energy:EnergyAsked.whole",
        old="self.pue * (joules + self.host_watts * devices * seconds)",
        new="self.pue * joules + self.host_watts * devices * seconds",
        changes="what cools the host is not counted",
        check=power.test_phases_add_up_to_a_request,
    ),
    SourceMutant(
        name="power: prompts of a mixed step take all of it",
        place="inferplan.answers.power:run_energy",
        old="extra = held.beyond(alone) if together else held",
        new="extra = held",
        changes="decodes beside prompts are counted twice",
        check=power.test_a_mixed_step_is_counted_once,
    ),
    SourceMutant(
        name="power: nothing is drawn between steps",
        place="inferplan.answers.power:run_energy",
        old="idle=replicas * on * (end - start - busy)",
        new="idle=0.0 * replicas * on",
        changes="a GPU without requests takes no energy",
        check=power.test_standing_idle_takes_energy,
    ),
    SourceMutant(
        name="power: a kWh is a kilojoule an hour",
        place="inferplan.answers.energy:JOULES_PER_KWH",
        old="3.6e6",
        new="3.6e3",
        changes="CO2 is a thousand times what it is",
        check=power.test_carbon_by_hand,
    ),
    SourceMutant(
        name="power budget: spare replicas need no power",
        place="inferplan.planning.option:Option.least_watts",
        old="self.power.least(self.kinds)",
        new="self.power.least([(one, n - self.spare * one.parallel.ranks) for one, n in self.kinds])",
        changes="a plan with spare replicas is over its budget when they run",
        check=budget.test_spare_devices_are_in_the_nameplates,
    ),
    SourceMutant(
        name="power budget: an instance is filled whatever it draws",
        place="inferplan.planning.option:Option.filled",
        old="while most > replicas and not",
        new="while most < replicas and not",
        changes="replicas that the bill holds are started without power for them",
        check=budget.test_an_instance_is_filled_as_far_as_there_is_power,
    ),
    SourceMutant(
        name="power budget: means are not held to it",
        place="inferplan.planning.verify:Verified.powered",
        old="watts <= budget.watts",
        new="watts <= 2 * budget.watts",
        changes="a plan draws more on average than it may",
        check=budget.test_a_draw_is_held_to_a_budget_of_means,
    ),
    SourceMutant(
        name="power budget: caps are tried on no device",
        place="inferplan.planning.space:Space.caps_of",
        old="cap >= tdp else cap",
        new="cap > 0 else cap",
        changes="lower caps, which fit more GPUs into a budget, are not looked at",
        check=budget.test_a_cap_at_tdp_is_none,
    ),
    SourceMutant(
        name="day energy: work is spread evenly over the hours",
        place="inferplan.planning.day_energy:DayEnergy.hours",
        old="(last - first) / len(arrival)",
        new="(stop - start) / self.day.asked.span",
        changes="nights emit as if they were busy",
        check=day_energy.test_work_is_in_the_hours_of_its_requests,
    ),
    SourceMutant(
        name="day energy: an hour emits as the day does on average",
        place="inferplan.planning.day_energy:DayEnergy.grams",
        old="carbon.between(start, stop)",
        new="(carbon.grams + 0.0 * (stop - start))",
        changes="an hourly grid is of no account",
        check=lambda: day_energy.test_every_hour_emits_by_its_own_grid(Path(mkdtemp())),
    ),
]
