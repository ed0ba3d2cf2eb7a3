"""The page /docs: the endpoints of the service, their fields and an example of each, without scripts of other hosts."""

import json
from html import escape

from alimark.core._util.json_types import JsonObject


def docs_page(description: JsonObject) -> str:
    """Returns the HTML page that shows an OpenAPI description, the content of /openapi.json."""
    schemas = description.get("components", {}).get("schemas", {})
    info = description["info"]
    sections = [
        _endpoint(method.upper(), path, operation, schemas)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(info["title"])}: endpoints</title><link rel="stylesheet" href="/page/style.css"></head><body><main>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))} "
        '<a href="/openapi.json">openapi.json</a> has all of this for programs.</p>'
        f"{''.join(sections)}</main></body></html>"
    )


def _endpoint(method: str, path: str, operation: JsonObject, schemas: JsonObject) -> str:
    about = operation.get("description") or operation.get("summary", "")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = schemas.get(body.get("$ref", "").rpartition("/")[2], {})
    fields = "".join(
        f"<li><code>{escape(name)}</code> {escape(field.get('description', ''))}</li>"
        for name, field in schema.get("properties", {}).items()
    )
    examples = "".join(f"<pre>{escape(_curl(method, path, example))}</pre>" for example in schema.get("examples", []))
    listed = f"<details><summary>Fields</summary><ul>{fields}</ul></details>" if fields else ""
    return f"<section><h2><code>{method} {escape(path)}</code></h2><p>{escape(about)}</p>{examples}{listed}</section>"


def _curl(method: str, path: str, example: object) -> str:
    return (
        f'curl -X {method} "$URL{path}" -H "Authorization: Bearer $TOKEN" -H \'Content-Type: application/json\' \\\n'
        f"  -d '{json.dumps(example)}'"
    )
