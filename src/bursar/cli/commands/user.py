"""`bursar user`."""

from typing import Final

from bursar.cli.calling import After, All, Call, Key, Limit, NewId, Org, Output, noun
from bursar.cli.output import Format

app = noun("Who spends credits.")
COLUMNS: Final = ("id", "org_id")


@app.command()
def create(
    org: Org = None, id: NewId = None, output: Output = Format.TABLE, key: Key = None
) -> None:
    """Let a principal of an org spend credits."""
    Call(output, key).post("/v1/users", {"org_id": org, "id": id}, COLUMNS)


@app.command("list")
def list_(
    org: Org = None,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """The users of an org."""
    Call(output).page("/v1/users", COLUMNS, {"org_id": org}, limit, after, all)
