"""A corpus of any size: the same detector and the same generation, on one machine or on a Ray cluster.

files: inputs cut into blocks of documents. corpus: a run over them, resumed by block. worker: what is done with a block.
pool: who does it, in this process or on Ray. summary: what was found. generation: prompts spread over replicas of a model.
"""
