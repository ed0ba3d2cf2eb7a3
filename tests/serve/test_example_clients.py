"""The two applications of `examples/` that write through the endpoint: with the official client, and with LangChain."""

import runpy
import sys
from pathlib import Path

import pytest
from services import Running

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("program", "library"), [("openai_client.py", "openai"), ("langchain_client.py", "langchain_openai")]
)
def test_the_application_writes_marked_text(
    running: Running, program: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed (examples/README.md)")
    monkeypatch.setenv("ALIMARK_URL", running.url)
    monkeypatch.setenv("ALIMARK_GENERATE_TOKEN", running.tokens["generate"])
    monkeypatch.setenv("ALIMARK_DETECT_TOKEN", running.tokens["detect"])
    monkeypatch.setenv("ALIMARK_MODEL", "stand-in")
    monkeypatch.setattr(sys, "argv", [program, "Tell me about lighthouses."])
    runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    assert f"key {running.key.id}: found" in capsys.readouterr().out
