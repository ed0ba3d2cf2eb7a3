"""A guarded worker whose first steps take longer than a document may: python slow_start.py SOURCE OUTPUT."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from corpora import task
from numpy.typing import NDArray

from alimark.audit import worker
from alimark.audit.files import find, plan
from alimark.audit.sinks import ParquetSink
from alimark.testing import StandInEmbedder

TIME_LIMIT = 2.0


class SlowStart(StandInEmbedder):
    """An embedder that is loaded with its first texts, as models and compiled kernels are."""

    cold = True

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.cold:
            time.sleep(1.5 * TIME_LIMIT)
        self.cold = False
        return super().embed(texts)


source, output = map(Path, sys.argv[1:])
setattr(worker, "load_embedder", lambda *_, **__: SlowStart())  # noqa: B010 - in its place
asked = task(source, output, time_limit=TIME_LIMIT)
fs, sources, _ = find([str(source)])
ParquetSink(asked).begin(asked, sources, print)
at_work = worker.Worker(asked, guarded=True)
for block in plan(fs, sources, 1 << 20):
    list(at_work.work(worker.Work((block,))))
