"""Service: what every call works with. Caller: the key that a call was made with."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from bursar.api.errors import CallFailed, CallRefused
from bursar.api.event_stream import Streams
from bursar.api.keyring import Keyring, StoredKey
from bursar.api.loop_bridge import LoopBridge
from bursar.api.rate_limits import RateLimits
from bursar.core.budgets.tiers import TIERS
from bursar.core.instant import Instant
from bursar.core.refusal import Code, Refusal
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.service.address_book import AddressBook
from bursar.service.cache import Directory
from bursar.service.database import Connection
from bursar.service.jobs.admission import JobAdmission
from bursar.service.keys import DEPLOYMENT, Key, PresentedKey, Scope, parse_key
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.host import Pools
from bursar.service.queries.read_pool import ReadPool
from bursar.service.queries.request_lookup import first_command
from bursar.service.readiness import Readiness
from bursar.service.secrets import Secret
from bursar.service.webhooks.safe_http import SafeHttpClient

if TYPE_CHECKING:
    from bursar.api.call import Call

T = TypeVar("T")

KEY_MAX: Final = 512  # characters of a key in a header

# The refusal of an unknown id, for each table.
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
    """The key that a call was made with, and what it may do."""

    id: str  # of the key
    org: str  # the deployment's, for an operator
    key: Key

    @property
    def is_operator(self) -> bool:
        """Whether the key works for all orgs."""
        return self.org == DEPLOYMENT

    def needs(self, scope: str) -> None:
        """Fail the call unless the key has a scope."""
        if not self.key.allows(scope):
            raise CallFailed("forbidden", f"the key lacks the scope {scope!r}")

    def needs_node(self, pool: str, node: str) -> None:
        """Fail the call unless the key belongs to a node."""
        self.needs(Scope.WORK)
        if not self.key.is_node(pool, node):
            raise CallFailed(
                "forbidden", f"the key is for {self.key.node!r}, not for {pool}/{node}"
            )


class VisiblePart(NamedTuple):
    """The part of an org that a key may list: an account and all below it, or all (None)."""

    org: str
    account: str | None


@dataclass(slots=True)
class Service:
    """The parts of a process that serves the API."""

    ledger: Ledger
    readers: ReadPool
    key_readers: ReadPool  # for keys and rates, so that long reads do not delay admission
    secret: Secret
    clock: GuardedClock
    readiness: Readiness
    address_book: AddressBook = field(default_factory=AddressBook)
    directory: Directory = field(default_factory=Directory)
    outbound: SafeHttpClient = field(default_factory=SafeHttpClient)
    pools: Pools | None = None  # those that this process serves
    has_provisioner: bool = False  # whether a provisioner orders nodes for them
    admission: JobAdmission | None = None  # of jobs to the pools
    limits: RateLimits = field(init=False)
    keys: Keyring = field(init=False)
    loop_bridge: LoopBridge = field(default_factory=LoopBridge)
    streams: Streams = field(default_factory=Streams)

    def __post_init__(self) -> None:
        self.limits = RateLimits(self.key_readers, self.clock.estimate)
        self.keys = Keyring(self.key_readers)

    def deliver_messages(self, org: str) -> None:
        """Have the messages of an org to its pools delivered at once."""
        if self.pools is not None:
            self.pools.relay_from_org(org)

    async def read(self, question: Callable[[Connection], T]) -> T:
        """Run a query in a thread of the readers."""
        return await self.run_in_thread(question)

    async def run_in_thread(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which may write, in a thread of the readers with its connection."""
        return await asyncio.wrap_future(self.readers.ask(work))

    async def admit(self, call: "Call") -> Caller:
        """Check the key and the rate of a call, before anything else of it is read."""
        caller = await self._authenticate(call)
        await self.limits.check(call, caller.org, caller.id, caller.key.rate_per_s)
        return caller

    async def _authenticate(self, call: "Call") -> Caller:
        """The caller of a valid key. Every reason to reject a key gets the same response."""
        presented = parse_authorization(call)
        if presented is None:
            self.limits.count_guess(call.address)
            raise _unauthenticated()
        now = self.clock.estimate()  # keys expire; before any look-up, so that all fail alike
        key = check_secret(presented, self.keys.cached(presented), now) or await self._look_up(
            call, presented, now
        )
        return Caller(presented.id, presented.org, key)

    async def _look_up(self, call: "Call", presented: PresentedKey, now: Instant) -> Key:
        """Look a key up in the database: its secret may be newer than the cached one."""

        async def look() -> Key | None:
            return check_secret(presented, await self.keys.look_up(presented), now)

        if self.keys.is_expected(presented):
            key = await look()
            if key is None:
                self.limits.count_guess(call.address)
        else:  # made-up keys must not load the database
            key = await self.limits.look_up_guess(call.address, look)
        if key is None:
            raise _unauthenticated()
        return key

    async def org_of(self, caller: Caller, table: str, id: str) -> str:
        """The org that an object belongs to; the caller must be allowed to see it."""
        if not caller.is_operator:
            await self._check_below(caller, table, id)
            return caller.org
        books = self.directory
        cached: str | None = books.org_known(table, id)
        org = await self._cached(cached, lambda reader: books.org_of(reader, table, id))
        if org is None:
            raise unknown(table, id)
        return org

    async def _cached(self, cached: T, read: Callable[[Connection], T]) -> T:
        """The cached value; if it is None, what the database has."""
        return await self.read(read) if cached is None else cached

    async def _path(self, org: str, account: str) -> tuple[str, ...]:
        """An account and the accounts above it; empty if the org has no such account."""
        books = self.directory
        path: tuple[str, ...] | None = await self._cached(
            books.path_known(org, account), lambda reader: books.path_of(reader, org, account)
        )
        return path or ()

    async def _account(self, org: str, table: str, id: str) -> str | None:
        """The account that an object belongs to; None if the org has no such object."""
        books = self.directory
        cached = books.account_known(org, table, id)
        return await self._cached(cached, lambda reader: books.account_of(reader, org, table, id))

    async def _check_below(self, caller: Caller, table: str, id: str) -> None:
        """Fail the call unless an object belongs to the key's account or to one below it."""
        org, own = caller.org, caller.key.account
        if len(await self._path(org, own)) == 1:  # the key is for the root: for the whole org
            # The ledger rejects unknown ids itself, but not every operation asks it for accounts.
            if table == "accounts" and not await self._path(org, id):
                raise unknown("accounts", id)
            return
        account = await self._account(org, table, id)
        if account is None:
            raise unknown(table, id)
        above = await self._path(org, account)
        if own not in above:
            raise unknown(table, id)

    async def check_exists(self, org: str, table: str, id: str) -> None:
        """Fail the call unless an org has an object.

        For settings that name an object: no command of the ledger checks them.
        """
        account: str | None
        if table == "accounts":  # the cache also knows accounts that were only asked for
            books = self.directory
            account = await self.read(lambda reader: books.account_of(reader, org, table, id))
        else:
            account = await self._account(org, table, id)
        if account is None:
            raise unknown(table, id)

    async def is_first_request(self, org: str, key: str) -> bool:
        """Whether an idempotency key is new; a retry gets its first answer without new checks."""
        return await self.read(lambda reader: first_command(reader, org, key)) is None

    def check_tier(self, tier: str) -> None:
        """Fail the call unless a tier has default budgets or the policy of some pool names it."""
        policies = [PoolPolicy(), *(self.pools.policies() if self.pools is not None else ())]
        tiers = {*TIERS, *(known.name for policy in policies for known in policy.tiers)}
        if tier not in tiers:
            raise CallFailed(
                "invalid_request",
                f"/tier: there is no tier {tier!r}; there are {', '.join(sorted(tiers))}."
                " The policy of a pool can add tiers",
            )

    async def whole_org(self, caller: Caller, org: str | None) -> str:
        """The org of a call that is about all of it; the key must be for the whole org."""
        visible = await self.visible_part(caller, org)
        if visible.account is not None:
            raise CallFailed("forbidden", "the key is for an account, not for the whole org")
        return visible.org

    async def visible_part(self, caller: Caller, org: str | None) -> VisiblePart:
        """The part of an org that a list shows to a key."""
        if caller.is_operator:
            if org is None:
                raise CallFailed("invalid_request", "org_id: an operator must name the org")
            return VisiblePart(org, None)
        if org is not None and org != caller.org:
            raise CallFailed("org_unknown")
        path = await self._path(caller.org, caller.key.account)
        return VisiblePart(caller.org, None if len(path) == 1 else caller.key.account)


def unknown(table: str, id: str) -> Exception:
    """The problem of an unknown id; objects of other orgs get the same one."""
    if table == "jobs":  # the ledger knows jobs by their holds only
        return CallFailed("job_unknown")
    code = UNKNOWN[table]
    return CallRefused(Refusal(code, {code.removesuffix("_unknown"): id}))


def parse_authorization(call: "Call") -> PresentedKey | None:
    scheme, _, text = call.header("authorization").partition(" ")
    if scheme.lower() != "bearer" or len(text) > KEY_MAX:
        return None
    return parse_key(text.strip())


def _unauthenticated() -> CallFailed:
    return CallFailed("unauthenticated", headers={"WWW-Authenticate": "Bearer"})


def check_secret(presented: PresentedKey, stored: StoredKey | None, now: Instant) -> Key | None:
    """The stored key, if the presented secret opens it."""
    if stored is None or not stored[0].opens_with(presented.hash, now, stored[1]):
        return None
    return stored[0]
