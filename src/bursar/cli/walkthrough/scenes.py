"""The walkthroughs themselves."""

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
# Counts seconds; saves how far it is when it is asked to, and goes on from there (docs/agent.md).
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
    """A job that works for so many seconds, in as many attempts as it takes."""
    return PYTHON, "-c", COUNTING, str(seconds)


def preemption(stage: Stage) -> None:
    """A job is stopped for a higher tier at 60 % of its hold, and goes on where it was."""
    stage.heading("A job of the paid tier has all GPUs")
    stage.start_node(gpus=2)
    paid, enterprise = stage.org("paid", "paid"), stage.org("enterprise", "enterprise")
    stage.grant(paid, 1_000, "bought")
    stage.grant(enterprise, 1_000, "contract")
    job = stage.job(
        paid, *counting(70), gpus=2, max_run_seconds=80, checkpoint={"interval_seconds": 60}
    )
    stage.say(
        "Two GPUs for at most 80 s and 10 s to stop, a credit a second each: 180 credits are held."
    )
    stage.after(job, 54)
    stage.heading("At 60 % of its hold a job of the enterprise tier comes")
    other = stage.job(enterprise, *counting(5), max_run_seconds=60)
    stage.say(
        "The tier has a floor of GPUs and none of them: the other job is asked to save its work and"
        " to make room. What it ran until then is charged; what it takes to stop is not."
    )
    stage.until(other, "succeeded")
    stage.heading("Its GPUs are free again")
    stage.say(
        "The first job starts once more, from what it has saved, on what is left of its hold."
    )
    stage.until(job, "succeeded")


def lost_finish(stage: Stage) -> None:
    """The node dies with a job on it: the lease runs out, and the job starts again."""
    stage.heading("A job runs on the only node")
    stage.start_node()
    org = stage.org("acme", "paid")
    stage.grant(org, 1_000, "bought")
    job = stage.job(org, *counting(10), max_run_seconds=120, checkpoint={"interval_seconds": 5})
    stage.after(job, 7)
    stage.heading("Its node is killed: nobody will say how the job ended")
    stage.kill_node()
    stage.say(
        "A lease lasts 20 s after the last report; by then its process has ended itself. Ten"
        " seconds later the GPU is free. What is proven is settled, work that no checkpoint has"
        " kept is given back, and the hold stays."
    )
    stage.until(job, "queued")
    stage.heading("The node comes back")
    stage.start_node()
    stage.until(job, "succeeded")


def promo_expiry(stage: Stage) -> None:
    """A promotion expires while a job runs on it."""
    stage.heading("A promotion that ends in a moment is spent first")
    stage.start_node()
    org = stage.org("acme", "paid")
    soon = datetime.now(UTC) + timedelta(seconds=12)
    stage.grant(org, 100, "bought")
    stage.grant(
        org, 25, "promotion", kind="promo", expires_at=soon.isoformat().replace("+00:00", "Z")
    )
    job = stage.job(org, *counting(15), max_run_seconds=30)
    stage.say(
        "The job may take 40 credits: 25 are held of the promotion, the rest of what was bought."
    )
    stage.heading("The promotion ends while the job runs")
    stage.say(
        "What is held stays the job's until it ends. It is charged from the promotion first; what"
        " comes back of that after its end lapses at once, the rest returns to what was bought."
    )
    stage.until(job, "succeeded")


def out_of_credits(stage: Stage) -> None:
    """A job's credits end before it does; it goes on when there are more."""
    stage.heading("A hold that is topped up from time to time, and an account that runs dry")
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
        "Twenty seconds are set aside at once, and more is wanted when a third of that is left."
        " There are 25 credits in all: ten seconds before its hold ends the job is asked to save"
        " its work and to stop."
    )
    stage.until(job, "out_of_credits")
    stage.heading("More credits are bought: within a minute it goes on")
    stage.grant(org, 100, "top-up")
    stage.until(job, "succeeded")


def double_submit(stage: Stage) -> None:
    """The same request is sent twice at once: one job, one hold."""
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
    stage.say(f"Both were answered, with the same job: {' and '.join(jobs)}.")
    stage.heading("The same key for something else")
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
