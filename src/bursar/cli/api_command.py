"""A command that makes one API call: shared options, argument parsers and output."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from bursar.cli import amounts, ranges
from bursar.cli.credentials import access
from bursar.cli.lazy_groups import Group
from bursar.cli.output import Format, Rows, note, show
from bursar.client import ApiResponse, Client

ORG_VARIABLE: Final = "BURSAR_ORG"
_KEY: Final = re.compile(r"cli-(\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{16}", re.ASCII)
_KEY_TIME: Final = "%Y%m%dT%H%M%S.%f"


def noun(help: str) -> typer.Typer:
    """A command group for one kind of resource."""
    return typer.Typer(
        cls=Group, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )


def _parser(read: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """Wrap a parser so that its ValueError becomes a usage error."""

    def parsed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    parsed.__name__ = name  # what help calls the type
    return parsed


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is not an id: ids are UUIDs, as `list` shows them"
        ) from None


micros: Final = _parser(amounts.micros_of, "AMOUNT")
seconds: Final = _parser(ranges.seconds_of, "DURATION")
uuid: Final = _parser(_uuid, "ID")


def share(text: str) -> int:
    """A share in per cent (`80%`) or parts per million (`800000`), in parts per million."""
    found = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,4}))?%", text, re.ASCII)
    if found:
        return int(found[1]) * 10_000 + int((found[2] or "").ljust(4, "0"))
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return int(text)
    raise ValueError(f"{text[:40]!r} is not a share: write 80% or 800000 (parts per million)")


shares: Final = _parser(share, "SHARE")

# Options that many commands have

Output = Annotated[
    Format, typer.Option("--output", "-o", help="Output format. json is the HTTP response body.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Idempotency key. Repeating a request with the same key has no second effect."
        " Default: a new key.",
    ),
]
Org = Annotated[
    str | None,
    typer.Option("--org", metavar="ID", parser=uuid, envvar=ORG_VARIABLE, help="Id of the org."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of items.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NEXT", help="Continue after an earlier page.")
]
All = Annotated[bool, typer.Option("--all", help="Fetch all pages.")]
Id = Annotated[str, typer.Argument(metavar="ID", parser=uuid)]
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", parser=uuid, help="Id of the account.")]
Amount = Annotated[
    int,
    typer.Argument(
        metavar="AMOUNT",
        parser=micros,
        help="Credits, such as 12.5, or micro-credits, such as 12500000u.",
    ),
]
NewId = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", parser=uuid, help="Id of the new resource. Default: a new id."
    ),
]


Range = Annotated[str, typer.Option("--for", metavar="RANGE", help=f"Period: {ranges.RANGES}.")]


class Misused(typer.BadParameter):
    """A usage error that concerns a combination of parameters, not a single value."""

    def format_message(self) -> str:
        """The message without a parameter name."""
        return self.message


class Call:
    """One call of the service: parses times, sends the request, prints the response."""

    def __init__(self, form: Format, key: str | None = None) -> None:
        """`key` is the idempotency key. A key made by this program contains its creation time;
        relative times count from then, so that a retry sends the same request."""
        self.form = form
        self.now = datetime.now(UTC)
        self.key = key or f"cli-{self.now:{_KEY_TIME}}Z-{os.urandom(8).hex()}"
        if found := _KEY.fullmatch(self.key):
            self.now = datetime.strptime(found[1], _KEY_TIME).replace(tzinfo=UTC)

    # Times

    def time(self, text: str | None) -> str | None:
        """Parse a time argument into the API's format."""
        if text is None:
            return None
        try:
            return ranges.utc_text(ranges.time_of(text, self.now))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def after(self, seconds: int | None) -> str | None:
        """The time `seconds` from now, in the API's format."""
        if seconds is None:
            return None
        return ranges.utc_text(self.now + timedelta(seconds=seconds))

    def either(self, at: str | None, within: int | None, names: str) -> str | None:
        """Parse a time argument, or add a duration to now; both is a usage error."""
        if at is not None and within is not None:
            raise Misused(f"{names} are alternatives: use one of them")
        return self.time(at) if within is None else self.after(within)

    def span(self, text: str) -> dict[str, str]:
        """Parse a range argument into query parameters."""
        try:
            found = ranges.range_of(text, self.now)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--for") from None
        return {"from": ranges.utc_text(found.start), "to": ranges.utc_text(found.end)}

    # Calls

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        columns: Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        **shown: Any,
    ) -> Any:
        """Send a POST and print the response. Body fields that are None are left out."""
        with connected() as client:
            answer = client.post(path, given(body), key=self.key, params=params)
        return self._shown(answer, columns, **shown)

    def post_whole(self, path: str, body: Mapping[str, Any], columns: Sequence[str]) -> Any:
        """Send a POST whose body may contain nulls, and print the response."""
        with connected() as client:
            answer = client.post(path, body, key=self.key)
        return self._shown(answer, columns)

    def put(
        self,
        path: str,
        body: Mapping[str, Any],
        columns: Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        **shown: Any,
    ) -> Any:
        """Send a PUT and print the response."""
        with connected() as client:
            answer = client.put(path, given(body), key=self.key, params=params)
        return self._shown(answer, columns, **shown)

    def delete(
        self, path: str, columns: Sequence[str], params: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a DELETE and print the response."""
        with connected() as client:
            answer = client.delete(path, key=self.key, params=params)
        return self._shown(answer, columns)

    def get(
        self,
        path: str,
        columns: Sequence[str],
        params: Mapping[str, Any] | None = None,
        **shown: Any,
    ) -> Any:
        """Send a GET and print the response."""
        with connected() as client:
            answer = client.get(path, params)
        return self._shown(answer, columns, **shown)

    def page(
        self,
        path: str,
        columns: Sequence[str],
        params: Mapping[str, Any],
        limit: int,
        after: str | None,
        all: bool,
        *,
        join: Callable[[Sequence[Any]], Any] | None = None,
        **shown: Any,
    ) -> Any:
        """Fetch one page, or all pages joined by `join`, and print the result."""
        asked = {**params, "limit": 1_000 if all else limit, "after": after}
        with connected() as client:
            if all:
                pages = [page.body for page in client.pages(path, asked)]
                answer = ApiResponse(json.dumps((join or joined)(pages), ensure_ascii=False))
            else:
                answer = client.get(path, asked)
        body = self._shown(answer, columns, **shown)
        if body["next"] is not None and self.form is not Format.JSON:
            note(f"more results: use --after {body['next']}, or --all")
        return body

    def _shown(
        self,
        answer: ApiResponse,
        columns: Sequence[str],
        *,
        rows: Rows | None = None,
        text: Callable[[Any], str] | None = None,
    ) -> Any:
        show(answer, self.form, columns, rows=rows, text=text)
        if answer.replayed:
            note(f"repeated request: this is the original response for key {self.key}")
        return answer.body


# Commands that many groups have


def lists(
    app: typer.Typer, path: str, help: str, columns: Sequence[str], whole: Sequence[str] = ()
) -> None:
    """Add the command `list` to a group. Formats for programs get the columns of `whole`."""

    @app.command("list", help=help)
    def list_(
        org: Org = None,
        limit: Limit = 100,
        after: After = None,
        all: All = False,
        output: Output = Format.TABLE,
    ) -> None:
        shown = columns if output is Format.TABLE else whole or columns
        Call(output).page(path, shown, {"org_id": org}, limit, after, all)


def shows(app: typer.Typer, path: str, help: str, columns: Sequence[str]) -> None:
    """Add the command `show` to a group."""

    @app.command("show", help=help)
    def show_(id: Id, output: Output = Format.TABLE) -> None:
        Call(output).get(f"{path}/{id}", columns)


def given(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The items that are not None."""
    return {name: it for name, it in parts.items() if it is not None}


def joined(pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join pages into one."""
    return {"items": [item for page in pages for item in page["items"]], "next": None}


def connected() -> Client:
    """A client of the configured service."""
    known = access()
    return Client(known.url, known.key)
