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
COUNTER_PROGRAM: Final = dedent(
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


def count_seconds(seconds: int) -> tuple[str, ...]:
    """A job that runs for `seconds` in total, over any number of attempts."""
    return PYTHON, "-c", COUNTER_PROGRAM, str(seconds)


def play_preemption(stage: Stage) -> None:
    """A job is preempted for a higher tier at 60 % of its hold, and resumes."""
    stage.print_heading("A job of the paid tier uses all GPUs")
    stage.start_node(gpus=2)
    paid, enterprise = (
        stage.create_org("paid", "paid"),
        stage.create_org("enterprise", "enterprise"),
    )
    stage.issue(paid, 1_000, "bought")
    stage.issue(enterprise, 1_000, "contract")
    job = stage.submit(
        paid, *count_seconds(70), gpus=2, max_run_seconds=80, checkpoint={"interval_seconds": 60}
    )
    stage.print_paragraph(
        "Two GPUs for at most 80 s plus 10 s of grace, one credit per GPU-second: 180 credits are"
        " held."
    )
    stage.wait_for_run_time(job, 54)
    stage.print_heading("At 60 % of its hold, a job of the enterprise tier arrives")
    other = stage.submit(enterprise, *count_seconds(5), max_run_seconds=60)
    stage.print_paragraph(
        "The enterprise tier is below its floor, so the paid job is preempted: it writes a"
        " checkpoint and stops. Its run time so far is charged; the grace period is not."
    )
    stage.wait_for_state(other, "succeeded")
    stage.print_heading("The GPUs are free again")
    stage.print_paragraph("The first job restarts from its checkpoint, on the rest of its hold.")
    stage.wait_for_state(job, "succeeded")


def play_lost_finish(stage: Stage) -> None:
    """The node dies with a job on it: the lease expires and the job restarts."""
    stage.print_heading("A job runs on the only node")
    stage.start_node()
    org = stage.create_org("acme", "paid")
    stage.issue(org, 1_000, "bought")
    job = stage.submit(
        org, *count_seconds(10), max_run_seconds=120, checkpoint={"interval_seconds": 5}
    )
    stage.wait_for_run_time(job, 7)
    stage.print_heading("The node is killed and can no longer report how the job ended")
    stage.kill_node()
    stage.print_paragraph(
        "The lease expires 20 s after the last report, and by then the process has stopped itself."
        " 10 s later the GPU is free. Work up to the last checkpoint is charged, later work is"
        " refunded, and the hold stays open."
    )
    stage.wait_for_state(job, "queued")
    stage.print_heading("The node returns")
    stage.start_node()
    stage.wait_for_state(job, "succeeded")


def play_promo_expiry(stage: Stage) -> None:
    """A promotional grant expires while a job uses it."""
    stage.print_heading("A promotion that expires soon is spent first")
    stage.start_node()
    org = stage.create_org("acme", "paid")
    soon = datetime.now(UTC) + timedelta(seconds=12)
    stage.issue(org, 100, "bought")
    stage.issue(
        org, 25, "promotion", kind="promo", expires_at=soon.isoformat().replace("+00:00", "Z")
    )
    job = stage.submit(org, *count_seconds(15), max_run_seconds=30)
    stage.print_paragraph(
        "The job can cost 40 credits: 25 are held from the promotion, the rest from paid credits."
    )
    stage.print_heading("The promotion expires while the job runs")
    stage.print_paragraph(
        "Held credits stay with the job until it finishes. Charges use the promotion first."
        " Unused promotional credits lapse at once; unused paid credits return to the account."
    )
    stage.wait_for_state(job, "succeeded")


def play_out_of_credits(stage: Stage) -> None:
    """A job runs out of credits, and resumes after a purchase."""
    stage.print_heading("A rolling hold, and an account that runs out of credits")
    stage.start_node()
    org = stage.create_org("acme", "paid")
    stage.issue(org, 25, "bought")
    job = stage.submit(
        org,
        *count_seconds(30),
        max_run_seconds=120,
        hold="rolling",
        rolling_seconds=20,
        checkpoint={"interval_seconds": 60},
    )
    stage.print_paragraph(
        "The hold covers 20 s at a time and is topped up when a third of it is left. The account"
        " has 25 credits: 10 s before the hold runs out, the job writes a checkpoint and stops."
    )
    stage.wait_for_state(job, "out_of_credits")
    stage.print_heading("After a purchase the job resumes within a minute")
    stage.issue(org, 100, "top-up")
    stage.wait_for_state(job, "succeeded")


def play_double_submit(stage: Stage) -> None:
    """The same request is sent twice at the same time: one job, one hold."""
    stage.print_heading("The same request, twice at the same time")
    stage.start_node()
    org = stage.create_org("acme", "paid")
    stage.issue(org, 100, "bought")
    jobs: list[str] = []

    def submit() -> None:
        jobs.append(
            stage.submit(org, *count_seconds(3), max_run_seconds=20, key="walkthrough-double")
        )

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.print_paragraph(f"Both requests returned the same job: {' and '.join(jobs)}.")
    stage.print_heading("The same key for a different request")
    try:
        stage.submit(org, *count_seconds(3), max_run_seconds=21, key="walkthrough-double")
    except Problem as problem:
        stage.print_paragraph(f"Refused: {problem.code}, {problem.detail}.")
    stage.wait_for_state(jobs[0], "succeeded")


SCENES: Final[Mapping[str, Callable[[Stage], None]]] = MappingProxyType(
    {
        "preemption": play_preemption,
        "lost-finish": play_lost_finish,
        "promo-expiry": play_promo_expiry,
        "out-of-credits": play_out_of_credits,
        "double-submit": play_double_submit,
    }
)
