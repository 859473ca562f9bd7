"""llama.cpp's server out of the ``xllamacpp`` wheel: ``python serve.py MODEL.gguf THREADS SLOTS CONTEXT``.

A script for a Python that has the wheel. It prints the address, and serves until its standard input ends.
"""

from __future__ import annotations

import sys


def main(model: str, threads: str, slots: str, context: str) -> None:
    """Serve a model on a port of loopback."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = model
    asked.hostnames, asked.port = ["127.0.0.1"], 0
    asked.n_parallel, asked.n_ctx = int(slots), int(slots) * int(context)
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = int(threads)
    asked.endpoint_metrics, asked.cache_ram_mib, asked.cache_prompt = True, 0, False
    server = xllamacpp.Server(asked)
    print(f"serving at {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:5])
