"""One command, one call: what the commands of the ledger have in common."""

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
from bursar.client import Answer, Client

ORG_VARIABLE: Final = "BURSAR_ORG"
_KEY: Final = re.compile(r"cli-(\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{16}", re.ASCII)
_KEY_TIME: Final = "%Y%m%dT%H%M%S.%f"


def noun(help: str) -> typer.Typer:
    """A group of commands about one kind of thing."""
    return typer.Typer(
        cls=Group, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )


def _parser(read: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """A function that reads a parameter, whose complaints are about the usage."""

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
        raise ValueError(f"{text[:40]!r} is no id: it is a UUID, as `list` shows it") from None


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
    raise ValueError(f"{text[:40]!r} is no share: write 80% or 800000 (parts per million)")


shares: Final = _parser(share, "SHARE")

# Options that many commands have

Output = Annotated[
    Format, typer.Option("--output", "-o", help="How to show it; json is the HTTP body as it is.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Name of this request: the same name again has no second effect. Made if not given.",
    ),
]
Org = Annotated[
    str | None,
    typer.Option("--org", metavar="ID", parser=uuid, envvar=ORG_VARIABLE, help="Which org."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many, at most.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NEXT", help="Go on after an earlier page.")
]
All = Annotated[bool, typer.Option("--all", help="All pages, however many there are.")]
Id = Annotated[str, typer.Argument(metavar="ID", parser=uuid)]
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", parser=uuid, help="Id of an account.")]
Amount = Annotated[
    int,
    typer.Argument(
        metavar="AMOUNT", parser=micros, help="Credits such as 12.5, or micro-credits: 12500000u."
    ),
]
NewId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", parser=uuid, help="Id of what is made; made if not given."),
]


Range = Annotated[
    str, typer.Option("--for", metavar="RANGE", help=f"Which period: {ranges.RANGES}.")
]


class Misused(typer.BadParameter):
    """Something is missing, or does not go with the rest: no single value is wrong."""

    def format_message(self) -> str:
        """What is to be done, as it is."""
        return self.message


class Call:
    """A call of the service, from what was typed to what is printed."""

    def __init__(self, form: Format, key: str | None = None) -> None:
        """`key` names the request; with one of our own its relative times mean what they meant
        when it was made, so that a second attempt is the same request."""
        self.form = form
        self.now = datetime.now(UTC)
        self.key = key or f"cli-{self.now:{_KEY_TIME}}Z-{os.urandom(8).hex()}"
        if found := _KEY.fullmatch(self.key):
            self.now = datetime.strptime(found[1], _KEY_TIME).replace(tzinfo=UTC)

    # Times

    def time(self, text: str | None) -> str | None:
        """A time that was typed, as it is sent."""
        if text is None:
            return None
        try:
            return ranges.utc_text(ranges.time_of(text, self.now))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def after(self, seconds: int | None) -> str | None:
        """The time so many seconds from now, as it is sent."""
        if seconds is None:
            return None
        return ranges.utc_text(self.now + timedelta(seconds=seconds))

    def either(self, at: str | None, within: int | None, names: str) -> str | None:
        """A time that was typed, or so many seconds from now; not both."""
        if at is not None and within is not None:
            raise Misused(f"{names} say the same: use one of them")
        return self.time(at) if within is None else self.after(within)

    def span(self, text: str) -> dict[str, str]:
        """A range that was typed, as parameters."""
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
        """Change something, and print the answer; parts of the body that are None are left out."""
        with connected() as client:
            answer = client.post(path, given(body), key=self.key, params=params)
        return self._shown(answer, columns, **shown)

    def post_whole(self, path: str, body: Mapping[str, Any], columns: Sequence[str]) -> Any:
        """The same with all parts of the body, because a null means something in it."""
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
        """Change what is there already, and print the answer."""
        with connected() as client:
            answer = client.put(path, given(body), key=self.key, params=params)
        return self._shown(answer, columns, **shown)

    def delete(
        self, path: str, columns: Sequence[str], params: Mapping[str, Any] | None = None
    ) -> Any:
        """Drop something, and print the answer."""
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
        """Ask, and print the answer."""
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
        """Ask for a page, or for all from there on, and print it; `join` makes one of many."""
        asked = {**params, "limit": 1_000 if all else limit, "after": after}
        with connected() as client:
            if all:
                pages = [page.body for page in client.pages(path, asked)]
                answer = Answer(json.dumps((join or joined)(pages), ensure_ascii=False))
            else:
                answer = client.get(path, asked)
        body = self._shown(answer, columns, **shown)
        if body["next"] is not None and self.form is not Format.JSON:
            note(f"more: --after {body['next']}, or --all")
        return body

    def _shown(
        self,
        answer: Answer,
        columns: Sequence[str],
        *,
        rows: Rows | None = None,
        text: Callable[[Any], str] | None = None,
    ) -> Any:
        show(answer, self.form, columns, rows=rows, text=text)
        if answer.replayed:
            note(f"this is the first answer to the key {self.key}, given again")
        return answer.body


# Commands that many nouns have


def lists(
    app: typer.Typer, path: str, help: str, columns: Sequence[str], whole: Sequence[str] = ()
) -> None:
    """Give a noun the command `list`: the things of an org, all columns of them for programs."""

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
    """Give a noun the command `show`: one thing."""

    @app.command("show", help=help)
    def show_(id: Id, output: Output = Format.TABLE) -> None:
        Call(output).get(f"{path}/{id}", columns)


def given(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What is not None of some parts."""
    return {name: it for name, it in parts.items() if it is not None}


def joined(pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """All pages as one."""
    return {"items": [item for page in pages for item in page["items"]], "next": None}


def connected() -> Client:
    """The service that commands talk to."""
    known = access()
    return Client(known.url, known.key)
