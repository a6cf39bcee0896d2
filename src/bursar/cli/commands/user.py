"""`bursar user`."""

from typing import Final

from bursar.cli.api_command import Call, Key, NewId, Org, Output, lists, noun
from bursar.cli.output import Format

app = noun("Manage the users who spend credits.")
COLUMNS: Final = ("id", "org_id")


@app.command()
def create(
    org: Org = None, id: NewId = None, output: Output = Format.TABLE, key: Key = None
) -> None:
    """Create a user of an org."""
    Call(output, key).post("/v1/users", {"org_id": org, "id": id}, COLUMNS)


lists(app, "/v1/users", "List the users of an org.", COLUMNS)
