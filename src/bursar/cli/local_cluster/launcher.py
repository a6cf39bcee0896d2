"""Starts the local cluster once the service answers, and stops it before the service."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.cli.local_cluster.children import Children, Program
from bursar.cli.local_cluster.demo_load.sender import Keys, keys_written
from bursar.cli.local_cluster.nodes import Node, begin_pool, checkpoints_in, program_of
from bursar.cli.local_cluster.provisioning import MadeUp
from bursar.cli.sample_data import ORGS, Org
from bursar.client import Client, Problem
from bursar.core.ids import make_id
from bursar.service.secrets import read_or_create

KEYS: Final = "demo-keys.json"  # the tenants' API keys; in the state folder
LOG: Final = "demo.log"
TIDY_S: Final = 3_600.0  # interval between removals of old checkpoints
OLD_S: Final = 86_400.0  # longer than any demo job lives


@dataclass(frozen=True, slots=True)
class Setting:
    """The service's URL, an operator key, and the state folder."""

    url: str
    key: str  # an operator's
    folder: Path


class LocalCluster:
    """Local nodes and, with `demo`, tenants that submit jobs."""

    def __init__(
        self,
        setting: Setting,
        nodes: Sequence[Node],
        *,
        demo: bool,
        provisioner: MadeUp | None = None,
    ) -> None:
        self._setting = setting
        self._nodes = nodes
        self._demo = demo
        self._provisioner = provisioner
        self._children: Children | None = None
        self._lock = (
            threading.RLock()
        )  # reentrant: a signal handler may call `end` while it is held
        self._ended = threading.Event()

    def begin(self, told: Callable[[], None]) -> None:
        """Start in the background, then call `told`. The service must answer meanwhile."""
        if not self._nodes and not self._demo and self._provisioner is None:
            told()
            return
        threading.Thread(target=self._begin, args=(told,), daemon=True).start()

    def _begin(self, told: Callable[[], None]) -> None:
        try:
            children = Children(self._programs())
        except Problem as problem:
            if self._ended.is_set():
                return
            print(f"bursar: the local cluster did not start: {problem}", file=sys.stderr)
        else:
            with self._lock:
                if self._ended.is_set():
                    return
                self._children = children
                children.start()
                if self._provisioner is not None:
                    self._provisioner.begin(children, self._operator)
        told()
        while self._demo and not self._ended.wait(TIDY_S):
            forget_checkpoints(self._setting.folder, time.time() - OLD_S)

    def _operator(self) -> Client:
        return Client(self._setting.url, self._setting.key)

    def _programs(self) -> list[Program]:
        with self._operator() as operator:
            begin_pool(operator)
            found = [program_of(node, operator, self._setting.folder) for node in self._nodes]
            return [*found, self._demo_load(operator)] if self._demo else found

    def _demo_load(self, operator: Client) -> Program:
        """The program that submits the tenants' jobs, with a key for each tenant."""
        folder = self._setting.folder
        keys = {org.id: _keys(operator, org) for org in ORGS}
        read_or_create(folder / KEYS, keys_written(keys))
        return Program(
            name="the demo load",
            arguments=("-P", "-m", "bursar.cli.local_cluster.demo_load", str(folder / KEYS)),
            environment={"BURSAR_URL": operator.url, "BURSAR_KEY": keys[ORGS[0].id].spend},
            log=folder / LOG,
        )

    def end(self) -> None:
        """Ask everything to stop; returns immediately."""
        with self._lock:
            self._ended.set()
            if self._children is not None:
                self._children.end()

    def see_it_end(self) -> None:
        """Wait until everything has stopped."""
        self.end()
        if self._children is not None:
            self._children.see_them_end()


def forget_checkpoints(state: Path, before: float) -> None:
    """Remove checkpoints of demo jobs last modified before a time."""
    for org in ORGS:
        for folder in checkpoints_in(state).glob(f"{org.id}/*"):
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)


def _keys(operator: Client, org: Org) -> Keys:
    return Keys(
        spend=_key(operator, org, "jobs", ["read", "spend"]),
        issue=_key(operator, org, "purchases", ["read", "issue"]),
    )


def _key(operator: Client, org: Org, name: str, scopes: list[str]) -> str:
    """Create a key of an org. Repeating the call returns the same key."""
    request = f"up:demo:key:{name}"
    ask = {
        "id": make_id(org.id, request, "key", 0),
        "name": name,
        "scopes": scopes,
        "account_id": org.account(""),
    }
    return str(operator.post("/v1/keys", ask, key=request).body["key"])
