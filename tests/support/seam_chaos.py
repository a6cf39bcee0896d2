"""A world that fails, played twice: in memory, and with everything in a database.

The orgs and the pool of `bursar.sim.faults` live through crashes, lost and late messages, wrong
clocks and silent nodes, and every promise is checked after each step. Beside them the service's own
code does the same in a database: each transaction of the pool is written there, each call and each
message goes through `Jobs` and the ledger. What was promised in memory must be true there too.
"""

from collections import defaultdict
from typing import Any

from bursar.core.ids import JobId
from bursar.core.ledger.commands import CorrectEnd, ExtendHold
from bursar.core.money import usage_price
from bursar.core.refusal import Refusal
from bursar.service.jobs import Answers, Jobs, Submission
from bursar.service.jobs.corrections import correction_request
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.sim.faults import org as org_side
from bursar.sim.faults.clients import PRICES, RATE, ClientCall
from bursar.sim.faults.org import SimulatedOrg
from bursar.sim.faults.profile import FaultProfile
from bursar.sim.faults.world import FaultWorld
from bursar.store.jobs.outbox import Envelope
from bursar.store.ledger.writer import create_org
from bursar.store.sql.connection import Connection
from tests.support.pool_driver import Clock
from tests.support.pool_twin import Twin, TwinWatch

POOL = "twin"


class Orgs:
    """The orgs of a world in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clock = Clock()
        self._cache: dict[str, Any] = {}
        self.jobs = Jobs(connection, self.ask, self._clock)

    def ask(self, asks: Any) -> Answers:
        """The ledger."""
        return Batch(self._connection, PRICES, self._cache, self._clock).run(asks)

    def found(self, org: SimulatedOrg) -> None:
        """Let an org be as it is in memory, where it has just been founded."""
        create_org(self._connection, org.id)
        for key, reply in org.replies.items():
            self._clock.now = org.books.header.now
            self._ask(org.id, key, reply.command)

    def _ask(self, org: str, key: str, command: Any) -> Answer:
        [answer] = self.ask([CommandRequest(org, key, command)])
        assert isinstance(answer, Answer), answer
        return answer

    def call(self, org: SimulatedOrg, call: ClientCall, answer: Any, now: int) -> None:
        """A call that was answered in memory; here it is answered alike."""
        self._clock.now = max(now, org.books.header.now)
        outcome = self._called(org, call)
        assert isinstance(outcome, Refusal) == isinstance(answer, Refusal), (outcome, answer)

    def _called(self, org: SimulatedOrg, call: ClientCall) -> Any:
        what = call.request
        if call.plan is not None:
            want = call.plan
            assert not isinstance(what, str)
            ask = Submission(POOL, what, want.spec, run_ms=want.run_ms)  # type: ignore[arg-type]
            return self.jobs.submit(org.id, call.key, ask).outcome
        if isinstance(what, ExtendHold):
            job = JobId(what.hold)
            if job not in org.jobs:
                return None
            return self.jobs.extend(org.id, call.key, job, what.amount, what.expires_at).outcome
        if isinstance(what, CorrectEnd):
            if call.key not in org.replies:  # it was not over
                return None
            [answer] = self.ask([correction_request(org.id, call.key, what, "")])
            assert isinstance(answer, Answer), answer
            return answer.outcome
        if isinstance(what, str):
            if what in org.jobs:
                self.jobs.cancel(org.id, what)
            return None
        return self._ask(org.id, call.key, what).outcome

    def envelope(self, org: SimulatedOrg, body: Any, now: int) -> None:
        """A message of the pool, once it was handled in memory; here it is handled as well."""
        self._clock.now = max(now, org.books.header.now)
        envelope = Envelope(org.id, POOL, body.job, body.n, body.message, now)
        assert [envelope] == self.jobs.receive([envelope])

    def acknowledged(self, org: SimulatedOrg, job: JobId, n: int, now: int) -> None:
        """The pool has a message."""
        self._clock.now = max(now, org.books.header.now)
        self.jobs.acknowledge([Envelope(org.id, POOL, job, n, None, 0)])  # type: ignore[arg-type]


class Chaos(FaultWorld):
    """The world of a seed, played twice."""

    def __init__(
        self, seed: int, connection: Connection, profile: FaultProfile | None = None
    ) -> None:
        super().__init__(seed, profile)
        self.twin = Twin(connection, POOL)
        self.twin.register(self.pool)
        self.twins = Orgs(connection)
        for org in self.orgs.values():
            self.twins.found(org)
        self.checker = TwinWatch(self, self.twin)

    def _handle_at_org(self, org: SimulatedOrg, source: str, kind: str, body: Any) -> None:
        now = self.org_clocks[org.id].believed(self.at)
        try:
            super()._handle_at_org(org, source, kind, body)
        finally:  # also if its process dies on the way
            if now is not None:
                self._again(org, kind, body, now)

    def _again(self, org: SimulatedOrg, kind: str, body: Any, now: int) -> None:
        if kind == "call":
            answer = self.clients.perform(org, body, now)  # the same, from its key
            self.twins.call(org, body, answer, now)
        elif kind == "envelope":
            if org_side.is_handled(org, org_side.POOL, body):
                self.twins.envelope(org, body, now)
        else:
            job, n = body
            self.twins.acknowledged(org, job, n, now)

    def wanted(self) -> dict[tuple[str, str], int]:
        """What each job has to pay: a few lines of arithmetic over what was proven of its runs."""
        totals: dict[tuple[str, str], int] = defaultdict(int)
        for key in self.pool.jobs:
            totals[key] = 0
        for lease in self.pool.leases.values():
            milli_gpus = self.pool.jobs[lease.key].request.milli_gpus
            run_ms = lease.run_ms if lease.kept_ms is None else lease.kept_ms
            totals[lease.key] += usage_price(RATE, milli_gpus, run_ms)
        return dict(totals)
