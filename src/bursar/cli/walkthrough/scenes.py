"""The walkthroughs that need a service."""

import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from types import MappingProxyType
from typing import Final

from bursar.cli.walkthrough.environment import Stage
from bursar.client.problem import Problem

PYTHON: Final = sys.executable or "python3"
# Counts seconds; writes a checkpoint on request and resumes from it (docs/agent.md).
COUNTING: Final = dedent(
    """
    import os, signal, sys, time
    from pathlib import Path

    here = Path(os.environ["BURSAR_CHECKPOINT_DIR"])
    done = int((here / "count").read_text()) if (here / "count").exists() else 0

    def save(*_):
        (here / "count").write_text(str(done))
        (here / "saved.new").touch()
        (here / "saved.new").replace(here / "saved")

    def stop(*_):
        save()
        sys.exit(75)

    signal.signal(signal.SIGUSR1, save)
    signal.signal(signal.SIGTERM, stop)
    while done < int(sys.argv[1]):
        time.sleep(1)
        done += 1
        print("second", done, flush=True)
    """
)


def counting(seconds: int) -> tuple[str, ...]:
    """A job that runs for `seconds` in total, over any number of attempts."""
    return PYTHON, "-c", COUNTING, str(seconds)


def preemption(stage: Stage) -> None:
    """A job is preempted for a higher tier at 60 % of its hold, and resumes."""
    stage.heading("A job of the paid tier uses all GPUs")
    stage.start_node(gpus=2)
    paid, enterprise = stage.org("paid", "paid"), stage.org("enterprise", "enterprise")
    stage.grant(paid, 1_000, "bought")
    stage.grant(enterprise, 1_000, "contract")
    job = stage.job(
        paid, *counting(70), gpus=2, max_run_seconds=80, checkpoint={"interval_seconds": 60}
    )
    stage.say(
        "Two GPUs for at most 80 s plus 10 s of grace, one credit per GPU-second: 180 credits are"
        " held."
    )
    stage.after(job, 54)
    stage.heading("At 60 % of its hold, a job of the enterprise tier arrives")
    other = stage.job(enterprise, *counting(5), max_run_seconds=60)
    stage.say(
        "The enterprise tier is below its floor, so the paid job is preempted: it writes a"
        " checkpoint and stops. Its run time so far is charged; the grace period is not."
    )
    stage.until(other, "succeeded")
    stage.heading("The GPUs are free again")
    stage.say("The first job restarts from its checkpoint, on the rest of its hold.")
    stage.until(job, "succeeded")


def lost_finish(stage: Stage) -> None:
    """The node dies with a job on it: the lease expires and the job restarts."""
    stage.heading("A job runs on the only node")
    stage.start_node()
    org = stage.org("acme", "paid")
    stage.grant(org, 1_000, "bought")
    job = stage.job(org, *counting(10), max_run_seconds=120, checkpoint={"interval_seconds": 5})
    stage.after(job, 7)
    stage.heading("The node is killed and can no longer report how the job ended")
    stage.kill_node()
    stage.say(
        "The lease expires 20 s after the last report, and by then the process has stopped itself."
        " 10 s later the GPU is free. Work up to the last checkpoint is charged, later work is"
        " refunded, and the hold stays open."
    )
    stage.until(job, "queued")
    stage.heading("The node returns")
    stage.start_node()
    stage.until(job, "succeeded")


def promo_expiry(stage: Stage) -> None:
    """A promotional grant expires while a job uses it."""
    stage.heading("A promotion that expires soon is spent first")
    stage.start_node()
    org = stage.org("acme", "paid")
    soon = datetime.now(UTC) + timedelta(seconds=12)
    stage.grant(org, 100, "bought")
    stage.grant(
        org, 25, "promotion", kind="promo", expires_at=soon.isoformat().replace("+00:00", "Z")
    )
    job = stage.job(org, *counting(15), max_run_seconds=30)
    stage.say(
        "The job can cost 40 credits: 25 are held from the promotion, the rest from paid credits."
    )
    stage.heading("The promotion expires while the job runs")
    stage.say(
        "Held credits stay with the job until it finishes. Charges use the promotion first."
        " Unused promotional credits lapse at once; unused paid credits return to the account."
    )
    stage.until(job, "succeeded")


def out_of_credits(stage: Stage) -> None:
    """A job runs out of credits, and resumes after a purchase."""
    stage.heading("A rolling hold, and an account that runs out of credits")
    stage.start_node()
    org = stage.org("acme", "paid")
    stage.grant(org, 25, "bought")
    job = stage.job(
        org,
        *counting(30),
        max_run_seconds=120,
        hold="rolling",
        rolling_seconds=20,
        checkpoint={"interval_seconds": 60},
    )
    stage.say(
        "The hold covers 20 s at a time and is topped up when a third of it is left. The account"
        " has 25 credits: 10 s before the hold runs out, the job writes a checkpoint and stops."
    )
    stage.until(job, "out_of_credits")
    stage.heading("After a purchase the job resumes within a minute")
    stage.grant(org, 100, "top-up")
    stage.until(job, "succeeded")


def double_submit(stage: Stage) -> None:
    """The same request is sent twice at the same time: one job, one hold."""
    stage.heading("The same request, twice at the same time")
    stage.start_node()
    org = stage.org("acme", "paid")
    stage.grant(org, 100, "bought")
    jobs: list[str] = []

    def submit() -> None:
        jobs.append(stage.job(org, *counting(3), max_run_seconds=20, key="walkthrough-double"))

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.say(f"Both requests returned the same job: {' and '.join(jobs)}.")
    stage.heading("The same key for a different request")
    try:
        stage.job(org, *counting(3), max_run_seconds=21, key="walkthrough-double")
    except Problem as problem:
        stage.say(f"Refused: {problem.code}, {problem.detail}.")
    stage.until(jobs[0], "succeeded")


SCENES: Final[Mapping[str, Callable[[Stage], None]]] = MappingProxyType(
    {
        "preemption": preemption,
        "lost-finish": lost_finish,
        "promo-expiry": promo_expiry,
        "out-of-credits": out_of_credits,
        "double-submit": double_submit,
    }
)
