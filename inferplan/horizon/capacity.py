"""What a replica carries within its limits: as the file says, or as it is planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferplan.catalog.assemble import Request, assemble, load_engine, usual_engine
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import UsageError
from inferplan.horizon.file import HorizonSpec
from inferplan.planning.demand import Demand
from inferplan.planning.design import Design, best_point, design_at
from inferplan.planning.option import Sizing
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.steps import Steps
from inferplan.traffic.requests import Slo, parse_lengths


@dataclass(frozen=True, eq=False)
class Capacities:
    """Replicas that are planned, each once and a step."""

    prices: PriceBook
    steps: Steps = field(default_factory=Steps)
    known: dict[tuple[str, str], Design] = field(default_factory=dict)

    def rate(self, spec: HorizonSpec, model: str, kind: str) -> float:
        """Requests a second that a replica is given: the file's own, or ``utilisation`` of what it carries within the
        limits by the simulations that size a plan. Raises ``UsageError`` where something is missing, and as
        :func:`inferplan.planning.design.design_at`.
        """
        given = spec.models[model].replicas[kind].rate
        if given is not None:
            return given
        if (model, kind) not in self.known:
            self.known[model, kind] = self._planned(spec, model, kind)
            self.steps.step()
        return self.known[model, kind].rate * spec.models[model].utilisation

    def expect(self, spec: HorizonSpec) -> None:
        """The steps are those of every replica of a file without a rate."""
        self.steps.more(sum(one.rate is None for model in spec.models.values() for one in model.replicas.values()))

    def _planned(self, spec: HorizonSpec, name: str, kind: str) -> Design:
        one, machine = spec.models[name], spec.kinds[kind]
        needed = {"model": one.model, "prompt": one.prompt, "output": one.output}
        missing = [field for field, value in needed.items() if value is None]
        slo = Slo(ttft=one.ttft, tpot=one.tpot, e2el=one.e2e, percentile=one.percentile)
        missing += [] if slo.limits else ["ttft"]
        if missing or machine.gpu is None:
            lacking = f"{missing[0]} of {name}" if missing else f"gpu of {kind}"
            raise UsageError(
                f"the capacity of a replica of {name} on {kind} is not known",
                because=f"the {lacking} is missing",
                hint="rate: 12 of the replica, or model, prompt, output and a limit of the model and gpu of the kind",
            )
        assert one.model is not None and one.prompt is not None and one.output is not None
        engine = usual_engine(one.model, machine.gpu, one.replicas[kind].quant)
        request = Request(
            model=one.model,
            gpu=machine.gpu,
            quant=one.replicas[kind].quant,
            parallel=load_engine(engine).over(one.replicas[kind].gpus),
            engine=engine,
        )
        deployment = assemble(request)
        question = Question(
            space=Space(base=request, gpus=(request.gpu,), disaggregate=False),
            demand=Demand(prompt=parse_lengths(one.prompt), output=parse_lengths(one.output), rate=1.0),
            slo=slo,
            sizing=Sizing(utilisation=one.utilisation),
            prices=self.prices,
        )
        return design_at(best_point(request, deployment, question), question)
