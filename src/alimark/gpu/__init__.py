"""Causal language models on PyTorch: the adapter for transformers weights and the batching engine behind it."""
