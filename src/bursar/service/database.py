"""The database behind a service, for those who run one and have no business with the store."""

from bursar.store.database import URL_VARIABLE, Database, opened
from bursar.store.embedded import DatabaseDown, StateUnusable
from bursar.store.migrate import SchemaDiffers

__all__ = ["URL_VARIABLE", "Database", "DatabaseDown", "SchemaDiffers", "StateUnusable", "opened"]
