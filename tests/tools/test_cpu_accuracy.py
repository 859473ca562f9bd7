"""The comparison on a CPU: the independent model is a Llama, and the one that is priced; nothing is fitted to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

import torch
from torch.utils.flop_counter import FlopCounterMode

from calibrate.device.device import Device
from calibrate.samples import Sample, key_of
from calibrate.session.fitting import Outcome
from calibrate.session.raw_file import Session
from calibrate.session.steps import load_of
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.estimate.graph import build
from inferplan.models.spec import ModelSpec
from tests.cases import for_each
from tools.accuracy import cpu, cpu_page
from tools.accuracy.cpu import LOADS, Comparison, Sizes, Timed, compared, drift, independent_model, shared_shapes

TINY = Sizes(width=64, layers=2, heads=4, kv_heads=2, head_dim=16, inner=96, vocab=128)
DEVICE = Device(kind="cpu", name="A CPU", memory=8e9, units=2, cache=1 << 20, software={"torch": "2"})


def outcome(session: Session | None = None) -> Outcome:
    """No constants: predictions are those of the roofline."""
    facts = {"shapes": 0, "samples": 0}
    return Outcome(
        calibration=Calibration(name="none", basis="roofline", provenance=facts),
        hardware=load_hardware("h200-sxm"),
        new_hardware=None,
        train=[],
        test=[],
        session=session or Session(),
    )


def timed(seconds: tuple[float, ...], waiting: tuple[float, ...] | None = None) -> Timed:
    return Timed(fmt="bf16", load=(1, 1, 7), seconds=seconds, waiting=waiting or (0.0,) * len(seconds))


def test_the_independent_model_is_a_llama() -> None:
    """Against transformers' own, with the same weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = independent_model(TINY, torch.float32)
    config = transformers.LlamaConfig(
        hidden_size=TINY.width,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.heads,
        num_key_value_heads=TINY.kv_heads,
        head_dim=TINY.head_dim,
        intermediate_size=TINY.inner,
        vocab_size=TINY.vocab,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    other = transformers.LlamaForCausalLM(config).eval()
    names = {
        "attention.wq": "self_attn.q_proj",
        "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
        "inner.gate": "mlp.gate_proj",
        "inner.up": "mlp.up_proj",
        "inner.down": "mlp.down_proj",
        "before": "input_layernorm",
        "between": "post_attention_layernorm",
    }
    own = model.state_dict()
    state = {"model.embed_tokens.weight": own["embed.weight"], "model.norm.weight": own["norm.weight"]}
    state["lm_head.weight"] = own["head.weight"]
    for layer in range(TINY.layers):
        for ours, theirs in names.items():
            state[f"model.layers.{layer}.{theirs}.weight"] = own[f"blocks.{layer}.{ours}.weight"]
    other.load_state_dict(state)
    tokens = torch.randint(TINY.vocab, (3, 12))
    with torch.inference_mode():
        cache = model.cache(3, 16)
        mine = [model(tokens, cache, 0)]
        for past in range(12, 16):
            tokens = torch.cat((tokens, mine[-1][:, None]), 1)
            mine.append(model(mine[-1][:, None], cache, past))
        theirs = [other(tokens[:, :count]).logits[:, -1].argmax(-1) for count in range(12, 17)]
    assert torch.equal(torch.stack(mine), torch.stack(theirs))


@for_each("load", [(2, 9, 0), (3, 1, 20)])
def test_the_model_that_is_priced_is_the_one_that_runs(load: tuple[int, int, int]) -> None:
    """torch's own count of FLOP in matmuls, the linear layers of which are those of the graph."""
    model = independent_model(TINY, torch.float32)
    batch, new, past = load
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(torch.zeros((batch, new), dtype=torch.long), model.cache(batch, past + new), past)
    counts = {str(op): flop for op, flop in counter.get_flop_counts()["Global"].items()}
    stages = build(cpu.deployment(TINY, "fp32", outcome()), load_of(cpu.step_of(TINY, "fp32", load)))
    priced = sum(float(op.work().flop * op.count) for stage in stages for op in stage.ops if op.kernel == "matmul")
    assert priced == sum(flop for op, flop in counts.items() if op.startswith("aten.mm"))


def test_no_shape_of_the_model_is_measured_and_one_that_is_would_be_found() -> None:
    session = Session()
    assert shared_shapes(Sizes(), ["bf16"], session, outcome()) == 0
    stages = build(cpu.deployment(Sizes(), "bf16", outcome()), load_of(cpu.step_of(Sizes(), "bf16", LOADS[0])))
    own = next(op for stage in stages for op in stage.ops if op.name == "ffn.down")
    session.samples[key_of(own)] = [Sample(seconds=1.0)]
    assert shared_shapes(Sizes(), ["bf16"], session, outcome()) == 1
    assert shared_shapes(Sizes(), ["fp32"], session, outcome()) == 0


def test_the_design_has_no_width_of_either_model() -> None:
    from calibrate.designs import find_model

    def widths(spec: ModelSpec) -> set[tuple[int, ...]]:
        return {weight.shape for weight, _ in spec.weights() if len(weight.shape) == 2 and weight.name != "embedding"}

    measured = set().union(*(widths(find_model(name)) for name in cpu.DESIGN.models))
    for sizes in (Sizes(), cpu_page.SMALL):
        assert not widths(sizes.spec()) & measured


def test_disturbed_laps_do_not_count_and_few_calm_ones_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several threads the waiting says nothing of the lap's own time; of one it is taken off: 4 s less 30 %."""
    monkeypatch.setattr(cpu.torch, "get_num_threads", lambda: 2)
    calm = timed((1.0, 2.0, 3.0, 9.0), (0.0, 0.01, 0.0, 0.4))
    assert (calm.time, calm.disturbed) == (2.0, False)
    busy = timed((5.0, 4.0, 6.0), (0.0, 0.3, 0.3))
    assert (busy.time, busy.disturbed) == (4.0, True)
    monkeypatch.setattr(cpu.torch, "get_num_threads", lambda: 1)
    assert busy.time == pytest.approx(2.8)
    assert calm.with_laps(busy).time == pytest.approx(2.5)
    assert drift([timed((1.0,) * 3), timed((2.0,) * 3)], [timed((1.1,) * 3), timed((1.0,) * 3)]) == pytest.approx(0.3)


def comparison(rows: Any, moved: float = 0.0, waiting: float = 0.0) -> Comparison:
    session = Session()
    session.samples["a"] = [Sample(seconds=1.0, waited=waiting)]
    return Comparison(
        device=DEVICE,
        outcome=outcome(session),
        sizes=TINY,
        rows=rows,
        drift=moved,
        shared=0,
        laps=10,
        laps_disturbed=2,
    )


def test_a_disturbed_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """By its steps, by the calibration's visits, or because the same steps took another time later; exit 6."""
    calm, busy = timed((1.0, 1.0, 1.0)), timed((1.0, 1.0, 1.0), (0.5, 0.5, 0.5))
    quiet = compared(TINY, [calm], [calm], outcome())
    assert comparison(quiet).disturbances == []
    assert "steps in most laps" in comparison(compared(TINY, [busy], [busy], outcome())).disturbances[0]
    assert "1 of 1 visits" in comparison(quiet, waiting=0.5).disturbances[0]
    assert "20 % more or less" in comparison(quiet, moved=0.2).disturbances[0]
    out = tmp_path / "page.md"
    monkeypatch.setattr(cpu_page, "compare", lambda *given: comparison(quiet, moved=0.2))
    with pytest.raises(SystemExit) as stopped:
        cpu_page.main(["--out", str(out)])
    assert stopped.value.code == 6
    assert "**Disturbed: " in out.read_text() and "hint:" in capsys.readouterr().err
    monkeypatch.setattr(cpu_page, "compare", lambda *given: comparison(quiet))
    cpu_page.main(["--out", str(out)])
    assert "Disturbed" not in out.read_text() and out.with_suffix(".svg").read_text().startswith("<svg")
    monkeypatch.setattr(cpu_page, "compare", lambda *given: replace(comparison(quiet), shared=2))
    with pytest.raises(SystemExit) as stopped:
        cpu_page.main(["--out", str(out)])
    assert stopped.value.code == 2


def test_steps_are_timed_and_priced_in_their_own_format() -> None:
    """A decode of one token after seven is a TPOT at context 8."""
    found = cpu.time_steps(independent_model(TINY, torch.float32), TINY, "fp32", [(1, 1, 7)], 0.01)
    assert cpu.LAPS[0] <= len(found[0].seconds) <= cpu.LAPS[1]
    (row,) = compared(TINY, found, found, outcome())
    assert row.measured > 0 and np.isfinite(row.off)
    assert (row.step.format, row.length, row.prefill) == ("fp32", 8, False)
