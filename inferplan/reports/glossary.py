"""Words of a plan that not every reader knows, each in one sentence."""

from __future__ import annotations

import re

WORDS: dict[str, str] = {
    "token": "A piece of a word, about three quarters of one in English; models read and write tokens.",
    "TTFT": "Time to first token: from sending a request until the first token of the answer arrives.",
    "TPOT": "Time per output token: the mean time between tokens of an answer after the first.",
    "ITL": "Inter-token latency: the time between two consecutive tokens of an answer.",
    "end-to-end": "The time from sending a request until its answer is complete.",
    "p50": "The median: half of all requests are at least as fast.",
    "p90": "90 of 100 requests are at least as fast.",
    "p95": "95 of 100 requests are at least as fast.",
    "p99": "99 of 100 requests are at least as fast.",
    "replica": "One copy of the model that serves requests by itself; requests are spread over all of them.",
    "spare": "Replicas beyond the number that the load needs, in case one fails.",
    "tp": "Tensor parallelism: every layer is divided over this many GPUs, which work on each token together.",
    "pp": "Pipeline parallelism: the layers are divided among this many groups of GPUs, one after another.",
    "ep": "Expert parallelism: the experts of a mixture are divided among this many GPUs.",
    "dp": "Data parallelism: this many groups of GPUs run attention for separate requests and share the rest.",
    "prefill": "Reading the prompt, all of its tokens at once; it ends with the first token of the answer.",
    "decode": "Writing the answer, one token of every request at each step.",
    "KV cache": "The model's memory of every token it has read or written; it limits how many requests fit.",
    "admission": "The moment at which an engine takes a request from its queue into the batch.",
    "preemption": "A request is removed from a full KV cache and computed again later.",
    "throughput": "Work completed per second: requests, or tokens.",
    "goodput": "Requests per second that meet every limit asked for.",
    "sequences": "Requests that one engine works on at once.",
    "tokens per step": "The most tokens that an engine processes in one step: longer prompts are read in pieces.",
    "SLO": "Service level objective: the limits asked for.",
    "confidence": "The share of comparable measurements in which a service was no slower than assumed.",
    "fp8": "Numbers of 8 bits: half the memory of bf16. Test whether the answers are good enough.",
    "nvfp4": "Numbers of 4 bits with a scale for every 16: a quarter of the memory of bf16, for NVIDIA's Blackwell.",
    "mxfp4": "Numbers of 4 bits with a scale for every 32: a quarter of the memory of bf16.",
    "int4": "Weights of 4 bits: a quarter of the memory of bf16.",
    "int8": "Numbers of 8 bits: half the memory of bf16.",
    "bf16": "Numbers of 16 bits, in which most models are released.",
    "on-demand": "Rented by the hour without a commitment.",
    "reserved": "Rented for a fixed time at a lower price, paid for busy or idle.",
    "split": "How a bill is shared: at 1:4, a written token carries four times as much as a read one.",
    "TDP": "Thermal design power: the most that a GPU draws for long.",
    "roofline": "The least time that arithmetic and memory traffic can take on a device.",
    "closed form": "Computed by formulas. They screen thousands of candidates; the ones shown were simulated.",
    "simulated": "Run request by request through a model of the engine, with queues and batches.",
}


def glossary(text: str) -> list[tuple[str, str]]:
    """The words of ``text`` that are explained, in the order of :data:`WORDS`."""
    return [
        (word, said)
        for word, said in WORDS.items()
        if re.search(rf"(?<![A-Za-z0-9_/-]){re.escape(word)}s?(?![a-z0-9])", text)
    ]
