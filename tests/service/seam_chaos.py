"""Everything at random: a post that loses, repeats and shuffles, and workers that get things wrong.

Beside it goes a witness: a few lines of arithmetic that say what each lease is entitled to and what
is proven of it, without looking at the database.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from bursar.core.ids import JobId
from bursar.core.instant import DAY, SECOND, Instant
from bursar.core.leases import MARGIN, Denied
from bursar.core.messages import EndClass
from bursar.core.refusal import Refusal
from bursar.service.jobs import Jobs
from bursar.service.pool import End, Lease, Placement, Pool, Renewed, Report
from bursar.service.relay import Relay
from bursar.store.outbox import Letter
from bursar.store.reading import Connection
from tests.service.seam_driver import Clock, Driver, Plan, World, ledger

RATES = {"h100": 3, "a100": 1}  # micro-credits for a millisecond of one GPU


class Post:
    """What becomes of letters on their way."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seen: list[Letter] = []
        self.lossy = True

    def carry(self, letters: Sequence[Letter]) -> list[Letter]:
        """Lose some, repeat some, bring old ones once more, in any order."""
        if not self.lossy:
            return list(letters)
        self._seen += letters
        arrived = [letter for letter in letters if self._chance.random() < 0.6]
        arrived += [letter for letter in arrived if self._chance.random() < 0.2]
        arrived += self._chance.sample(self._seen, min(3, len(self._seen)))
        self._chance.shuffle(arrived)
        return arrived

    def answer(self, handled: Sequence[Letter]) -> list[Letter]:
        """Lose some of the acknowledgements."""
        return [one for one in handled if not self.lossy or self._chance.random() < 0.6]


class FarPool(Pool):
    """A pool behind the post."""

    post: Post

    def receive(self, letters: Sequence[Letter]) -> list[Letter]:
        return self.post.answer(super().receive(self.post.carry(letters)))


class FarJobs(Jobs):
    """Orgs behind the post."""

    post: Post

    def receive(self, letters: Sequence[Letter]) -> list[Letter]:
        return self.post.answer(super().receive(self.post.carry(letters)))


@dataclass
class Seen:
    """What the witness knows of a lease."""

    job: str
    node: str
    gpu_type: str
    leased_at: Instant
    until: Instant
    ended_at: Instant | None = None
    kept_ms: int | None = None
    proven_ms: int = 0
    at_end_ms: int = field(default=0)

    def alive(self, now: Instant) -> bool:
        return self.ended_at is None and now < self.until

    def prove(self, run_ms: int, now: Instant) -> None:
        """A reading proves no more than the lease has lasted; of work given back, nothing."""
        end = min(self.until, now if self.ended_at is None else self.ended_at)
        if self.kept_ms is None:
            self.proven_ms = max(self.proven_ms, min(run_ms, (end - self.leased_at) // 1_000))

    def price(self, milli_gpus: int) -> int:
        run_ms = self.proven_ms if self.kept_ms is None else self.kept_ms
        return RATES[self.gpu_type] * milli_gpus * run_ms // 1_000


class Chaos:
    """Random jobs, random workers, random post."""

    def __init__(self, world: World, connection: Connection, clock: Clock, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.clock = clock
        self.plans: dict[str, Plan] = {}
        self.leases: dict[int, Seen] = {}
        self.did: dict[str, int] = defaultdict(int)
        self._numbers = count(1)
        self._pool = FarPool(connection, world.pool, clock)
        self._jobs = FarJobs(connection, ledger(connection, clock), clock)
        self._pool.post, self._jobs.post = Post(self.chance), Post(self.chance)
        self._relay = Relay(connection, self._jobs, {world.pool: self._pool}, clock)
        world.plans = self.plans
        self.driver = Driver(world, connection)

    def step(self) -> None:
        """Something happens."""
        acts = {
            self.submit: 3,
            self.withdraw: 1,
            self.extend: 1,
            self.carry: 5,
            self.lease: 6,
            self.report: 8,
            self.end: 3,
            self.expire: 2,
            self.wait: 4,
        }
        [act] = self.chance.choices(list(acts), list(acts.values()))
        act()

    def submit(self) -> None:
        """A new job, or one that was asked before, under the same key."""
        if self.plans and self.chance.random() < 0.3:
            job = self.chance.choice(list(self.plans))
        else:
            job = f"job-{next(self._numbers)}"
            short = self.chance.random() < 0.3
            types = self.chance.choice([("a100",), ("h100",), ("a100", "h100"), ("h100", "a100")])
            self.plans[job] = Plan(
                gpu_types=types,
                milli_gpus=self.chance.choice([1_000, 1_000, 2_000]),
                run_ms=self.chance.randrange(30_000, 600_000),
                requeues=self.chance.randrange(3),
                hold_for=self.clock.now - self.world.began_at + (90 * SECOND if short else DAY),
            )
        answer = self._jobs.submit(self.world.org, f"submit {job}", self.world.submission(job))
        assert not isinstance(answer.outcome, Refusal), answer

    def _some_job(self) -> JobId | None:
        return JobId(self.chance.choice(list(self.plans))) if self.plans else None

    def withdraw(self) -> None:
        """Some job is not wanted any more, whether or not its pool has heard of it."""
        if job := self._some_job():
            self._jobs.withdraw(self.world.org, job)

    def extend(self) -> None:
        """More for some job, for longer; too late for some."""
        if job := self._some_job():
            until = self.clock.now + self.chance.choice([DAY, 2 * DAY])
            key = f"extend {next(self._numbers)}"
            answer = self._jobs.extend(self.world.org, key, job, 1_000_000, until)
            self.did[f"extend refused {isinstance(answer.outcome, Refusal)}"] += 1

    def carry(self) -> None:
        """The post goes round."""
        done = self._relay.round()
        self.did["late"] += len(done.late)
        self.did["resent"] += done.sent - done.acknowledged

    def lease(self) -> None:
        """A scheduler that may be wrong about what waits and what is free."""
        waiting = self._pool.waiting()
        job = self.chance.choice(waiting).job if waiting else self._some_job()
        if job is None:
            return
        node = self.chance.choice(self.world.nodes)
        count = self.plans[job].milli_gpus // 1_000
        slots = self.chance.sample(range(len(node.slots)), min(count, len(node.slots)))
        place = Placement(self.world.org, job, node.node, tuple(slots))
        for given in self._pool.lease([place] * self.chance.randrange(1, 3)):
            if isinstance(given, Lease):
                seen = Seen(job, node.node, node.gpu_type, self.clock.now, given.until)
                assert given.fence not in self.leases
                self.leases[given.fence] = seen
            self.did[f"lease {given if isinstance(given, Denied) else 'given'}"] += 1

    def _reading(self, seen: Seen) -> int:
        """Mostly what may be true, sometimes stale or far too much."""
        elapsed = (self.clock.now - seen.leased_at) // 1_000
        return self.chance.choice([elapsed, elapsed * 9 // 10, elapsed // 2, 0, elapsed * 3 + 1])

    def report(self) -> None:
        """A node reports: of its leases, of those it has lost, once or twice each."""
        node = self.chance.choice(self.world.nodes).node
        own = [fence for fence, seen in self.leases.items() if seen.node == node]
        told = self.chance.choices(own, k=self.chance.randrange(1, 5)) if own else []
        if self.leases and self.chance.random() < 0.2:
            told.append(self.chance.choice(list(self.leases)))
        reports = [Report(fence, self._reading(self.leases[fence])) for fence in told]
        now = self.clock.now
        for (fence, run_ms), answer in zip(reports, self._pool.report(node, reports), strict=True):
            seen = self.leases[fence]
            if seen.node != node:
                assert Denied.FENCE_UNKNOWN == answer
            else:
                assert seen.alive(now) == isinstance(answer, Renewed), (seen, answer)
                seen.prove(run_ms, now)
            self.did[f"report {answer if isinstance(answer, Denied) else 'renewed'}"] += 1
        renewed = zip(reports, self._pool.report(node, reports), strict=True)
        for (fence, _), answer in renewed:  # the same once more changes nothing
            if isinstance(answer, Renewed):
                self.leases[fence].until = answer.until

    def end(self) -> None:
        """An attempt ends, or somebody says so whose lease is gone."""
        if not self.leases:
            return
        now = self.clock.now
        live = [fence for fence, seen in self.leases.items() if seen.alive(now)]
        fence = self.chance.choice(live or list(self.leases))
        if self.chance.random() < 0.3:
            fence = self.chance.choice(list(self.leases))
        seen = self.leases[fence]
        end = End(fence, self.chance.choice(list(EndClass)), self._reading(seen), self._kept(seen))
        [answer] = self._pool.end(seen.node, [end])
        assert seen.alive(now) == (answer is None), (seen, answer)
        seen.prove(end.run_ms, now)
        if answer is None:
            seen.ended_at = now
            lost = end.end_class in (EndClass.PLATFORM, EndClass.PREEMPTION)
            if lost and end.kept_ms is not None and end.kept_ms < seen.proven_ms:
                seen.kept_ms = end.kept_ms
        self.did[f"end {answer or 'done'}"] += 1

    def _kept(self, seen: Seen) -> int | None:
        """Work is given back only where the hold will still be open when the org hears of it."""
        if self.plans[seen.job].hold_for < DAY or self.chance.random() < 0.5:
            return None
        return self.chance.randrange((self.clock.now - seen.leased_at) // 1_000 + 1)

    def expire(self) -> None:
        """The sweeper comes by."""
        self._pool.expire()
        for seen in self.leases.values():
            if seen.ended_at is None and seen.until + MARGIN <= self.clock.now:
                seen.ended_at = self.clock.now
                self.did["lost"] += 1

    def wait(self) -> None:
        """Time passes: mostly little."""
        self.clock.now += self.chance.choice([1, 1, 1, 5, 5, 5, 15, 60]) * SECOND

    def settle_down(self) -> None:
        """No more faults, no more work: everything comes to its end."""
        self._pool.post.lossy = self._jobs.post.lossy = False
        for job in self.plans:
            self._jobs.withdraw(self.world.org, JobId(job))
        for _ in range(10):
            self._relay.round()
            self.clock.now += 60 * SECOND
            self.expire()
            if self.driver.is_over():
                return
        raise AssertionError("it does not come to an end")

    def wanted(self) -> dict[str, int]:
        """What each job has to pay."""
        totals = dict.fromkeys(self.plans, 0)
        for seen in self.leases.values():
            totals[seen.job] += seen.price(self.plans[seen.job].milli_gpus)
        return totals
