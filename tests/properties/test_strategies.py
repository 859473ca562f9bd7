"""What the laws are tried on: every layer kind and every fitted constant is drawn, and divides."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, Phase, given, settings

from inferplan.devices.constants import Calibration
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.roofline import TERMS
from inferplan.models.layers import kinds
from inferplan.models.spec import ModelSpec
from inferplan.work import ops
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode, prefill
from tests.layer_strategies import EVERY_KIND
from tests.properties.test_laws import parts_of
from tests.strategies import KERNELS, calibrations, deployments, models

ENOUGH = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
ENOUGH_KINDS = settings(ENOUGH, max_examples=1000)
Counted = Counter[str]


def test_every_kind_has_a_strategy() -> None:
    """A new layer file without a strategy of its own fails here; cross attention needs an encoder beside
    it, a traced layer is never divided (tests/layers/test_traced.py), and an untimed one has no operators."""
    assert set(kinds()) == EVERY_KIND | {"cross_attention", "traced", "untimed"}


def test_every_kind_is_drawn() -> None:
    """In 1000 models each kind appears, and those with forms of their own in each form."""
    seen: Counted = Counter()

    @ENOUGH_KINDS
    @given(models(Parallelism(tp=2)))
    def draw(model: ModelSpec) -> None:
        for part in parts_of(model):
            seen[part.kind] += 1
            for form in ("window", "chunk", "indexer", "q_lora", "latent", "shared_d_ff"):
                seen[form] += bool(getattr(part, form, None))

    draw()
    assert {kind: count for kind, count in seen.items() if count < 1} == {}
    assert set(kinds()) - {"cross_attention", "traced", "untimed"} <= set(seen)


def test_every_constant_is_drawn() -> None:
    """Each term but the one that the strategies leave out and say why, an overhead, a known and an unknown error, a
    range that is left, and every kernel of the graph."""
    seen: Counted = Counter()

    @ENOUGH
    @given(calibrations())
    def draw(calibration: Calibration) -> None:
        for kernel, table in calibration.constants.items():
            fit = table["any"]
            seen.update([kernel, *(name for name, constant in fit.terms.items() if constant > 0)])
            seen["overhead"] += fit.overhead > 0
            seen["band"] += fit.band is not None
            seen["no band"] += fit.band is None
            seen["range"] += fit.flop_range is not None

    draw()
    assert set(TERMS) - {"fallback"} | {"overhead", "band", "no band", "range"} <= set(seen)
    assert min(seen.values()) >= 1


def test_every_kernel_of_a_drawn_graph_can_have_constants() -> None:
    """No operator of any layer kind is priced by the bare roofline because the strategies leave its kernel out."""
    kernels: set[str] = set()

    @ENOUGH
    @given(deployments(calibrated=False))
    def draw(deployment: Deployment) -> None:
        for step in (prefill(4.0, 100.0), decode(4.0, 100.0)):
            kernels.update(op.kernel for stage in build(deployment, step) for op in stage.ops)

    draw()
    assert kernels <= set(KERNELS) <= ops.KERNELS
    assert {
        "mla.prefill",
        "mla.decode",
        "mla.sparse",
        "scan.prefill",
        "long_conv.decode",
        "index_select",
        "conv",
    } <= kernels
