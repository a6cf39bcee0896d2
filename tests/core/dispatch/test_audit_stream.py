"""The audit stream of a pool, and pools at rest (S11, S14)."""

import pytest

from bursar.core.dispatch import audit_stream, pool
from bursar.core.dispatch.audit_stream import AuditRecord, carry_out_audited, let_rest
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.pool import PlanOutcome
from bursar.core.dispatch.state import LEADER_TERM, Exit
from bursar.core.instant import HOUR, NEVER
from bursar.core.leases import Denied
from bursar.core.messages import Withdraw
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.model.recording import RecordedStep
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.plan import carry_out
from tests.support.dispatch_pool import JOB, OTHER, Trial, asking, ran, running, waiting


class Led:
    """A pool with a leader that records its decisions."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.follower = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
        self.noted = 0
        self.follower.follow(trial.pool, trial.pool.jobs, trial.now)
        self.follower.recorder.begin_window()

    def follow(self) -> None:
        known = self.trial.pool
        self.follower.follow(known, known.changed_jobs, self.trial.now)
        known.changed_jobs.clear()

    def write(self, epoch: int | None = None, after: int | None = None) -> PlanOutcome:
        """Plan, and write the decisions."""
        self.follow()
        decisions = carry_out(self.follower.cluster, self.trial.now).decisions
        self.follower.recorder.record_decisions(decisions)
        told = AuditRecord(self.follower.recorder.take(), self.noted if after is None else after)
        work = self.trial.work()
        written = carry_out_audited(work, epoch or self.trial.epoch, decisions, told)
        self.events = work.audit_new
        work.commit()
        self.follower.add_leases(written.placed)
        self.noted = written.audit_events
        return written


def heard(trial: Trial) -> Trial:
    """A pool whose two nodes have reported."""
    trial.report()
    return trial


def test_a_round_is_recorded_with_its_inputs() -> None:
    """A snapshot first, then one event for each round, with consecutive numbers (S14)."""
    led = Led(heard(waiting()))
    first = led.write()
    assert [JOB] == [lease.key for lease in first.placed]
    assert [PoolSnapshot, RecordedStep] == [type(one.record) for one in led.events]
    assert [True, False] == [one.begins_window for one in led.events]
    assert (2, 2) == (first.audit_events, led.trial.pool.audit_events)
    led.trial.post(asking(), 1, OTHER)
    assert 3 == led.write().audit_events
    assert [(RecordedStep, led.trial.epoch)] == [
        (type(one.record), one.epoch) for one in led.events
    ]


def test_a_large_snapshot_is_split_into_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_stream, "SNAPSHOT_PART_MAX", 1)
    led = Led(heard(waiting()))
    led.write()

    assert [(0, 3), (1, 3), (2, 3), (0, 1)] == [(one.part, one.parts) for one in led.events]
    assert [True, False, False, False] == [one.begins_window for one in led.events]


def test_a_leader_that_does_not_know_the_last_event_writes_nothing() -> None:
    """It has written itself without getting the answer, or another leader has (S11)."""
    led = Led(heard(waiting()))
    led.write()
    led.trial.post(asking(), 1, OTHER)
    stale = PlanOutcome((), (), (Denied.EPOCH_STALE,))

    assert stale == led.write(after=1)
    assert [] == led.events
    again = Led(led.trial)
    assert stale == again.write(epoch=led.trial.epoch + 1)
    assert 2 == led.trial.pool.audit_events
    third = Led(led.trial)
    assert [OTHER] == [lease.key for lease in third.write(after=7).placed], "a window begins"


def test_a_denied_decision_is_recorded_with_its_round() -> None:
    """With the last round of the record."""
    led = Led(heard(waiting()))
    led.trial.pass_by(1)
    led.trial.post(asking(), 1, OTHER)
    led.follow()
    led.trial.pass_by(1)
    led.follower.recorder.advance_to(led.trial.now)
    decisions = carry_out(led.follower.cluster, led.trial.now).decisions
    led.follower.recorder.record_decisions(decisions)
    led.trial.post(Withdraw(), 2)
    told = AuditRecord(led.follower.recorder.take(), 0)
    assert 2 == len(told.recording.steps)
    work = led.trial.work()
    denied = carry_out_audited(work, led.trial.epoch, decisions, told).denied
    assert (Denied.NOT_QUEUED,) == denied
    assert [(), (), denied] == [one.denied for one in work.audit_new]


def test_decisions_can_be_written_without_a_record() -> None:
    trial = heard(waiting())
    work = trial.work()

    assert PlanOutcome((), (), ()) == carry_out_audited(work, trial.epoch, (), None)
    assert [] == work.audit_new


# At rest


def test_a_pool_without_jobs_rests() -> None:
    """From then on it needs no leader, and any process may lead it at once."""
    trial = running()
    until = trial.now + HOUR
    assert not _rests(trial, until), "a job runs"
    trial.report(ran(5_000, exit=Exit.DONE))
    assert 0 == trial.pool.leader_due_at
    assert not _rests(trial, until, epoch=trial.epoch + 1), "another leads"
    assert _rests(trial, until)
    assert (until, 0) == (trial.pool.leader_due_at, trial.pool.leads_until)
    work = trial.work()
    assert None is pool.lead(work, "two", anyway=False)
    assert trial.epoch + 1 == pool.lead(work, "two")
    trial.now = until
    assert trial.epoch + 1 == pool.lead(trial.work(), "two", anyway=False), "it is time"


def _rests(trial: Trial, until: int, epoch: int | None = None) -> bool:
    work = trial.work()
    found = let_rest(work, epoch or trial.epoch, until)
    work.commit()
    return found


@pytest.mark.parametrize("hold", [0, 60_000], ids=["it waits for credits", "it waits"])
def test_a_resting_pool_needs_a_leader_when_a_job_arrives(hold: int) -> None:
    """Until the job has finished, and its leader lets the pool rest again (S11)."""
    trial = Trial()
    assert _rests(trial, NEVER)
    trial.post(asking(hold_micros=hold), 1)
    assert 0 == trial.pool.leader_due_at
    assert trial.epoch + 1 == pool.lead(trial.work(), "two", anyway=False)
    assert not _rests(trial, NEVER)
    trial.post(Withdraw(), 2)
    assert 0 == trial.pool.leader_due_at
    assert _rests(trial, NEVER)
    trial.post(Withdraw(), 2)
    assert NEVER == trial.pool.leader_due_at, "what is over stays so"


def test_a_leader_that_renews_its_term_keeps_its_epoch() -> None:
    trial = Trial()
    trial.pass_by(LEADER_TERM)
    work = trial.work()

    assert trial.epoch == pool.lead(work, "one", anyway=False)
