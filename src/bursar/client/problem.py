"""How a call can fail, as whoever made it sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

NO_ANSWER: Final = "no_answer"  # nobody answered: down, unreachable, too slow
NOT_BURSAR: Final = "not_bursar"  # somebody answered, but not as Bursar does

_REMEDIES: Final[Mapping[str, str]] = {
    NO_ANSWER: "Check that the service runs and that the URL is right. It may have happened or not:"
    " send it again with the same Idempotency-Key.",
    NOT_BURSAR: "Check the URL: another service, or a proxy in between, has answered.",
}


@dataclass(slots=True, kw_only=True)
class Problem(Exception):
    """A call that failed: what is wrong, how to mend it, and the figures behind it."""

    code: str
    status: int  # of HTTP; 0 if nobody answered
    title: str
    detail: str
    remedy: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()  # one for each field that is wrong
    request_id: str | None = None
    key: str | None = None  # the Idempotency-Key it was sent with

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    @classmethod
    def of(
        cls, status: int, body: Any, *, request_id: str | None = None, key: str | None = None
    ) -> Self:
        """The problem that an answer tells; `body` is None if it is none of ours."""
        if not isinstance(body, dict) or not isinstance(body.get("code"), str):
            return cls.at_the_edge(
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
    def at_the_edge(
        cls,
        code: str,
        detail: str,
        *,
        status: int = 0,
        request_id: str | None = None,
        key: str | None = None,
    ) -> Self:
        """A problem that no service of ours told."""
        return cls(
            code=code,
            status=status,
            title=detail,
            detail=detail,
            remedy=_REMEDIES[code],
            request_id=request_id,
            key=key,
        )
