"""The programs beside a service: begun once it answers, over HTTP as anybody would, ended first."""

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
from bursar.service.secrets import kept

KEYS: Final = "demo-keys.json"  # of the tenants who send jobs; file of the state folder
LOG: Final = "demo.log"
TIDY_S: Final = 3_600.0  # between two looks for checkpoints that nobody needs any more
OLD_S: Final = 86_400.0  # no job of the demonstration lives so long


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a service is, and where we keep what is ours."""

    url: str
    key: str  # the operators'
    folder: Path


class LocalCluster:
    """Nodes, and with `demo` jobs for them."""

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
        self._lock = threading.RLock()  # a signal may come while it is held
        self._ended = threading.Event()

    def begin(self, told: Callable[[], None]) -> None:
        """Begin, and then say so; returns at once, because the service is asked meanwhile."""
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
            print(f"bursar: there is nothing beside the service: {problem}", file=sys.stderr)
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
            return [*found, self._traffic(operator)] if self._demo else found

    def _traffic(self, operator: Client) -> Program:
        """The tenants, each with keys of its own."""
        folder = self._setting.folder
        keys = {org.id: _keys(operator, org) for org in ORGS}
        kept(folder / KEYS, keys_written(keys))
        return Program(
            name="the traffic",
            arguments=("-P", "-m", "bursar.cli.local_cluster.demo_load", str(folder / KEYS)),
            environment={"BURSAR_URL": operator.url, "BURSAR_KEY": keys[ORGS[0].id].spend},
            log=folder / LOG,
        )

    def end(self) -> None:
        """Let all of it end; returns at once."""
        with self._lock:
            self._ended.set()
            if self._children is not None:
                self._children.end()

    def see_it_end(self) -> None:
        """Wait until it has ended."""
        self.end()
        if self._children is not None:
            self._children.see_them_end()


def forget_checkpoints(state: Path, before: float) -> None:
    """Remove checkpoints of the demonstration's jobs that were last touched before a time."""
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
    """A key of an org, the same however often it is asked for."""
    request = f"up:demo:key:{name}"
    ask = {
        "id": make_id(org.id, request, "key", 0),
        "name": name,
        "scopes": scopes,
        "account_id": org.account(""),
    }
    return str(operator.post("/v1/keys", ask, key=request).body["key"])
