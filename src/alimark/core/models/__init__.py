"""Model weights: the known models (manifest), downloading (fetching, converting), and finding them (store)."""
