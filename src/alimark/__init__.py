"""alimark marks what an LLM writes, in the meaning rather than the words, and finds the mark again after paraphrasing.

Names are resolved on first use, so that `import alimark` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alimark.detection.aligned_results import AlignedDetection as AlignedDetection
    from alimark.detection.result_parts import AlignedStep as AlignedStep
    from alimark.detection.result_parts import Passage as Passage
    from alimark.detection.results import Detection as Detection
    from alimark.detection.settings import DetectionSettings as DetectionSettings
    from alimark.detection.verdicts import Verdict as Verdict
    from alimark.documents.reading import Document as Document
    from alimark.documents.reading import read_document as read_document
    from alimark.embedding.base import Embedder as Embedder
    from alimark.embedding.loading import load_embedder as load_embedder
    from alimark.errors import AlimarkError as AlimarkError
    from alimark.generation.results import Generation as Generation
    from alimark.generation.results import MarkedSentence as MarkedSentence
    from alimark.keys.key import Key as Key
    from alimark.llm import load_llm as load_llm
    from alimark.llm.base import LLM as LLM
    from alimark.llm.base import Sampling as Sampling
    from alimark.rewriting.results import Rewriting as Rewriting
    from alimark.rewriting.results import RewrittenSentence as RewrittenSentence
    from alimark.rewriting.settings import RewriteSettings as RewriteSettings
    from alimark.schemes.alimark import AliMark as AliMark
    from alimark.schemes.api import detect as detect
    from alimark.schemes.api import load as load
    from alimark.schemes.watermark import Watermark as Watermark
    from alimark.text.splitting import register_splitter as register_splitter

_HOME = {
    "AliMark": "schemes.alimark",
    "AlignedDetection": "detection.aligned_results",
    "AlignedStep": "detection.result_parts",
    "AlimarkError": "errors",
    "Detection": "detection.results",
    "DetectionSettings": "detection.settings",
    "Document": "documents.reading",
    "Embedder": "embedding.base",
    "Generation": "generation.results",
    "Key": "keys.key",
    "LLM": "llm.base",
    "MarkedSentence": "generation.results",
    "Passage": "detection.result_parts",
    "RewriteSettings": "rewriting.settings",
    "RewrittenSentence": "rewriting.results",
    "Rewriting": "rewriting.results",
    "Sampling": "llm.base",
    "Verdict": "detection.verdicts",
    "Watermark": "schemes.watermark",
    "detect": "schemes.api",
    "load": "schemes.api",
    "load_embedder": "embedding.loading",
    "load_llm": "llm",
    "read_document": "documents.reading",
    "register_splitter": "text.splitting",
}
__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 - built from the one table above


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("alimark")
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f"alimark.{_HOME[name]}"), name)
        return value
    raise AttributeError(f"module 'alimark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
