"""The deployment's secret, and secrets derived from it.

The secrets of keys and webhooks are derived from the deployment's secret and their purpose. So a
repeated request gets the same secret, and none is stored: the database has a hash of a key's
secret, and nothing of a webhook's.
"""

import hmac
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

VARIABLE: Final = "BURSAR_SECRET_KEY"
FILE: Final = "secret.key"
LEAST: Final = 32  # characters of a secret that an operator chose


class SecretUnusable(Exception):
    """The deployment's secret cannot be used."""


class Secret:
    """The deployment's secret."""

    def __init__(self, text: str) -> None:
        if len(text) < LEAST:
            raise SecretUnusable(
                f"{VARIABLE} must have at least {LEAST} characters, not {len(text)}"
            )
        self._key = text.encode()

    def derived(self, *purpose: str) -> bytes:
        """32 bytes that cannot be derived without the secret."""
        return hmac.digest(self._key, "\0".join(purpose).encode(), sha256)

    @property
    def fingerprint(self) -> str:
        """A fingerprint that identifies the secret without revealing it."""
        return self.derived("fingerprint of the deployment's secret").hex()[:32]

    def __repr__(self) -> str:
        return "Secret(…)"


def secret_of(folder: Path) -> Secret:
    """The secret from the environment, or from a folder; created if there is none."""
    text = os.environ.get(VARIABLE)
    if text:
        return Secret(text)
    return Secret(read_or_create(folder / FILE, os.urandom(32).hex()))


def read_or_create(path: Path, text: str) -> str:
    """Read a file that only this user may read; create it with `text` if there is none.

    Several processes may do this at once: one of them creates the file, complete, and all read it.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path.read_text().strip()
