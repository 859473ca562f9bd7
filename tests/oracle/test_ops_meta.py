"""Every operator against torch on the meta device: FLOP counted by torch, bytes of the tensors that go in and out.

torch counts matmuls and convolutions. Masked attention runs row by row over the positions an explicit mask allows;
norms, pointwise maps, scans and collectives are counted by a plain loop in tests/oracle/counting.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log2

import numpy as np
import pytest

from inferplan.work import ops
from inferplan.work.formats import Format, find_format
from tests.cases import for_each
from tests.oracle import counting

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

BF16, FP32, FP8, FP16 = (find_format(name) for name in ("bf16", "fp32", "fp8", "fp16"))
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass
class Tally:
    """What a run moves and computes."""

    flop: float = 0.0
    read: float = 0.0
    write: float = 0.0
    wire: float = 0.0
    counter: object = field(default_factory=lambda: FlopCounterMode(display=False))

    def load(self, fmt: Format, *shape: int):
        """A tensor in memory that the operator reads: as stored, then as it is multiplied."""
        self.read += stored(fmt, *shape)
        return torch.empty(shape, dtype=DTYPES.get(fmt.name, torch.bfloat16), device="meta")

    def store(self, tensor, fmt: Format):
        self.write += stored(fmt, *tensor.shape)

    def __enter__(self):
        self.counter.__enter__()
        return self

    def __exit__(self, *error):
        self.counter.__exit__(*error)
        self.flop += self.counter.get_total_flops()


def stored(fmt: Format, *shape: int) -> int:
    """Bytes of the tensors that hold a weight or activation: its elements, packed, and its scales and zeros."""
    elements = int(np.prod(shape))
    if fmt.name in DTYPES:
        return torch.empty(shape, dtype=DTYPES[fmt.name], device="meta").nbytes
    packed = torch.empty(elements * int(fmt.bits) // 8, dtype=torch.uint8, device="meta")
    groups = -(-elements // fmt.group)
    extra = torch.empty(groups * (fmt.scale_bits + fmt.zero_bits), dtype=torch.bool, device="meta")
    return packed.nbytes + extra.numel() / 8


def wide(tensor):
    return tensor.to(torch.bfloat16)


def run_matmul(op: ops.Matmul) -> Tally:
    with Tally() as tally:
        x = tally.load(op.input, op.batch, int(op.m), op.k)
        w = tally.load(op.weight, op.batch, op.k, op.n)
        tally.store(torch.bmm(wide(x), wide(w)), op.output)
    return tally


def run_grouped(op: ops.GroupedMatmul) -> Tally:
    """A fixed routing table: ``touched`` experts share the rows as evenly as they go."""
    with Tally() as tally:
        for rows in np.array_split(np.arange(int(op.m)), int(op.touched)):
            x = tally.load(op.input, len(rows), op.k)
            w = tally.load(op.weight, op.k, op.n)
            tally.store(wide(x) @ wide(w), op.output)
    return tally


def run_adapters(op: ops.GroupedMatmul) -> Tally:
    """Rows with adapters of their own: slices one after another; the way out adds to an output that is there."""
    with Tally() as tally:
        for rows in np.array_split(np.arange(int(op.m)), int(op.touched)):
            w = tally.load(op.weight, op.k, op.n)
            y = tally.load(op.output, len(rows), op.n) if op.adapter == "expand" else None
            parts = [wide(tally.load(op.input, len(rows), op.k)) @ wide(part) for part in w.chunk(op.slices, dim=1)]
            made = torch.cat(parts, dim=1)
            tally.store(made if y is None else wide(y) + made, op.output)
    return tally


def explicit_mask(mask: ops.Mask, new: int, past: int) -> np.ndarray:
    """``allowed[i, s]``: whether new token i may look at position s; an indexer spreads its choices out."""
    entries = (past + new) // mask.rate if mask.kind == "compressed" else 0
    allowed = np.zeros((new, entries + past + new), dtype=bool)
    for i in range(new):
        me = past + i
        if mask.kind == "compressed":
            mine = (me + 1) // mask.rate
            best = (np.arange(min(mask.top or mine, mine)) + i * mask.top) % max(mine, 1)
            allowed[i, best] = True
            allowed[i, entries + max(0, me - mask.size + 1) : entries + me + 1] = mask.size > 0
            continue
        if mask.kind == "blocks":
            chosen = np.unique(np.append((np.arange(mask.top - 1) + i) % max(me // mask.size, 1), me // mask.size))
            chosen = chosen if len(chosen) == mask.top else np.arange(me // mask.size + 1)[-mask.top :]
            seen = (chosen[:, None] * mask.size + np.arange(mask.size)).ravel()
            allowed[i, seen[seen <= me]] = True
            continue
        if mask.kind == "full":
            allowed[i] = True
        elif mask.kind == "band":
            allowed[i, max(0, me - mask.size // 2) : me + mask.size // 2 + 1] = True
        elif mask.kind == "top":
            chosen = (np.arange(min(mask.size, me + 1)) + i * mask.size) % (me + 1)
            allowed[i, chosen] = True
        else:
            start = {"causal": 0, "window": max(0, me - mask.size + 1), "chunk": me - me % max(mask.size, 1)}[mask.kind]
            allowed[i, start : me + 1] = True
    return allowed


def run_attention(op: ops.Attention) -> Tally:
    batch, heads, key, value = int(op.batch), op.heads, op.key_dim, op.value_dim
    allowed = explicit_mask(op.mask, int(op.new), int(op.past))
    reach = int(allowed.any(axis=0).sum())
    with Tally() as tally:
        q = tally.load(op.base, batch, heads, int(op.new), key)
        tally.load(op.kv, batch, op.kv_heads, reach, key)
        if not op.shared_value:
            tally.load(op.kv, batch, op.kv_heads, reach, value)
        outputs = []
        for row in range(int(op.new)):
            positions = int(allowed[row].sum())
            k = torch.empty(batch, heads, positions, key, dtype=torch.bfloat16, device="meta")
            v = torch.empty(batch, heads, positions, value, dtype=torch.bfloat16, device="meta")
            scores = wide(q[:, :, row : row + 1]) @ k.transpose(-1, -2)
            if not op.fused:
                tally.write += 2 * stored(op.base, *scores.shape)
                tally.read += 2 * stored(op.base, *scores.shape)
            outputs.append(scores.softmax(-1) @ v)
        tally.store(torch.cat(outputs, dim=2), op.base)
    return tally


def run_index_select(op: ops.IndexSelect) -> Tally:
    batch, new, past = int(op.batch), int(op.new), int(op.past)
    allowed = explicit_mask(op.mask, new, past)
    with Tally() as tally:
        q = tally.load(op.base, batch, new, op.heads, op.key_dim)
        weights = tally.load(op.base, batch, new, 1, op.heads) if op.block == 1 else None
        k = wide(tally.load(op.kv, batch, int(allowed.any(axis=0).sum()), op.key_dim))
        for row in range(new):
            positions = int(allowed[row].sum())
            scores = torch.relu(wide(q[:, row]) @ k[:, :positions].transpose(-1, -2))
            if weights is not None:
                (wide(weights[:, row]) @ scores).topk(min(op.top_k, positions))
        units = -(-allowed.shape[1] // op.block) if op.mask.kind != "compressed" else (past + new) // op.mask.rate
        choices = (batch, new, op.heads if weights is None else 1, min(op.top_k, units))
        chosen = torch.empty(choices, dtype=torch.int32, device="meta")
        tally.write += chosen.nbytes
    return tally


def run_top_k(op: ops.TopK) -> Tally:
    rows = int(op.rows)
    with Tally() as tally:
        values = tally.load(op.base, rows, int(op.scores) // rows)
        chosen = values.topk(min(op.top_k, values.shape[1])).indices.to(torch.int32)
        tally.write += chosen.nbytes
    return tally


def run_norm(op: ops.Norm) -> Tally:
    with Tally() as tally:
        x = tally.load(op.base, int(op.tokens), op.width)
        for _ in range({"rms": 1, "layer": 2, "layer_plain": 1, "plain": 0}[op.style]):
            tally.load(op.base, op.width)
        tally.store(x, op.base)
        tally.flop += counting.norm(int(op.tokens), op.width, op.style)
    return tally


def run_elementwise(op: ops.Elementwise) -> Tally:
    with Tally() as tally:
        inputs = [tally.load(op.base, int(op.tokens), int(op.width)) for _ in range(int(op.reads))]
        tally.store(sum(inputs[1:], start=inputs[0]), op.base)
        tally.flop += counting.pointwise(int(op.tokens) * int(op.width), op.flops)
    return tally


def run_gather(op: ops.Gather) -> Tally:
    with Tally() as tally:
        rows = torch.zeros(int(op.tokens), dtype=torch.long, device="meta")
        table = torch.empty(1000, op.width, dtype=DTYPES[op.table.name], device="meta")
        found = torch.nn.functional.embedding(rows, table)
        tally.read += stored(op.table, *found.shape)
        tally.store(found, op.output)
    return tally


def run_copy(op: ops.Copy) -> Tally:
    with Tally() as tally:
        x = tally.load(op.source, int(op.elements))
        tally.store(x.to(DTYPES[op.target.name]), op.target)
    return tally


def run_conv(op: ops.Conv) -> Tally:
    batch, new, channels, taps = int(op.batch), int(op.new), op.channels, op.taps
    with Tally() as tally:
        x = tally.load(op.base, batch, channels, new)
        state = tally.load(op.base, batch, channels, taps - 1)
        w = tally.load(op.base, channels, 1, taps)
        window = torch.cat([state, x], dim=-1)
        tally.store(torch.nn.functional.conv1d(window, w, groups=channels), op.base)
        tally.store(window[..., new:], op.base)
    return tally


def run_scan(op: ops.Scan) -> Tally:
    batch, new = int(op.batch), int(op.new)
    with Tally() as tally:
        tally.load(op.base, batch, new, op.inputs)
        tally.load(op.base, op.parameters)
        state = tally.load(op.state_format, batch, op.state)
        tally.store(torch.empty(batch, new, op.outputs, device="meta"), op.base)
        tally.store(state, op.state_format)
        tally.flop += sum(counting.lightning_step(op.state // 4, 4) for _ in range(batch * new))
    return tally


def run_long_conv(op: ops.LongConv) -> Tally:
    batch, new, past, channels = int(op.batch), int(op.new), int(op.past), op.channels
    with Tally() as tally:
        tally.load(op.base, channels, past + new)
        tally.load(op.kv, batch, channels, past)
        tally.store(tally.load(op.base, batch, channels, new), op.base)
        if new > 16:
            tally.flop += batch * channels * counting.fft_convolution(2 * (past + new))
        else:
            tally.flop += sum(2 * (past + i + 1) for i in range(new)) * batch * channels
    return tally


def run_collective(op: ops.Collective) -> Tally:
    return Tally(wire=counting.wire_bytes(op.pattern, int(op.elements) * int(op.format.width), op.group))


def run_exchange(op: ops.Exchange) -> Tally:
    message = int(op.tokens) * op.width * op.format.width
    ranks = counting.ranks_of_a_token(
        op.experts, op.top_k, op.parts, op.groups, op.top_groups, each_expert=op.mode == "low_latency"
    )
    return Tally(wire=ranks * op.group / op.parts * (1 - 1 / op.group) * message)


def matmul(**changed) -> ops.Matmul:
    sizes = {"m": 6.0, "k": 256, "n": 512, "weight": BF16, "input": BF16, "output": BF16}
    return ops.Matmul(name="m", **{**sizes, **changed})


def attention(kind: str, size: int = 0, rate: int = 1, top: int = 0, **changed) -> ops.Attention:
    sizes = {"batch": 2.0, "new": 5.0, "past": 9.0, "heads": 4, "kv_heads": 2, "key_dim": 8, "value_dim": 6}
    formats = {"base": BF16, "kv": BF16}
    return ops.Attention(
        name="a", mask=ops.Mask(kind=kind, size=size, rate=rate, top=top), **{**sizes, **formats, **changed}
    )


def grouped(weight: str, touched: float) -> ops.GroupedMatmul:
    fmt = find_format(weight)
    return ops.GroupedMatmul(
        name="g", m=12.0, k=256, n=128, experts=8, touched=touched, weight=fmt, input=BF16, output=BF16
    )


def adapters(way: str, slices: int, touched: float) -> ops.GroupedMatmul:
    inner, sizes = (256, slices * 16) if way == "shrink" else (16, 384), {"m": 12.0, "experts": 8, "touched": touched}
    sliced = {"adapter": way, "slices": slices if way == "expand" else 1}
    return ops.GroupedMatmul(name="a", k=inner[0], n=inner[1], weight=BF16, input=BF16, output=BF16, **sizes, **sliced)


def exchange(group: int, parts: int, top_k: int, groups: tuple[int, int], mode: str) -> ops.Exchange:
    routing = {"experts": 16, "top_k": top_k, "groups": groups[0], "top_groups": groups[1]}
    sizes = {"tokens": 5.0, "width": 128, "group": group, "span": group, "parts": parts, "format": BF16}
    return ops.Exchange(name="e", direction="dispatch", mode=mode, **sizes, **routing)


CASES: dict[type[ops.Op], tuple[Callable[..., Tally], list[ops.Op]]] = {
    ops.Matmul: (
        run_matmul,
        [
            matmul(),
            matmul(batch=3),
            matmul(weight=FP8, input=FP8),
            *(matmul(weight=find_format(name)) for name in ("int4", "nvfp4", "mxfp4", "int8")),
            matmul(weight=find_format("fp8-block"), input=FP8),
        ],
    ),
    ops.GroupedMatmul: (run_grouped, [grouped("bf16", 5.0), grouped("mxfp4", 1.0), grouped("fp8", 8.0)]),
    ops.Attention: (
        run_attention,
        [
            attention("full"),
            attention("causal"),
            attention("causal", new=14.0, past=0.0),
            attention("window", 4),
            attention("window", 32),
            attention("window", 4, new=3.0, past=1.0),
            attention("band", 5, new=14.0, past=0.0),
            attention("band", 3),
            attention("chunk", 8),
            attention("chunk", 6, new=1.0),
            attention("top", 3, past=40.0),
            attention("top", 64),
            attention("causal", kv_heads=1, shared_value=True, new=1.0),
            attention("causal", fused=False),
            attention("causal", kv=FP8),
            attention("compressed", 4, rate=2, past=40.0, kv_heads=1, shared_value=True, value_dim=8),
            attention("compressed", 4, rate=4, top=3, new=1.0, past=40.0, kv_heads=1, shared_value=True, value_dim=8),
            attention("blocks", 4, top=3, new=1.0, past=30.0),
        ],
    ),
    ops.IndexSelect: (
        run_index_select,
        [
            ops.IndexSelect(
                name="i",
                batch=2.0,
                new=new,
                past=20.0,
                heads=4,
                key_dim=16,
                top_k=8,
                mask=mask,
                base=BF16,
                kv=kv,
                block=block,
            )
            for new, mask, kv, block in (
                (1.0, ops.Mask(), BF16, 1),
                (6.0, ops.Mask(), FP8, 1),
                (5.0, ops.Mask(kind="full"), BF16, 1),
                (5.0, ops.Mask(kind="compressed", rate=2), FP8, 1),
                (5.0, ops.Mask(), BF16, 4),
            )
        ],
    ),
    ops.TopK: (
        run_top_k,
        [
            ops.TopK(name="t", rows=6.0, scores=6.0 * length, top_k=8, base=find_format("fp32"))
            for length in (5.0, 64.0)
        ],
    ),
    ops.Norm: (
        run_norm,
        [
            ops.Norm(name="n", tokens=5.0, width=32, base=BF16, style=s)
            for s in ("rms", "layer", "layer_plain", "plain")
        ],
    ),
    ops.Elementwise: (
        run_elementwise,
        [
            ops.Elementwise(name="e", tokens=4.0, width=24, base=BF16, reads=2.0, flops=5.0),
            ops.Elementwise(name="e", tokens=4.0, width=24, base=FP32),
        ],
    ),
    ops.Gather: (
        run_gather,
        [ops.Gather(name="g", tokens=7.0, width=64, table=table, output=BF16) for table in (BF16, FP32)],
    ),
    ops.Copy: (
        run_copy,
        [ops.Copy(name="c", elements=96.0, source=BF16, target=fmt) for fmt in (BF16, FP8, FP16)],
    ),
    ops.Conv: (
        run_conv,
        [ops.Conv(name="c", batch=3.0, new=new, channels=16, taps=4, base=BF16) for new in (1.0, 9.0)],
    ),
    ops.Scan: (
        run_scan,
        [
            ops.Scan(
                name="s",
                batch=2.0,
                new=new,
                state=32,
                flops=5.0 * 32,
                inputs=24,
                outputs=8,
                base=BF16,
                state_format=fmt,
                parameters=4,
            )
            for new, fmt in ((1.0, FP32), (7.0, BF16))
        ],
    ),
    ops.LongConv: (
        run_long_conv,
        [
            ops.LongConv(name="l", batch=2.0, new=new, past=past, channels=8, base=BF16, kv=FP8)
            for new, past in ((1.0, 30.0), (3.0, 0.0), (64.0, 0.0), (64.0, 64.0))
        ],
    ),
    ops.Collective: (
        run_collective,
        [
            ops.Collective(name="c", pattern=pattern, elements=1024.0, group=group, format=BF16, span=group)
            for pattern in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
            for group in (1, 2, 8)
            if group > 1 or pattern != "send"
        ],
    ),
    ops.Exchange: (
        run_exchange,
        [
            exchange(group, parts, top_k, groups, mode)
            for group, parts in ((4, 4), (8, 4), (2, 2), (16, 4))
            for top_k, groups in ((1, (1, 1)), (3, (1, 1)), (3, (4, 2)), (2, (2, 1)), (4, (8, 5)))
            for mode in ("normal", "low_latency", "nvlink")
        ],
    ),
}
PAIRS = [(run, op) for run, cases in CASES.values() for op in cases]
PAIRS += [(run_adapters, adapters(way, slices, 3.0)) for way in ("shrink", "expand") for slices in (1, 3)]


@for_each(("run", "op"), PAIRS, ids=[f"{op.kind}-{i}" for i, (_, op) in enumerate(PAIRS)])
def test_work_is_what_torch_does(run, op):
    tally, work = run(op), op.work()
    got = {name: float(getattr(work, name)) for name in ("flop", "read", "write", "wire")}
    assert got == pytest.approx({name: float(getattr(tally, name)) for name in got}, rel=1e-12)


def concrete(base: type[ops.Op]) -> set[type[ops.Op]]:
    found = set()
    for cls in base.__subclasses__():
        found |= {cls} | concrete(cls)
    return {cls for cls in found if cls.work is not ops.Op.work and cls.__module__.startswith("inferplan.")}


def test_every_operator_has_an_oracle():
    assert concrete(ops.Op) == set(CASES)


@for_each("kind", ["causal", "window", "chunk", "full", "top", "band"])
@for_each("size", [1, 3, 8])
def test_pairs_and_reach_equal_an_explicit_mask(kind, size):
    mask = ops.Mask(kind=kind, size=0 if kind in ("causal", "full") else size | (kind == "band"))
    for new in range(1, 12):
        for past in range(12):
            allowed = explicit_mask(mask, new, past)
            assert mask.pairs(float(new), float(past)) == allowed.sum()
            if kind != "top":
                assert mask.reach(float(new), float(past)) == allowed.any(axis=0).sum()


@for_each(("size", "rate", "top"), [(4, 2, 0), (3, 4, 0), (0, 4, 0), (5, 4, 2), (2, 3, 1), (0, 2, 3)])
def test_compressed_entries_equal_an_explicit_mask(size, rate, top):
    mask = ops.Mask(kind="compressed", size=size, rate=rate, top=top)
    for new in range(1, 12):
        for past in range(30):
            allowed = explicit_mask(mask, new, past)
            assert mask.pairs(float(new), float(past)) == allowed.sum()
            reach = mask.reach(float(new), float(past))
            assert reach == allowed.any(axis=0).sum() if not top else reach >= allowed.any(axis=0).sum()


@for_each(("size", "top"), [(4, 1), (3, 2), (2, 5)])
def test_chosen_blocks_equal_an_explicit_mask(size, top):
    mask = ops.Mask(kind="blocks", size=size, top=top)
    for new in range(1, 12):
        for past in range(30):
            allowed = explicit_mask(mask, new, past)
            assert mask.pairs(float(new), float(past)) == allowed.sum()
            assert mask.reach(float(new), float(past)) >= allowed.any(axis=0).sum()


def test_a_full_rectangle_is_what_torch_counts_for_scaled_dot_product_attention():
    op = attention("full", kv_heads=4, value_dim=8)
    q, k = (torch.empty(2, 4, n, 8, dtype=torch.bfloat16, device="meta") for n in (5, 14))
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(q, k, k)
    assert counter.get_total_flops() == op.work().flop


@for_each("shards", ["query_shards", "key_shards"])
def test_shards_conserve_flop(shards):
    whole, part = attention("causal"), attention("causal", **{shards: 2})
    assert part.work().flop * 2 == whole.work().flop
    assert part.work().write * (2 if shards == "query_shards" else 1) == whole.work().write


def test_fft_length_is_counted_for_lengths_that_are_no_power_of_two():
    op = ops.LongConv(name="l", batch=1.0, new=100.0, past=0.0, channels=1, base=BF16, kv=BF16)
    assert op.work().flop == pytest.approx(3 * 2.5 * 200 * log2(200) + 600)
