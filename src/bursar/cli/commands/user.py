"""`bursar user`."""

from typing import Final

from bursar.cli.api_command import ApiCall, Key, NewId, Org, Output, add_list_command, make_group
from bursar.cli.output import Format

app = make_group("Manage the users who spend credits.")
COLUMNS: Final = ("id", "org_id")


@app.command()
def create(
    org: Org = None, id: NewId = None, output: Output = Format.TABLE, key: Key = None
) -> None:
    """Create a user of an org."""
    ApiCall(output, key).post("/v1/users", {"org_id": org, "id": id}, COLUMNS)


add_list_command(app, "/v1/users", "List the users of an org.", COLUMNS)
