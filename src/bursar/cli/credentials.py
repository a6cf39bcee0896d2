"""Where the service is and which key to show it: told by the environment, a login, or found here.

BURSAR_URL and BURSAR_KEY come first; then the profile that `bursar login` wrote; then what runs on
this machine. A key is only ever shown to the URL that it was kept with.
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
    """What to call, and with which key; `Unusable` if nothing says so."""
    url, key = os.environ.get(URL_VARIABLE), os.environ.get(KEY_VARIABLE)
    if url and key:
        return Access(url, key)
    known = saved() or running_here()
    if known is None and not url:
        raise Unusable("there is no service to talk to", _HOW)
    if known is not None and (not url or url.rstrip("/") == known.url):
        return Access(known.url, key or known.key)
    raise Unusable(
        f"there is no key for {url}", f"Set {KEY_VARIABLE}, or run `bursar login {url}`."
    )


# The profile


def profile() -> Path:
    """The file that `bursar login` writes."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative one is to be ignored, says its specification.
    folder = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    return folder / "bursar" / "profile.json"


def saved() -> Access | None:
    """What the last login left; `Unusable` if others could have read or written it."""
    path = profile()
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise Unusable(f"others may read the key in {path}", f"chmod 600 {path}")
            found = json.load(file)
        return Access(found["url"], found["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} cannot be used: {error}", "Run `bursar login` again.") from None


def save(known: Access) -> Path:
    """Keep a URL and its key where only we can read them; it is there whole or not at all."""
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
    """The service that `bursar up` runs on this machine, if we may know of it."""
    folder = _state()
    try:
        url = json.loads((folder / RUNNING).read_text())["url"]
        return Access(url, (folder / FIRST_KEY).read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce(folder: Path, url: str) -> None:
    """Let commands on this machine find the service of a state folder."""
    aside = folder / f".{RUNNING}.{os.getpid()}"
    aside.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    aside.replace(folder / RUNNING)


def withdraw(folder: Path) -> None:
    """Let nobody look for us any more; another process of the same folder may have come since."""
    path = folder / RUNNING
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


def _state() -> Path:
    given = os.environ.get(STATE_VARIABLE)
    if given:
        return Path(given).expanduser()
    from bursar.service.database import state_of  # brings a database driver with it

    return state_of(None)
