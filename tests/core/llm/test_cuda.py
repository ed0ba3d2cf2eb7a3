"""The engine on a GPU: CUDA graphs, Triton kernels and fused layers give the draws of the CPU. Skipped without a GPU."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from alimark.core.llm.base import Request, Sampling, never

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_transformers import tiny_config  # noqa: E402

from alimark.gpu.adapter import Transformers  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

REQUESTS = [
    Request("The mayor opened the bridge.", 40, 2),
    Request("A visitor lost every window on Friday, and nobody saw the old sailor.", 9, 4, first=9),
    Request("Did", 1, 6),
    Request("The mayor opened the bridge. It rained.", 30, 5),  # begins as another does
]


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "qwen3", "mistral"])
def test_the_gpu_gives_the_draws_of_the_cpu(family: str, tiny_folder: Path, tmp_path: Path) -> None:
    """Nearly all of them: float32 rounds differently there, which now and then changes a token."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    torch.manual_seed(1)
    model: Any = transformers.AutoModelForCausalLM.from_config(tiny_config(family, len(tokenizer)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    cpu = Transformers(tmp_path, device="cpu")
    gpu = Transformers(tmp_path, device="cuda", dtype="float32")
    sampling = Sampling(max_tokens=20)
    expected = [draw.text for draws in cpu.draw(REQUESTS, sampling, never) for draw in draws]
    with ThreadPoolExecutor(4) as threads:  # sequences of several calls share the batch
        calls = [threads.submit(gpu.draw, [request], sampling, never) for request in REQUESTS]
        texts = [draw.text for call in calls for draws in call.result() for draw in draws]
    same = sum(a == b for a, b in zip(texts, expected, strict=True))
    assert same >= 0.9 * len(expected)
    again = [draw.text for draws in gpu.draw(REQUESTS, sampling, never) for draw in draws]  # from cached prefixes
    assert sum(a == b for a, b in zip(again, expected, strict=True)) >= 0.9 * len(expected)
