"""What images, video and sound become, and cost: against transformers' preprocessors and classes, and by hand."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import InferplanError, MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import media_ops
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import media_seconds
from inferplan.estimate.run import carrying, estimate
from inferplan.models.huggingface import import_path, model_from_config
from inferplan.models.media import AudioRule, ImageRule, MediaAsked, VideoRule, tile_counts
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, Media, Traffic
from inferplan.work.ops import Attention, Matmul
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

SIDES = st.integers(min_value=32, max_value=3000)


GOT = "got_ocr2/image_processing_got_ocr2"


def function_of(module: str, name: str, **beside: Any) -> Any:
    """A function of arithmetic alone from the source of a module of transformers that needs more to be imported."""
    found = importlib.util.find_spec("transformers")
    assert found is not None and found.origin is not None
    text = (Path(found.origin).parent / "models" / f"{module}.py").read_text(encoding="utf-8")
    tree = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    tree.decorator_list = []
    names: dict[str, Any] = {"math": math, **beside}
    exec(compile(ast.Module(body=[tree], type_ignores=[]), module, "exec"), names)
    return names[name]


@settings(max_examples=200, deadline=None)
@given(width=SIDES, height=SIDES)
def test_smart_resize_is_that_of_qwen2_vl(width: int, height: int):
    resize = function_of("qwen2_vl/image_processing_qwen2_vl", "smart_resize")
    rule = ImageRule(resize="smart", patch=14, merge=2, pixels=(56 * 56, 28 * 28 * 1280))
    down, across = resize(height, width, 28, 56 * 56, 28 * 28 * 1280)
    assert rule.resized((width, height)) == (across, down)
    assert rule.item((width, height)).tokens == down * across // 28**2
    assert rule.item((width, height)).positions == down * across // 14**2


@settings(max_examples=200, deadline=None)
@given(width=SIDES, height=SIDES, frames=st.integers(min_value=2, max_value=64))
def test_smart_resize_of_videos_is_that_of_qwen3_vl(width: int, height: int, frames: int):
    resize = function_of("qwen3_vl/video_processing_qwen3_vl", "smart_resize")
    limits = (128 * 32 * 32, 32 * 32 * 768)
    down, across = resize(frames, height, width, 2, 32, *limits)
    image = ImageRule(resize="smart", patch=16, merge=2)
    item = VideoRule(temporal=2, pixels=limits, whole=True).item(image, frames, (width, height))
    assert (item.units, item.positions) == (math.ceil(frames / 2), down * across // 16**2)
    assert item.tokens == item.units * down * across // 32**2


@settings(max_examples=200, deadline=None)
@given(width=SIDES, height=SIDES, merge=st.sampled_from([1, 2]))
def test_pixtral_keeps_the_longest_side(width: int, height: int, merge: int):
    pixtral = pytest.importorskip("transformers.models.pixtral.image_processing_pil_pixtral")
    unit = 14 * merge
    down, across = pixtral.get_resize_output_image_size(
        np.zeros((height, width, 3), np.uint8), size=1540, patch_size=unit, input_data_format="channels_last"
    )
    rule = ImageRule(resize="longest", patch=14, merge=merge, size=1540, row_ends=True)
    item = rule.item((width, height))
    assert item.positions == down * across // 14**2
    assert item.tokens == (down // unit) * (across // unit + 1)  # models/pixtral/processing_pixtral.py


@settings(max_examples=200, deadline=None)
@given(width=st.integers(min_value=14, max_value=12000), height=st.integers(min_value=14, max_value=12000))
def test_moonvit_takes_so_many_patches(width: int, height: int):
    resize = function_of("kimi_k25/image_processing_kimi_k25", "navit_resize")
    _, (down, across) = resize(height, width, 14, 2, 16384, 512)
    rule = ImageRule(resize="patches", patch=14, merge=2, patches=16384, side=512)
    assert rule.resized((width, height)) == (across, down)


@settings(max_examples=200, deadline=None)
@given(width=SIDES, height=SIDES, most=st.integers(min_value=1, max_value=12))
def test_tiles_are_those_of_internvl(width: int, height: int, most: int):
    ratios = function_of(GOT, "get_all_supported_aspect_ratios")
    best = function_of(GOT, "get_optimal_tiled_canvas", get_all_supported_aspect_ratios=ratios)
    assert tile_counts((width, height), 448, most) == best((height, width), (448, 448), 1, most)


def test_an_image_of_internvl_is_tiles_and_a_thumbnail():
    """800 x 600 is 4:3, and so are 4 x 3 tiles of 448; with the whole image 13 of 1,025 positions, 256 tokens each."""
    rule = ImageRule(resize="tiles", patch=14, merge=2, size=448, tiles=12, tokens=256, extra=1)
    item = rule.item((800, 600))
    assert (item.units, item.positions, item.tokens) == (13, 1025, 13 * 256)
    assert rule.item((300, 300)).units == 1


def test_gemma_3_has_256_tokens_whatever_the_size():
    rule = load_model("gemma-3-27b").towers[0].media
    assert rule is not None and rule.image is not None
    for size in (None, (100, 2000), (896, 896)):
        item = rule.image.item(size)
        assert (item.positions, item.tokens) == (64 * 64, 256)  # 896/14 patches a side; mm_tokens_per_image


@for_each(
    ("kind", "fields", "positions", "tokens"),
    [
        ("llava", {}, 577, 576),  # 336/14 squared and a class token, which LlavaProcessor takes away
        ("llava", {"vision_feature_select_strategy": "full"}, 577, 577),
        ("janus", {}, 576, 576),  # 384/16 squared: num_image_tokens of JanusProcessor and DeepseekVLProcessor
        ("deepseek_vl", {}, 576, 576),
    ],
)
def test_images_of_one_size(kind: str, fields: dict[str, Any], positions: int, tokens: int):
    transformers = pytest.importorskip("transformers")
    sizes = {"deepseek_vl": {"vision_config": {"image_size": 384}}}
    config = transformers.CONFIG_MAPPING[kind](**fields, **sizes.get(kind, {}))
    found = model_from_config(json.loads(json.dumps(config.to_dict(), default=str)), kind, "test")
    rule = next(tower.media for tower in found.towers if tower.name == "vision")
    assert rule is not None and rule.image is not None
    for size in (None, (100, 2000)):
        item = rule.image.item(size)
        assert (item.units, item.positions, item.tokens) == (1, positions, tokens)


@settings(max_examples=200, deadline=None)
@given(width=SIDES, height=SIDES, tokens=st.sampled_from([70, 140, 280, 560, 1120]))
def test_gemma_4_keeps_the_shape_within_a_number_of_patches(width: int, height: int, tokens: int):
    resize = function_of("gemma4/image_processing_gemma4", "get_aspect_ratio_preserving_size")
    rule = ImageRule(resize="budget", patch=16, merge=3, patches=9 * tokens)
    down, across = resize(height, width, 16, 9 * tokens, 3)
    assert rule.resized((width, height)) == (across, down)
    item = rule.item((width, height))
    assert (item.positions, item.tokens) == (9 * tokens, down * across // 48**2)


def test_windows_of_qwen2_5_vl():
    """112 pixels are 8 patches of 14: an image of 448x224 has 4 x 2 of them (get_vision_window_index)."""
    rule = ImageRule(resize="smart", patch=14, merge=2, window=8)
    assert rule.item((448, 224)).windows == 8
    assert rule.item((448 + 28, 224)).windows == 10


@for_each("model", ["qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen2.5-vl-32b", "qwen2.5-vl-72b"])
def test_four_layers_of_qwen2_5_vl_see_the_whole_image(model: str):
    """arXiv 2502.13923 table 1: 32 layers of width 1280, full attention in 7, 15, 23 and 31, windows of 112 pixels in
    the others. 896x896 pixels are 64 x 64 patches of 14 and 8 x 8 windows."""
    asked = MediaAsked(images=1, image_size=(896, 896))
    request = Request(model=model, gpu="h100-sxm", parallel=Parallelism(tp=2), media=asked)
    ops = [op for op in media_ops(assemble(request), 1.0) if isinstance(op, Attention)]
    windows, whole = 28 * 64 * 4 * 64**2 * 1280, 4 * 4 * 4096**2 * 1280
    assert 2 * sum(op.work().flop * op.count for op in ops) == pytest.approx(windows + whole, rel=1e-12)


def test_sound_of_qwen2_audio_and_of_qwen2_5_omni():
    """30 s are 3000 frames, 1500 positions, 750 tokens (Qwen2AudioEncoder: stride 2, pool 2); 10 s of Omni 250."""
    padded = AudioRule(rate=100, stride=2, merge=2, whole=30)
    assert (padded.item(7).positions, padded.item(7).tokens) == (1500, 750)
    assert (padded.item(31).units, padded.item(31).tokens) == (2, 1500)
    free = AudioRule(rate=100, stride=2, merge=2, window=100)
    assert (free.item(10).positions, free.item(10).windows, free.item(10).tokens) == (500, 5, 250)


def qwen(images: int = 1, size: tuple[int, int] = (1024, 1024), **more: Any) -> tuple[Deployment, StaticLoad]:
    asked = MediaAsked(images=images, image_size=size)
    request = Request(model="qwen3-vl-8b", gpu="h100-sxm", media=asked, **more)
    return carrying(assemble(request), StaticLoad(prompt=128.0, output=8.0))


def test_an_image_of_qwen3_vl_8b_by_hand():
    """1024x1024: 64 x 64 patches of 16, merged 2 x 2 into 1,024 tokens. The tower has 27 layers of width 1152."""
    deployment, load = qwen(ideal=True)
    assert load.prompt == 128 + 1024 and load.media_tokens == 1024
    patches, width = 4096, 1152
    layer = 2 * width * (3 * width + width + 2 * 4304)  # q, k and v, the output, up and down
    attention = 4 * patches**2 * width
    merger = 2 * 4608 * 4608 + 2 * 4608 * 4096  # four of them: one at the end, three of the deepstack
    flop = patches * (27 * layer + 2 * 1536 * width) + 27 * attention + 4 * 1024 * merger
    ops = media_ops(deployment, 1.0)
    counted = sum(op.work().flop * op.count for op in ops if isinstance(op, (Matmul, Attention)))
    assert counted == pytest.approx(flop, rel=1e-12)
    assert flop == pytest.approx(5.798e12, rel=1e-3)
    text = estimate(replace(deployment, media=None), load)
    assert estimate(deployment, load).ttft - text.ttft == pytest.approx(float(media_seconds(deployment, 1.0)))
    assert float(media_seconds(deployment, 1.0)) == pytest.approx(flop / 989.4e12, rel=0.02)  # H100's peak in bf16


def small_qwen3_vl() -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl",
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_size": 96,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "vocab_size": 512,
            "hidden_act": "silu",
            "max_position_embeddings": 256,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 3,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_heads": 4,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 96,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
            "hidden_act": "gelu_pytorch_tanh",
        },
        "tie_word_embeddings": False,
    }


def tower_flop(config: dict[str, Any], asked: MediaAsked) -> float:
    """FLOP of the matmuls and attentions of the tower of an imported model."""
    model = model_from_config(config, "small", "test")
    loader = {"small": model}
    deployment = assemble(
        Request(model="small", gpu="h100-sxm", media=asked, ideal=True), model_loader=lambda name: loader[name]
    )
    return float(sum(o.work().flop * o.count for o in media_ops(deployment, 1.0) if isinstance(o, (Matmul, Attention))))


@for_each("size", [(64, 96), (128, 128)])
def test_a_pass_of_qwen3_vl_has_the_flop_that_torch_counts(size: tuple[int, int]):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen3VLVisionModel
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

    config = small_qwen3_vl()
    vision = Qwen3VLVisionModel._from_config(
        Qwen3VLVisionConfig(**config["vision_config"]), attn_implementation="eager"
    )
    across, down = size[0] // 16, size[1] // 16
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vision(torch.zeros(across * down, 3 * 2 * 16 * 16), grid_thw=torch.tensor([[1, down, across]]))
    assert tower_flop(config, MediaAsked(images=1, image_size=size)) == counter.get_total_flops()


def test_a_pass_of_gemma_3_has_the_flop_that_torch_counts():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Gemma3Config
    from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
    from transformers.models.siglip.modeling_siglip import SiglipVisionModel

    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 112,
        "patch_size": 14,
        "vision_use_head": False,
    }
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "vocab_size": 512,
        "sliding_window": 32,
        "max_position_embeddings": 256,
    }
    config = {"model_type": "gemma3", "text_config": text, "vision_config": vision, "mm_tokens_per_image": 16}
    built = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=16)
    tower = SiglipVisionModel._from_config(built.vision_config, attn_implementation="eager")
    projector = Gemma3MultiModalProjector(built)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        projector(tower(torch.zeros(1, 3, 112, 112)).last_hidden_state)
    assert tower_flop(config, MediaAsked(images=1)) == counter.get_total_flops()


def test_pixel_limits_are_those_of_the_preprocessor_beside_the_config(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(small_qwen3_vl()))
    rule = import_path(tmp_path).model.towers[0].media
    assert rule is not None and rule.image is not None
    assert rule.image.pixels is None and "preprocessor_config.json" in rule.image.unknown[0]
    limits = {"size": {"shortest_edge": 65536, "longest_edge": 262144}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(limits))
    rule = import_path(tmp_path).model.towers[0].media
    assert rule is not None and rule.image is not None
    assert rule.image.pixels == (65536, 262144) and not rule.image.unknown
    assert rule.image.item((2048, 2048)).tokens == 512 * 512 // 32**2


@settings(max_examples=25, deadline=None)
@given(images=st.integers(min_value=1, max_value=40), tp=st.sampled_from([1, 2, 4]), ideal=st.booleans())
def test_more_images_are_never_faster(images: int, tp: int, ideal: bool):
    from inferplan.work.parallel import Parallelism

    deployment, _ = qwen(ideal=ideal, parallel=Parallelism(tp=tp))
    few, more = np.asarray(media_seconds(deployment, np.asarray([float(images), images + 1.0])))
    assert more >= few * (1 - 1e-9)
    assert more <= few * (images + 1) / images * (1 + 1e-9)  # together no slower than one by one


@settings(max_examples=15, deadline=None)
@given(side=st.integers(min_value=64, max_value=1500))
def test_a_larger_image_is_never_faster(side: int):
    times = []
    for edge in (side, side + 32):
        deployment, load = qwen(size=(edge, edge))
        times.append(float(estimate(deployment, load).ttft))
    assert times[1] >= times[0] * (1 - 1e-9)


def test_tensor_parallel_ranks_share_the_work_of_a_tower():
    from inferplan.work.parallel import Parallelism

    def layers(tp: int) -> float:
        deployment, _ = qwen(ideal=True, parallel=Parallelism(tp=tp))
        ops = media_ops(deployment, 1.0)
        return float(sum(op.work().flop * op.count for op in ops if op.name == "vision.ffn.up"))

    assert layers(1) == 4 * layers(4)


def test_a_lone_request_waits_for_its_tower():
    """A run of one user: the first token comes as much later as the tower takes, and as its tokens cost more."""
    deployment, load = qwen()
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=128.0), output=Lengths(mean=8.0), requests_count=4
    )
    with_image = simulate(deployment, replace(traffic, media=Media(tokens=1024)))
    text = simulate(replace(deployment, media=None), replace(traffic, prompt=Lengths(mean=float(load.prompt))))
    later = float(np.mean(with_image.ttft)) - float(np.mean(text.ttft))
    assert later == pytest.approx(float(media_seconds(deployment, 1.0)), rel=1e-6)


def test_the_steady_state_of_one_user_is_the_idle_server():
    """In closed form as in the simulation, but for launches, which hide behind the tower there and not here."""
    deployment, load = qwen()
    alone = steady_state(deployment, UserLoad(concurrency=1.0, prompt=load.prompt, output=8.0))
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=128.0), output=Lengths(mean=8.0), requests_count=4
    )
    run = simulate(deployment, replace(traffic, media=Media(tokens=1024)))
    assert float(alone.ttft) == pytest.approx(float(np.mean(run.ttft)), rel=0.02)


def test_more_images_serve_fewer_requests():
    rates = []
    for images in (1, 2, 4):
        deployment, load = qwen(images=images)
        rates.append(
            float(steady_state(deployment, UserLoad(concurrency=16.0, prompt=load.prompt, output=32.0)).request_rate)
        )
    assert rates[0] > rates[1] > rates[2]


def test_numbers_of_images_that_vary():
    media = Media(tokens=1024, sets=Lengths(kind="uniform", mean=4.0, spread=0.25))
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=4),
        prompt=Lengths(mean=100.0),
        output=Lengths(mean=8.0),
        requests_count=200,
        media=media,
    )
    requests = traffic.requests()
    assert requests.media is not None and set(requests.media.tolist()) == {1, 2, 3, 4}
    assert np.array_equal(requests.prompt, 100 + 1024 * requests.media)
    assert media.beside(traffic.prompt).average == pytest.approx(100 + 1024 * 2.5, rel=0.02)


@for_each(
    ("model", "asked", "error", "says"),
    [
        ("qwen3-8b", MediaAsked(images=1, image_size=(64, 64)), UsageError, "no tower that takes images"),
        ("gemma-3-27b", MediaAsked(audio_seconds=3), UsageError, "no tower that takes sound"),
        ("qwen3-vl-8b", MediaAsked(images=1), UsageError, "--image-size"),
        ("qwen3-vl-8b", MediaAsked(images=1, image_size=(9000, 20)), UsageError, "200 times"),
    ],
)
def test_refused_by_name(model: str, asked: MediaAsked, error: type[InferplanError], says: str):
    with pytest.raises(error) as caught:
        assemble(Request(model=model, gpu="h100-sxm", media=asked))
    assert says in f"{caught.value.what} {caught.value.because}"


def test_a_tower_without_a_rule_is_refused_by_name():
    model = load_model("qwen3-vl-8b")
    bare = model.model_copy(update={"towers": [model.towers[0].model_copy(update={"media": None})]})
    request = Request(model="bare", gpu="h100-sxm", media=MediaAsked(images=1, image_size=(64, 64)))
    with pytest.raises(MissingFactError, match="'vision'"):
        assemble(request, model_loader=lambda _: bare)
