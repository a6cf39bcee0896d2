"""Tenants who submit, cancel, extend and buy, ask again until they are answered, and keep score.

Alfa     gangs and whole nodes, urgent; its tier may have others make room
Bravo    fills what is left, with jobs that make checkpoints and jobs that do not
Charlie  small jobs: some fail, some are cancelled, many are submitted twice under one key; some are
         arrays, and some take the results of others that are like them
Delta    a rolling hold and hardly any credits: it runs out, buys some, and goes on
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bursar.client import Client, Problem
from bursar.core.money import CREDIT

POOL: Final = "main"
# A GPU costs a micro-credit each millisecond, or half of one.
PRICES: Final[Mapping[str, int]] = {"H100": 3_600_000, "A100": 1_800_000}
TIERS: Final[Mapping[str, str]] = {
    "Alfa": "enterprise", "Bravo": "paid", "Charlie": "free", "Delta": "paid",
}  # fmt: skip
# Jobs that a tenant has at once.
ALIVE_MAX: Final[Mapping[str, int]] = {"Alfa": 3, "Bravo": 8, "Charlie": 6, "Delta": 2}
RICH: Final = 1_000 * CREDIT
POOR: Final = 20_000  # 20 seconds of a GPU
ANSWER_S: Final = 3.0
AGAIN_S: Final = 0.1
JOB: Final = Path(__file__).with_name("job.py")

Body = dict[str, Any]


@dataclass
class Score:
    """What tenants were told, all of it; written by several threads."""

    submitted: dict[str, set[str]] = field(default_factory=dict)  # key → ids that it was told
    refused: Counter[str] = field(default_factory=Counter)
    unheard: int = 0  # calls that nobody answered
    twice: int = 0  # submissions that were sent twice at once
    cancelled: set[str] = field(default_factory=set)
    extended: int = 0
    unexpected: list[str] = field(default_factory=list)  # answers that nobody should get
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: str, id: str) -> None:
        """A submission was answered."""
        with self.lock:
            self.submitted.setdefault(key, set()).add(id)

    @property
    def jobs(self) -> set[str]:
        """All jobs that somebody was told of."""
        with self.lock:
            return {id for ids in self.submitted.values() for id in ids}


class Over(Exception):
    """There is nothing more to be waited for."""


class Caller:
    """Asks until it is answered, under the same key each time."""

    def __init__(self, url: str, key: str, score: Score, over: threading.Event) -> None:
        self.client = Client(url, key, tries=1, response_s=ANSWER_S)
        self._score = score
        self._over = over

    def post(self, path: str, body: Body, key: str) -> Body | None:
        """The answer; None if it was refused. `Over` if nobody answers until all is over."""
        while not self._over.is_set():
            try:
                answer: Body = self.client.post(path, body, key=key).body
                return answer
            except Problem as problem:
                if not self._is_no(path, problem):
                    time.sleep(AGAIN_S)
                    continue
                return None
        raise Over

    def get(self, path: str, params: Mapping[str, Any]) -> Body | None:
        """What is there; None if nobody answers."""
        try:
            answer: Body = self.client.get(path, params).body
            return answer
        except Problem as problem:
            self._is_no(path, problem)
            return None

    def _is_no(self, path: str, problem: Problem) -> bool:
        """Whether it is an answer, and not that nobody has one now."""
        score = self._score
        with score.lock:
            if problem.status in (0, 429, 502, 503, 504):
                score.unheard += 1
                return False
            if problem.status >= 500 or problem.status in (400, 401, 403, 422):
                score.unexpected.append(f"{path}: {problem.status} {problem}")
            score.refused[problem.code] += 1
            return True


@dataclass
class Tenant:
    """One tenant: an org, and a thread that asks for things."""

    name: str
    org: str
    account: str
    url: str
    key: str
    folder: Path
    score: Score
    chance: random.Random
    stopped: threading.Event  # no more jobs are asked for
    over: threading.Event
    _numbers: int = 0
    _cancels: list[tuple[float, str]] = field(default_factory=list)

    def run(self) -> None:
        """Ask for things until told to stop."""
        caller = Caller(self.url, self.key, self.score, self.over)
        try:
            while not self.stopped.is_set():
                self._turn(caller)
                self.stopped.wait(self.chance.uniform(0.05, 0.5))
        except Over:
            pass
        finally:
            caller.client.close()

    def _turn(self, caller: Caller) -> None:
        self._cancel(caller)
        told = caller.get("/v1/jobs", {"org_id": self.org, "unfinished": True, "limit": 100})
        if told is None:
            return
        starved = [one["id"] for one in told["items"] if one["state"] == "out_of_credits"]
        if starved and self.chance.random() < 0.3:
            self._top_up(caller, self.chance.choice(starved))
        if len(told["items"]) >= ALIVE_MAX[self.name]:
            return
        if self.name == "Delta" and not told["items"]:
            self._buy(caller)
        for body in self._wishes():
            self._submit(caller, body)

    def _wishes(self) -> list[Body]:
        """What it wants next."""
        draw = self.chance
        if self.name == "Alfa":
            if draw.random() < 0.5:
                return []
            gang = draw.random() < 0.5
            whole = self._job(
                16 if gang else 8, "keeps", draw.uniform(0.5, 2), nodes=2 if gang else 1
            )
            return [{**whole, "priority_class": 10, "preemptible": False}]
        if self.name == "Bravo":
            how = draw.choice(("keeps", "keeps", "skews", "forgets", "forks"))
            gpus = draw.choice((1, 2, 2, 4))
            # So long that nodes are taken when somebody wants a whole one, also if all is slow.
            return [self._job(gpus, how, draw.uniform(1, 9)) for _ in range(draw.randint(1, 4))]
        if self.name == "Charlie":
            kind = draw.random()
            if kind < 0.2:
                return [{**self._job(1, "forgets", 0.5), "array": {"count": 3, "at_once": 2}}]
            if kind < 0.45:
                return [self._alike()] * 2
            how = draw.choice(("keeps", "forgets", "fails", "forks"))
            return [self._job(1, how, draw.uniform(0.1, 2))]
        rolling = {"hold": "rolling", "rolling_seconds": 20, "max_run_seconds": 60}
        return [{**self._job(1, "keeps", draw.uniform(11, 14)), **rolling}]

    def _job(self, gpus: int, how: str, seconds: float, nodes: int = 1) -> Body:
        types = ["H100"] if nodes > 1 else self.chance.choice((["H100", "A100"], ["A100", "H100"]))
        command = [sys.executable, "-IS", str(JOB), str(self.folder), f"{seconds:.2f}", how]
        body: Body = {
            "account_id": self.account,
            "command": command,
            "gpus": {"count": gpus, "types": types, "topology": {"nodes": nodes}},
            "max_run_seconds": self.chance.choice((30, 60)),
            "likely_run_seconds": max(int(seconds), 1),
            "pool": POOL,
        }
        if how in ("keeps", "skews"):
            body["checkpoint"] = {"interval_seconds": 1}
        if self.chance.random() < 0.03:
            body["max_run_seconds"] = 1  # too little time
        return body

    def _alike(self) -> Body:
        """A job like others that it has asked for: it is given their result, or follows them."""
        body = {**self._job(1, "forgets", 1.0), "cache": {"max_age_seconds": 5}}
        body["gpus"]["types"] = ["H100", "A100"]
        return body

    def _submit(self, caller: Caller, body: Body) -> None:
        """Ask for a job; now and then twice at once, under one key."""
        self._numbers += 1
        key = f"{self.name}-{self._numbers}"
        second = None
        if self.chance.random() < (0.5 if self.name == "Charlie" else 0.1):
            self.score.twice += 1
            second = threading.Thread(target=self._ask, args=(body, key))
            second.start()
        self._take(key, caller.post("/v1/jobs", body, key))
        if second is not None:
            second.join()
        for id in self.score.submitted.get(key, ()):
            if self.chance.random() < (0.4 if self.name == "Charlie" else 0.2):
                self._cancels.append((time.monotonic() + self.chance.uniform(0, 3), id))

    def _ask(self, body: Body, key: str) -> None:
        caller = Caller(self.url, self.key, self.score, self.over)
        try:
            self._take(key, caller.post("/v1/jobs", body, key))
        except Over:
            pass
        finally:
            caller.client.close()

    def _take(self, key: str, answer: Body | None) -> None:
        if answer is not None:
            self.score.take(key, answer["id"])

    def _cancel(self, caller: Caller) -> None:
        due = [id for at, id in self._cancels if at <= time.monotonic()]
        self._cancels = [(at, id) for at, id in self._cancels if at > time.monotonic()]
        for id in due:
            if caller.post(f"/v1/jobs/{id}/cancel", {}, f"cancel-{id}") is not None:
                self.score.cancelled.add(id)

    def _top_up(self, caller: Caller, id: str) -> None:
        """Buy some credits, and set them aside for a job that has none left."""
        self._buy(caller)
        key, more = f"{self.name}-top-up-{self._numbers}", {"amount_micros": 15_000}
        if caller.post(f"/v1/jobs/{id}/extend", more, key) is not None:
            self.score.extended += 1

    def _buy(self, caller: Caller) -> None:
        """Buy a few credits."""
        self._numbers += 1
        grant = {"account_id": self.account, "amount_micros": 25_000, "kind": "paid"}
        caller.post("/v1/grants", grant, f"{self.name}-grant-{self._numbers}")
