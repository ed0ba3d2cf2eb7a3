"""Screenshots of the service's page for docs/, taken in the machine's chromium with a real model's text.

    python tools/page_screenshots.py --llm smollm2-135m --candidates 16

The page is served with a fresh key; the text is written through the page itself and then attacked.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from playwright.sync_api import sync_playwright

from alimark.embedding.loading import load_embedder
from alimark.llm import load_llm
from alimark.serve.app import create_app
from alimark.serve.service import Service
from alimark.serve.settings import Settings
from alimark.testing import StandInEmbedder, StandInLLM

DOCS = Path(__file__).parent.parent / "docs"


def service(given: argparse.Namespace, data: Path, port: int) -> Service:
    if given.llm == "stand-in":
        settings = Settings(data=data, port=port, candidates=given.candidates, embedder="stand-in", llm="stand-in")
        return Service(settings, llm=lambda _: StandInLLM(), embedder=lambda _: StandInEmbedder())
    settings = Settings(data=data, port=port, candidates=given.candidates, llm=given.llm, timeout=3600)
    return Service(settings, llm=load_llm, embedder=load_embedder)


def take(page: Any, given: argparse.Namespace) -> None:
    page.click("#tab-write")
    page.fill("#sentences", str(given.sentences))
    page.click("#write-form button.main")
    page.wait_for_selector("#attacked .panel")
    pieces = page.locator("#attacked .text span").all_inner_texts()
    for place, attack in enumerate(("delete", "merge"), 2):
        page.select_option("#attack", attack)
        page.click("#attack-form button.main")
        page.wait_for_selector(f"#moves tbody tr:nth-child({place})")
    page.screenshot(path=DOCS / "page-attack.png", full_page=True)
    page.click("#tab-check")
    page.fill("#text", " ".join(pieces))
    page.click("#check-form button.main")
    page.wait_for_selector("#result .panel")
    page.screenshot(path=DOCS / "page-check.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#result").screenshot(path=DOCS / "page-phone-dark.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llm", default="smollm2-135m", help="or stand-in, which needs no weights")
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--sentences", type=int, default=12)
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        running = service(given, Path(folder), port)
        running.ring.create(running.embedder(running.settings.embedder))
        token = running.tokens.create(["generate", "detect"])[1]
        server = uvicorn.Server(uvicorn.Config(create_app(running), port=port, log_config=None))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        with sync_playwright() as library:
            opened = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = opened.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
            page.set_default_timeout(3_600_000)
            page.goto(f"http://127.0.0.1:{port}")
            page.fill("#token", token)
            page.click("text=Use it")
            take(page, given)
            opened.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
