"""The fit of KTransformers' constants, on rows of its tutorial of DeepSeek-R1 by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fitting.host_experts import aside, fitted, runs

HEAD = "source,engine,version,model,gpu,quantity,value,num_gpus,prompt_tokens,generated_tokens,cpu,note"
RUN = "k@1:doc/en/DeepseekR1_V3_tutorial.md,KTransformers,0.2.1,DeepSeek-V3/R1 671B,RTX 4090/4090D 24GB"
HOST = "2x Intel Xeon Gold 6454S (32c)"


def table(shared: Path, *rows: str) -> None:
    folder = shared / "measured" / "published" / "parts"
    folder.mkdir(parents=True)
    (folder / "cpu_offload.csv").write_text("\n".join([HEAD, *rows]) + "\n", "utf-8")


def test_hosts_are_kept_aside_by_their_hash() -> None:
    """SHA-256 begins with 1d86, 4afe, 8dd2, 9221 and ad26; a third is below 5555."""
    hosts = ("epyc-7773x", "epyc-9654", "2x-xeon-6454s", "2x-xeon-6430", "2x-xeon-8488c")
    assert [aside(host) for host in hosts] == [True, True, False, False, False]


def test_the_flop_of_a_core_and_cycle_by_hand(tmp_path: Path) -> None:
    """88.2 tokens/s of a prompt of 969: 58 x 8 experts of 3 x 7,168 x 2,048 weights, two FLOP each, in 10.99 s by 64
    cores of 2.2 GHz are 25.6 FLOP; the GPU's 4 % of the time make it more. The share and the wait are those by which
    tokens with six and with eight experts come out: two more take 11.2 ms."""
    speeds = [("prompt_speed", "88.2", "8"), ("generation_speed", "13.5", "8"), ("generation_speed", "15.9", "6")]
    table(tmp_path, *(f"{RUN},{what},{value},1,969,300,{HOST},{experts} experts" for what, value, experts in speeds))
    found = fitted([run for run in runs(tmp_path) if run.host == "2x-xeon-6454s"])
    assert found["flop, gguf"] == pytest.approx(
        58 * 8 * 3 * 7168 * 2048 * 2 * 969 / (64 * 2.2e9 * 969 / 88.2), rel=0.06
    )
    two_experts = 58 * 2 * 3 * 7168 * 2048 * 0.606 / (1e3 / 13.5 - 1e3 / 15.9) * 1e3
    assert found["reads_experts, 2 sockets"] == pytest.approx(two_experts / 614.4e9, rel=0.03)


def test_rows_that_say_too_little_are_left_out(tmp_path: Path) -> None:
    """Another processor, several cards, another figure, and a prompt that goes to the GPU layer by layer."""
    native = "k@1:M.md,SGLang+KT-Kernel,,MiniMax-M2.1,RTX 4090 48GB,prompt_speed"
    xeon = "2x Intel Xeon Platinum 8488C"
    kept = f"{native},129,1,2048,,{xeon},"
    left = [f"{native},669,1,8192,,{xeon},", f"{native},139,2,2048,,{xeon},", f"{native},129,1,2048,,AmpereOne,"]
    table(tmp_path, kept, *left)
    found = [run for run in runs(tmp_path) if run.model == "minimax-m2.1"]
    assert [(run.measured, run.memory, run.chosen) for run in found] == [(129.0, 48 * 2.0**30, None)]
