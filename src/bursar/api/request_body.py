"""Limits on request bodies, and the Idempotency-Key header."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from bursar.api.errors import CallFailed

BODY_MAX: Final = 1_048_576  # bytes
IDEMPOTENCY_KEY_MAX: Final = 255  # characters
RESERVED: Final = ("bursar:", "pool:", "sweep/")  # prefixes of the service's own keys
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


def check_size(size: int | str) -> None:
    """Fail the call if a body of so many bytes is too large; `str` is a Content-Length."""
    if isinstance(size, str):
        size = int(size) if size.isdecimal() else 0
    if size > BODY_MAX:
        raise CallFailed("too_large", f"a body has at most {BODY_MAX:,} bytes")


def check_kind(header: Callable[[str, str], str]) -> None:
    """Fail the call if it has a body that is not plain JSON."""
    if header("content-length", "0") == "0" and not header("transfer-encoding", ""):
        return
    kind = header("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or header("content-encoding", "identity").lower() != "identity":
        raise CallFailed("unsupported_media_type")


def read_idempotency_key(headers: Mapping[bytes, bytes]) -> str:
    """The Idempotency-Key of a request; the call fails if it is missing or invalid."""
    key = headers.get(b"idempotency-key")
    if key is None:
        raise CallFailed("idempotency_key_missing")
    return check_idempotency_key(key.decode("latin-1"))


def check_idempotency_key(key: str) -> str:
    """Return a key that a client may use; the call fails if it is another one."""
    if not _KEY.fullmatch(key) or key.startswith(RESERVED):
        raise CallFailed("idempotency_key_invalid")
    return key
