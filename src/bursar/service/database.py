"""The database behind a service, for those who run one and have no business with the store."""

from psycopg import OperationalError as DatabaseLost

from bursar.core.ids import OrgId
from bursar.store.database import (
    URL_VARIABLE,
    Database,
    DatabaseFull,
    embedded,
    opened,
    state_of,
)
from bursar.store.embedded import DatabaseDown, StateUnusable
from bursar.store.ledger.writer import create_org
from bursar.store.pools.loader import create_pool
from bursar.store.schema.migrator import SchemaDiffers
from bursar.store.scratch_db import Aside, aside, program, temporary
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

__all__ = [
    "SNAPSHOT",
    "URL_VARIABLE",
    "Aside",
    "Connection",
    "Database",
    "DatabaseDown",
    "DatabaseFull",
    "DatabaseLost",
    "OrgId",
    "SchemaDiffers",
    "StateUnusable",
    "aside",
    "create_org",
    "create_pool",
    "embedded",
    "money_time",
    "opened",
    "program",
    "state_of",
    "temporary",
]
