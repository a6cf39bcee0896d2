"""The table of operations: everything that the HTTP API can do, a module for each subject."""

from typing import Final

from bursar.api.operation import Operation
from bursar.api.operations import (
    batch,
    corrections,
    explain,
    jobs,
    ledger,
    ledger_reads,
    logs,
    meta,
    orgs,
    policies,
    pool_events,
    pools,
    quotas,
    scaling,
    statements,
    webhooks,
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    *orgs.operations,
    *ledger.operations,
    *statements.operations,
    *quotas.operations,
    *jobs.operations,  # before ledger_reads: /top/jobs is described before /top/{subject}
    *ledger_reads.operations,
    *explain.operations,
    *logs.operations,
    *corrections.operations,
    *pools.operations,
    *policies.operations,
    *scaling.operations,
    *pool_events.operations,
    *webhooks.operations,
    *batch.operations,
    *meta.operations,
)
