"""alimark marks what an LLM writes, in the meaning rather than the words, and finds the mark again after paraphrasing.

Names are resolved on first use, so that `import alimark` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alimark.detection import AlignedDetection as AlignedDetection
    from alimark.detection import AlignedStep as AlignedStep
    from alimark.detection import Detection as Detection
    from alimark.detection import Passage as Passage
    from alimark.detection import Verdict as Verdict
    from alimark.detector import DetectionSettings as DetectionSettings
    from alimark.embed import Embedder as Embedder
    from alimark.embed import load_embedder as load_embedder
    from alimark.errors import AlimarkError as AlimarkError
    from alimark.generate import Generation as Generation
    from alimark.generate import MarkedSentence as MarkedSentence
    from alimark.key import Key as Key
    from alimark.llm import load_llm as load_llm
    from alimark.llm.base import LLM as LLM
    from alimark.llm.base import Sampling as Sampling
    from alimark.rewriting import RewriteSettings as RewriteSettings
    from alimark.rewriting import Rewriting as Rewriting
    from alimark.rewriting import RewrittenSentence as RewrittenSentence
    from alimark.text import register_splitter as register_splitter
    from alimark.watermark import AliMark as AliMark
    from alimark.watermark import Watermark as Watermark
    from alimark.watermark import detect as detect
    from alimark.watermark import load as load

_HOME = {
    "AliMark": "watermark",
    "AlignedDetection": "detection",
    "AlignedStep": "detection",
    "AlimarkError": "errors",
    "Detection": "detection",
    "DetectionSettings": "detector",
    "Embedder": "embed",
    "Generation": "generate",
    "Key": "key",
    "LLM": "llm.base",
    "MarkedSentence": "generate",
    "Passage": "detection",
    "RewriteSettings": "rewriting",
    "RewrittenSentence": "rewriting",
    "Rewriting": "rewriting",
    "Sampling": "llm.base",
    "Verdict": "detection",
    "Watermark": "watermark",
    "detect": "watermark",
    "load": "watermark",
    "load_embedder": "embed",
    "load_llm": "llm",
    "register_splitter": "text",
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
