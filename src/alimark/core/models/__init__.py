"""Model weights: the known models (manifest), downloading (fetching, converting, checkpoint), and finding them (store)."""
