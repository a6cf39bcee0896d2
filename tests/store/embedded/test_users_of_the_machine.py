"""Root and everybody else: PostgreSQL runs as somebody unprivileged, and no folder is opened up."""

import os
import pwd
import shutil
import stat
from pathlib import Path

import pytest

from bursar.store.embedded import EmbeddedDatabase
from bursar.store.embedded.os_user import (
    DATABASE_UID,
    INITDB_USER,
    USER_VARIABLE,
)
from bursar.store.embedded.programs import (
    COPY_PREFIX,
    PACKAGE,
    TREE,
    UNFINISHED_PREFIX,
    find_programs,
)
from tests.support.embedded_guests import (
    LINGER_S,
    World,
    environment_for,
    execute,
    is_over,
    only_root,
    plain_user,
    python_for,
)
from tests.support.patience import eventually


def look_of(folders: list[Path]) -> dict[Path, tuple[int, int, int]]:
    """Mode and owner of each of these and of all folders above them."""
    way = {above: above.stat() for folder in folders for above in (folder, *folder.parents)}
    return {path: (found.st_mode, found.st_uid, found.st_gid) for path, found in way.items()}


def closed_programs(world: World) -> Path:
    """The wheel's files as they lie in a home that is closed to others."""
    closed = world.room / "closed"
    closed.mkdir(mode=0o700)
    ours = find_programs()
    left_out = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(ours.tree, closed / PACKAGE / TREE, ignore=left_out)
    (closed / PACKAGE / "__init__.py").write_text("raise RuntimeError('never to be run')\n")
    if ours.libraries.is_dir():
        shutil.copytree(ours.libraries, closed / ours.libraries.name)
    return closed


@only_root
@pytest.mark.slow
def test_programs_that_postgresql_cannot_reach_are_copied_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the state folder; nothing outside of it changes its mode or owner."""
    closed = closed_programs(world)
    state = world.state()
    monkeypatch.syspath_prepend(closed)
    watched = [world.room, closed, closed / PACKAGE, closed / PACKAGE / TREE]
    before = look_of(watched)

    with EmbeddedDatabase(state.path, linger_s=0) as database:
        (copy,) = state.path.glob(f"{COPY_PREFIX}*")
        runs = os.readlink(f"/proc/{database.info.postgres_pid}/exe")
        assert runs == str(copy / PACKAGE / TREE / "bin" / "postgres")
        assert [(1,)] == execute(database.url, "select 1")
    eventually(lambda: is_over(state), "the server ends after its last guest")
    older = state.path / f"{COPY_PREFIX}17-of-old"
    older.mkdir()
    made = copy.stat().st_ctime_ns

    with EmbeddedDatabase(state.path, linger_s=0) as database:
        assert [copy, older] == sorted(state.path.glob(f"{COPY_PREFIX}*"), reverse=True)
        assert made == copy.stat().st_ctime_ns, "it was copied again"
        assert [] == list(state.path.glob(f"{UNFINISHED_PREFIX}*"))
    assert before == look_of(watched)


@only_root
@pytest.mark.slow
def test_a_closed_state_folder_is_opened_for_traversal_only(world: World) -> None:
    """As `mktemp -d` makes them. Others may pass through it then, but list and read nothing."""
    state = world.state()
    state.path.mkdir(mode=0o700)
    before = look_of([world.room])

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        assert [(1,)] == execute(database.url, "select 1")

    assert before == look_of([world.room])
    assert 0o701 == stat.S_IMODE(state.path.stat().st_mode)
    for path in state.path.iterdir():
        assert 0 == path.stat().st_mode & 0o077, path


@only_root
@pytest.mark.slow
def test_a_narrow_umask_closes_none_of_the_created_folders(world: World) -> None:
    before = os.umask(0o077)
    try:
        state = world.state("several", "new", "folders")
        with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
            assert [(1,)] == execute(database.url, "select 1")
    finally:
        os.umask(before)


@only_root
@pytest.mark.slow
def test_root_can_name_the_user_that_postgresql_runs_as(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        daemon = pwd.getpwnam("daemon")
    except KeyError:
        pytest.skip("this machine has no user called daemon")
    monkeypatch.setenv(USER_VARIABLE, "daemon")

    with EmbeddedDatabase(world.state().path, linger_s=LINGER_S) as database:
        owner = os.stat(f"/proc/{database.info.postgres_pid}").st_uid
        assert daemon.pw_uid == owner
        status = Path(f"/proc/{database.info.postgres_pid}/status").read_text()
        assert "Groups:\t \n" in status, "root's groups were left behind"


@only_root
@pytest.mark.slow
def test_postgresql_of_root_runs_as_a_user_id_of_its_own(world: World) -> None:
    """No other program has it, jobs least of all: `nobody` could kill it and write its files."""
    with EmbeddedDatabase(world.state().path, linger_s=LINGER_S) as database:
        status = os.stat(f"/proc/{database.info.postgres_pid}")
        owners = {path.lstat().st_uid for path in world.state().data.rglob("*")}

    assert (DATABASE_UID, DATABASE_UID) == (status.st_uid, status.st_gid)
    assert {DATABASE_UID} == owners
    with pytest.raises(KeyError):
        pwd.getpwuid(DATABASE_UID)


@only_root
@pytest.mark.slow
def test_data_of_an_earlier_version_gets_the_user_of_postgresql(world: World) -> None:
    """It ran as `nobody`. Files with another owner or a second name stay as they are."""
    state, former = world.used_state(), pwd.getpwnam(INITDB_USER).pw_uid
    for path in (state.data, *state.data.rglob("*")):
        os.chown(path, former, -1, follow_symlinks=False)
    secret = world.room / "secret"
    secret.touch()
    os.link(secret, state.data / "roots")
    twice = world.room / "twice"
    twice.touch()
    os.chown(twice, former, -1)
    os.link(twice, state.data / "linked")

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        assert [(7,)] == execute(database.url, "select figure from kept")
        assert DATABASE_UID == os.stat(f"/proc/{database.info.postgres_pid}").st_uid
    assert (0, former) == (secret.stat().st_uid, twice.stat().st_uid)
    (state.data / "linked").unlink()
    assert former not in {path.lstat().st_uid for path in state.data.rglob("*")}


@pytest.mark.slow
def test_a_plain_user_needs_nothing_but_a_home(world: World) -> None:
    """They own database, supervisor and state; the default state folder is below their home."""
    user = plain_user()
    home = world.room / "home"
    home.mkdir(mode=0o700)
    user.take(home)
    state = world.state("home", ".local", "state", "bursar")
    options = {"env": environment_for(user, home), "cwd": "/", **user.spawn_options()}

    guest = world.guest_at("", python_for(user), **options)
    told = guest.told()

    assert str(state.run) == told["host"]
    for pid in (told["postgres_pid"], told["supervisor_pid"]):
        assert user.uid == os.stat(f"/proc/{pid}").st_uid
    assert [(1,)] == execute(told["url"], "select 1")
    for path in (home, *state.path.parents[:2], state.path):
        assert 0o700 == stat.S_IMODE(path.stat().st_mode)
    guest.leaves()
    eventually(lambda: is_over(state), "the server ends after its last guest")
