"""Weights: which ones alimark knows (manifest), how they come here (fetching, checkpoint), where they lie (store)."""
