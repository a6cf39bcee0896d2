"""The two ways in which an embedded database cannot be had."""

from bursar.core.refusal import Fault


class StateUnusable(Exception):
    """The caller's folder or settings do not allow a database; the message tells how to mend it."""


class DatabaseDown(Fault):
    """The database does not serve although its folder is fine; trying again may help."""
