"""Jobs at the command line: submitted, listed, watched, cancelled."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bursar.cli.commands.submit import parse_gpus, parse_pairs, parse_variables, render_quote
from bursar.cli.job_progress import draw_bar, format_step
from bursar.core.messages import Cause, EndClass
from bursar.store.pools.loader import add_pool
from tests.cli.test_client_commands import (  # noqa: F401 (fixtures)
    Running,
    Shell,
    _alone,
    funded,
    operator,
    running,
)
from tests.support.api_service import PROGRAM, RANDOM_ID
from tests.support.databases import connected
from tests.support.patience import PATIENCE_S, eventually
from tests.support.pool_messages import POOL, Pool, pooling

HELD = "5.013888 cr"  # two H100 at 2.5 for an hour and ten seconds
LEFT = "94.986112 cr"


@pytest.fixture(scope="module")
def pool(running: Running) -> Iterator[Pool]:  # noqa: F811 (a fixture)
    url = running.process.database_url
    with connected(url) as connection:
        add_pool(connection, POOL)
    with pooling(url) as found:
        yield found


@pytest.fixture
def shell(funded: Shell, pool: Pool) -> Shell:  # noqa: F811 (a fixture)
    """Somebody whose org has 100 credits, prices and a pool."""
    funded.environment["BURSAR_ACCOUNT"] = funded.account
    return funded


ASKED = ("--gpus", "2xH100", "--max-run", "1h", "--pool", POOL)


def submitted(shell: Shell, *more: str) -> Any:
    words = ("submit", *ASKED, "--yes", *more, "-o", "json", "--", "python", "train.py", "--fast")
    return json.loads(shell.says(*words))


def at_a_terminal(
    shell: Shell, *words: str, typed: str = "", enough: str | None = None
) -> tuple[int, str]:
    """Run a command at a terminal and return its status and its output.

    Ctrl-C is pressed as soon as the output contains `enough`.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **shell.environment, "TERM": "xterm"},
        close_fds=True,
        preexec_fn=listen_to_interrupts,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    output = b""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            output += part
            if enough and enough in output.decode(errors="ignore"):
                process.send_signal(signal.SIGINT)
                enough = None
        else:
            pytest.fail(f"{words} does not end; it printed {output.decode(errors='replace')}")
        return process.wait(PATIENCE_S), output.decode()
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)


def listen_to_interrupts() -> None:
    """Let Ctrl-C reach a command even if the tests run as a background job, which ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# Submitting


def test_dry_run_shows_gpus_rate_hold_and_remaining_credits(shell: Shell) -> None:
    """Nothing is held; what would be refused exits so (B1)."""
    told = shell.says("submit", *ASKED, "--likely", "30m", "--dry-run", "--", "true")

    for line in (
        r"verdict +accepted",
        r"gpus +2 × H100",
        r"rate +5\.00 cr per hour",
        r"max run time +1h",
        rf"held +{re.escape(HELD)}",
        r"expected cost +2\.50 cr",
        r"spendable +100\.00 cr",
        rf"spendable after +{re.escape(LEFT)}",
        rf"pool +{POOL}",
    ):
        assert re.search(rf"(?m)^{line}$", told), (line, told)
    told = shell.says("submit", *ASKED[:4], "--dry-run", "--", "true")
    assert re.search(r"(?m)^pool +\S+ \(.*H100.*\)$", told), "which was chosen, and why"
    assert "none" in shell.says("jobs")
    dear = shell.run("submit", *ASKED[:2], "--max-run", "2d", "--dry-run", "--", "true")
    assert (4, "insufficient_credits" in dear.stdout) == (dear.exit_code, True)


def test_array_is_submitted_and_shown_with_its_elements(shell: Shell, pool: Pool) -> None:
    """One hold for all; what has begun is listed with its number."""
    told = shell.says("submit", *ASKED, "--array", "3", "--dry-run", "--", "true")
    assert re.search(r"(?m)^runs +3$", told), told
    array = submitted(shell, "--array", "3", "--at-once", "1")["id"]
    pool.jobs.advance_arrays(shell.org)

    told = shell.says("job", array)
    assert re.search(r"(?m)^array +count 3; at once 1; not submitted 2; queued 1", told), told
    [one] = json.loads(shell.says("jobs", "--array", array, "-o", "json"))["items"]
    assert (array, 0, "queued") == (one["array_id"], one["array_index"], one["state"])
    assert "none" in shell.says("jobs", "--array", array, "--state", "failed")
    assert "cancelling" in shell.says("cancel", array, "-o", "json")
    misused = shell.run("submit", *ASKED, "--at-once", "1", "--yes", "--", "true")
    assert (2, "--array" in misused.stderr) == (misused.exit_code, True)
    assert 2 == shell.run("jobs", "--array", array, "--unfinished").exit_code


def test_job_is_submitted_shown_listed_and_cancelled(shell: Shell) -> None:
    job = submitted(
        shell, "--label", "team=vision", "--env", "A=1", "--class", "7", "--max-cost", "6"
    )

    assert ("queued", 5_013_888) == (job["state"], job["held_micros"])
    whole = shell.json("job", job["id"])
    assert (["python", "train.py", "--fast"], {"team": "vision"}, ["A"], 7, 6_000_000) == (
        *(whole["command"], whole["labels"], whole["env_names"]),
        *(whole["priority_class"], whole["max_cost_micros"]),
    )
    listed = shell.says("jobs", "--unfinished", "--label", "team=vision")
    assert re.search(rf"{job['id']} +queued +submitted .* {re.escape(HELD)}", listed), listed
    assert listed.rstrip().endswith("python train.py --fast")
    assert "none" in shell.says("jobs", "--state", "succeeded")
    assert {"id": job["id"], "cancelling": True} == shell.json("cancel", job["id"])
    eventually(lambda: shell.json("job", job["id"])["state"] == "cancelled")
    shell.fails(3, "job", RANDOM_ID)


def test_job_is_shown_without_empty_fields(shell: Shell) -> None:
    """What is empty is left out; GPUs, labels and prices read as people write them."""
    ask = ("--gpus", "16xH100,A100", "--gpu-memory", "40", "--nodes", "2", "--within", "rack")
    more = ("--label", "name=train legs", "--label", "team=vision")
    words = ("submit", *ask, *more, "--max-run", "1h", "--pool", POOL, "--yes", "--", "true")
    made = shell.says(*words)
    assert "cached from" not in made
    job = re.search(r"(?m)^id +(\S+)$", made)
    assert job is not None
    told = shell.says("job", job[1])

    for line in (
        r"gpus +16 × H100 or A100 with 40 GiB each on 2 nodes within one rack",
        r"labels +name=train legs, team=vision",
        r"per GPU-hour +H100 2\.50 cr",
        r"dropped gpu types +A100",
    ):
        assert re.search(rf"(?m)^{line}$", f"{told}\n{made}"), (line, told, made)
    for empty in ("exit code", "array", "owed", "cancelling", "ended"):
        assert not re.search(rf"(?m)^{empty} ", told), told


def test_result_of_a_job_is_shown(shell: Shell, pool: Pool) -> None:
    """S9: each output on a line; a job that is not over has left nothing yet."""
    job, other = submitted(shell)["id"], submitted(shell)["id"]
    assert "job_not_finished" in shell.fails(5, "job", job, "--result")
    manifest = [{"name": "loss", "inline": "0.1"}, {"uri": "s3://m", "sha256": "0" * 64}]
    for one, left in ((job, json.dumps(manifest)), (other, None)):
        told = pool.about(shell.org, one)
        told.started()
        told.ended(Cause.FINISHED, 60, exit_code=0, result=left)

    page = shell.says("job", job, "--result")
    assert re.search(r"(?m)^exit code +0$", page)
    assert re.search(
        r"(?m)^NAME +INLINE +URI +SHA256\nloss +0\.1 +- +-\n- +- +s3://m +0{64}$", page
    )
    assert manifest == shell.json("job", job, "--result")["manifest"]
    assert shell.says("job", other, "--result").endswith("\n\nno outputs\n")


def test_refused_quote_names_the_requested_gpus(shell: Shell) -> None:
    told = shell.run("submit", "--gpus", "2xB200", "--max-run", "1h", "--dry-run", "--", "true")

    assert re.search(r"(?m)^gpus +2 × B200$", told.stdout), told.stdout


def test_estimated_start_is_shown_once(shell: Shell) -> None:
    """By the range of the scheduler; the router's guess does not stand beside it."""
    quote = {
        "problems": [], "rates": [{"gpu_type": "H100"}], "micros_per_hour": 1, "max_micros": 1,
        "likely_micros": 0, "held_micros": 1, "spendable_micros": 1, "spendable_after_micros": 0,
        "dropped_gpu_types": [], "cache": None, "pool": "main",
        "pool_reason": "it starts first there, on H100: in about 3 min 1 s",
        "expected_wait_seconds": 181,
        "earliest_at": "2026-11-16T12:00:00Z", "latest_at": "2026-11-16T12:00:30Z",
    }  # fmt: skip
    ask = {"gpus": {"types": ["H100"], "count": 1}, "max_run_seconds": 60}

    told = render_quote(quote, ask)
    assert "main (it starts first there, on H100)" in told
    assert "3m" not in told
    assert re.search(r"(?m)^starts .*:00:00 .* or later\nstarts by .*:00:30 ", told)
    told = render_quote({**quote, "earliest_at": None, "latest_at": None}, ask)
    assert re.search(r"(?m)^starts +in about 3m1s$", told)
    told = render_quote({**quote, "latest_at": quote["earliest_at"]}, ask)
    assert told.endswith(told.partition("starts ")[2].lstrip()), "one date is told once"
    assert "starts           now" in render_quote({**quote, "expected_wait_seconds": 0}, ask)
    hit = {"outcome": "hit", "price_micros": 0, "job_id": "x"}
    assert "starts" not in render_quote({**quote, "cache": hit}, ask)


def test_cached_result_is_reused(shell: Shell, pool: Pool) -> None:
    """The quote says so, the job says whose, and `why` whom it follows (S13)."""
    cached = ("--cache", "1d", "--cache-key", f"data of {shell.account}")
    dry = ("submit", *ASKED, *cached, "--dry-run", "--", "python", "train.py", "--fast")
    assert "no identical job: it would run" in shell.says(*dry)
    first, second = submitted(shell, *cached), submitted(shell, *cached)
    assert first["id"] == second["follows"]
    assert f"The job waits for the result of job {first['id']}, which is identical." in shell.says(
        "why", second["id"]
    )
    assert f"waits for job {first['id']}" in shell.says(*dry)
    told = pool.about(shell.org, first["id"])
    told.started()
    told.ended(Cause.FINISHED, 60, exit_code=0)

    assert f"reuses the result of job {first['id']}; price: free" in shell.says(*dry)
    assert re.search(rf"cached from +{first['id']}", shell.says("job", second["id"]))
    assert "succeeded" == submitted(shell, *cached)["state"]
    alone = ("submit", *ASKED, "--yes", "--cache-key", "x", "--", "true")
    assert "--cache-key requires --cache" in shell.fails(2, *alone)


def test_submit_without_a_terminal_requires_yes(shell: Shell) -> None:
    """Nothing is spent by accident."""
    told = shell.fails(2, "submit", *ASKED, "--", "true")

    assert "add --yes" in told
    assert "none" in shell.says("jobs")


def test_submit_at_a_terminal_shows_the_price_and_asks(shell: Shell) -> None:
    status, told = at_a_terminal(shell, "submit", *ASKED, "--", "true", typed="n\n")
    assert (0, True) == (status, f"spendable after  {LEFT}" in told.replace("\r", ""))
    assert "none" in shell.says("jobs")
    status, told = at_a_terminal(shell, "submit", *ASKED, "--", "true", typed="y\n")
    assert (0, True) == (status, "bursar watch " in told)
    assert 1 == len(shell.json("jobs")["items"])
    status, told = at_a_terminal(shell, "submit", *ASKED, "--max-cost", "1", "--", "true")
    assert (4, True) == (status, "max_cost_exceeded" in told)


def test_submission_with_an_idempotency_key_has_one_effect(shell: Shell) -> None:
    first = submitted(shell, "--idempotency-key", "mine")

    assert first == submitted(shell, "--idempotency-key", "mine")
    assert 1 == len(shell.json("jobs")["items"])


def test_most_expensive_jobs_are_ranked(shell: Shell) -> None:
    job = submitted(shell)["id"]

    assert re.search(rf"1  {job}  queued .* {re.escape(HELD)}", shell.says("top", "jobs"))
    assert shell.json("top", "jobs", "--by", "held")["items"][0]["held_micros"] == 5_013_888


# Watching


def test_job_is_followed_until_it_finishes(shell: Shell, pool: Pool) -> None:
    """Each step on a line; the status says whether it succeeded."""
    good, bad = submitted(shell)["id"], submitted(shell)["id"]
    for job, why in ((good, Cause.FINISHED), (bad, Cause.FAILED)):
        told = pool.about(shell.org, job)
        told.started()
        told.ended(why, 1_800, exit_code=int(why is Cause.FAILED))

    lines = shell.says("watch", good).splitlines()
    assert [
        ["queued", "submitted"],
        ["running", "started"],
        ["succeeded", "finished"],
    ] == [line.split()[3:5] for line in lines]
    assert lines[-1].endswith("attempt 1  H100  exit code 0  spent 2.50 cr")
    failed = shell.run("watch", bad)
    assert (1, True) == (failed.exit_code, "exit code 1" in failed.stdout)
    assert f"to see its output: bursar logs {bad}" in failed.stderr
    events = [json.loads(line) for line in shell.says("watch", good, "-o", "json").splitlines()]
    assert {"step", "spent"} == {one["event"] for one in events}


def test_operator_corrects_the_end_class_of_an_attempt(shell: Shell, pool: Pool) -> None:
    """And is told where to see what moves by it (M3)."""
    job = submitted(shell)["id"]
    told = pool.about(shell.org, job)
    told.started()
    told.ended(Cause.FAILED, 1_800, exit_code=1)

    said = shell.run("correct", job, "platform", "--reason", "its GPU fell off the bus")
    assert (0, True) == (said.exit_code, f"bursar watch {job}" in said.stderr), said.stderr
    shell.fails(5, "correct", job, "user")  # its pool has not told of the other one yet
    told.corrected(EndClass.PLATFORM, 1_800, 900)
    line = shell.run("watch", job).stdout.splitlines()[-1]
    assert "corrected  attempt 1  H100  exit code 1  ended by: platform  spent 1.25 cr" in line
    assert re.search(r"(?m)^end class +platform$", shell.says("job", job))
    shell.fails(3, "correct", job, "user", "--attempt", "2")


def test_bar_at_a_terminal_shows_spent_and_held_credits(shell: Shell, pool: Pool) -> None:
    job = submitted(shell)["id"]
    told = pool.about(shell.org, job)
    told.started()
    told.ended(Cause.FINISHED, 1_800)
    status, shown = at_a_terminal(shell, "watch", job)

    assert 0 == status
    assert "░] 0.00 cr of 5.013888 cr" in shown
    assert "\033[1;32msucceeded" in shown


def test_interrupted_watch_mentions_that_the_job_continues(shell: Shell) -> None:
    job = submitted(shell)["id"]
    status, shown = at_a_terminal(shell, "watch", job, enough="░]")

    assert 130 == status
    assert f"the job continues; follow it: bursar watch {job}" in shown


def test_ctrl_c_at_a_prompt_exits_with_130(shell: Shell) -> None:
    words = ("submit", *ASKED, "--", "true")
    status, shown = at_a_terminal(shell, *words, enough="Submit this job?")

    assert (130, False) == (status, "Traceback" in shown)
    assert "none" in shell.says("jobs")


def test_logs_of_a_job_without_output_mention_it(shell: Shell) -> None:
    job = submitted(shell)["id"]
    told = shell.run("logs", job)

    assert (0, "") == (told.exit_code, told.stdout)
    assert "no output\n" in told.stderr
    assert "array" not in told.stderr
    assert "no output on n9\n" in shell.run("logs", job, "--node", "n9").stderr
    array = submitted(shell, "--array", "2")["id"]
    assert "the job is an array; use the ids of its elements" in shell.run("logs", array).stderr


def test_unknown_job_cannot_be_watched(shell: Shell) -> None:
    assert "The job does not exist" in shell.fails(3, "watch", RANDOM_ID)


# What is typed and shown


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("H100", {"types": ["H100"], "count": 1}),
        ("2xH100", {"types": ["H100"], "count": 2}),
        ("8xH100,A100", {"types": ["H100", "A100"], "count": 8}),
        ("0.25xH100", {"types": ["H100"], "fraction_milli": 250}),
        ("1.0xL4", {"types": ["L4"], "fraction_milli": 1_000}),
    ],
)
def test_gpu_request_is_parsed(typed: str, meant: dict[str, Any]) -> None:
    assert meant == parse_gpus(typed)


@pytest.mark.parametrize(
    "typed", ["", "1.5xH100", "0.0xH100", "xH100", "2xH100,", "2H100", "2", "2xH100,4"]
)
def test_invalid_gpu_request_is_refused(shell: Shell, typed: str) -> None:
    told = shell.fails(2, "submit", "--gpus", typed, "--max-run", "1h", "--", "true")

    assert "--gpus" in told


def test_variables_and_labels_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "x=y")

    assert {"A": "1", "HERE": "x=y"} == parse_variables(["A=1", "HERE"])
    assert {"a": ""} == parse_pairs(["a="], "--label")
    assert (None, None) == (parse_variables(None), parse_pairs([], "--label"))


@pytest.mark.parametrize("typed", ["A B=1", "1A=1", "A-B=1"])
def test_invalid_variable_name_is_refused(shell: Shell, typed: str) -> None:
    told = shell.fails(2, "submit", *ASKED, "--env", typed, "--yes", "--", "true")

    assert "only letters, digits and _" in " ".join(told.split())


@pytest.mark.parametrize(
    ("max_run", "said"),
    [("61d", "max run: Input should be less than or equal to 60d"), ("0s", "or equal to 1s")],
)
def test_bound_of_a_duration_is_shown_as_a_duration(shell: Shell, max_run: str, said: str) -> None:
    ask = ("submit", "--gpus", "1xH100", "--max-run", max_run, "--pool", POOL, "--yes")

    assert said in shell.fails(2, *ask, "--", "true")


def test_unknown_pool_is_reported(shell: Shell) -> None:
    ask = ("submit", *ASKED[:4], "--pool", "nope", "--yes", "--", "true")

    assert "there is no pool 'nope'" in shell.fails(3, *ask)


@pytest.mark.parametrize("more", [("--env", "NOT_HERE"), ("--label", "a"), ("--label", "=b")])
def test_incomplete_pair_is_refused(shell: Shell, more: tuple[str, str]) -> None:
    assert "NAME=VALUE" in shell.fails(2, "submit", *ASKED, *more, "--yes", "--", "true")


def test_bar_length_follows_spent_credits() -> None:
    assert f"[{'░' * 24}] 0.00 cr of 0.00 cr" == draw_bar(0, 0)
    assert f"[{'█' * 6}{'░' * 18}] 1.00 cr of 4.00 cr" == draw_bar(1_000_000, 3_000_000)
    assert f"[{'█' * 24}] 1.00 cr of 1.00 cr" == draw_bar(1_000_000, 0)


def test_step_before_any_attempt_is_short() -> None:
    step = {
        "at": "2026-11-16T12:00:00.000000Z",
        "state": "queued",
        "why": "submitted",
        "attempt": 0,
        "gpu_type": None,
        "exit_code": None,
        "spent_micros": 0,
    }

    assert format_step(step).endswith("queued          submitted  spent 0.00 cr")
    followed = {**step, "why": "follows", "other_job_id": "another"}
    assert format_step(followed).endswith("follows  job another  spent 0.00 cr")
