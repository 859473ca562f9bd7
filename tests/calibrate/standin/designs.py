"""A small design for the stand-in: a model of each kind of layer, few loads, every format."""

from __future__ import annotations

from dataclasses import replace

from calibrate.designs import CPU, GPU, Loads

SMALL_GPU = replace(
    GPU,
    models=("llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b", "deepseek-v2-lite", "mamba2-2.7b"),
    tp=(1, 4),
    quantised_models=("qwen3-30b-a3b",),
    prompts=(128, 1024, 4096),
    prefill_batches=(1,),
    decode_batches=(1, 16, 128),
    contexts=(512, 8192),
    served=Loads(
        prompts=(250, 2500),
        prefill_batches=(1,),
        decode_batches=(1, 8, 64),
        contexts=(1200,),
        chunks=((512, 1024),),
        apart=1,
    ),
    held_out=(),
)
"""Dense, windowed, sparse, latent and recurrent. The experts over four ranks have 192 columns: no multiple of 128."""
SMALL_MPS = replace(CPU, held_out=())
