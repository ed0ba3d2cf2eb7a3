"""Type aliases for JSON content."""

from typing import Any

JsonObject = dict[str, Any]  # a JSON object whose fields are checked where they are read, not by the type
