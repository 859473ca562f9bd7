"""One step priced: deployment, graph, roofline, memory, phases, and a static batch made of them."""
