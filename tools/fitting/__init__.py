"""Constants in ``configs`` fitted to published data: kernel tables, serving rows, llama-bench. In a checkout alone."""
