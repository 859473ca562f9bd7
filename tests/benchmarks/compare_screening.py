"""How far the closed form that screens a plan is from the simulator: ``python -m tests.benchmarks.compare_screening``.

The cheapest point of every structure of the small spaces of :mod:`tests.benchmarks.compare_plans`: what the closed form
says of a replica at that rate over what the simulator says, latencies at the 95th percentile. A figure above 1 is one
that is too careful. What a plan does not simulate rests on the upper ends.
"""

from __future__ import annotations

import numpy as np

from inferplan.planning.search import search
from inferplan.planning.verify import verify
from tests.benchmarks.compare_plans import SCENARIOS, question

QUANTILES = (5, 25, 50, 75, 95)


def main() -> None:
    """Quantiles of closed form over simulated, by latency, in one pool."""
    ratios: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2el": []}
    for scenario in SCENARIOS:
        asked = question(scenario)
        found = search(asked.space, asked.stream, asked.prices)
        for option in found.options:
            if option.pools is not None:
                continue
            at_capacity = option.rate * option.replicas / (asked.demand.rate or 1.0)
            checked = verify(option, asked, at_capacity)
            if checked.result is None or checked.verdict == "overloaded":
                continue
            for name, values in ratios.items():
                values.append(getattr(option, name) / checked.achieved[name])
    for name, values in ratios.items():
        shown = ", ".join(f"p{q} {np.percentile(values, q):.2f}" for q in QUANTILES)
        print(f"{name}: {len(values)} points, closed form over simulated: {shown}, largest {max(values):.2f}")


if __name__ == "__main__":
    main()
