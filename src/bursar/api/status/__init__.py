"""The status page at `/`: one static page that reads `/v1` with the user's own key.

The page needs no key and contains no data. Its Content-Security-Policy names its script and style
by their hashes, so a browser runs nothing else and connects to this server only.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

_PARTS: Final = files(__name__)
_SCRIPT: Final = (_PARTS / "page.js").read_text(encoding="utf-8")
_STYLE: Final = (_PARTS / "page.css").read_text(encoding="utf-8")


def page_headers(script: str, style: str) -> dict[str, str]:
    """The headers of a page: it runs this script and style only, and talks to this server only."""
    return {
        "Content-Security-Policy": "default-src 'none'; img-src data:; connect-src 'self';"
        f" script-src {_hash(script)}; style-src {_hash(style)};"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Cache-Control": "no-cache",
    }


def _hash(text: str) -> str:
    """A text's name in a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


PAGE: Final = (
    (_PARTS / "page.html")
    .read_text(encoding="utf-8")
    .replace("{style}", _STYLE)
    .replace("{script}", _SCRIPT)
)
HEADERS: Final = page_headers(_SCRIPT, _STYLE)
