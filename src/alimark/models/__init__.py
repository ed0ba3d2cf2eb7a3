"""Weights: which ones alimark knows (manifest), how they come here (fetch), where they lie (store)."""
