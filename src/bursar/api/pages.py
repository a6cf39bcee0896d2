"""Responses to reads: pages, ETags, and the last event that a response knows."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.errors import CallFailed
from bursar.api.execute import to_json
from bursar.service.queries.balances import AsOf
from bursar.service.queries.entities import ResultPage
from bursar.wire.fields import Id, WireModel

T = TypeVar("T")

JSON: Final = "application/json"

Limit = Annotated[int, Field(ge=1, le=1_000, description="The maximum number of items to return.")]
After = Annotated[
    str,
    Field(max_length=300, pattern=r"^[!-~]*$", description="`next` of the previous page."),
]
AfterNumber = Annotated[int, Field(ge=0, le=2**62, description="`next` of the previous page.")]
OrgId = Annotated[
    Id | None, Field(description="The org. Required for operators; org keys may omit it.")
]

_EVENT: Final = re.compile(r"([0-9a-f-]{36}):([0-9]{1,18})")


class Paginated(WireModel, Generic[T]):
    """A page of a list: every list of the API has this form."""

    items: list[T]
    next: str | None  # `after` of the next page; None after the last one


def cut_page(names: Iterable[str], after: str, limit: int) -> tuple[list[str], str | None]:
    """The names of one page of a whole list, sorted, and the `next` of the page."""
    following = sorted(name for name in names if name > after)
    page = following[:limit]
    return page, page[-1] if len(following) > limit else None


def json_response(model: WireModel, status: int = 200) -> Response:
    """A model as a response."""
    return Response(to_json(model), status, media_type=JSON)


def read_response(call: Call, org: str, number: int, body: bytes) -> Response:
    """A response that names its last event and its ETag; 304 if the client has the same."""
    _check_event(call, org, number)
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        "Bursar-Event": f"{org}:{number}",
        "ETag": etag,
        "Cache-Control": "private, no-cache",
    }
    if etag in call.header("if-none-match"):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=JSON)


def _check_event(call: Call, org: str, number: int) -> None:
    """Fail the call if the client knows an event of this org that the database does not have."""
    text = call.headers.get(b"bursar-event")
    if text is None:
        return
    for part in text.decode("latin-1").split(","):
        match = _EVENT.fullmatch(part.strip())
        if match is None:
            raise CallFailed(
                "invalid_request", "Bursar-Event: expected org:number, as in a response"
            )
        if match[1] == org and int(match[2]) > number:
            raise CallFailed("behind", f"the last event here is {org}:{number}")


def page_response(
    call: Call, org: str, seen: AsOf[ResultPage[T]], render: Callable[[T], WireModel]
) -> Response:
    """A page of what the database has."""
    items = [render(item) for item in seen.value.items]
    return list_response(call, org, seen.number, items, seen.value.next)


def list_response(
    call: Call, org: str, number: int, items: Sequence[WireModel], next: Any = None
) -> Response:
    """Items as a page; `next` continues it."""
    documents = [json.loads(to_json(item)) for item in items]
    body = json.dumps({"items": documents, "next": next}, separators=(",", ":"))
    return read_response(call, org, number, body.encode())
