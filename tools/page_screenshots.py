"""Takes the screenshots of the service's page for docs/, with the installed Chromium.

    python tools/page_screenshots.py --llm smollm2-135m --candidates 16

The service runs with a new key; the text is written on the page itself and then attacked.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from playwright.sync_api import Page, sync_playwright

from alimark.core.embedding.loading import load_embedder
from alimark.core.llm import load_llm
from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.serve.app import create_app
from alimark.serve.service import Service
from alimark.serve.settings import Settings
from alimark.testing import StandInEmbedder, StandInLLM

LETTER = """Dear Ms Keller,

Thank you for your letter of 3 May about the oak chair that you ordered from our shop in Whitby.
We are sorry that the chair arrived with a broken leg. A new chair left our workshop this morning,
and it should reach you within 4 days. You do not have to send the old chair back to us. We will
refund the shipping fee of 12.50 euros to your account this week. Our carpenter checks every leg
by hand before a chair is packed. He has looked at the photographs that you sent.

The guarantee runs for 5 years from the day of delivery. It covers the wood and the varnish.
Please write to us if the new chair has a fault. Our shop is open from Monday to Saturday. You will
find our address on the bill. We hope that the chair will serve you well.

Yours sincerely,
Edmund Hale
"""
PUBLIC: Any = {
    "public_detector": True,
    "operator": "Acme Press",
    "contact": "detector@acme.example",
    "marks": "letters",
}
DOCS = Path(__file__).parent.parent / "docs"


class StandInRewriter(StandInLLM):
    """Rewrites a sentence by putting a few words in front of it and behind it."""

    before = (
        "Indeed, Surely, Clearly, Truly, Certainly, Plainly, Really, Naturally, Obviously, Evidently, Happily,".split()
    )
    after = (
        "as agreed",
        "as you know",
        "of course",
        "without delay",
        "as always",
        "by the way",
        "we believe",
        "in the end",
    )

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        return [[self._rewrite(request, request.first + i) for i in range(request.count)] for request in requests]

    def _rewrite(self, request: Request, number: int) -> Draw:
        sentence = request.messages[-1].content.rpartition("\n\n")[2].rstrip(".")
        chance = random.Random(request.seed + number)
        if "," in sentence:  # it has been rewritten once
            return Draw(sentence, 9, "model")
        start, end = chance.choice(self.before), chance.choice(self.after)
        return Draw(f"{start} {sentence[0].lower()}{sentence[1:]}, {end}.", 9, "model")


def create_service(options: argparse.Namespace, data: Path, port: int) -> Service:
    """Returns a service on the chosen model, or on stand-ins."""
    if options.llm == "stand-in":
        settings = Settings(
            data=data,
            port=port,
            candidates=options.candidates,
            embedder="stand-in",
            llm="stand-in",
            rewrite_llm="rewriter",
            **PUBLIC,
        )
        llms: dict[str, LLM] = {"stand-in": StandInLLM(ends=0.15), "rewriter": StandInRewriter()}
        return Service(settings, llm=llms.__getitem__, embedder=lambda _: StandInEmbedder())
    settings = Settings(data=data, port=port, candidates=options.candidates, llm=options.llm, timeout=3600, **PUBLIC)
    return Service(settings, llm=load_llm, embedder=load_embedder)


def take_screenshots(page: Page, sentences: int) -> None:
    """Writes a text on the page, attacks it, checks it, and saves a screenshot of each."""
    page.click("#tab-write")
    page.fill("#sentences", str(sentences))
    page.click("#write-form button.main")
    page.wait_for_selector("#attacked .panel")
    sentence_texts = page.locator("#attacked .text span").all_inner_texts()
    for place, attack in enumerate(("delete", "merge"), 2):
        page.select_option("#attack", attack)
        page.click("#attack-form button.main")
        page.wait_for_selector(f"#moves tbody tr:nth-child({place})")
    page.screenshot(path=DOCS / "page-attack.png", full_page=True)
    page.click("#tab-check")
    page.fill("#text", " ".join(sentence_texts))
    page.click("#check-form button.main")
    page.wait_for_selector("#result .panel")
    page.screenshot(path=DOCS / "page-check.png", full_page=True)
    page.click("#tab-chat")
    for message in ("Who keeps the lighthouse?", "And who came to visit?"):
        page.fill("#message", message)
        page.click("#chat-send")
        page.wait_for_selector("#chat-send:not([disabled])")
    page.screenshot(path=DOCS / "page-chat.png", full_page=True)
    page.click("#tab-rewrite")
    page.fill("#original", LETTER)
    page.select_option("#rewrites", "64")
    page.click("#rewrite-form button.main")
    page.wait_for_selector("#rewritten .panel")
    page.screenshot(path=DOCS / "page-rewrite.png", full_page=True)
    page.click("#tab-manage")
    page.wait_for_selector("#tokens tbody tr")
    page.screenshot(path=DOCS / "page-manage.png", full_page=True)
    page.click("#tab-check")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#result").screenshot(path=DOCS / "page-phone-dark.png")
    take_public_page(page, " ".join(sentence_texts))


def take_public_page(page: Page, text: str) -> None:
    """Checks a text as somebody without a token would, and saves the page for wide screens, in the dark and on a phone."""
    page.evaluate("sessionStorage.clear()")
    started = time.perf_counter()
    page.goto(f"{page.url.partition('#')[0].rstrip('/')}/detector")
    page.fill("#text", text)
    page.click("button.main")
    page.wait_for_selector("#result:not([hidden])")
    with page.expect_download() as answer:
        page.click("#download")
    jws = Path(answer.value.path()).read_text()
    print(f"address, text, check, download: {time.perf_counter() - started:.1f} s, {len(jws)} bytes, signed")
    shots = (("", "light", 1000), ("-dark", "dark", 1000), ("-phone", "light", 390))
    for name, scheme, width in shots:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=DOCS / f"page-detector{name}.png", full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llm", default="smollm2-135m", help="the language model; stand-in needs no weights")
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--sentences", type=int, default=12)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        running = create_service(options, Path(folder), port)
        running.ring.create(running.embedder(running.settings.embedder))
        token = running.tokens.create(["generate", "detect", "admin"], name="screenshots")[1]
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
            browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
            page.set_default_timeout(3_600_000)
            page.goto(f"http://127.0.0.1:{port}")
            page.fill("#token", token)
            page.click("text=Use token")
            take_screenshots(page, options.sentences)
            browser.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
