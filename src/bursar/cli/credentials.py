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

from bursar.cli.problems import LocalProblem

URL_VARIABLE: Final = "BURSAR_URL"
KEY_VARIABLE: Final = "BURSAR_KEY"
STATE_VARIABLE: Final = "BURSAR_STATE"
SERVICE_FILE: Final = "api.json"  # in the state folder, beside the key: where the service listens
ADMIN_KEY_FILE: Final = "admin.key"

_CONFIGURE_REMEDY: Final = (
    "Run `bursar up` here, or `bursar login URL`, or set BURSAR_URL and BURSAR_KEY."
)


@dataclass(frozen=True, slots=True)
class Access:
    """A URL and the key for it."""

    url: str
    key: str


def find_access() -> Access:
    """The URL and key to use; raises `Unusable` if none is configured."""
    url, key = os.environ.get(URL_VARIABLE), os.environ.get(KEY_VARIABLE)
    if url and key:
        return Access(url, key)
    configured = load_profile() or find_local_service()
    if configured is None and not url:
        raise LocalProblem("no service is configured", _CONFIGURE_REMEDY)
    if configured is not None and (not url or url.rstrip("/") == configured.url):
        return Access(configured.url, key or configured.key)
    raise LocalProblem(
        f"no key is configured for {url}", f"Set {KEY_VARIABLE}, or run `bursar login {url}`."
    )


# The profile


def profile_path() -> Path:
    """The file that `bursar login` writes."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative paths.
    folder = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return folder / "bursar" / "profile.json"


def load_profile() -> Access | None:
    """The saved profile; raises `Unusable` if other users can read or write it."""
    path = profile_path()
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise LocalProblem(f"other users can read the key in {path}", f"chmod 600 {path}")
            profile = json.load(file)
        return Access(profile["url"], profile["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalProblem(f"{path} cannot be used: {error}", "Run `bursar login` again.") from None


def save_profile(access: Access) -> Path:
    """Save a URL and its key atomically, readable by the current user only."""
    path = profile_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": access.url, "key": access.key}, file)
        file.write("\n")
    temporary.replace(path)
    return path


# This machine


def find_local_service() -> Access | None:
    """The service that `bursar up` runs on this machine, if this user can read its files."""
    folder = _state_folder()
    try:
        url = json.loads((folder / SERVICE_FILE).read_text())["url"]
        return Access(url, (folder / ADMIN_KEY_FILE).read_text().strip())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce_service(folder: Path, url: str) -> None:
    """Write the service's URL to the state folder, where other commands find it."""
    temporary = folder / f".{SERVICE_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    temporary.replace(folder / SERVICE_FILE)


def withdraw_service(folder: Path) -> None:
    """Remove the announced URL, unless another process has replaced it."""
    path = folder / SERVICE_FILE
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


def _state_folder() -> Path:
    state = os.environ.get(STATE_VARIABLE)
    if state:
        return Path(state).expanduser()
    from bursar.service.database import state_folder  # brings a database driver with it

    return state_folder(None)
