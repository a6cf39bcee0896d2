"""Prints ledger postings and job steps as they happen, and checks the balances at the end."""

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from bursar.cli.job_progress import OVER
from bursar.cli.walkthrough.format import Page
from bursar.cli.walkthrough.format import credits as told
from bursar.client import Client

_COMPARTMENTS = ("available", "held", "spent", "lapsed", "revoked", "moved")


@dataclass(slots=True)
class _Watched:
    name: str
    account: str
    seen: int = 0  # events
    granted: int = 0  # micro-credits


@dataclass(slots=True)
class _Job:
    org: str
    seen: int = 0  # steps
    state: str = ""


@dataclass(slots=True)
class Watching:
    """Prints new events each time it polls the service."""

    client: Client
    console: Console
    _orgs: dict[str, _Watched] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def add_org(self, id: str, account: str, name: str) -> None:
        """Follow an org's events from now on."""
        self._orgs[id] = _Watched(name, account)
        for event in self._events(id):
            self._orgs[id].seen = event["number"]

    def add_job(self, id: str, org: str) -> None:
        """Follow a job; jobs are named by letters."""
        self._names.setdefault(id, f"job {chr(ord('A') + len(self._jobs))}")
        self._jobs.setdefault(id, _Job(org))

    def name(self, id: str, name: str) -> None:
        """Set the display name of an id."""
        self._names[id] = name

    def not_over(self) -> list[str]:
        """The jobs that were unfinished at the last poll."""
        return [id for id, job in self._jobs.items() if job.state not in OVER]

    def look(self) -> None:
        """Print new events."""
        for id, org in self._orgs.items():
            for event in self._events(id, org.seen):
                org.seen = event["number"]
                self._tell_event(org, event)
        for id, job in self._jobs.items():
            params = {"after": job.seen or None}
            for step in self.client.get(f"/v1/jobs/{id}/events", params).body["items"]:
                job.seen, job.state = step["number"], step["state"]
                self._tell_step(id, step)

    def _events(self, org: str, after: int = 0) -> list[Any]:
        params = {"org_id": org, "after": after or None, "limit": 1_000}
        found: list[Any] = self.client.get("/v1/events", params).body["items"]
        return found

    def _tell_event(self, org: _Watched, event: Any) -> None:
        body = event["body"]
        if event["kind"] == "GrantIssued":
            org.granted += body["terms"]["amount"]
        for posting in body.get("postings") or ():
            source, target = posting["source"] or "issued", posting["target"]
            what = self._names.get(str(body.get("hold")), "")
            amount, grant = told(posting["amount"]), self._names.get(posting["grant"], "a grant")
            moved = f"{source:>9} → {target:<9} {amount:>14}  of {grant}"
            self._line(org.name, f"{event['kind']:<14} {what:<6} {moved}", "cyan")

    def _tell_step(self, id: str, step: Any) -> None:
        name, org = self._names[id], self._orgs[self._jobs[id].org].name
        spent, held = told(step["spent_micros"]), told(step["held_micros"])
        attempt = f"attempt {step['attempt']}" if step["attempt"] else ""
        line = f"{name} is {step['state']} ({step['why']}) {attempt}: {spent} spent, {held} held"
        self._line(org, line, "bold")

    def _line(self, org: str, text: str, style: str) -> None:
        passed = time.monotonic() - self._began
        self.console.print(f"  {passed:6.1f} s  {org:<10}  {text}", style=style, markup=False)

    def check(self, page: Page) -> bool:
        """Print each org's credits; True if they add up to its grants and none are held."""
        self.look()
        good = True
        rows = []
        for org in self._orgs.values():
            owned = self.client.get(f"/v1/accounts/{org.account}/balance").body["owned"]
            parts = [owned[f"{name}_micros"] for name in _COMPARTMENTS]
            adds_up = sum(parts) == org.granted and owned["held_micros"] == 0
            good = good and adds_up
            sums = "adds up" if adds_up else f"DIFFERS from {told(org.granted)}"
            rows.append([org.name, *(told(one) for one in parts[:4]), told(sum(parts)), sums])
        page.table(
            "credits of each org",
            "org|>available|>held|>spent|>lapsed|>total|granted",
            rows,
        )
        over = not self.not_over()
        page.say(
            "Every granted credit is accounted for, and no finished job holds credits."
            if good and over
            else "The balances do not add up, or a job did not finish."
        )
        return good and over
