"""What leaders of a pool decided is decided again from what they were told, byte for byte (S14)."""

from contextlib import ExitStack
from itertools import count
from random import Random
from typing import NamedTuple

import pytest

from bursar.core.dispatch.state import LEADER_TERM, Exit
from bursar.core.ids import JobId, NodeId, UserId
from bursar.core.instant import MINUTE, SECOND
from bursar.core.messages import HoldGrew, JobSpec, Withdraw
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model import recording
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.service.ledger import audit
from bursar.service.pools import leader
from bursar.service.pools import replay as replaying
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle
from bursar.service.pools.replay import ReplayResult, replay
from bursar.store.jobs.outbox import Envelope
from bursar.store.pools import events
from bursar.store.pools.loader import PoolUnknown, create_pool
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import Check, problems
from bursar.store.verify.pools import POOL_CHECKS
from tests.cli.test_admin import refused, run
from tests.service.test_pools import Clock, Node1, kept_at
from tests.support.builders import T0
from tests.support.databases import connected
from tests.support.dispatch_pool import asking, ran

NUMBERS = count(1)
ORGS = {"acme": "enterprise", "labs": "paid", "uni": "free"}
POLICIES = (
    PoolPolicy(),
    PoolPolicy(preemption_grace=10 * SECOND, aged_part=1),
    PoolPolicy(inside_a_user="oldest"),
)


class Process(NamedTuple):
    """A process that keeps a pool, and leads it or stands by."""

    handle: PoolHandle
    leading: PoolLeader


class Game:
    """Two processes, some nodes and three orgs; what happens follows from a seed."""

    def __init__(self, url: str, pool: str, seed: str, stack: ExitStack) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        handles = [stack.enter_context(kept_at(url, pool, self.clock)) for _ in range(2)]
        self.processes = [
            Process(handle, PoolLeader(handle, POLICIES[0], f"process {number}"))
            for number, handle in enumerate(handles)
        ]
        self.pool = pool
        self.nodes = [Node1(NodeId(f"n{number}")) for number in range(3)]
        self.jobs: dict[tuple[str, str], int] = {}  # messages sent about each
        for node in self.nodes:
            assert handles[0].register(Node(id=node.node, gpu_type="H100", gpus=4)) is None
            handles[0].report(node.told()).result()

    def act(self) -> None:
        """Let somebody do something."""
        self.clock.now += self.random.randrange(1, SECOND)
        if self.random.random() < 0.03:
            self.processes.reverse()
        process = self.processes[0]
        what = self.random.choices(
            (
                self._submit,
                self._again,
                self._report,
                self._turn,
                self._stop,
                self._ask,
                self._other,
            ),
            (4, 1, 6, 8, 0.3, 1, 0.3),
        )
        what[0](process)

    def _submit(self, process: Process) -> None:
        org = self.random.choice([*ORGS])
        name = f"j{len(self.jobs)}"
        self.jobs[org, name] = 1
        gpus, tasks = self.random.choice((1, 1, 2, 4)), self.random.choice((1, 1, 2))
        shape = Shape(types=("H100",), gpus=gpus, tasks=tasks)
        ask = asking(
            tier=ORGS[org],
            user=UserId(self.random.choice(("ann", "ben"))),
            hold_until=self.clock.now + 5 * MINUTE,
            hold_micros=10**9,
            spec=JobSpec(
                shape=shape,
                requeues=5,
                priority_class=self.random.choice((0, 0, 5)),
                estimate_ms=self.random.choice((None, 20_000)),
            ),
        )
        self._send(process, org, name, 1, ask)

    def _send(self, process: Process, org: str, name: str, n: int, message: object) -> None:
        envelope = Envelope(org, self.pool, JobId(name), n, message, T0)  # type: ignore[arg-type]
        process.handle.receive([envelope])

    def _again(self, process: Process) -> None:
        if self.jobs:
            org, name = self.random.choice(sorted(self.jobs))
            self.jobs[org, name] += 1
            grew = HoldGrew(added=1_000, until=self.clock.now + MINUTE)
            message = self.random.choice((Withdraw(), grew))
            self._send(process, org, name, self.jobs[org, name], message)

    def _report(self, process: Process) -> None:
        for node in self.nodes:
            orders = process.handle.report(node.told()).result()
            assert orders is not None
            readings = [
                ran(
                    max(self.clock.now - T0, 0) // 1_000,
                    order.fence,
                    exit=self.random.choice((Exit.DONE, Exit.STOPPED))
                    if order.stop or self.random.random() < 0.15
                    else None,
                )
                for order in orders.leases
            ]
            process.handle.report(node.told(*readings)).result()

    def _turn(self, process: Process) -> None:
        process.leading._turn()

    def _stop(self, process: Process) -> None:
        """Nobody says anything for longer than a term, or nodes are heard."""
        self.clock.now += self.random.choice((LEADER_TERM, 25 * SECOND))

    def _ask(self, process: Process) -> None:
        """Ask why somebody waits; the next turn answers."""
        answer = process.leading.ask(
            lambda cluster, now: [explain(cluster, job, now) for job in sorted(cluster.waiting)[:3]]
        )
        process.leading._turn()
        answer.result()

    def _other(self, process: Process) -> None:
        """Another policy is put in force, in a process that begins anew."""
        process.handle.unfollow()
        process.leading._policy = self.random.choice(POLICIES)


@pytest.fixture
def pool(connection: Connection) -> str:
    """A pool of the test's own."""
    name = f"noted-{next(NUMBERS)}"
    create_pool(connection, name)
    return name


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every test."""
    hastily(monkeypatch)


def hastily(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader asks for the time at every turn, has no thread, and notes what waits soon."""
    monkeypatch.setattr(leader, "RENEW_INTERVAL_S", 0.0)
    monkeypatch.setattr(leader, "EXPIRE_INTERVAL_S", 0.0)
    monkeypatch.setattr(leader, "REST_AFTER_S", 0.0)
    monkeypatch.setattr(leader, "AUDIT_RECORDS_MAX", 20)
    monkeypatch.setattr(PoolLeader, "wake", lambda self: None)


def played(url: str, pool: str, seed: str, acts: int = 200) -> None:
    """A game that is over."""
    with ExitStack() as stack:
        game = Game(url, pool, seed, stack)
        for _ in range(acts):
            game.act()


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_made_again_byte_for_byte(
    seed: int, database_url: str, connection: Connection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two leaders in turn, takeovers, other policies, questions, snapshots in many parts (S14)."""
    monkeypatch.setattr(recording, "WINDOW_MIN", 40 if seed % 2 else 5_000)
    monkeypatch.setattr(
        "bursar.core.dispatch.audit_stream.SNAPSHOT_PART_MAX", 3 if seed % 2 else 1_000
    )
    played(database_url, pool, f"game {seed}")

    found = replay(connection, pool)
    assert None is found.difference
    assert found.windows > 2
    assert found.decisions > 30
    assert 0 == found.others
    assert found.last == events.stream_of(connection, pool).end.n  # type: ignore[union-attr]
    part = replay(connection, pool, found.last // 2)
    assert None is part.difference
    assert 1 < part.first <= found.last // 2
    assert part.last == found.last


# Tampering


@pytest.fixture(scope="module")
def noted(database_url: str) -> str:
    """A pool with a stream, to be tampered with in transactions that are not kept."""
    with connected(database_url) as connection:
        create_pool(connection, "noted")
    with pytest.MonkeyPatch.context() as patch:
        hastily(patch)
        played(database_url, "noted", "to be tampered with", 120)
    return "noted"


TAMPERING = {
    "an input": "body = replace(body::text, '\"H100\"', '\"A100\"')::json",
    "a decision": 'body = replace(body::text, \'"why":"turn"\', \'"why":"age"\')::json',
    "an instant": "at = at - 1",
    "whose it was": "epoch = epoch + 1",
    "a digest": "digest = reverse(digest)",
}


@pytest.mark.parametrize("what", TAMPERING)
def test_an_event_that_was_changed_is_found(connection: Connection, noted: str, what: str) -> None:
    """Each one of them, also the last one (O1)."""
    assert None is replay(connection, noted).difference
    sql = f"update pool_events set {TAMPERING[what]} where pool_id = %s and n = %s"
    for n in _rounds(connection, noted):
        with connection.transaction(force_rollback=True):
            connection.execute(sql, [noted, n])
            found = replay(connection, noted)
            same = found.difference is None
            assert not same or what in ("an input", "a decision"), "some have neither"
            assert same or f"event {n} was changed after it was written" == found.difference


def _rounds(connection: Connection, pool: str) -> list[int]:
    last = events.events(connection, pool, 0, 1_000)
    return [one.n for one in last if one.kind == "round"][-5:]


def test_a_changed_decision_with_valid_digests_is_found_by_the_replay(
    connection: Connection, noted: str
) -> None:
    """Recomputing all digests is not enough: the decisions would differ (S14)."""
    with connection.transaction(force_rollback=True):
        n = _retouched(connection, noted, '"why":"turn"', '"why":"age"')
        found = replay(connection, noted).difference
        assert found is not None
        assert found.startswith(f"event {n}: replayed [")
        assert '"why":"turn"' in found.partition(", recorded ")[0]
        assert '"why":"age"' in found.partition(", recorded ")[2]


def told_by_verify(connection: Connection, pool: str) -> set[str]:
    """What `verify` finds about a pool, by its own queries and by deciding again."""
    asked = {name for check in POOL_CHECKS for name in _found(connection, check, pool)}
    return asked | {one.check for one in audit._replay_decisions(connection) if pool in one.what}


def _found(connection: Connection, check: Check, pool: str) -> set[str]:
    found = problems(connection, check)
    return {check.name for one in found if one.what.split()[0] == pool}


NUMBERED, WRITTEN = (check.name for check in POOL_CHECKS)
VERIFIED = {
    "update pool_events set at = at - 1 where n = 3 and": {WRITTEN},
    "update pool_events set at = at - 1 where kind = 'round' and n > 10 and": {
        WRITTEN,
        audit.DECIDED_AGAIN,
    },
    "delete from pool_events where n = 1 and": {NUMBERED, WRITTEN},
    "delete from pool_events where n = 5 and": {NUMBERED, WRITTEN},
    "update pools set audit_events = audit_events + 1 where": {NUMBERED, audit.DECIDED_AGAIN},
    "update pools set digest = reverse(digest) where": {WRITTEN, audit.DECIDED_AGAIN},
}


@pytest.mark.parametrize("sql", VERIFIED)
def test_verify_finds_it(connection: Connection, noted: str, sql: str) -> None:
    """Of the whole stream what queries can tell, of its last window the decisions as well (O1)."""
    assert set() == told_by_verify(connection, noted)
    with connection.transaction(force_rollback=True):
        connection.execute(f"{sql} pool_id = %s", [noted])
        assert VERIFIED[sql] == told_by_verify(connection, noted)


def _retouched(connection: Connection, pool: str, old: str, new: str) -> int:
    """Change the first event that says something, and all digests with it."""
    end, changed = events.End(0, ""), 0
    for one in events.events(connection, pool, 0, 1_000):
        body = one.body
        if not changed and one.kind == "round" and old in body:
            changed, body = one.n, body.replace(old, new)
        digest = events.digest_of(end.digest, one.n, one.at, one.epoch, one.kind, body)
        end = events.End(one.n, digest)
        sql = "update pool_events set body = %s::json, digest = %s where pool_id = %s and n = %s"
        connection.execute(sql, [body, digest, pool, one.n])
    connection.execute("update pools set digest = %s where pool_id = %s", [end.digest, pool])
    return changed


GONE = {
    "the first": ("n = 1", "event 1 is missing"),
    "one in the middle": ("n = 3", "event 3 is missing"),
    "all from there on": ("n > 4", "the stream ends with 4, its pool says"),
    "all": ("true", "the stream ends with 0, its pool says"),
}


@pytest.mark.parametrize("what", GONE)
def test_an_event_that_was_taken_away_is_found(
    connection: Connection, noted: str, what: str
) -> None:
    """Wherever it was (O1)."""
    where, told = GONE[what]
    with connection.transaction(force_rollback=True):
        connection.execute(f"delete from pool_events where pool_id = %s and {where}", [noted])
        assert (replay(connection, noted).difference or "").startswith(told)


def test_windows_of_other_rules_are_not_replayed(
    connection: Connection, noted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers and digests are checked."""
    monkeypatch.setattr("bursar.service.pools.replay.rules_text", lambda: "others")
    found = replay(connection, noted)

    assert None is found.difference
    assert 0 < found.windows == found.others
    assert 0 == found.decisions
    assert "windows of other versions not replayed: all decisions are the same" in found.summary


def test_old_windows_can_be_taken_away(connection: Connection, noted: str) -> None:
    """What is left is whole, and begins with a snapshot; nobody but the owner can do so."""
    before = replay(connection, noted)
    with connection.transaction(force_rollback=True):
        half = events.events(connection, noted, before.last // 2, 1)[0]
        gone = events.trim(connection, noted, half.at)
        found = replay(connection, noted)
        assert 0 < gone < half.n
        assert (None, gone + 1, before.last) == (found.difference, found.first, found.last)
        assert 0 == events.trim(connection, noted, 0)


def test_an_operator_replays_and_trims(
    database_url: str, connection: Connection, noted: str
) -> None:
    """What was found is said, and by the exit code as well (S14)."""
    whole = replay(connection, noted)
    told = run(database_url, "audit", "replay", noted)
    assert (0, f"{whole.summary}\n") == (told.exit_code, told.stdout)
    assert told.stdout.endswith(": all decisions are the same\n")
    part = run(database_url, "audit", "replay", noted, "--from", str(whole.last))
    assert (0, False) == (part.exit_code, part.stdout == told.stdout)
    kept = run(database_url, "audit", "trim", noted, "--days", "36500")
    assert (0, f"0 events deleted; remaining: {told.stdout}") == (kept.exit_code, kept.stdout)
    for command in (["replay", "nowhere"], ["trim", "nowhere", "--days", "1"]):
        refused(run(database_url, "audit", *command), "no such pool: 'nowhere'")
    sql = "update pools set audit_events = audit_events + {} where pool_id = %s"
    connection.execute(sql.format("1"), [noted])
    try:
        told = run(database_url, "audit", "replay", noted)
    finally:
        connection.execute(sql.format("-1"), [noted])
    assert (1, True) == (told.exit_code, "its pool says" in told.stdout)


def test_events_written_during_a_replay_are_no_difference(
    connection: Connection, noted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool in use can be replayed, up to the end of its stream at the beginning (S14)."""
    whole = replay(connection, noted)
    [half] = events.events(connection, noted, whole.last // 2, 1)
    then = events.Stream(events.End(half.n, half.digest), 0)
    monkeypatch.setattr(replaying, "stream_of", lambda *_: then)

    found = replay(connection, noted)

    assert (None, 1, half.n) == (found.difference, found.first, found.last)


def test_a_pool_that_is_not_there_has_no_stream(connection: Connection, pool: str) -> None:
    """One that is there and was never led has an empty one."""
    assert ReplayResult() == replay(connection, pool)
    with pytest.raises(PoolUnknown):
        replay(connection, "nowhere")


def test_a_quiet_pool_notes_nothing(database_url: str, connection: Connection, pool: str) -> None:
    """Reports and terms are no news, and what was noted is not noted again."""
    with ExitStack() as stack:
        game = Game(database_url, pool, "quiet", stack)
        for _ in range(20):
            game.clock.now += SECOND
            game._report(game.processes[0])
            game._turn(game.processes[0])
        assert ReplayResult() == replay(connection, pool)
        game._submit(game.processes[0])
        for _ in range(20):
            game._turn(game.processes[0])
        assert 2 == replay(connection, pool).last, "a snapshot, and a round"
