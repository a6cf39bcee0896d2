"""What every call works with: the ledger, readers, keys, who calls."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fastapi import Request

from bursar.api.errors import Failed, Refused
from bursar.api.event_stream import Streams
from bursar.api.keyring import Keyring, LruCache
from bursar.api.loop_bridge import Arrivals
from bursar.api.rate_limits import Limits
from bursar.core.instant import SECOND, Instant
from bursar.core.refusal import Code, Refusal
from bursar.service.database import Connection
from bursar.service.id_cache import Directory
from bursar.service.jobs.admission import JobAdmission
from bursar.service.keys import DEPLOYMENT, Key, Presented, Scope, presented
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.host import Pools
from bursar.service.queries.read_pool import Readers
from bursar.service.secrets import Secret
from bursar.service.webhooks.safe_http import Outbound

T = TypeVar("T")

KEY_LONG: Final = 512  # characters of a header that might be a key

# The refusal that says there is no such thing, for whatever belongs to an account.
UNKNOWN: Final = {
    "accounts": Code.ACCOUNT_UNKNOWN,
    "users": Code.USER_UNKNOWN,
    "grants": Code.GRANT_UNKNOWN,
    "holds": Code.HOLD_UNKNOWN,
    "charges": Code.CHARGE_UNKNOWN,
    "debts": Code.DEBT_UNKNOWN,
    "budgets": Code.BUDGET_UNKNOWN,
    "recurrences": Code.RECURRENCE_UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a key, and what it may do."""

    id: str  # of the key
    org: str  # the deployment's, for an operator
    key: Key

    @property
    def is_operator(self) -> bool:
        """Whether it works for all orgs."""
        return self.org == DEPLOYMENT

    def needs(self, scope: str) -> None:
        """End the call unless the key has a scope."""
        if not self.key.allows(scope):
            raise Failed("forbidden", f"the key lacks the scope {scope!r}")

    def needs_node(self, pool: str, node: str) -> None:
        """End the call unless the key speaks for a node."""
        self.needs(Scope.WORK)
        if not self.key.is_node(pool, node):
            raise Failed("forbidden", f"the key is for {self.key.node!r}, not for {pool}/{node}")


@dataclass(slots=True)
class Service:
    """What a process serves."""

    ledger: Ledger
    readers: Readers
    doorkeepers: Readers  # for keys and rates: nobody waits at the door for others' long reads
    secret: Secret
    directory: Directory = field(default_factory=Directory)
    outbound: Outbound = field(default_factory=Outbound)
    pools: Pools | None = None  # those that this process serves
    provided: bool = False  # whether somebody provides nodes for them
    admission: JobAdmission | None = None  # of jobs to the pools
    limits: Limits = field(init=False)
    keys: Keyring = field(init=False)
    arrivals: Arrivals = field(default_factory=Arrivals)
    streams: Streams = field(default_factory=Streams)

    def __post_init__(self) -> None:
        self.limits = Limits(self.doorkeepers)
        self.keys = Keyring(self.doorkeepers)

    def posted(self, org: str) -> None:
        """An org has written to a pool: let it be delivered at once."""
        if self.pools is not None:
            self.pools.sent(org)

    async def read(self, question: Callable[[Connection], T]) -> T:
        """The answer to a question to the database."""
        return await asyncio.wrap_future(self.readers.ask(question))

    async def admitted(self, request: Request) -> Caller:
        """Whose call it is, unless too many are made; asked before anything else is looked at."""
        caller = await self.caller(request)
        await self.limits.check(request, caller.org, caller.id, caller.key.rate_per_s)
        return caller

    async def caller(self, request: Request) -> Caller:
        """Whose call it is; every reason not to know has the same answer."""
        shown = _shown(request)
        if shown is None:
            self.limits.count_guess(request)
            raise _nobody()
        key = _opened(shown, self.keys.known(shown)) or await self._looked_up(request, shown)
        return Caller(shown.id, shown.org, key)

    async def _looked_up(self, request: Request, shown: Presented) -> Key:
        """The key that was shown; its secret may be newer than what is known."""

        async def look() -> Key | None:
            return _opened(shown, await self.keys.look_up(shown))

        if self.keys.expects(shown):
            key = await look()
            if key is None:
                self.limits.count_guess(request)
        else:  # whoever makes keys up is not to tire the database
            key = await self.limits.guessed(request, look)
        if key is None:
            raise _nobody()
        return key

    async def org_of(self, caller: Caller, table: str, id: str) -> str:
        """The org in which an id means something to a caller."""
        if not caller.is_operator:
            await self._check_below(caller, table, id)
            return caller.org
        known = self.directory.org_known(table, id)
        if known is None:
            known = await self.read(lambda reader: self.directory.org_of(reader, table, id))
        if known is None:
            raise unknown(table, id)
        return known

    async def _check_below(self, caller: Caller, table: str, id: str) -> None:
        """End the call unless something is of the account that the key is for, or one below."""
        org, own, books = caller.org, caller.key.account, self.directory
        path = books.path_known(org, own)
        if path is None:
            path = await self.read(lambda reader: books.path_of(reader, org, own))
        if len(path) == 1:  # the key is for the root, and so for all that the org has
            if table == "accounts":  # what is more, not everybody asks the ledger about them
                await self._check_account(org, id)
            return
        account = books.account_known(org, table, id)
        if account is None:
            account = await self.read(lambda reader: books.account_of(reader, org, table, id))
        if account is None:
            raise unknown(table, id)
        above = books.path_known(org, account)
        if above is None:
            above = await self.read(lambda reader: books.path_of(reader, org, account))
        if own not in above:
            raise unknown(table, id)

    async def _check_account(self, org: str, account: str) -> None:
        """End the call unless an org has an account."""
        books = self.directory
        if books.path_known(org, account) is None and not await self.read(
            lambda reader: books.path_of(reader, org, account)
        ):
            raise unknown("accounts", account)

    async def check_there(self, org: str, table: str, id: str) -> None:
        """End the call unless an org has something of that id.

        For what is only kept: a command would say so itself.
        """
        account = self.directory.account_known(org, table, id) if table != "accounts" else None
        if account is None:
            account = await self.read(lambda one: self.directory.account_of(one, org, table, id))
        if account is None:
            raise unknown(table, id)

    async def whole_org(self, caller: Caller, org: str | None) -> str:
        """The org that a call is about as a whole; only keys for all of it may make one."""
        if caller.is_operator:
            if org is None:
                raise Failed("invalid_request", "org_id: an operator says which org is meant")
            return org
        if org is not None and org != caller.org:
            raise Failed("org_unknown")
        own, books = caller.key.account, self.directory
        path = books.path_known(caller.org, own)
        if path is None:
            path = await self.read(lambda reader: books.path_of(reader, caller.org, own))
        if len(path) != 1:
            raise Failed("forbidden", "the key is for an account, not for the whole org")
        return caller.org


def unknown(table: str, id: str) -> Exception:
    """That there is no such thing: the same for what is another's."""
    if table == "jobs":  # which the rules of the ledger know by their holds only
        return Failed("job_unknown")
    code = UNKNOWN[table]
    return Refused(Refusal(code, {code.removesuffix("_unknown"): id}))


def _shown(request: Request) -> Presented | None:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or len(text) > KEY_LONG:
        return None
    return presented(text.strip())


def _nobody() -> Failed:
    return Failed("unauthenticated", headers={"WWW-Authenticate": "Bearer"})


def _opened(shown: Presented, found: LruCache | None) -> Key | None:
    """The key that was found, if it opens with what is shown."""
    if found is None or not found[0].opens_with(shown.hash, _now(), found[1]):
        return None
    return found[0]


def _now() -> Instant:
    return int(time.time() * SECOND)
