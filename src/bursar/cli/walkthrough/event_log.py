"""Prints ledger postings and job steps as they happen, and checks the balances at the end."""

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from bursar.cli.job_progress import FINISHED_STATES
from bursar.cli.walkthrough.format import TextPage, format_credits
from bursar.client import Client

_COMPARTMENTS = ("available", "held", "spent", "lapsed", "revoked", "moved")


@dataclass(slots=True)
class _OrgProgress:
    name: str
    account: str
    events_seen: int = 0
    granted: int = 0  # micro-credits


@dataclass(slots=True)
class _JobProgress:
    org: str
    steps_seen: int = 0
    state: str = ""


@dataclass(slots=True)
class EventLog:
    """Prints new events each time it polls the service."""

    client: Client
    console: Console
    _orgs: dict[str, _OrgProgress] = field(default_factory=dict)
    _jobs: dict[str, _JobProgress] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.monotonic)

    def add_org(self, id: str, account: str, name: str) -> None:
        """Follow an org's events from now on."""
        self._orgs[id] = _OrgProgress(name, account)
        for event in self._load_events(id):
            self._orgs[id].events_seen = event["number"]

    def add_job(self, id: str, org: str) -> None:
        """Follow a job; jobs are named by letters."""
        self._names.setdefault(id, f"job {chr(ord('A') + len(self._jobs))}")
        self._jobs.setdefault(id, _JobProgress(org))

    def set_name(self, id: str, name: str) -> None:
        """Set the display name of an id."""
        self._names[id] = name

    def unfinished_jobs(self) -> list[str]:
        """The jobs that were unfinished at the last poll."""
        return [id for id, job in self._jobs.items() if job.state not in FINISHED_STATES]

    def print_new(self) -> None:
        """Print new events."""
        for id, org in self._orgs.items():
            for event in self._load_events(id, org.events_seen):
                org.events_seen = event["number"]
                self._print_event(org, event)
        for id, job in self._jobs.items():
            params = {"after": job.steps_seen or None}
            for step in self.client.get(f"/v1/jobs/{id}/events", params).body["items"]:
                job.steps_seen, job.state = step["number"], step["state"]
                self._print_step(id, step)

    def _load_events(self, org: str, after: int = 0) -> list[Any]:
        params = {"org_id": org, "after": after or None, "limit": 1_000}
        events: list[Any] = self.client.get("/v1/events", params).body["items"]
        return events

    def _print_event(self, org: _OrgProgress, event: Any) -> None:
        body = event["body"]
        if event["kind"] == "GrantIssued":
            org.granted += body["grant"]["amount_micros"]
        for posting in body["postings"]:
            source, target = posting["from_compartment"] or "issued", posting["to_compartment"]
            what = self._names.get(str(body.get("hold_id")), "")
            amount = format_credits(posting["amount_micros"])
            grant = self._names.get(posting["grant_id"], "a grant")
            moved = f"{source:>9} → {target:<9} {amount:>14}  of {grant}"
            self._print_line(org.name, f"{event['kind']:<14} {what:<6} {moved}", "cyan")

    def _print_step(self, id: str, step: Any) -> None:
        name, org = self._names[id], self._orgs[self._jobs[id].org].name
        spent, held = format_credits(step["spent_micros"]), format_credits(step["held_micros"])
        attempt = f"attempt {step['attempt']}" if step["attempt"] else ""
        line = f"{name} is {step['state']} ({step['why']}) {attempt}: {spent} spent, {held} held"
        self._print_line(org, line, "bold")

    def _print_line(self, org: str, text: str, style: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self.console.print(f"  {elapsed_s:6.1f} s  {org:<10}  {text}", style=style, markup=False)

    def check(self, page: TextPage) -> bool:
        """Print each org's credits; True if they add up to its grants and none are held."""
        self.print_new()
        is_consistent = True
        rows = []
        for org in self._orgs.values():
            owned = self.client.get(f"/v1/accounts/{org.account}/balance").body["owned"]
            parts = [owned[f"{name}_micros"] for name in _COMPARTMENTS]
            adds_up = sum(parts) == org.granted and owned["held_micros"] == 0
            is_consistent = is_consistent and adds_up
            sums = "adds up" if adds_up else f"DIFFERS from {format_credits(org.granted)}"
            rows.append(
                [
                    org.name,
                    *(format_credits(part) for part in parts[:4]),
                    format_credits(sum(parts)),
                    sums,
                ]
            )
        page.print_table(
            "credits of each org",
            "org|>available|>held|>spent|>lapsed|>total|granted",
            rows,
        )
        all_finished = not self.unfinished_jobs()
        page.print_paragraph(
            "Every granted credit is accounted for, and no finished job holds credits."
            if is_consistent and all_finished
            else "The balances do not add up, or a job did not finish."
        )
        return is_consistent and all_finished
