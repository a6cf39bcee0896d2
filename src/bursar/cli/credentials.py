"""Finds the service's URL and key: in the environment, the login profile, or on this machine.

BURSAR_URL and BURSAR_KEY come first; then the profile that `bursar login` wrote; then what runs on
this machine. A key is sent only to the URL that it was saved with.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.cli.problems import Unusable

URL_VARIABLE: Final = "BURSAR_URL"
KEY_VARIABLE: Final = "BURSAR_KEY"
STATE_VARIABLE: Final = "BURSAR_STATE"
RUNNING: Final = "api.json"  # in the state folder, beside the key: where the service listens
FIRST_KEY: Final = "admin.key"

_HOW: Final = "Run `bursar up` here, or `bursar login URL`, or set BURSAR_URL and BURSAR_KEY."


@dataclass(frozen=True, slots=True)
class Access:
    """A URL and the key for it."""

    url: str
    key: str


def access() -> Access:
    """The URL and key to use; raises `Unusable` if none is configured."""
    url, key = os.environ.get(URL_VARIABLE), os.environ.get(KEY_VARIABLE)
    if url and key:
        return Access(url, key)
    known = saved() or running_here()
    if known is None and not url:
        raise Unusable("no service is configured", _HOW)
    if known is not None and (not url or url.rstrip("/") == known.url):
        return Access(known.url, key or known.key)
    raise Unusable(
        f"no key is configured for {url}", f"Set {KEY_VARIABLE}, or run `bursar login {url}`."
    )


# The profile


def profile() -> Path:
    """The file that `bursar login` writes."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative paths.
    folder = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    return folder / "bursar" / "profile.json"


def saved() -> Access | None:
    """The saved profile; raises `Unusable` if other users can read or write it."""
    path = profile()
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise Unusable(f"other users can read the key in {path}", f"chmod 600 {path}")
            found = json.load(file)
        return Access(found["url"], found["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} cannot be used: {error}", "Run `bursar login` again.") from None


def save(known: Access) -> Path:
    """Save a URL and its key atomically, readable by the current user only."""
    path = profile()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": known.url, "key": known.key}, file)
        file.write("\n")
    aside.replace(path)
    return path


# This machine


def running_here() -> Access | None:
    """The service that `bursar up` runs on this machine, if this user can read its files."""
    folder = _state()
    try:
        url = json.loads((folder / RUNNING).read_text())["url"]
        return Access(url, (folder / FIRST_KEY).read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce(folder: Path, url: str) -> None:
    """Write the service's URL to the state folder, where other commands find it."""
    aside = folder / f".{RUNNING}.{os.getpid()}"
    aside.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    aside.replace(folder / RUNNING)


def withdraw(folder: Path) -> None:
    """Remove the announced URL, unless another process has replaced it."""
    path = folder / RUNNING
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


def _state() -> Path:
    given = os.environ.get(STATE_VARIABLE)
    if given:
        return Path(given).expanduser()
    from bursar.service.database import state_folder  # brings a database driver with it

    return state_folder(None)
