"""A Llama with random weights as a GGUF file, in one format throughout, and the same as a model of inferplan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferplan.measuring.prompts import WORDS

FILE_TYPES = {"f16": 1, "q8_0": 7, "q4_0": 2}
"""``enum llama_ftype`` (llama.cpp, include/llama.h)."""
WEIGHTS = {"f16": "fp16", "q8_0": "q8_0", "q4_0": "q4_0-pure"}
"""The formats by the names of inferplan; the head is in the format of all."""
_CONTROL, _NORMAL, _UNKNOWN, _BYTE = 3, 1, 2, 6


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int

    @property
    def parameters(self) -> float:
        """Of matrices."""
        mixer = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return float(self.layers * (mixer + 3 * self.width * self.inner) + 2 * self.vocab * self.width)

    def described(self) -> dict[str, Any]:
        """The YAML of inferplan (docs/models.md)."""
        mixer = {"kind": "attention", "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        layer = {"repeat": self.layers, "mixer": mixer, "ffn": {"kind": "mlp", "d_ff": self.inner}}
        return {
            "name": "random-llama",
            "source": "random weights, tools/accuracy/llama_cpp",
            "d_model": self.width,
            "vocab": self.vocab,
            "layers": [layer],
        }


def write_gguf(path: Path, sizes: Sizes, fmt: str) -> None:
    """The model as llama.cpp reads it. The vocabulary is of bytes and of the words that are sent."""
    import gguf

    kind = {"f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
            "q4_0": gguf.GGMLQuantizationType.Q4_0}[fmt]  # fmt: skip
    file, draw = gguf.GGUFWriter(str(path), "llama"), np.random.default_rng(0)
    file.add_name("random-llama")
    file.add_context_length(4096)
    file.add_embedding_length(sizes.width)
    file.add_block_count(sizes.layers)
    file.add_feed_forward_length(sizes.inner)
    file.add_head_count(sizes.heads)
    file.add_head_count_kv(sizes.kv_heads)
    file.add_key_length(sizes.head_dim)
    file.add_value_length(sizes.head_dim)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(sizes.vocab)
    file.add_file_type(FILE_TYPES[fmt])
    _add_vocabulary(file, sizes.vocab)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = draw.standard_normal((rows, columns), dtype=np.float32) * 0.02
        if fmt == "f16":
            file.add_tensor(name, values.astype(np.float16))
        else:
            file.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        file.add_tensor(name, np.ones(sizes.width, dtype=np.float32))

    width, own, shared = sizes.width, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    matrix("token_embd.weight", sizes.vocab, width)
    for layer in range(sizes.layers):
        at = f"blk.{layer}"
        ones(f"{at}.attn_norm.weight")
        ones(f"{at}.ffn_norm.weight")
        for name, rows, columns in (
            ("attn_q", own, width), ("attn_k", shared, width), ("attn_v", shared, width),
            ("attn_output", width, own), ("ffn_gate", sizes.inner, width), ("ffn_up", sizes.inner, width),
            ("ffn_down", width, sizes.inner),
        ):  # fmt: skip
            matrix(f"{at}.{name}.weight", rows, columns)
    ones("output_norm.weight")
    matrix("output.weight", sizes.vocab, width)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _add_vocabulary(file: Any, size: int) -> None:
    """A vocabulary of SentencePiece's form: control tokens, bytes, words, and names that no text has."""
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    words = [*WORDS, *(f"x{number}" for number in range(size))]
    tokens += [f"\u2581{word}".encode() for word in words[: size - len(tokens)]]
    kinds += [_NORMAL] * (size - len(kinds))
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([-float(number) for number in range(size)])
    file.add_token_types(kinds)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_add_bos_token(True)
