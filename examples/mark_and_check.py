"""Mark a text and check it. `python mark_and_check.py` fetches two small models on first use (250 MB)."""

import os

import alimark

# CI sets both to "stand-in", which needs no weights.
llm = alimark.load_llm(os.environ.get("EXAMPLE_LLM", "smollm2-135m"))
embedder = alimark.load_embedder(os.environ.get("EXAMPLE_EMBEDDER", "all-MiniLM-L6-v2"))

key = alimark.Key.generate(embedder=embedder)  # key.save("key.json") keeps it
watermark = alimark.load(key, embedder=embedder)
generation = watermark.generate("The lighthouse had been dark for years.", llm, sentences=12, candidates=32, seed=1)
detection = watermark.detect(generation.text)
print(generation.text)
print(f"{detection.verdict()}, p = {detection.p_value:.4f}")
