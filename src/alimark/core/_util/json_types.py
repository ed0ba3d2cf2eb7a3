"""Type aliases for JSON content."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]  # a JSON object whose fields are checked where they are read, not by the type
