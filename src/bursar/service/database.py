"""Opens the database of a service, for folders that do not import the store."""

from psycopg import OperationalError as DatabaseLost

from bursar.core.ids import OrgId
from bursar.store.database import (
    URL_VARIABLE,
    Database,
    DatabaseFull,
    open_database,
    open_embedded,
    state_folder,
)
from bursar.store.embedded import DatabaseDown, StateUnusable
from bursar.store.ledger.writer import create_org
from bursar.store.pools.loader import create_pool
from bursar.store.schema.migrator import SchemaDiffers
from bursar.store.scratch_db import (
    ScratchDatabase,
    program_path,
    scratch_database,
    temporary_server,
)
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

__all__ = [
    "SNAPSHOT",
    "URL_VARIABLE",
    "Connection",
    "Database",
    "DatabaseDown",
    "DatabaseFull",
    "DatabaseLost",
    "OrgId",
    "SchemaDiffers",
    "ScratchDatabase",
    "StateUnusable",
    "create_org",
    "create_pool",
    "money_time",
    "open_database",
    "open_embedded",
    "program_path",
    "scratch_database",
    "state_folder",
    "temporary_server",
]
