"""The API reference at `/docs`: one static page that renders `/openapi.json`, without a CDN."""

from importlib.resources import files
from typing import Final

from bursar.api.status import page_headers

_FILES: Final = files(__name__)
_SCRIPT: Final = (_FILES / "page.js").read_text(encoding="utf-8")
_STYLE: Final = (_FILES / "page.css").read_text(encoding="utf-8")

PAGE: Final = (
    (_FILES / "page.html")
    .read_text(encoding="utf-8")
    .replace("{style}", _STYLE)
    .replace("{script}", _SCRIPT)
)
HEADERS: Final = page_headers(_SCRIPT, _STYLE)
