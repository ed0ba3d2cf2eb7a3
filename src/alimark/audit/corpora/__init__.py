"""Audits and generates for corpora of any size, in one process or on a Ray cluster, with the detector and generator of alimark.

files: finds input files and cuts them into blocks of documents. corpus: a run over all blocks, which can be resumed. worker:
processes one block. pool: a queue of tasks and the workers that take them, in this process or on Ray. summary: sums up the
results. generation: spreads prompts over replicas of a model.
"""
