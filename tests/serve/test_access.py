"""Access rights: every endpoint with every role, with a forged token and without a token."""

from pathlib import Path
from typing import Any

import pytest
from services import Running

GENERATE, DETECT, ADMIN = {"generate"}, {"detect"}, {"admin"}
EVERYBODY = {"generate", "detect", "verdict", "admin", "nobody"}
KEY = "ak" + 18 * "0"
TABLE: dict[tuple[str, str], tuple[set[str], Any]] = {
    ("GET", "/v1/models"): (GENERATE, None),
    ("GET", "/v1/models/stand-in"): (GENERATE, None),
    ("POST", "/v1/responses"): (GENERATE, {"input": "So?", "sentences": 1}),
    ("POST", "/v1/completions"): (GENERATE, {"prompt": "So.", "sentences": 1}),
    ("POST", "/v1/chat/completions"): (GENERATE, {"messages": [{"role": "user", "content": "So?"}], "sentences": 1}),
    ("POST", "/v1/rewrite"): (GENERATE, {"input": "The mayor opened the old bridge."}),
    ("GET", "/v1/attacks"): (GENERATE, None),
    ("POST", "/v1/attack"): (GENERATE, {"name": "delete", "input": "One came. Two went. Three stayed."}),
    ("POST", "/v1/detect"): (DETECT, {"input": "One came. Two went."}),
    ("POST", "/v1/extract?kind=txt"): (DETECT, {}),
    ("GET", "/v1/keys"): (ADMIN, None),
    ("POST", "/v1/keys"): (ADMIN, {}),
    ("POST", f"/v1/keys/{KEY}/rotate"): (ADMIN, {}),
    ("POST", f"/v1/keys/{KEY}/retire"): (ADMIN, {}),
    ("POST", f"/v1/keys/{KEY}/activate"): (ADMIN, None),
    ("POST", "/v1/verdict"): ({"verdict"}, {"input": "One came. Two went."}),
    ("GET", "/v1/token"): (EVERYBODY - {"nobody"}, None),
    ("GET", "/v1/tokens"): (ADMIN, None),
    ("POST", "/v1/tokens"): (ADMIN, {"roles": ["detect"]}),
    ("DELETE", "/v1/tokens/tk000000000000"): (ADMIN, None),
    ("GET", "/v1/records"): (ADMIN, None),
    ("GET", "/metrics"): (ADMIN, None),
    ("GET", "/healthz"): (EVERYBODY, None),
    ("GET", "/readyz"): (EVERYBODY, None),
    ("GET", "/.well-known/alimark"): (EVERYBODY, None),
    ("GET", "/.well-known/alimark/jwks.json"): (EVERYBODY, None),
}


def test_the_table_names_every_endpoint(running: Running) -> None:
    with running.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    tabled = set()
    for method, path in TABLE:
        plain = path.partition("?")[0].replace(KEY, "{key_id}").replace("tk000000000000", "{token_id}")
        plain = plain.replace("/stand-in", "/{name}")
        tabled.add((method, plain))
    assert tabled == described


@pytest.mark.parametrize("role", ["nobody", "forged", "generate", "detect", "verdict", "admin"])
def test_every_endpoint(running: Running, role: str) -> None:
    client = running.client(role if role in running.tokens else None)
    if role == "forged":
        client.headers["authorization"] = "Bearer alm_" + 43 * "A"
    for (method, path), (allowed, body) in TABLE.items():
        status = client.request(method, path, json=body).status_code
        if role in allowed or "nobody" in allowed:
            assert status not in (401, 403), (method, path)
            assert status < 500, (method, path)
        else:
            assert status == (401 if role in ("nobody", "forged") else 403), (method, path)
    client.close()


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic {}", "{}", "Bearer {}x", "Bearer {} {}", "bearer\t{}", "Bearer \xff"]
)
def test_odd_headers(running: Running, header: str) -> None:
    with running.client(None) as client:
        sent = header.format(*[running.tokens["detect"]] * 2).encode("latin-1")
        assert client.get("/v1/models", headers={b"authorization": sent}).status_code == 401


def test_unknown_paths_do_not_differ_without_a_token(running: Running) -> None:
    statuses = {
        "/v1/nothing": 401, "/v1": 401, "/V1/keys": 404, "//v1/keys": 404, "/%76%31/keys": 401, "/v1/keys/": 401,
        "/page/../auth.py": 404, "/page/%2e%2e/auth.py": 404,
    }  # fmt: skip
    with running.client(None) as client:
        assert {path: client.get(path).status_code for path in statuses} == statuses


def test_a_revoked_token_is_rejected_at_once(running: Running) -> None:
    with running.client("admin") as admin:
        created = admin.post("/v1/tokens", json={"roles": ["detect"], "name": "short"}).json()
        with running.client(None) as client:
            client.headers["authorization"] = f"Bearer {created['token']}"
            assert client.post("/v1/detect", json={"input": "One came."}).status_code == 200
            assert admin.delete(f"/v1/tokens/{created['id']}").status_code == 204
            assert client.post("/v1/detect", json={"input": "One came."}).status_code == 401
        assert admin.delete(f"/v1/tokens/{created['id']}").status_code == 404
        used = next(token for token in admin.get("/v1/tokens").json() if token["roles"] == ["admin"])
        assert admin.delete(f"/v1/tokens/{used['id']}").status_code == 409


def test_keys_are_created_rotated_and_retired_and_no_secret_leaves(running: Running) -> None:
    with running.client("admin") as admin, running.client("generate") as writer, running.client("detect") as reader:
        old = admin.post("/v1/keys", json={}).json()["id"]
        assert running.service.ring.key(old).soft
        text = writer.post("/v1/completions", json={"prompt": "So.", "seed": 4}).json()
        assert text["alimark"]["key_id"] == old, "the newest marks"
        new = admin.post(f"/v1/keys/{old}/rotate", json={})
        assert new.status_code == 201
        assert admin.post(f"/v1/keys/{old}/rotate", json={}).status_code == 409
        after = writer.post("/v1/completions", json={"prompt": "So.", "sentences": 1}).json()
        assert after["alimark"]["key_id"] == new.json()["id"]
        look = {"input": text["choices"][0]["text"], "keys": [old]}
        [result] = reader.post("/v1/detect", json=look).json()["results"]
        assert result["verdict"] == "found", "rotated, and still found"
        assert not admin.post(f"/v1/keys/{old}/retire", json={}).json()["alive"]
        assert reader.post("/v1/detect", json=look).status_code == 409
        secrets = [file.read_text().split('"secret": "')[1][:40] for file in running.service.settings.keys.iterdir()]
        responses = admin.get("/v1/keys").text + new.text + admin.get("/metrics").text + admin.get("/v1/records").text
        assert len(secrets) >= 2
        assert not any(secret in responses for secret in secrets)
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in running.service.settings.keys.iterdir())


def test_headers_are_safe_and_there_is_no_cors(running: Running) -> None:
    with running.client(None) as client:
        for answer in (client.get("/"), client.get("/healthz"), client.get("/v1/keys"), client.get("/nothing")):
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
        answer = client.get("/healthz", headers={"origin": "https://elsewhere.example"})
        assert "access-control-allow-origin" not in answer.headers
        preflight = client.options("/v1/detect", headers={
            "origin": "https://elsewhere.example", "access-control-request-method": "POST"})  # fmt: skip
        assert preflight.status_code in (401, 405)


def test_health_and_metrics(running: Running) -> None:
    with running.client("admin") as admin:
        assert admin.get("/healthz").json() == {"status": "ok"}
        text = admin.get("/metrics").text
    assert 'alimark_requests_total{method="POST",route="/v1/detect",status="200"}' in text
    assert "alimark_texts_waiting 0.0" in text
    assert "alimark_marking_keys 1.0" in text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    documented = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    assert [name for name in sorted(names) if f"`{name.removesuffix('_total')}" not in documented] == []


def test_the_page_of_endpoints_needs_no_token_and_no_other_host(running: Running) -> None:
    with running.client(None) as client:
        page = client.get("/docs")
    assert page.status_code == 200
    assert "POST /v1/responses" in page.text
    assert "Why is the sky blue?" in page.text
    assert "http" not in page.text.replace("http://www.w3.org", "")
    assert "<script" not in page.text
