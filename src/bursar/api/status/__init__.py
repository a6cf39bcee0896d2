"""The status page at `/`: one file that holds no data, and asks `/v1` with its reader's own key.

It is served to anybody. A browser runs and shows nothing but what is in it, and lets it talk to
where it came from alone: its policy names the very script and style by their hashes.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

_PARTS: Final = files(__name__)
_SCRIPT: Final = (_PARTS / "page.js").read_text(encoding="utf-8")
_STYLE: Final = (_PARTS / "page.css").read_text(encoding="utf-8")


def _named(text: str) -> str:
    """What a policy calls a text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


PAGE: Final = (
    (_PARTS / "page.html")
    .read_text(encoding="utf-8")
    .replace("{style}", _STYLE)
    .replace("{script}", _SCRIPT)
)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; connect-src 'self';"
    f" script-src {_named(_SCRIPT)}; style-src {_named(_STYLE)};"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
