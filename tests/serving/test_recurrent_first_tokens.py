"""First tokens of models with a recurrent state: what the host takes for their layers, and where that begins."""

from __future__ import annotations

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model, names
from inferplan.estimate.deployment import Deployment
from inferplan.models.spec import LayerGroup
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.launches import eager_floors
from inferplan.work.parallel import Parallelism
from tests.conftest import fitted


def _stateful(layer: LayerGroup) -> bool:
    return any(part.cache().state for part in layer.parts)


def _ttft(deployment: Deployment, prompt: float) -> float:
    return float(first_token(deployment, IdlePrompt(new=prompt, cached=0.0, budget=8192.0)).at_server)


def test_no_cliff_where_graphs_end() -> None:
    """Up to 512 tokens vLLM replays graphs, which leave out the mixers with a state (its ``_attention_ops``).

    From 513 on the host launches the rest, too. In ``(t^4 + host^4)^(1/4)`` a step grows by no more than its host: by
    ``eager_layer`` for each layer without a state, half of it for what stands behind a mixer with one, and the
    kernels by one token, 1 % of TTFT at most.
    """
    each, said = fitted("vllm", "eager_layer"), []
    for name in names("models"):
        model = load_model(name)
        if model.encoder is not None or not any(_stateful(layer) for layer, _ in model.distinct) or "fp4" in name:
            continue
        without = sum(count for layer, count in model.distinct if not _stateful(layer))
        without += sum(count / 2 for layer, count in model.distinct if _stateful(layer) and layer.parts[1:])
        deployment = assemble(Request(model=name, gpu="h200-sxm", engine="vllm", parallel=Parallelism()))
        last, first = _ttft(deployment, 512.0), _ttft(deployment, 513.0)
        if not last * 0.999 <= first <= last * 1.01 + without * each:
            said.append(f"{name}: {last * 1e3:.1f} ms, then {first * 1e3:.1f}")
    assert not said


def test_graphs_leave_out_the_mixer_alone() -> None:
    """Qwen3-Next: 48 layers of a mixer and experts, 36 mixers gated delta nets (its config: every fourth is attention).
    vLLM splits its graphs at ``gdn_attention_core``: the experts of those layers stay in a captured piece, so half of
    each layer is launched. Falcon-Mamba: 64 layers of a mixer alone, half a layer each, with or without graphs.
    """
    each = fitted("vllm", "eager_layer")
    for model, replayed, whole in (("qwen3-next-80b-a3b", 36 / 2, 48), ("falcon-mamba-7b", 64 / 2, 64 / 2)):
        deployment = assemble(Request(model=model, gpu="h200-sxm", engine="vllm", parallel=Parallelism(tp=2)))
        assert eager_floors(deployment, replayed=True) == pytest.approx([replayed * each])
        assert eager_floors(deployment) == pytest.approx([whole * each])


def test_a_layer_with_a_state_is_launched_as_any_other() -> None:
    """Qwen3.5-397B: 60 layers, 45 of them gated delta nets, whose host took 4 ms each in one campaign, and less
    elsewhere: what one campaign took is charged nowhere. Falcon-Mamba: 64 mixers alone, half a layer each."""
    for gpu, engine in (("h200-sxm", "sglang"), ("h100-sxm", "sglang"), ("h200-sxm", "vllm"), ("b200-hgx", "trtllm")):
        each = fitted(engine, "eager_layer")
        for model, layers in (("qwen3.5-397b-a17b", 60), ("falcon-mamba-7b", 32)):
            deployment = assemble(Request(model=model, gpu=gpu, engine=engine, parallel=Parallelism(tp=8)))
            assert eager_floors(deployment) == pytest.approx([layers * each])
