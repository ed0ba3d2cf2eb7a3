"""The web page in a real browser, with no errors or warnings in its console."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import Running

import alimark
from alimark.audit.evidence.page import render_page
from alimark.audit.evidence.signing import SigningKey
from alimark.audit.evidence.statement import Examined, make_evidence
from alimark.core.frozen.text.splitting import splitter
from alimark.testing import StandInEmbedder, StandInLLM
from browsers import browser
from small_documents import docx, pdf

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def marked(running: Running) -> str:
    mark = alimark.AliMark(running.key, embedder=StandInEmbedder())
    return mark.generate("The door opened.", StandInLLM(), candidates=24, seed=3).text


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = browser()
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(chromium: Any, running: Running) -> Iterator[Any]:
    """The page with a token of both roles; a console error or a request to another host fails the test."""
    complaints: list[str] = []
    token = running.service.tokens.create(["generate", "detect"])[1]
    context = chromium.new_context(viewport={"width": 1000, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    opened.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    here = (running.url, "blob:")
    opened.on("request", lambda asked: None if asked.url.startswith(here) else complaints.append(asked.url))
    opened.complaints = complaints
    opened.goto(running.url)
    opened.fill("#token", token)
    opened.click("text=Use token")
    yield opened
    context.close()
    assert not complaints


def test_paste_and_verdict(page: Any, marked: str, running: Running) -> None:
    page.fill("#text", marked)
    page.click("#check-form button.main")
    page.wait_for_selector("#result .panel")
    assert page.inner_text("#result .verdict").startswith("The mark of this key is in the text. By chance")
    assert "p <= 0.001" in page.inner_text("#result .why")
    assert page.locator("#result .text span.likely").count() >= 5
    assert page.locator("#result .text span").count() == 12
    assert page.locator("#result svg g.step path").count() >= 10
    title = page.locator("#result svg g.step.match title").first.text_content()
    assert "of random keys" in title
    with page.expect_download() as download:
        page.click("#result .download")
    evidence = json.loads(Path(download.value.path()).read_text())
    assert (evidence["verdict"], evidence["key_id"]) == ("found", running.key.id)


def test_a_cut_text_and_an_unmarked_text(page: Any, marked: str) -> None:
    sentences = splitter("nupunkt").units(marked)
    page.fill("#text", " ".join([*sentences[:1], *sentences[5:]]))
    with page.expect_response("**/v1/detect") as answered:
        page.click("#check-form button.main")
    page.wait_for_selector("#result .panel")
    steps = answered.value.json()["results"][0]["evidence"]["alignment"]
    assert page.locator("#result svg g.step").count() == len(steps)
    page.fill("#text", "An owl sat down. " * 3 + "It was late. <img src=x onerror=alert(1)> Nobody came. " * 6)
    page.click("#check-form button.main")
    page.wait_for_selector("#result .panel:not([data-verdict=found])")
    assert page.locator("#result img").count() == 0
    assert page.locator("#result .text span.likely").count() == 0, "agreement by chance is not shown as a mark"
    assert page.locator("#result details.drawing[open]").count() == 0
    assert "person wrote it" in page.inner_text("body")


EVIDENCE = {
    "block_size": 8, "sentences": ["A.", "B.", "C.", "D.", "E."], "passages": [],
    "alignment": [
        {"kind": "match", "sentences": [1], "block": 1, "agreed": 8, "part": None, "strength": 0.99},
        {"kind": "merge", "sentences": [2, 3], "block": 2, "agreed": 6, "part": None, "strength": 0.92},
        {"kind": "skip-block", "sentences": [], "block": 3, "agreed": None, "part": None, "strength": None},
        {"kind": "split", "sentences": [4], "block": 4, "agreed": 7, "part": "left", "strength": 0.98},
        {"kind": "split", "sentences": [4], "block": 5, "agreed": 2, "part": "right", "strength": 0.08},
        {"kind": "skip-sentence", "sentences": [5], "block": None, "agreed": None, "part": None, "strength": None},
    ],
}  # fmt: skip


def test_every_move_is_drawn(page: Any) -> None:
    """The drawing has lines for matches, brackets for merges and splits, gaps for missing blocks, and strengths on hover."""
    page.evaluate(
        """async evidence => document.getElementById("result").append((await import("/page/show.js")).alignment(evidence))""",
        EVIDENCE,
    )
    count = {kind: page.locator(f"#result g.step.{kind} path").count() for kind in ("match", "merge", "split")}
    assert count == {"match": 1, "merge": 2, "split": 4}
    assert page.locator("#result g.gone text").all_text_contents() == ["5 (no block)", "3 (missing)"]
    titles = page.locator("#result g.step title").all_text_contents()
    assert titles[1] == "sentences 2 and 3: merged, block 2, stronger than with 92% of random keys"
    assert titles[4] == "sentence 4: split (right half), block 5, stronger than with 8% of random keys"


def test_passages(page: Any, marked: str) -> None:
    other = " ".join(f"Nobody spoke of item {i} on the long list of things." for i in range(12))
    page.fill("#text", f"{other} {marked} {other}")
    page.check("#excerpt")
    page.click("#check-form button.main")
    page.wait_for_selector("#result .found-passage")
    assert page.locator("#result .text span.passage").count() >= 6


def test_files(page: Any, marked: str) -> None:
    files = [
        {"name": "a.txt", "mimeType": "text/plain", "buffer": marked.encode()},
        {"name": "b.docx", "mimeType": "application/octet-stream", "buffer": docx(*marked.split(". "))},
        {"name": "c.pdf", "mimeType": "application/pdf", "buffer": pdf("Some words. They say little.")},
        {"name": "d.html", "mimeType": "text/html", "buffer": f"<p>{marked}</p>".encode()},
        {"name": "e.pdf", "mimeType": "application/pdf", "buffer": b"broken"},
    ]
    page.set_input_files("#files", files)
    page.wait_for_selector("#table table")
    # The browser reports the broken file's status, which the table shows.
    page.complaints[:] = [text for text in page.complaints if "422" not in text]
    names = page.locator("#table tbody tr td:first-child")
    assert names.all_inner_texts() == ["a.txt", "b.docx", "c.pdf", "d.html", "e.pdf"]
    assert "cannot be read as pdf" in page.inner_text("#table tbody tr:nth-child(5)")
    page.click("#table th:nth-child(3) button")
    cells = page.locator("#table tbody tr td:nth-child(3)").all_inner_texts()
    numbers = [float(cell.removeprefix("<= ")) for cell in cells if cell]
    assert numbers == sorted(numbers)
    page.click("#table th:nth-child(3) button")
    assert page.get_attribute("#table th:nth-child(3)", "aria-sort") == "descending"
    page.click("text=a.txt")
    assert "is in the text" in page.inner_text("#result .verdict")


def test_a_dropped_file(page: Any, marked: str) -> None:
    transfer = page.evaluate_handle(
        """text => { const data = new DataTransfer(); data.items.add(new File([text], "dropped.txt")); return data; }""",
        marked,
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    page.wait_for_selector("#result .panel[data-verdict=found]")


def test_chosen_files_are_checked_once(page: Any, marked: str) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if request.url.endswith("/v1/detect") else None)
    page.set_input_files("#files", [{"name": "a.txt", "mimeType": "text/plain", "buffer": marked.encode()}])
    page.click("#check-form button.main")  # at once, while the check of the file may still run
    page.wait_for_selector("#result .panel[data-verdict=found]")
    page.click("#check-form button.main")
    page.wait_for_timeout(200)
    assert len(requests) == 1
    page.select_option("#fpr", "0.05")
    with page.expect_response("**/v1/detect"):
        page.click("#check-form button.main")
    assert len(requests) == 2, "an option has changed"


def test_chat_streams_and_is_checked(page: Any, running: Running) -> None:
    page.click("#tab-chat")
    page.route(
        "**/v1/chat/completions",
        lambda route: route.continue_(post_data=route.request.post_data_json | {"seed": 1, "sentences": 12}),
    )
    page.fill("#message", "Tell me a story.")
    with page.expect_response("**/v1/chat/completions") as answered:
        page.keyboard.press("Enter")
    page.wait_for_selector("#turns li.assistant .note:has-text('Marked with key')")
    assert answered.value.request.post_data_json["stream"]
    assert answered.value.headers["content-type"].startswith("text/event-stream")
    page.click("#chat-check")
    page.wait_for_selector("#chat-result .panel[data-verdict=found]")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.fill("#message", "And then?")
        page.click("#chat-send")
    assert [message["role"] for message in asked.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    page.wait_for_selector("#turns li:nth-child(4) .note:has-text('Marked with key')")
    page.click("#chat-new")
    assert page.locator("#turns li").count() == 0
    page.click("#chat-send")
    assert "Write a message" in page.inner_text("#chat-error")


def test_rewrite(page: Any) -> None:
    kinds = "old new red long low wide dark grey stone iron steep narrow".split()
    text = "\n\n".join(f"The mayor opened the {kind} bridge\nnear the hill." for kind in kinds)
    page.click("#tab-rewrite")
    page.click("#rewrite-form button.main")
    assert "Paste a text" in page.inner_text("#rewrite-error")
    page.fill("#original", text)
    page.click("#rewrite-form button.main")
    page.wait_for_selector("#rewritten .panel")
    assert "p = " in page.inner_text("#rewritten .verdict")
    rewritten = page.text_content("#rewritten-text")
    assert rewritten != text
    assert [not line for line in rewritten.split("\n")] == [not line for line in text.split("\n")]
    assert page.locator("#rewritten tbody tr").count() == 3
    assert "The mayor opened" in page.inner_text("#rewritten tbody tr:first-child td:nth-child(3)")


def test_keys_and_tokens(page: Any, running: Running) -> None:
    assert not page.locator("#tab-manage").is_visible(), "the token has no role admin"
    page.fill("#token", running.tokens["admin"])
    page.click("text=Use token")
    page.wait_for_selector("#keys tbody tr")
    assert page.locator("[role=tab]:visible").all_inner_texts() == ["Keys and tokens"]
    first = running.key.id
    row = f"#keys tr:has-text('{first}')"
    assert "marks new text" in page.inner_text(row)
    page.click("#key-create button")
    page.wait_for_selector(f"{row} >> text=detects")
    second = next(label.id for label in running.service.ring.all() if label.id != first)
    page.click(f"{row} >> text=Activate")
    page.wait_for_selector(f"{row} >> text=marks new text")
    page.click(f"#keys tr:has-text('{second}') >> text=Retire")
    assert page.locator(f"#keys tr:has-text('{second}') >> text=ended").count() == 0, "it asks again"
    page.click(f"#keys tr:has-text('{second}') >> text=Retire for ever?")
    page.wait_for_selector(f"#keys tr:has-text('{second}') >> text=ended")
    page.fill("#token-name", "newsroom")
    page.click("#token-create button")
    assert "at least one role" in page.inner_text("#manage-error")
    page.check("#token-create [value=detect]")
    page.click("#token-create button")
    page.wait_for_selector("#tokens tr:has-text('newsroom')")
    secret = page.inner_text("#new-token code")
    token = running.service.tokens.find(secret)
    assert token is not None
    assert token.roles == ("detect",)
    page.click("#tokens tr:has-text('newsroom') >> text=Revoke")
    page.click("#tokens tr:has-text('newsroom') >> text=Revoke for ever?")
    page.wait_for_selector("#tokens tr:has-text('newsroom')", state="detached")
    assert running.service.tokens.find(secret) is None


def test_attacks_that_are_not_installed_are_not_offered(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = page.locator("#attack option")
    page.wait_for_selector("#attack option", state="attached")
    assert "translate and translate back" in options.all_text_contents()
    monkeypatch.setattr("alimark.serve.api.find_spec", lambda library: None)
    page.reload()
    page.wait_for_selector("#attack option", state="attached")
    assert options.all_text_contents() == [f"{verb} sentences" for verb in ("delete", "merge", "split", "reorder")]


def test_words_of_a_table_head_are_not_broken(page: Any, marked: str) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    files = [{"name": f"{name}.txt", "mimeType": "text/plain", "buffer": marked.encode()} for name in ("a", "b")]
    page.set_input_files("#files", files)
    page.wait_for_selector("#table table")
    lines = page.evaluate(
        """[...document.querySelectorAll("#table th button")].map(
            head => head.offsetHeight / parseFloat(getComputedStyle(head).lineHeight))"""
    )
    assert len(lines) == 6
    assert all(line < 1.5 for line in lines)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_write_and_attack(page: Any) -> None:
    page.focus("#tab-check")
    page.keyboard.press("ArrowRight")  # switches the tab
    assert page.locator("#write").is_visible()
    # A fixed seed, so that the text can be merged and split.
    page.route("**/v1/completions", lambda route: route.continue_(post_data=route.request.post_data_json | {"seed": 1}))
    page.click("#write-form button.main")
    page.wait_for_selector("#arriving li:nth-child(3)")
    page.wait_for_selector("#attacked .panel[data-verdict=found]")
    assert page.locator("#arriving li").count() == 12
    assert "of 8 bits" in page.inner_text("#arriving li:first-child")
    for place, name in enumerate(["delete", "merge", "split", "reorder"], 2):
        page.select_option("#attack", name)
        page.click("#attack-form button.main")
        page.wait_for_selector(f"#moves tbody tr:nth-child({place})")
    scores = [float(cell) for cell in page.locator("#moves tbody tr td:nth-child(5)").all_inner_texts()]
    assert scores[-1] < scores[0]
    assert page.locator("#attacked .text span").count() < 14
    page.click("#undo")
    assert page.locator("#moves tbody tr").count() == 4


def test_errors_are_shown(page: Any, running: Running) -> None:
    page.click("#check-form button.main")
    assert "Paste a text" in page.inner_text("#check-error")
    page.fill("#token", "alm_wrong")
    page.click("text=Use token")
    page.fill("#text", "One came. Two went.")
    page.click("#check-form button.main")
    page.wait_for_selector("#check-error:has-text('token')")
    page.route("**/v1/detect", lambda route: route.abort())
    page.click("#check-form button.main")
    page.wait_for_selector("#check-error:has-text('does not answer')")
    # The browser reports every failed request; no other message is allowed.
    page.complaints[:] = [text for text in page.complaints if not text.startswith("Failed to load resource")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_by_keyboard_in_both_colours(chromium: Any, running: Running, marked: str, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 700}, color_scheme=scheme)
    page = context.new_page()
    page.goto(running.url)
    page.keyboard.press("Tab")  # the link that skips to the content
    page.keyboard.press("Tab")
    page.keyboard.type(running.tokens["detect"])
    page.keyboard.press("Enter")
    page.focus("#text")
    page.keyboard.insert_text(marked)
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Check":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#result .panel[data-verdict=found]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing is wider than the screen"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea")].filter(
            field => !field.labels.length && !field.getAttribute("aria-label")).map(field => field.id)"""
    )
    assert unnamed == []
    assert page.get_attribute("#result svg", "aria-label")
    context.close()


HOSTILE = """<img src=x onerror="hacked()"><script>hacked()</script>'"><svg onload=hacked()>javascript:hacked()"""


def test_names_and_texts_of_others_are_shown_as_they_are(page: Any, running: Running) -> None:
    """Texts, names of files, answers of a model and of the server, and names of keys and tokens are never HTML."""
    text = f"{HOSTILE} One came. " * 12
    said = {"choices": [{"delta": {"content": HOSTILE}}], "alimark": {"marked": False, "reason": HOSTILE}}
    stream = f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n"
    row = dict.fromkeys(("id", "tenant", "name"), HOSTILE) | {"alive": True, "roles": [HOSTILE], "created": 1}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    for path in ("keys", "tokens"):
        page.route(f"**/v1/{path}", lambda route: route.fulfill(json=[row]))
    names = [HOSTILE.replace("/", "|"), "<b>.html"]
    files = [{"name": name, "mimeType": "text/plain", "buffer": text.encode()} for name in names]
    page.set_input_files("#files", files)
    page.wait_for_selector("#table table")
    page.click("#table tbody tr:first-child button")
    page.wait_for_selector("#result .panel")
    page.click("#tab-chat")
    page.fill("#message", HOSTILE)
    page.click("#chat-send")
    page.wait_for_selector("#turns .note:has-text('onerror')")
    page.fill("#token", running.tokens["admin"])
    page.click("text=Use token")
    page.click("#tab-manage")
    page.wait_for_selector("#keys td:has-text('onerror')")
    page.wait_for_selector("#tokens td:has-text('onerror')")
    assert page.locator(":is(#table, #result, #turns, #keys, #tokens) :is(img, script, b, svg[onload])").count() == 0


def test_a_page_of_evidence_runs_nothing(chromium: Any, running: Running, marked: str, tmp_path: Path) -> None:
    text = f"{HOSTILE} came home. {marked}"
    examined = Examined(HOSTILE, text.encode(), alimark.AliMark(running.key, embedder=StandInEmbedder()).detect(text))
    evidence = make_evidence([examined], [running.key])
    signed = SigningKey.of_installation(tmp_path / "key.pem").sign(evidence)
    (tmp_path / "evidence.html").write_text(render_page(json.loads(json.dumps(signed))))
    opened = chromium.new_page()
    opened.goto((tmp_path / "evidence.html").as_uri())
    assert HOSTILE in opened.inner_text("table"), "the name of the document"
    assert opened.locator("img, svg, script:not([type='application/json']), [onerror]").count() == 0
    opened.close()
