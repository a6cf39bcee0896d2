"""Delivers policies and slices of quotas to pools (B4).

Both are settings: a policy is a setting of the deployment's own org, a quota one of its org. A pool
has a numbered copy, and accepts one with a higher number. So any process may deliver either at any
time, more than once, and be killed at any time. There are three transactions, none of which touches
both an org's and a pool's tables (D4):

    org     ── read quotas and slices, divide again, write ─▶   (by the pools' reports)
    pool    ── accept the slices ─▶  a round
    org     ── write which slices the pools have ─▶  more can be granted elsewhere

The reports of pools are read from memory, which may be behind. An outdated report is safe: see
`core.quota_slices`.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

from bursar.core.dispatch.state import PolicyInForce, PoolTransaction
from bursar.core.ids import OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.quota_slices import Slice, SliceReport, first_slice, rebalance
from bursar.core.refusal import Fault
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.policy_file import PolicyFileError, parse_policy
from bursar.service.keys import DEPLOYMENT
from bursar.service.pools.pool import PoolHandle
from bursar.service.queries.settings import settings_of
from bursar.service.workers.worker import DatabaseWorker, Task, Turn
from bursar.store.jobs.quota_slices import (
    StoredSlice,
    enter,
    quotas_of,
    save_slices,
    slices_of,
    undivided,
)
from bursar.store.ledger.loader import lock_orgs
from bursar.store.sql.connection import Connection, money_time

POLICY_SETTING: Final = "pool_policy"  # the kind of setting; its id is the pool's name
POLL_INTERVAL_S: Final = 3.0  # between two polls for settings by other processes
MIN_PAUSE_S: Final = 0.1  # between two rounds, however many wake-ups come
ORGS_MAX: Final = 1_000  # orgs per poll
ROUNDS_MAX: Final = 6  # rounds in a row for one org, before others have their turn

_log = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """The slices of an org's quotas, and those of them that have changed."""

    slices: dict[tuple[str, PoolId], StoredSlice]
    changed: list[StoredSlice]


class QuotaDistributor:
    """Delivers policies and slices to pools, on one connection."""

    def __init__(
        self,
        connection: Connection,
        pools: Mapping[PoolId, PoolHandle],
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._pools = pools
        self._clock = clock
        self._away: set[PoolId] = set()  # could not be reached; not tried again in this turn

    def deliver_policies(self, pools: Iterable[PoolId] | None = None) -> None:
        """Deliver the policies that operators have set to these pools, or to all."""
        names = [name for name in (pools or list(self._pools)) if name in self._pools]
        settings = settings_of(
            self._connection, POLICY_SETTING, [(DEPLOYMENT, name) for name in names]
        )
        for (_, name), setting in sorted(settings.items()):
            known = self._pools[name].look(lambda pool: pool.policy)
            if known is None or known.n < setting.number:
                policy = _parse_stored_policy(name, setting.body)
                if policy is not None:
                    in_force = PolicyInForce(n=setting.number, policy=policy)
                    self._change_pool(name, partial(_adopt, policy=in_force))

    def _change_pool(self, name: PoolId, do: Callable[[PoolTransaction], None]) -> None:
        """Change a pool; one that cannot be reached does not delay the others."""
        try:
            self._pools[name].change(do)
        except Fault as fault:
            self._away.add(name)
            _log.warning("pool %s: quotas or policy not delivered: %s", name, fault)

    def orgs_in_need(self) -> set[OrgId]:
        """The orgs whose quotas should be divided again, by the pools' usage."""
        handles = list(self._pools.values())
        return {
            org
            for handle in handles
            for org in handle.look(lambda pool: pool.quota_usage.orgs_to_divide())
        }

    def undivided_orgs(self) -> set[OrgId]:
        """The orgs whose quotas have changed, or whose slices were not delivered completely."""
        return set(undivided(self._connection, ORGS_MAX)) if self._pools else set()

    def divide_all(self, orgs: Iterable[OrgId]) -> None:
        """Divide the quotas of some orgs; an error affects only its own org."""
        for org in orgs:
            try:
                self.divide(org)
            except Exception:
                if self._connection.closed:
                    raise
                _log.exception("dividing the quotas of org %s failed", org)

    def divide(self, org: OrgId) -> None:
        """Divide an org's quotas among the pools, as far as the pools' reports allow now."""
        for _ in range(ROUNDS_MAX):
            seen = {
                name: handle.look(lambda pool: pool.quota_usage.report_of(org))
                for name, handle in list(self._pools.items())
            }
            untold = self._undelivered(self._divide_and_store(org, seen), seen)
            if not untold:
                return
            for name, slices in sorted(untold.items()):
                self._change_pool(name, partial(_allot, slices=tuple(slices)))

    def _undelivered(
        self, stored: Iterable[StoredSlice], seen: Mapping[PoolId, Mapping[str, SliceReport]]
    ) -> dict[PoolId, list[Slice]]:
        """The slices that pools do not have yet."""
        undelivered: dict[PoolId, list[Slice]] = defaultdict(list)
        for stored_slice in stored:
            part, said = stored_slice.part, seen.get(stored_slice.part.pool)
            if part.pool in self._away:
                continue
            if said is not None and said.get(part.slice.quota, SliceReport()).n < part.slice.n:
                undelivered[part.pool].append(part.slice)
        return undelivered

    def _divide_and_store(
        self, org: OrgId, seen: Mapping[PoolId, Mapping[str, SliceReport]]
    ) -> list[StoredSlice]:
        """Divide an org's quotas again; the org is locked only if slices have changed."""
        now = self._clock(self._connection)
        with self._connection.transaction():
            enter(self._connection, org)
            plan = self._plan(org, seen, now)
        if plan.changed:
            with self._connection.transaction():
                lock_orgs(self._connection, [org])
                plan = self._plan(org, seen, now)
                save_slices(self._connection, plan.changed)
        return list(plan.slices.values())

    def _plan(
        self, org: OrgId, seen: Mapping[PoolId, Mapping[str, SliceReport]], now: Instant
    ) -> _Plan:
        known = slices_of(self._connection, org)
        plan = _Plan({}, [])
        for quota, number in quotas_of(self._connection, org):
            pools = sorted({*seen, *(pool for of, pool in known if of == quota.id)})
            old = [
                known.get((quota.id, pool), StoredSlice(first_slice(quota, pool))) for pool in pools
            ]
            said = {name: report[quota.id] for name, report in seen.items() if quota.id in report}
            new = rebalance(quota, [stored_slice.part for stored_slice in old], said, now)
            for before, part in zip(old, new, strict=True):
                heard = said.get(part.pool, SliceReport()).n
                stored_slice = StoredSlice(
                    part, max(before.known, min(heard, part.slice.n)), number
                )
                plan.slices[quota.id, part.pool] = stored_slice
                if stored_slice != before:
                    plan.changed.append(stored_slice)
        return plan


def _parse_stored_policy(pool: PoolId, body: str | None) -> PoolPolicy | None:
    """The stored policy; None, with a log line, if this version cannot parse it."""
    try:
        return parse_policy(json.loads(body or "{}"))
    except PolicyFileError as error:
        _log.error("the stored policy of pool %s is invalid: %s", pool, error)
        return None


def _adopt(work: PoolTransaction, policy: PolicyInForce) -> None:
    work.adopt(policy)


def _allot(work: PoolTransaction, slices: tuple[Slice, ...]) -> None:
    for quota_slice in slices:
        work.quotas.put_slice(quota_slice)


class QuotaWorker:
    """Delivers quotas and policies: at each wake-up, and at polls those set by other processes."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        pools: Mapping[PoolId, PoolHandle],
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connect = connect
        self._distributor = partial(QuotaDistributor, pools=pools, clock=clock)
        self._worker = DatabaseWorker(
            "quotas",
            connect,
            self._distributing,
            interval_s=POLL_INTERVAL_S,
            min_pause_s=MIN_PAUSE_S,
        )

    def __enter__(self) -> Self:
        self._worker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.stop()

    def wake(self, org: OrgId | None = None) -> None:
        """Divide quotas again, because a pool or the quotas of an org have changed."""
        self._worker.wake(org)

    def put_in_force(self, pool: PoolId) -> None:
        """Deliver its policy to a pool now."""
        with self._connect() as connection:
            self._distributor(connection).deliver_policies([pool])

    @contextmanager
    def _distributing(self, connection: Connection) -> Iterator[Task]:
        def distribute(turn: Turn) -> None:
            distributor = self._distributor(connection)
            orgs = set(turn.keys)
            if turn.is_poll:
                distributor.deliver_policies()
                orgs |= distributor.undivided_orgs()
            distributor.divide_all(sorted(orgs | distributor.orgs_in_need()))

        yield distribute
