"""The two reasons why an embedded database is not available."""

from bursar.core.refusal import Fault


class StateUnusable(Exception):
    """The folder or settings do not allow a database; the message says how to correct it."""


class DatabaseDown(Fault):
    """The database does not serve although its folder is usable; a retry may help."""
