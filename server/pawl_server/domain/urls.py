"""URLs that may carry a password, as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """The URL with its password, in the address or in the query, replaced by stars."""
    parts = urlsplit(url)
    at = parts.netloc.rfind("@")
    user = parts.netloc[: at + 1].partition(":")[0].rstrip("@")
    netloc = f"{user}:***@{parts.netloc[at + 1 :]}" if ":" in parts.netloc[: at + 1] else parts.netloc
    query = "&".join("password=***" if p.startswith("password=") else p for p in parts.query.split("&"))
    shown = f"{parts.scheme}://{netloc}{parts.path}"
    return f"{shown}?{query}" if query else shown
