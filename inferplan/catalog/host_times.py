"""The host of a machine as it was measured there, in place of the one behind the constants on file (docs/serving.md).

Hosts differ more than models: those on file are of the machines that a few campaigns ran on. What one's own takes is
told by runs of one user (:mod:`inferplan.validation.host`), whose first token waits for it and for little else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from inferplan.devices.engine import Engine, HostCost
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.fields import Quantity, ask, option_fields


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Seconds of a host; ``None`` for those on file.

    step: of each step of the engine, beside its kernels. layer: in which it launches the kernels of a layer, of
    whatever kind, in a step that holds a prompt and that no captured graph holds. request: of the client and the server
    for each request, whatever its size.
    """

    step: float | None = ask(
        "--host-step",
        Quantity("seconds"),
        "Time per step on the engine's host, in addition to kernels [on file].",
        None,
    )
    layer: float | None = ask(
        "--host-layer",
        Quantity("seconds"),
        "Time on the host to launch a layer of a prompt without a graph [on file].",
        None,
    )
    request: float | None = ask(
        "--host-request", Quantity("seconds"), "Time per request in client and server, of any size [on file].", None
    )

    @property
    def option(self) -> str:
        """The first option that asks for something; empty where none does."""
        return next((option_fields(HostTimes)[one.name].name for one in fields(self) if _given(self, one.name)), "")

    def of(self, engine: Engine) -> Engine:
        """The engine on this host. A layer that was measured is a layer of the model that ran, so latent attention has
        no factor of its own beside it."""
        serving = engine.serving
        if self.request is not None:
            serving = serving.model_copy(update={"latency": self.request})
        if self.layer is not None:
            serving = serving.model_copy(update={"eager_layer": self.layer, "eager_latent": 1.0})
        step = engine.step
        if self.step is not None:
            step = (step or HostCost(source="--host-step")).model_copy(update={"host": self.step})
        return engine.model_copy(update={"serving": serving, "step": step})


def _given(times: HostTimes, name: str) -> bool:
    return getattr(times, name) is not None


def with_host_times(deployment: Deployment, times: HostTimes) -> Deployment:
    """The deployment on a host that takes these times.

    Raises ``UsageError`` where no host is counted, and for a step beside constants that have one of their own.
    """
    if not times.option:
        return deployment
    if deployment.calibration.basis == "roofline":
        raise UsageError(
            f"{times.option} would change nothing",
            because="an ideal device, or one without constants, waits for no host",
            hint=f"leave {times.option} out, or --ideal",
        )
    if times.step is not None and not deployment.calibration.shares_step:
        raise UsageError(
            "--host-step would change nothing",
            because=f"the constants of {deployment.hardware.name} here state the step themselves",
            hint="leave it out, or state it in the file of --calibration (step.host)",
        )
    return replace(deployment, engine=times.of(deployment.engine))
