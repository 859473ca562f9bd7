"""Traced models beside described ones: ``python -m tests.oracle.traced [FAMILY ...]``, or ``--sweep text,vision``.

Compared are the FLOP and the bytes of one prefill and one decode step, as the roofline prices them with ideal
constants: matmuls, routed experts, attention and look-ups, with every weight, key and value that they read and every
row that they read and write. What a perfect kernel folds away (norms, rotary embedding, activations, residuals, cache
writes) moves nothing in a described model, and is not compared.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from inferplan.errors import InferplanError
from inferplan.estimate.graph import build
from inferplan.models.huggingface import model_from_config
from inferplan.models.spec import ModelSpec
from inferplan.work.step import Segment, Step
from tests.builders import chip, deploy

PREFILL, DECODE = (2.0, 700.0, 0.0), (8.0, 1.0, 900.0)
"""Batch, new and cached tokens of the two steps."""
LAYERS = 6
"""Layers of the models that are compared, where a config takes another number than its own."""


@dataclass(frozen=True)
class Beside:
    """One family: the counts of both models, and the ratios traced over described of FLOP and bytes."""

    family: str
    exact: bool
    """Parameters and cache elements are the same."""
    ratios: dict[str, float]
    seconds: float
    why: str = ""

    @property
    def close(self) -> bool:
        return not self.why and all(abs(ratio - 1.0) <= 0.01 for ratio in self.ratios.values())


def config_of(family: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """The default config of a family with few layers, as its file would hold it."""
    import transformers

    make = transformers.CONFIG_MAPPING[family]
    for given in ({"num_hidden_layers": LAYERS} | (fields or {}), fields or {}):
        try:
            config = make(**given)
            break
        except Exception as error:  # a config whose other fields count layers too
            last = error
    else:
        raise last
    text: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return text | {"model_type": family}


def traced(config: dict[str, Any], timed: bool = True) -> ModelSpec:
    """The model that a trace makes of a config."""
    from inferplan.models.tracing import trace_config

    return trace_config(config, "m", "test", timed).model


def work(model: ModelSpec, load: tuple[float, float, float]) -> tuple[float, float]:
    """FLOP and bytes of a step."""
    batch, new, past = load
    step = Step(segments=(Segment(batch=batch, new=new, past=past),))
    stages = build(deploy(model, chip(1e12, 1e15)), step)
    works = [(op.work(), float(op.count)) for stage in stages for op in stage.ops]
    return (
        sum(float(one.flop) * count for one, count in works),
        sum(float(one.bytes) * count for one, count in works),
    )


def beside(family: str, fields: dict[str, Any] | None = None) -> Beside:
    """A family's default model both ways; why not, where one of the two refuses."""
    began = time.perf_counter()
    try:
        config = config_of(family, fields)
        described = model_from_config(config, family, "test")
    except Exception as error:
        return Beside(family, False, {}, 0.0, f"not described: {str(error).splitlines()[0]}")
    try:
        found = traced(config)
        ratios = {}
        for name, load in (("prefill", PREFILL), ("decode", DECODE)):
            for size, a, b in zip(("FLOP", "bytes"), work(found, load), work(described, load), strict=True):
                ratios[f"{name} {size}"] = a / b
    except InferplanError as error:
        return Beside(family, False, {}, time.perf_counter() - began, f"{error.what} {error.because}".splitlines()[0])
    counts = [
        (
            model.parameters["total"] + model.tower_parameters,
            model.kv_elements_per_token,
            model.kv_elements_per_token_beyond_windows,
            model.state_elements_per_sequence,
        )
        for model in (found, described)
    ]
    why = "" if counts[0] == counts[1] else f"{counts[0]} for {counts[1]}"
    return Beside(family, not why, ratios, time.perf_counter() - began, why)


def swept(name: str, kind: Any) -> tuple[str, str]:
    """A type of transformers, by its default config with two layers: a verdict, and why.

    exact: parameters and cache are those of the class, as tests/oracle/built.py counts them. refused: by name. wrong:
    another count. unbuilt: transformers does not build its own default.
    """
    from tests.oracle import built

    found = "unbuilt", ""
    for fields in ({"num_hidden_layers": 2}, {}):
        try:
            config = built.config_of(name, fields)
            model = built.build(config, kind)
        except Exception as error:
            found = found if found[0] != "unbuilt" else ("unbuilt", str(error)[:100])
            continue
        found = compared(name, config, model)
        if found[0] != "refused":
            break
    return found


def compared(name: str, config: Any, model: Any) -> tuple[str, str]:
    """A config, traced, beside the model that its class builds: exact, refused or wrong, and why.

    Its operators are not asked for: counts do not follow a load.
    """
    from tests.oracle import built

    try:
        with built.limited(240):
            held = json.loads(json.dumps(config.to_dict(), default=str))
            found = traced(held | {"model_type": name, "architectures": [type(model).__name__]}, timed=False)
    except InferplanError as error:
        return "refused", f"{error.what.partition(': ')[2] or error.what}: {error.because}".replace("\n", " ")[:200]
    except TimeoutError as error:
        return "refused", str(error)
    total = found.parameters["total"] + found.tower_parameters
    if total != built.count(model).total:
        return "wrong", f"{total} parameters, the class has {built.count(model).total}"
    try:
        cached = built.growth(model, found.windows)
    except Exception:
        cached = None  # the other counter has no answer
    if cached is not None and any(note.startswith("traced: the encoder") for note in found.notes):
        # what it has read grew: with it what the decoder wrote, or that was one token, which counts as a state here
        one = cached[0] if cached[2] else cached[0] / 2
        cached = one, one, cached[2] - one if cached[2] else 0
    mine = found.kv_elements_per_token, found.kv_elements_per_token_beyond_windows, found.state_elements_per_sequence
    if cached is not None and mine != cached:
        return "wrong", f"{mine} elements a token, beyond windows and of state, the class keeps {cached}"
    return "exact", "" if cached is not None else "without a cache to compare"


def sweep(wanted: str) -> None:
    """Every type of some kinds (text, vision, speech, encoder), one line each, then how many of each verdict."""
    from tests.oracle import built

    verdicts: Counter[str] = Counter()
    for name, kind in built.kinds().items():
        if kind.kind in wanted.split(","):
            verdict, why = swept(name, kind)
            verdicts[verdict] += 1
            print(f"{name}: {verdict} {why}", flush=True)
    print(f"{sum(verdicts.values())} types: {dict(verdicts)}")


def main() -> None:
    if "--sweep" in sys.argv:
        sweep((*sys.argv[sys.argv.index("--sweep") + 1 :], "text")[0])
        return
    import transformers

    from inferplan.models.huggingface.families import FAMILIES

    known = [name for name in FAMILIES if name in transformers.CONFIG_MAPPING]
    families = [name for name in sys.argv[1:] if not name.startswith("--")] or known
    close = 0
    print("| family | prefill FLOP | prefill bytes | decode FLOP | decode bytes | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for family in families:
        found = beside(family)
        ratios = [f"{100 * (ratio - 1):+.2f} %" for ratio in found.ratios.values()] or ["-"] * 4
        note = f" {found.why}" if found.why else ""
        print(f"| {family}{note} | {' | '.join(ratios)} | {found.seconds:.1f} |", flush=True)
        close += found.close
    print(f"\n{close} of {len(families)} within 1 %")


if __name__ == "__main__":
    main()
