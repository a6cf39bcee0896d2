"""Runs the demo's tenants: they submit and cancel jobs, and buy credits when they run low."""

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bursar.cli.credentials import find_access
from bursar.cli.local_cluster.demo_load.mix import HABITS, TenantHabit
from bursar.cli.sample_data import ORGS, DemoOrg
from bursar.client import Client, Problem

POLL_INTERVAL_S: Final = 0.5
PAUSE_AFTER_REFUSAL_S: Final = 15.0
PAUSE_AFTER_ERROR_S: Final = 3.0
CANCEL_UNPAID_AFTER_S: Final = 20.0
BALANCE_INTERVAL_S: Final = 60.0
LOW_BALANCE_DIVISOR: Final = 4  # buy when less than a quarter of a purchase is left


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """The API keys of a tenant."""

    spend: str  # reads and submits jobs
    issue: str  # buys credits


def load_keys(path: Path) -> dict[str, TenantKeys]:
    """Read a file of keys, by org."""
    return {org: TenantKeys(**keys) for org, keys in json.loads(path.read_text()).items()}


def format_keys(keys: Mapping[str, TenantKeys]) -> str:
    """The content of a file of keys."""
    return json.dumps(
        {org: {"spend": org_keys.spend, "issue": org_keys.issue} for org, org_keys in keys.items()}
    )


def run_tenants(keys: Mapping[str, TenantKeys], seed: int, stop_event: threading.Event) -> None:
    """Run all tenants until the event is set."""
    orgs, url = {org.name: org for org in ORGS}, find_access().url
    tenants = [
        DemoTenant(
            habit, orgs[habit.org], url, keys[orgs[habit.org].id], Random(f"{seed} {number}")
        )
        for number, habit in enumerate(HABITS)
    ]
    while not stop_event.wait(POLL_INTERVAL_S):
        for tenant in tenants:
            tenant.step()
            if stop_event.is_set():
                break


@dataclass(slots=True)
class DemoTenant:
    """One tenant, with its planned submissions and cancellations."""

    habit: TenantHabit
    org: DemoOrg
    url: str
    keys: TenantKeys
    rng: Random
    _spend_client: Client = field(init=False)
    _issue_client: Client = field(init=False)
    _submit_at: float = 0.0
    _check_balance_at: float = 0.0
    _cancels: list[tuple[float, str]] = field(default_factory=list)  # when, which job

    def __post_init__(self) -> None:
        self._spend_client = Client(self.url, self.keys.spend, tries=1)
        self._issue_client = Client(self.url, self.keys.issue, tries=1)

    def step(self) -> None:
        """Do what is due. After an error, the tenant pauses."""
        now = time.monotonic()
        try:
            if now >= self._check_balance_at:
                self._check_balance_at = now + BALANCE_INTERVAL_S
                self._buy_if_low()
            self._cancel_due(now)
            if now >= self._submit_at:
                self._submit_at = now + self.rng.uniform(*self.habit.pause_s)
                self._submit()
        except Problem as problem:
            self._submit_at = now + (
                PAUSE_AFTER_REFUSAL_S if 400 <= problem.status < 500 else PAUSE_AFTER_ERROR_S
            )
            print(f"{self.org.name}: {problem.code}: {problem.detail}", file=sys.stderr, flush=True)

    def _submit(self) -> None:
        """Submit jobs, up to the tenant's limit of unfinished ones."""
        unfinished = self._spend_client.get("/v1/jobs", {"unfinished": True, "limit": 100}).body[
            "items"
        ]
        self._plan_cancellation(
            [job["id"] for job in unfinished if job["state"] == "out_of_credits"]
        )
        for _ in range(min(self.habit.burst, self.habit.unfinished_max - len(unfinished))):
            demo_job = self.habit.draw(self.rng)
            body = demo_job.body(
                self.org.account(demo_job.project), self.rng.choice(self.org.users)
            )
            job = self._spend_client.post("/v1/jobs", body).body["id"]
            if demo_job.cancel_after_s is not None:
                self._cancels.append((time.monotonic() + demo_job.cancel_after_s, job))

    def _plan_cancellation(self, jobs: list[str]) -> None:
        """Plan to cancel jobs that ran out of credits."""
        known = {job for _, job in self._cancels}
        at = time.monotonic() + CANCEL_UNPAID_AFTER_S
        self._cancels += [(at, job) for job in jobs if job not in known]

    def _cancel_due(self, now: float) -> None:
        """Cancel the jobs whose time has come; finished ones stay as they are."""
        due = [job for at, job in self._cancels if at <= now]
        self._cancels = [(at, job) for at, job in self._cancels if at > now]
        for job in due:
            self._spend_client.post(f"/v1/jobs/{job}/cancel", {})

    def _buy_if_low(self) -> None:
        """Buy credits again if few are left."""
        account = self.org.account("")
        balance = self._issue_client.get(f"/v1/accounts/{account}/balance").body
        if balance["owned"]["available_micros"] * LOW_BALANCE_DIVISOR < self.org.purchase:
            body = {"account_id": account, "amount_micros": self.org.purchase, "kind": "paid"}
            self._issue_client.post("/v1/grants", {**body, "source": "bought again"})
