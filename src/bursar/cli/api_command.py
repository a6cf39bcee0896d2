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
from bursar.cli.credentials import find_access
from bursar.cli.lazy_groups import FastHelpGroup
from bursar.cli.output import Format, Rows, print_answer, print_note
from bursar.client import ApiResponse, Client

ORG_VARIABLE: Final = "BURSAR_ORG"
_OWN_KEY: Final = re.compile(r"cli-(\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{16}", re.ASCII)
_KEY_TIME_FORMAT: Final = "%Y%m%dT%H%M%S.%f"


def make_group(help: str) -> typer.Typer:
    """A command group for one kind of resource."""
    return typer.Typer(
        cls=FastHelpGroup,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def _make_parser(read: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """Wrap a parser so that its ValueError becomes a usage error."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    parse.__name__ = name  # what help calls the type
    return parse


def _parse_uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is not an id: ids are UUIDs, as `list` shows them"
        ) from None


amount_parser: Final = _make_parser(amounts.parse_amount, "AMOUNT")
duration_parser: Final = _make_parser(ranges.parse_duration, "DURATION")
id_parser: Final = _make_parser(_parse_uuid, "ID")


def parse_share(text: str) -> int:
    """A share in per cent (`80%`) or parts per million (`800000`), in parts per million."""
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,4}))?%", text, re.ASCII)
    if match:
        return int(match[1]) * 10_000 + int((match[2] or "").ljust(4, "0"))
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return int(text)
    raise ValueError(f"{text[:40]!r} is not a share: write 80% or 800000 (parts per million)")


share_parser: Final = _make_parser(parse_share, "SHARE")

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
    typer.Option(
        "--org", metavar="ID", parser=id_parser, envvar=ORG_VARIABLE, help="Id of the org."
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of items.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NEXT", help="Continue after an earlier page.")
]
All = Annotated[bool, typer.Option("--all", help="Fetch all pages.")]
Id = Annotated[str, typer.Argument(metavar="ID", parser=id_parser)]
Account = Annotated[
    str, typer.Argument(metavar="ACCOUNT", parser=id_parser, help="Id of the account.")
]
Amount = Annotated[
    int,
    typer.Argument(
        metavar="AMOUNT",
        parser=amount_parser,
        help="Credits, such as 12.5, or micro-credits, such as 12500000u.",
    ),
]
NewId = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", parser=id_parser, help="Id of the new resource. Default: a new id."
    ),
]


Range = Annotated[str, typer.Option("--for", metavar="RANGE", help=f"Period: {ranges.RANGES}.")]


class UsageError(typer.BadParameter):
    """A usage error that concerns a combination of parameters, not a single value."""

    def format_message(self) -> str:
        """The message without a parameter name."""
        return self.message


class ApiCall:
    """One call of the service: parses times, sends the request, prints the response."""

    def __init__(self, format: Format, key: str | None = None) -> None:
        """`key` is the idempotency key. A key made by this program contains its creation time;
        relative times count from then, so that a retry sends the same request."""
        self.form = format
        self.now = datetime.now(UTC)
        self.key = key or f"cli-{self.now:{_KEY_TIME_FORMAT}}Z-{os.urandom(8).hex()}"
        if match := _OWN_KEY.fullmatch(self.key):
            self.now = datetime.strptime(match[1], _KEY_TIME_FORMAT).replace(tzinfo=UTC)

    # Times

    def parse_time(self, text: str | None) -> str | None:
        """Parse a time argument into the API's format."""
        if text is None:
            return None
        try:
            return ranges.format_utc(ranges.parse_time(text, self.now))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def time_in(self, seconds: int | None) -> str | None:
        """The time `seconds` from now, in the API's format."""
        if seconds is None:
            return None
        return ranges.format_utc(self.now + timedelta(seconds=seconds))

    def parse_time_or_duration(self, at: str | None, within: int | None, names: str) -> str | None:
        """Parse a time argument, or add a duration to now; both is a usage error."""
        if at is not None and within is not None:
            raise UsageError(f"{names} are alternatives: use one of them")
        return self.parse_time(at) if within is None else self.time_in(within)

    def parse_range(self, text: str) -> dict[str, str]:
        """Parse a range argument into query parameters."""
        try:
            span = ranges.parse_range(text, self.now)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--for") from None
        return {"from": ranges.format_utc(span.start), "to": ranges.format_utc(span.end)}

    # Calls

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        columns: Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        **view: Any,
    ) -> Any:
        """Send a POST and print the response. Body fields that are None are left out."""
        with connect() as client:
            answer = client.post(path, drop_none(body), key=self.key, params=params)
        return self._print(answer, columns, **view)

    def post_with_nulls(self, path: str, body: Mapping[str, Any], columns: Sequence[str]) -> Any:
        """Send a POST whose body may contain nulls, and print the response."""
        with connect() as client:
            answer = client.post(path, body, key=self.key)
        return self._print(answer, columns)

    def put(
        self,
        path: str,
        body: Mapping[str, Any],
        columns: Sequence[str],
        *,
        params: Mapping[str, Any] | None = None,
        **view: Any,
    ) -> Any:
        """Send a PUT and print the response."""
        with connect() as client:
            answer = client.put(path, drop_none(body), key=self.key, params=params)
        return self._print(answer, columns, **view)

    def patch(self, path: str, body: Mapping[str, Any], columns: Sequence[str]) -> Any:
        """Send a PATCH and print the response. Body fields that are None are left out."""
        with connect() as client:
            answer = client.patch(path, drop_none(body), key=self.key)
        return self._print(answer, columns)

    def delete(
        self, path: str, columns: Sequence[str], params: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a DELETE and print the response."""
        with connect() as client:
            answer = client.delete(path, key=self.key, params=params)
        return self._print(answer, columns)

    def get(
        self,
        path: str,
        columns: Sequence[str],
        params: Mapping[str, Any] | None = None,
        **view: Any,
    ) -> Any:
        """Send a GET and print the response."""
        with connect() as client:
            answer = client.get(path, params)
        return self._print(answer, columns, **view)

    def get_all(self, path: str, columns: Sequence[str], **view: Any) -> Any:
        """Fetch all pages of a list and print them as one."""
        return self.get_page(path, columns, {}, 1_000, None, True, **view)

    def get_page(
        self,
        path: str,
        columns: Sequence[str],
        params: Mapping[str, Any],
        limit: int,
        after: str | None,
        all: bool,
        *,
        join: Callable[[Sequence[Any]], Any] | None = None,
        **view: Any,
    ) -> Any:
        """Fetch one page, or all pages joined by `join`, and print the result."""
        query = {**params, "limit": 1_000 if all else limit, "after": after}
        with connect() as client:
            if all:
                pages = [page.body for page in client.pages(path, query)]
                answer = ApiResponse(json.dumps((join or join_pages)(pages), ensure_ascii=False))
            else:
                answer = client.get(path, query)
        body = self._print(answer, columns, **view)
        if body["next"] is not None and self.form is not Format.JSON:
            print_note(f"more results: use --after {body['next']}, or --all")
        return body

    def _print(
        self,
        answer: ApiResponse,
        columns: Sequence[str],
        *,
        rows: Rows | None = None,
        text: Callable[[Any], str] | None = None,
    ) -> Any:
        print_answer(answer, self.form, columns, rows=rows, text=text)
        if answer.replayed:
            print_note(f"repeated request: this is the original response for key {self.key}")
        return answer.body


# Commands that many groups have


def add_list_command(
    app: typer.Typer, path: str, help: str, columns: Sequence[str], all_columns: Sequence[str] = ()
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
        chosen = columns if output is Format.TABLE else all_columns or columns
        ApiCall(output).get_page(path, chosen, {"org_id": org}, limit, after, all)


def add_show_command(app: typer.Typer, path: str, help: str, columns: Sequence[str]) -> None:
    """Add the command `show` to a group."""

    @app.command("show", help=help)
    def show_(id: Id, output: Output = Format.TABLE) -> None:
        ApiCall(output).get(f"{path}/{id}", columns)


def drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The items that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def join_pages(pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join pages into one."""
    return {"items": [item for page in pages for item in page["items"]], "next": None}


def connect() -> Client:
    """A client of the configured service."""
    access = find_access()
    return Client(access.url, access.key)
