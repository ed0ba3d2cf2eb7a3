"""alimark marks what an LLM writes, in the meaning rather than the words, and finds the mark again after paraphrasing.

Names are resolved on first use, so that `import alimark` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alimark.audit.documents.reading import Document as Document
    from alimark.audit.documents.reading import read_document as read_document
    from alimark.audit.remote import RemoteAnswer as RemoteAnswer
    from alimark.audit.remote import RemoteDetector as RemoteDetector
    from alimark.core.detection.aligned_results import AlignedDetection as AlignedDetection
    from alimark.core.detection.aligned_results import AlignedStep as AlignedStep
    from alimark.core.detection.aligned_results import Passage as Passage
    from alimark.core.detection.results import Detection as Detection
    from alimark.core.detection.results import Verdict as Verdict
    from alimark.core.detection.settings import DetectionSettings as DetectionSettings
    from alimark.core.embedding.base import Embedder as Embedder
    from alimark.core.embedding.loading import load_embedder as load_embedder
    from alimark.core.frozen.text.splitting import register_splitter as register_splitter
    from alimark.core.generation.results import Generation as Generation
    from alimark.core.generation.results import MarkedSentence as MarkedSentence
    from alimark.core.keys.key import Key as Key
    from alimark.core.llm import load_llm as load_llm
    from alimark.core.llm.base import LLM as LLM
    from alimark.core.llm.base import Sampling as Sampling
    from alimark.core.rewriting.results import Rewriting as Rewriting
    from alimark.core.rewriting.results import RewrittenSentence as RewrittenSentence
    from alimark.core.rewriting.settings import RewriteSettings as RewriteSettings
    from alimark.core.schemes.alimark import AliMark as AliMark
    from alimark.core.schemes.api import detect as detect
    from alimark.core.schemes.api import load as load
    from alimark.core.schemes.base import Watermark as Watermark
    from alimark.errors import AlimarkError as AlimarkError
    from alimark.lab.compare import compare as compare

_HOME = {
    "AliMark": "core.schemes.alimark",
    "AlignedDetection": "core.detection.aligned_results",
    "AlignedStep": "core.detection.aligned_results",
    "AlimarkError": "errors",
    "Detection": "core.detection.results",
    "DetectionSettings": "core.detection.settings",
    "Document": "audit.documents.reading",
    "Embedder": "core.embedding.base",
    "Generation": "core.generation.results",
    "Key": "core.keys.key",
    "LLM": "core.llm.base",
    "MarkedSentence": "core.generation.results",
    "Passage": "core.detection.aligned_results",
    "RemoteAnswer": "audit.remote",
    "RemoteDetector": "audit.remote",
    "RewriteSettings": "core.rewriting.settings",
    "RewrittenSentence": "core.rewriting.results",
    "Rewriting": "core.rewriting.results",
    "Sampling": "core.llm.base",
    "Verdict": "core.detection.results",
    "Watermark": "core.schemes.base",
    "compare": "lab.compare",
    "detect": "core.schemes.api",
    "load": "core.schemes.api",
    "load_embedder": "core.embedding.loading",
    "load_llm": "core.llm",
    "read_document": "audit.documents.reading",
    "register_splitter": "core.frozen.text.splitting",
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
