"""Problem: how a call of the API can fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

NO_RESPONSE: Final = "no_answer"  # no response: the service is down, unreachable or too slow
NOT_BURSAR: Final = "not_bursar"  # a response, but not from Bursar

_REMEDIES: Final[Mapping[str, str]] = {
    NO_RESPONSE: "Check that the service runs and that the URL is right. The request may have taken"
    " effect: retry with the same Idempotency-Key.",
    NOT_BURSAR: "Check the URL: another service or a proxy has responded.",
}


@dataclass(slots=True, kw_only=True)
class Problem(Exception):
    """A call that failed: what is wrong, what to do, and the figures behind it."""

    code: str
    status: int  # of HTTP; 0 without a response
    title: str
    detail: str
    remedy: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()  # one for each invalid field
    request_id: str | None = None
    key: str | None = None  # the Idempotency-Key it was sent with

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    @classmethod
    def from_response(
        cls, status: int, body: Any, *, request_id: str | None = None, key: str | None = None
    ) -> Self:
        """Parse the problem of a response; `body` is None if it is not JSON."""
        if not isinstance(body, dict) or not isinstance(body.get("code"), str):
            return cls.local(
                NOT_BURSAR,
                f"it answered {status}, without a problem document",
                status=status,
                request_id=request_id,
                key=key,
            )
        title = str(body.get("title", body["code"]))
        return cls(
            code=body["code"],
            status=status,
            title=title,
            detail=str(body.get("detail", title)),
            remedy=str(body.get("remedy", "")),
            figures=dict(body.get("figures") or {}),
            errors=tuple(body.get("errors") or ()),
            request_id=request_id,
            key=key,
        )

    @classmethod
    def local(
        cls,
        code: str,
        detail: str,
        *,
        status: int = 0,
        request_id: str | None = None,
        key: str | None = None,
    ) -> Self:
        """Build a problem that the client itself has found."""
        return cls(
            code=code,
            status=status,
            title=detail,
            detail=detail,
            remedy=_REMEDIES[code],
            request_id=request_id,
            key=key,
        )
