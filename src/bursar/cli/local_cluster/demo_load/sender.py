"""Asking for jobs, cancelling some, buying credits when they run low: over HTTP, for days."""

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bursar.cli.credentials import access
from bursar.cli.local_cluster.demo_load.mix import HABITS, Habit
from bursar.cli.sample_data import ORGS, Org
from bursar.client import Client, Problem

TICK_S: Final = 0.5
REFUSED_S: Final = 15.0  # for how long a tenant that was refused asks for nothing
TROUBLE_S: Final = 3.0  # or one that could not be heard
GIVEN_UP_S: Final = 20.0  # before a job is cancelled that has used up its credits
LOOK_AT_MONEY_S: Final = 60.0
LOW: Final = 4  # credits are bought when less than one part in so many is left of the purchase


@dataclass(frozen=True, slots=True)
class Keys:
    """What a tenant calls with."""

    spend: str  # looks, and asks for jobs
    issue: str  # buys credits


def keys_in(path: Path) -> dict[str, Keys]:
    """The keys in a file, by org."""
    return {org: Keys(**keys) for org, keys in json.loads(path.read_text()).items()}


def keys_written(keys: Mapping[str, Keys]) -> str:
    """What such a file says."""
    return json.dumps({org: {"spend": one.spend, "issue": one.issue} for org, one in keys.items()})


def send(keys: Mapping[str, Keys], seed: int, stopped: threading.Event) -> None:
    """Let every tenant do what it does, until told to stop."""
    known, url = {org.name: org for org in ORGS}, access().url
    tenants = [
        Tenant(habit, known[habit.org], url, keys[known[habit.org].id], Random(f"{seed} {number}"))
        for number, habit in enumerate(HABITS)
    ]
    while not stopped.wait(TICK_S):
        for tenant in tenants:
            tenant.look()
            if stopped.is_set():
                break


@dataclass(slots=True)
class Tenant:
    """One tenant: what it has asked for, and what it will do next."""

    habit: Habit
    org: Org
    url: str
    keys: Keys
    chance: Random
    _spending: Client = field(init=False)
    _buying: Client = field(init=False)
    _next_at: float = 0.0
    _money_at: float = 0.0
    _cancels: list[tuple[float, str]] = field(default_factory=list)  # when, which job

    def __post_init__(self) -> None:
        self._spending = Client(self.url, self.keys.spend, tries=1)
        self._buying = Client(self.url, self.keys.issue, tries=1)

    def look(self) -> None:
        """Do what it is time for; what fails is tried again a while later."""
        now = time.monotonic()
        try:
            if now >= self._money_at:
                self._money_at = now + LOOK_AT_MONEY_S
                self._buy()
            self._cancel(now)
            if now >= self._next_at:
                self._next_at = now + self.chance.uniform(*self.habit.pause_s)
                self._ask()
        except Problem as problem:
            self._next_at = now + (REFUSED_S if 400 <= problem.status < 500 else TROUBLE_S)
            print(f"{self.org.name}: {problem.code}: {problem.detail}", file=sys.stderr, flush=True)

    def _ask(self) -> None:
        """Ask for jobs, unless enough of them are not over."""
        alive = self._spending.get("/v1/jobs", {"unfinished": True, "limit": 100}).body["items"]
        self._give_up([one["id"] for one in alive if one["state"] == "out_of_credits"])
        for _ in range(min(self.habit.burst, self.habit.alive_max - len(alive))):
            wish = self.habit.draw(self.chance)
            body = wish.body(self.org.account(wish.project), self.chance.choice(self.org.users))
            job = self._spending.post("/v1/jobs", body).body["id"]
            if wish.cancel_after_s is not None:
                self._cancels.append((time.monotonic() + wish.cancel_after_s, job))

    def _give_up(self, jobs: list[str]) -> None:
        """Let jobs go whose credits are used up, a while after that is seen."""
        known = {job for _, job in self._cancels}
        at = time.monotonic() + GIVEN_UP_S
        self._cancels += [(at, job) for job in jobs if job not in known]

    def _cancel(self, now: float) -> None:
        """Change one's mind about jobs; who is over already stays as it is."""
        due = [job for at, job in self._cancels if at <= now]
        self._cancels = [(at, job) for at, job in self._cancels if at > now]
        for job in due:
            self._spending.post(f"/v1/jobs/{job}/cancel", {})

    def _buy(self) -> None:
        """Buy credits as at first, if few of them are left."""
        account = self.org.account("")
        balance = self._buying.get(f"/v1/accounts/{account}/balance").body
        if balance["owned"]["available_micros"] * LOW < self.org.bought:
            ask = {"account_id": account, "amount_micros": self.org.bought, "kind": "paid"}
            self._buying.post("/v1/grants", {**ask, "source": "bought again"})
