"""A driver process that a test can kill: python driver.py ADDRESS SOURCE OUTPUT BLOCK."""

import sys

import test_ray
from corpora import task

from alimark.audit import run
from alimark.audit.pool import Cluster

address, source, output, block = sys.argv[1:]
setattr(run, "Worker", test_ray.Trapped)  # noqa: B010 - in its place
run.run(task(source, output, block_bytes=int(block)), cluster=Cluster(address))
