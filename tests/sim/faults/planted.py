"""Bugs to plant: one piece of text of one function, and what stands there instead.

The function is made anew from its changed text, inside its own module, and put back afterwards.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bursar.core.dispatch import (
    agent,
    attempt_end,
    cluster_sync,
    pool,
    quarantine,
    reports,
    state,
)
from bursar.core.instant import SECOND
from bursar.core.jobs import message_commands, pool_messages, relocation
from bursar.sim.faults import clocks, org
from bursar.sim.faults.profile import FaultProfile

MODULES = (
    agent,
    message_commands,
    clocks,
    attempt_end,
    cluster_sync,
    org,
    pool,
    pool_messages,
    quarantine,
    relocation,
    reports,
    state,
)


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake that somebody could make."""

    module: ModuleType
    function: str  # or Class.method
    old: str
    new: str
    breaks: str  # what is told: broken promises, or what the core itself finds; a pattern
    profile: FaultProfile | None = None  # a world in which it shows sooner


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Let the bug be there for a while."""
    owner: Any = bug.module
    name = bug.function
    if "." in name:
        owner, name = getattr(bug.module, name.split(".")[0]), name.split(".")[1]
    before = getattr(owner, name)
    text = inspect.cleandoc("\n" + inspect.getsource(before))
    assert 1 == text.count(bug.old), f"{bug.function} has not one such piece of text: {bug.old}"
    scope: dict[str, Any] = {}
    code = compile(text.replace(bug.old, bug.new), inspect.getfile(before), "exec")
    exec(code, bug.module.__dict__, scope)  # our own text, changed by ourselves
    # Whoever has imported the function has it under its own name.
    owners = [owner, *(one for one in MODULES if getattr(one, name, None) is before)]
    for one in owners:
        setattr(one, name, scope[name])
    try:
        yield
    finally:
        for one in owners:
            setattr(one, name, before)


# Worlds in which some mistakes show sooner.
STALLED = FaultProfile(jobs=9, stall=0.8, crash=0.02, faults_every=6 * SECOND)
LATE = FaultProfile(
    jobs=12, faults_last=150 * SECOND, stale=0.4, repeat=0.2, faults_every=6 * SECOND
)
FROZEN = FaultProfile(
    nodes=2, jobs=20, faults_last=300 * SECOND, kinds=("freeze",), faults_every=8 * SECOND
)
CUT_OFF = FaultProfile(
    nodes=4, jobs=12, faults_last=150 * SECOND, kinds=("partition",), faults_every=4 * SECOND
)
JUMPING = FaultProfile(jobs=9, kinds=("jump", "partition"), faults_every=3 * SECOND)

MOVING = FaultProfile(pools=2, nodes=2, jobs=12, loss=0.1, repeat=0.1, slow=0.2)

BUGS = {
    "a former leader may write": Bug(
        pool, "_placement_denied", "if epoch != work.epoch:", "if False:", "IS5", STALLED
    ),
    "a former leader may ask others to stop": Bug(
        pool, "preempt", "if epoch != work.epoch:", "if False:", "IS5", STALLED
    ),
    "what is over may be placed again": Bug(
        pool, "_placement_denied", "if job.state is not JobState.QUEUED:", "if False:",
        "cannot take", STALLED,
    ),
    "GPUs come free without a margin": Bug(
        pool, "_has_run_out", "part.until + LEASE_MARGIN <= now", "part.until <= now", "IS7",
        JUMPING,
    ),
    "a lease is renewed after its end": Bug(
        reports, "renew_leases", " and work.now < part.until", "", "IM2"
    ),
    "a fence is used again": Bug(pool, "place", "work.fence += 1", "work.fence |= 1", "IS4|IS8"),
    "silent nodes get leases": Bug(
        quarantine, "is_usable", "return heard and not machine.wrong_clock", "return True", "IS15"
    ),
    "a lease may outlive its hold": Bug(
        reports, "_renew_part", "latest_lease_end(job.hold_until,",
        "latest_lease_end(job.hold_until + SECOND,", "IS9"
    ),
    "credits do not bound a run": Bug(
        attempt_end, "run_ms_max",
        "return min(job.remaining_ms,", "return max(job.remaining_ms,", "IS9",
    ),
    "a top-up is not counted": Bug(
        pool, "_grow_hold", "job.hold_micros + grew.added", "job.hold_micros", "IS9"
    ),
    "a withdrawn job goes on waiting": Bug(
        pool, "_withdraw", "if job.state in WAITING:", "if False:", "IM6"
    ),
    "a late result counts": Bug(
        reports, "_part_after", "if not in_time:", "if False:", "IM2"
    ),
    "a reading is believed whatever it says": Bug(
        reports, "_apply_reading", "max(min(reading.run_ms, most), lease.run_ms)",
        "max(reading.run_ms, lease.run_ms)", "IM1|IS9",
    ),
    "a reading may go back": Bug(
        reports, "_apply_reading", "max(min(reading.run_ms, most), lease.run_ms)",
        "min(reading.run_ms, most)", "IM1",
    ),
    "a gang ends with its first process": Bug(
        attempt_end, "check_lease", "if None not in exits:", "if any(exits):", "IS7"
    ),
    "lost work is charged": Bug(
        attempt_end, "_kept_ms", "return kept_ms if kept_ms < lease.run_ms else None",
        "return None", "IM8",
    ),
    "a gang that has lost a node has failed": Bug(
        attempt_end, "_why_ended", "if Exit.FAILED in exits and Exit.GONE not in exits:",
        "if Exit.FAILED in exits:", "IM3",
    ),
    "what a guard has ended unasked was ended by somebody": Bug(
        agent, "_reading", "Exit.GONE if cut_off else process.exit", "process.exit", "IM3", CUT_OFF
    ),
    "an org is not told of an end": Bug(
        attempt_end, "_close", "work.send(\n", "(lambda *_: None)(\n", "IV3"
    ),
    "an org is not told of a drop": Bug(
        attempt_end, "drop_job", "work.send(", "(lambda *_: None)(", "IV3"
    ),
    "an org is not told of a start": Bug(
        attempt_end, "report_start", "work.send(", "(lambda *_: None)(", "IL14|IS9"
    ),
    "waiting jobs never expire": Bug(
        pool, "expire", "for job in work.jobs_without_hold():", "for job in ():", "IV3"
    ),
    "the pool handles messages again": Bug(
        pool, "receive", "if envelope.n != job.received + 1:", "if envelope.n > job.received + 1:",
        "a pool cannot handle this",
    ),
    "the pool acknowledges what has overtaken": Bug(
        pool, "receive", "return envelope.n <= job.received", "return True", "IA7"
    ),
    "time runs back with the clock": Bug(
        state, "PoolTransaction.__init__", "max(now, pool.now)", "now", "runs backwards", JUMPING
    ),
    "an acknowledgement is for the next message too": Bug(
        state, "PoolTransaction.commit", "range(n, 0, -1)", "range(n + 1, 0, -1)", "IV3"
    ),
    "an order counts from when it came": Bug(
        agent, "follow_orders", "until = sent_at +", "until = now +", "IS2|IS7", LATE
    ),
    "an order is followed however late": Bug(
        agent, "follow_orders", "elif now < until and _is_free", "elif _is_free", "IS2|IS7", LATE
    ),
    "an agent starts what it has started before": Bug(
        agent, "follow_orders", "elif order.fence <= agent.fence:", "elif False:", "IS3"
    ),
    "a fence is not written down before its start": Bug(
        agent, "follow_orders",
        "actions.append(Remember(fence=order.fence))\n            actions.append(Run",
        "actions.append(Run", "IS6",
    ),
    "an agent relies on all of a lease and more": Bug(
        agent, "safe_span", "- ttl_us * DRIFT_PPM // 1_000_000 - KILL_SPAN", "* 2", "IS7"
    ),
    "an agent starts beside what is being ended": Bug(
        agent, "_is_free", "return not any(", "return True or any(", "IS1", FROZEN,
    ),
    "a guard may wait beyond the longest run": Bug(
        agent, "_bounded", "return min(until, ", "return max(until, ", "IS2|IS7"
    ),
    "a key is forgotten": Bug(org, "ask", "if first is not None:", "if False:", "IL16"),
    "a message counts as handled after its first command": Bug(
        pool_messages, "HandleMessage.apply", "if refusal in self.step.unless:", "if False:", "IL14"
    ),
    "an org handles what has overtaken": Bug(
        org, "handle", "envelope.n != job.received + 1:",
        "envelope.n <= job.received:", "IM3|IS9",
    ),
    "a requeued job's hold is closed": Bug(
        message_commands, "steps", "case Ended(job_finished=True, kept_ms=None) as end:",
        "case Ended(kept_ms=None) as end:", "IL11",
    ),
    "usage that comes late is dropped": Bug(
        message_commands, "_or_late",
        "if isinstance(outcome, Refusal) and outcome.code in _TOO_LATE:",
        "if False:", "IV3",
    ),
    "more is given back than was lost": Bug(
        message_commands, "_ended", "kept_ms=end.kept_ms)", "kept_ms=end.kept_ms // 2)", "IM5|IS9"
    ),
    "a leader does not notice ends": Bug(
        cluster_sync, "ClusterMirror._follow_job", "self.recorder.remove_running(name)", "pass",
        "is there already|KeyError",
    ),
    "a clock is believed whatever it shows": Bug(
        clocks, "SimulatedClock.believed",
        "None if abs(self.now(at) - at) > BELIEVED_WITHIN else ", "", "IS7",
    ),
    "a job that has begun leaves its pool": Bug(
        pool, "_leave", "if job.state in WAITING and job.attempt == 0:",
        "if job.state in WAITING:", "IS2: attempts in two pools|IL12", MOVING,
    ),
    "a job that is given back goes on waiting": Bug(
        pool, "_leave", "work.put(with_step(job, Cause.MOVED))", "pass", "IS16", MOVING
    ),
    "an org gets no message that a job was given back": Bug(
        pool, "_leave", "work.send(job.key, Left())", "pass", "IV3", MOVING
    ),
    "a job moves back to a pool that it has left": Bug(
        relocation, "request_move", "if any(route.pool == target for route in routes):",
        "if False:", "IS16", MOVING,
    ),
    "a job is sent on before its pool has given it back": Bug(
        relocation, "request_move", "jobs.send(job, Leave(), now)",
        "jobs.put(replace(jobs.job(job), pool=target)); "
        "jobs.send(job, jobs.reads.last_enqueue(job), now)", "IS16", MOVING,
    ),
    "a cancelled job is sent on": Bug(
        relocation, "MoveJob.apply", "if row.withdrawn:", "if False:", "IS16", MOVING
    ),
    "messages of the next pool are taken for known": Bug(
        relocation, "MoveJob.apply", "received=0, ", "", "IV3|IA7", MOVING
    ),
    "a job moves with the hold that it had at first": Bug(
        relocation, "MoveJob.apply",
        "replace(first, hold_micros=hold.used + hold.open, hold_until=hold.expires_at)", "first",
        "IS9", MOVING,
    ),
}  # fmt: skip
