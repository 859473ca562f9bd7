"""Words of a plan that not every reader knows, each in one sentence."""

from __future__ import annotations

import re

WORDS: dict[str, str] = {
    "token": "A piece of a word, about three quarters of one in English; models read and write tokens.",
    "TTFT": "Time to first token: from sending a request until the first piece of the answer arrives.",
    "TPOT": "Time per output token: the mean time between pieces of an answer after the first.",
    "ITL": "Inter-token latency: the time between two tokens of an answer that follow each other.",
    "end-to-end": "The time from sending a request until its answer is complete.",
    "p50": "The median: half of all requests are at least as fast.",
    "p90": "90 of 100 requests are at least as fast.",
    "p95": "95 of 100 requests are at least as fast.",
    "p99": "99 of 100 requests are at least as fast.",
    "replica": "One copy of the model that serves requests by itself; requests are spread over all of them.",
    "spare": "Replicas beyond those that the load needs, for when one fails.",
    "tp": "Tensor parallelism: every layer is divided over so many GPUs, which work on each token together.",
    "pp": "Pipeline parallelism: the layers are dealt out over so many groups of GPUs, one after another.",
    "ep": "Expert parallelism: the experts of a mixture are dealt out over so many GPUs.",
    "dp": "Data parallelism: so many groups of GPUs attend to requests of their own and share the rest of the model.",
    "prefill": "Reading the prompt, all of its tokens at once; it ends with the first token of the answer.",
    "decode": "Writing the answer, one token of every request at each step.",
    "KV cache": "What a model keeps in memory of every token it has read or written; it limits how many requests fit.",
    "admission": "The moment at which an engine takes a request from its queue into the batch.",
    "preemption": "A request is thrown out of a full KV cache and computed again later.",
    "throughput": "What is completed in a second: requests, or tokens.",
    "goodput": "Requests per second that keep every limit that was asked for.",
    "sequences": "Requests that one engine works on at once.",
    "tokens per step": "The most tokens that an engine takes into one step: prompts above it are read in pieces.",
    "SLO": "Service level objective: the limits that were asked for.",
    "confidence": "The share of comparable measurements in which a service was no slower than assumed.",
    "fp8": "Numbers of 8 bits: half the memory of bf16. Whether the answers are good enough is to be tested.",
    "nvfp4": "Numbers of 4 bits with a scale for every 16: a quarter of the memory of bf16, for NVIDIA's Blackwell.",
    "mxfp4": "Numbers of 4 bits with a scale for every 32: a quarter of the memory of bf16.",
    "int4": "Weights of 4 bits: a quarter of the memory of bf16.",
    "int8": "Numbers of 8 bits: half the memory of bf16.",
    "bf16": "Numbers of 16 bits, in which most models are released.",
    "on-demand": "Rented by the hour without a commitment.",
    "reserved": "Rented for a fixed time at a lower price, paid for busy or idle.",
    "split": "How a bill is shared: at 1:4, a token that is written carries four times as much as one that is read.",
    "TDP": "Thermal design power: the most that a GPU draws for long.",
    "roofline": "The least time that arithmetic and memory traffic can take on a device.",
    "closed form": "Computed by formulas, which screen thousands of candidates; the ones shown were simulated.",
    "simulated": "Run request by request through a model of the engine, with queues and batches.",
}


def glossary(text: str) -> list[tuple[str, str]]:
    """The words of ``text`` that are explained, in the order of :data:`WORDS`."""
    return [
        (word, said)
        for word, said in WORDS.items()
        if re.search(rf"(?<![A-Za-z0-9_/-]){re.escape(word)}s?(?![a-z0-9])", text)
    ]
