"""A real engine on this CPU: transformers' ``generate`` behind a few lines of HTTP, with a Llama made on the spot.

Requests are taken one after another. The model has random weights and a tokenizer whose words are those of the
prompts, so that nothing comes from a network. ``describe`` writes what inferplan must be told of it: model, engine,
and this machine as a device, from timings of matmuls and of a narrow model, not of the model that is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from inferplan.measuring.prompts import WORDS
from tests.measuring.wire import Request, answer, event, read_request

SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4}
NARROW = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 12, "num_key_value_heads": 4}
LAYERS, VOCABULARY, CONTEXT = 4, 2048, 1024
NAME = "own-llama"


def llama(sizes: dict[str, int]) -> LlamaForCausalLM:
    """Random weights in fp32; nothing in its vocabulary ends a reply."""
    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=LAYERS, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT,
                         tie_word_embeddings=False, bos_token_id=1, eos_token_id=None, pad_token_id=0,
                         dtype=torch.float32, **sizes)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word of the prompts."""
    words = {name: at for at, name in enumerate(("<unk>", "<s>", *WORDS))}
    words |= {f"w{at}": at for at in range(len(words), VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", bos_token="<s>")


class Told:
    """What ``generate`` calls with every token, from its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._prompt = loop, True
        self.tokens: asyncio.Queue[int | None] = asyncio.Queue()

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:  # the first call repeats the prompt
            self._prompt = False
            return
        for token in value.flatten().tolist():
            self._loop.call_soon_threadsafe(self.tokens.put_nowait, token)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self.tokens.put_nowait, None)


class Engine:
    """Serves ``/v1/completions``, streamed. seconds: spent on requests; computed: of those, on a core (one thread)."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model, self.tokenizer, self.port = model, tokenizer(), 0
        self.seconds = self.computed = 0.0
        self._turn = asyncio.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def waited(self) -> float:
        """The share of its time in which it had no core: other work on this machine."""
        return 1.0 - self.computed / self.seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                request = await read_request(reader)
                if request.path == "/v1/models":
                    answer(writer, 200, {"data": [{"id": NAME, "owned_by": "test", "max_model_len": CONTEXT}]})
                elif request.path == "/v1/completions":
                    await self._complete(request, writer)
                else:
                    answer(writer, 404, {"detail": "Not Found"})
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _complete(self, request: Request, writer: asyncio.StreamWriter) -> None:
        ids = self.tokenizer(request.body["prompt"], return_tensors="pt").input_ids
        count = request.body["max_tokens"]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        async with self._turn:
            told = Told(asyncio.get_running_loop())
            work = asyncio.get_running_loop().run_in_executor(None, self._generate, ids, count, told)
            made = 0
            while (token := await told.tokens.get()) is not None:
                made += 1
                choice = {"text": f" {self.tokenizer.decode([token])}", "finish_reason": None}
                if made == count:
                    choice["finish_reason"] = "length"
                self._send(writer, event({"choices": [choice]}))
            await work
        usage = {"prompt_tokens": ids.shape[1], "completion_tokens": made}
        self._send(writer, event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _generate(self, ids: torch.Tensor, count: int, told: Told) -> None:
        start, computed = perf_counter(), thread_time()
        with torch.inference_mode():
            self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                                do_sample=False, streamer=told)  # fmt: skip
        self.seconds += perf_counter() - start
        self.computed += thread_time() - computed


def seconds(call: Callable[[], Any], times: int) -> float:
    """The shortest of so many runs, after two that do not count: what the machine can do when nobody is in the way."""
    taken = []
    for index in range(times + 2):
        start = perf_counter()
        call()
        if index > 1:
            taken.append(perf_counter() - start)
    return min(taken)


def describe(folder: Path) -> dict[str, str]:
    """Files for inferplan in ``folder``, and the facts that name them."""
    with torch.inference_mode():
        wide, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
        rows, weights = torch.randn(256, wide), [torch.randn(inner, wide) for _ in range(24)]
        peak = 2 * 256 * wide * inner / seconds(lambda: rows @ weights[0].T, 30)
        row = rows[:1]
        bandwidth = 4 * wide * inner * 24 / seconds(lambda: [row @ one.T for one in weights], 20)
        narrow, ids = llama(NARROW), torch.ones(1, 8, dtype=torch.long)
        one = seconds(lambda: narrow.generate(ids, attention_mask=ids, max_new_tokens=1, do_sample=False), 5)
        many = seconds(lambda: narrow.generate(ids, attention_mask=ids, max_new_tokens=17, min_new_tokens=17,
                                               do_sample=False), 5)  # fmt: skip
    device = {
        "name": "this-cpu", "vendor": "none", "product": "the machine of the test", "source": "timed by the test",
        "confidence": "medium", "segment": "datacenter", "unit": "per machine",
        "memory": {"label": "8 GB", "usable": "8 GB", "usable_basis": "said so", "kind": "DDR5",
                   "bandwidth": f"{bandwidth:.0f} B/s"},
        "peak": dict.fromkeys(("fp32", "bf16"), f"{peak:.0f} FLOP/s"),
    }  # fmt: skip
    engine = {
        "name": "generate", "source": "model.generate, one request after another", "policy": "static",
        "versions": [{"version": "0", "source": "the test", "kv_rule": "all", "block_size": 1,
                      "tiers": [{"memory_at_least": "0 GiB", "token_budget": CONTEXT, "max_sequences": 1}]}],
    }  # fmt: skip
    constants = {"name": "this-cpu", "step": {"host": (many - one) / 16}}
    for name, content in (("device", device), ("engine", engine), ("constants", constants)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / NAME).mkdir(exist_ok=True)
    LlamaConfig(num_hidden_layers=LAYERS, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT,
                tie_word_embeddings=False, architectures=["LlamaForCausalLM"], dtype="float32",
                **SIZES).save_pretrained(folder / NAME)  # fmt: skip
    return {"model": f"{NAME}/config.json", "gpu": "device.yaml", "engine": "engine.yaml", "quant": "fp32", "tp": "1",
            "calibration": "constants.yaml"}  # fmt: skip
