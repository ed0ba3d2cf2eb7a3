"""A driver process that a test can kill: python driver.py ADDRESS SOURCE OUTPUT BLOCK."""

from __future__ import annotations

import sys
from pathlib import Path

import test_ray
from corpora import task

from alimark.audit.corpora import corpus
from alimark.audit.corpora.pool import Cluster

address, source, output, block = sys.argv[1:]
setattr(corpus, "Worker", test_ray.Trapped)  # noqa: B010 - in its place
asked = task(Path(source), Path(output))
corpus.run([source], asked, cluster=Cluster(address), block_bytes=int(block))
