"""A real llama.cpp server on this CPU: predicted from single kernels, measured, anchored and learned."""
