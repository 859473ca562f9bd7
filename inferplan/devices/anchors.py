"""What measured runs of a system say of its other runs: a Gaussian process on ln(measured/predicted) (docs/anchors.md).

Two loads of one system err alike where they are alike, so the error at one is the weighted mean of those measured,
``m = k^T (K + n^2 I)^-1 y``, and what is left unknown of it has the variance ``v = k(x, x) - k^T (K + n^2 I)^-1 k``
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equations 2.25 and 2.26), with

    k(a, b) = shared^2 + local^2 exp(-|a - b|^2 / (2 length^2))
    x = (ln users, ln prompt, 0.5 ln output, 1.15 log2 tp, 1.15 log2 ep, 1.15 log2 dp, 1.15 log2 pp)

``shared`` is what all loads of a system have in common, ``local`` what near ones have. Without rows the mean is 0.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from inferplan.spec import Field, Spec
from inferplan.units import Array, Num
from inferplan.work.parallel import Parallelism

Metric = Literal["ttft", "tpot"]
METRICS: tuple[Metric, ...] = ("ttft", "tpot")
AXES = 7
"""Coordinates of a load: users, prompt, output, and four degrees of parallelism."""


class ErrorKernel(Spec):
    """How the errors of one latency go together over the loads of a system; deviations of ln(measured/predicted)."""

    shared: float = Field(ge=0.0)
    local: float = Field(ge=0.0)
    length: float = Field(gt=0.0)
    noise: float = Field(gt=0.0)
    """Of one measured run beside the next."""
    band: tuple[float, float]
    """Between how many deviations of the process 80 % of unseen measurements lay, of systems that were held out."""

    @property
    def prior(self) -> float:
        """The variance where nothing was measured."""
        return self.shared**2 + self.local**2

    def covariance(self, a: Array, b: Array) -> Array:
        """``k`` between points (n, AXES) and (m, AXES): (n, m)."""
        square = np.zeros((len(a), len(b)))
        for x, y in zip(a.T, b.T):  # axis by axis: all at once would hold seven times as much
            square += np.subtract.outer(x, y) ** 2 / self.length**2
        return np.asarray(self.shared**2 + self.local**2 * np.exp(-square / 2))

    def posterior(self, rows: Array, errors: Array, points: Array) -> tuple[Array, Array]:
        """Mean and variance (m,) of the error at ``points`` (m, AXES), given ``errors`` (n,) at ``rows`` (n, AXES)."""
        across = self.covariance(points, rows)
        solved = np.linalg.solve(self.covariance(rows, rows) + self.noise**2 * np.eye(len(rows)), across.T)
        variance = self.prior - np.sum(across * solved.T, axis=1)
        return np.asarray(errors) @ solved, np.maximum(variance, 0.0)

    def conditioned(self, rows: Array, points: Array) -> Array:
        """Covariance (m, m) between the errors at ``points`` once those at ``rows`` are measured."""
        across = self.covariance(points, rows)
        within = self.covariance(rows, rows) + self.noise**2 * np.eye(len(rows))
        return np.asarray(self.covariance(points, points) - across @ np.linalg.solve(within, across.T))

    def factors(self, variance: Array) -> tuple[Array, Array]:
        """The 80 % band of a measurement, as factors on the corrected prediction."""
        deviation = np.sqrt(variance + self.noise**2)
        return np.exp(self.band[0] * deviation), np.exp(self.band[1] * deviation)


class ErrorProcess(Spec):
    """``configs/anchors.yaml``: the process of both latencies, and how far apart two loads are.

    users, prompt, output: weights of the natural logarithms; degree: of the binary logarithms of tp, ep, dp and pp.
    clip: errors beyond this size count as this size.
    """

    source: str
    provenance: dict[str, Any] = {}
    users: float = Field(ge=0.0)
    prompt: float = Field(ge=0.0)
    output: float = Field(ge=0.0)
    degree: float = Field(ge=0.0)
    clip: float = Field(gt=0.0)
    ttft: ErrorKernel
    tpot: ErrorKernel

    def kernel(self, metric: Metric) -> ErrorKernel:
        return self.ttft if metric == "ttft" else self.tpot

    def points(self, load: "AnchorLoad") -> Array:
        """Coordinates of the loads, flat: (m, AXES)."""
        parallel = load.parallel
        logs = [weight * np.log(np.asarray(value, dtype=np.float64)) for weight, value in (
            (self.users, load.users), (self.prompt, load.prompt), (self.output, load.output))]  # fmt: skip
        degrees = [self.degree * np.log2(d) for d in (parallel.tp, parallel.ep, parallel.dp, parallel.pp)]
        return np.stack([np.ravel(axis) for axis in np.broadcast_arrays(*logs, *degrees)], axis=-1)


class AnchorLoad(NamedTuple):
    """A load of one replica: users in it at a time, tokens of a prompt and an output; scalars or arrays."""

    users: Num
    prompt: Num
    output: Num
    parallel: Parallelism


class System(Spec):
    """What an anchor is of: names of the catalogue, formats of the linear weights, of the routed experts and of the
    cache, the engine's release (the last two ``None`` in files that do not say)."""

    model: str
    gpu: str
    engine: str
    weights: str
    experts: str | None = None
    kv: str | None = None
    release: str | None = None

    def same(self, other: "System") -> bool:
        """Whether both are one system, as far as they say: 0.19.1 is one release with 0.19."""
        said = self._said_with(other)
        parts = [[] if one.release is None else one.release.split(".") for one in (self, other)]
        return said == other._said_with(self) and all(a == b for a, b in zip(*parts))

    def _said_with(self, other: "System") -> "System":
        return self.model_copy(update={"kv": self.kv or other.kv, "release": None})

    def describe(self) -> str:
        experts = f", experts {self.experts}" if self.experts and self.experts != self.weights else ""
        under = f"{self.engine} {self.release}" if self.release else self.engine
        cache = f", cache {self.kv}" if self.kv and self.kv != "bf16" else ""
        return f"{self.model} in {self.weights}{experts}{cache} on {self.gpu} under {under}"


class AnchorRow(Spec):
    """One measured run: its load, ln(measured/predicted) of its latencies, and where it was read."""

    users: float = Field(gt=0.0)
    prompt: float = Field(gt=0.0)
    output: float = Field(gt=0.0)
    tp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    ttft_ln_ratio: float | None = None
    tpot_ln_ratio: float | None = None
    source: str = ""

    @property
    def load(self) -> AnchorLoad:
        parallel = Parallelism(tp=self.tp, ep=self.ep, dp=self.dp, pp=self.pp)
        return AnchorLoad(users=self.users, prompt=self.prompt, output=self.output, parallel=parallel)


class Anchor(Spec):
    """Measured runs of one system, and the process that carries their errors to its other loads."""

    system: System
    priced_with: str
    """The fingerprint of the constants that the runs were predicted with."""
    provenance: dict[str, Any] = {}
    process: ErrorProcess
    rows: tuple[AnchorRow, ...] = Field(min_length=1)

    @property
    def origin(self) -> str:
        """Where the runs are from: files, or a server and the day."""
        return str(self.provenance.get("runs", "an anchor"))

    @property
    def told(self) -> list[str]:
        """What was found and assumed of the server that the runs are from, and how far off a run was that was held out;
        empty for runs in files."""
        said = self.provenance.get("told")
        return [str(line) for line in said] if isinstance(said, list) else []

    def error(self, metric: Metric, load: AnchorLoad) -> tuple[Array, Array]:
        """Mean and variance of ln(measured/predicted) at loads, flat."""
        kernel, points = self.process.kernel(metric), self.process.points(load)
        rows, errors = self.measured(metric)
        return kernel.posterior(rows, np.clip(errors, -self.process.clip, self.process.clip), points)

    def measured(self, metric: Metric) -> tuple[Array, Array]:
        """Coordinates (n, AXES) and errors (n,) of the rows that have the latency."""
        known = [(row, value) for row in self.rows if (value := getattr(row, f"{metric}_ln_ratio")) is not None]
        points = [self.process.points(row.load) for row, _ in known]
        return np.concatenate([np.empty((0, AXES)), *points]), np.array([value for _, value in known])

    def factor(self, metric: Metric, load: AnchorLoad) -> Num:
        """Measured over predicted at a load, as far as the rows say; in the shape of the load."""
        return _shaped(np.exp(self.error(metric, load)[0]), load)

    def band(self, metric: Metric, load: AnchorLoad) -> tuple[float, float]:
        """Factors on the corrected latency between which 80 % of measurements lie: the widest of the loads."""
        low, high = self.process.kernel(metric).factors(self.error(metric, load)[1])
        return float(np.min(low)), float(np.max(high))


def _shaped(flat: Array, load: AnchorLoad) -> Num:
    shape = np.broadcast_shapes(*(np.shape(value) for value in (load.users, load.prompt, load.output)))
    return flat.reshape(shape) if shape else float(flat[0])


def next_runs(process: ErrorProcess, points: Array, measured: Array, count: int) -> list[int]:
    """Which ``count`` of ``points`` (m, AXES) to measure, one after another, beside what is ``measured`` (n, AXES).

    Each is the one that lowers the mean variance over all points most, added up over both latencies as shares of what
    is unknown without any row. Measuring ``c`` lowers the variance at ``t`` by ``P(t, c)^2/(P(c, c) + noise^2)``.
    """
    kernels = [process.kernel(metric) for metric in METRICS]
    known = [kernel.conditioned(measured, points) for kernel in kernels]
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        gain = np.zeros(len(points))
        for kernel, covariance in zip(kernels, known):
            gain += np.mean(covariance**2, axis=0) / (np.diag(covariance) + kernel.noise**2) / kernel.prior
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        known = [
            covariance - np.outer(covariance[:, best], covariance[best]) / (covariance[best, best] + kernel.noise**2)
            for kernel, covariance in zip(kernels, known)
        ]
    return chosen
