"""Starts the local cluster once the service answers, and stops it before the service."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.agent.local.trees import remove_tree
from bursar.cli.local_cluster.children import ChildProgram, Children
from bursar.cli.local_cluster.demo_load.sender import TenantKeys, format_keys
from bursar.cli.local_cluster.nodes import LocalNode, checkpoint_folder, create_pool, make_agent
from bursar.cli.local_cluster.provisioning import LocalProvisioner
from bursar.cli.sample_data import ORGS, DemoOrg
from bursar.client import Client, Problem
from bursar.core.ids import make_id
from bursar.service.secrets import read_or_create

KEYS_FILE: Final = "demo-keys.json"  # the tenants' API keys; in the state folder
LOG_FILE: Final = "demo.log"
CLEANUP_INTERVAL_S: Final = 3_600.0  # interval between removals of old checkpoints
CHECKPOINT_AGE_MAX_S: Final = 86_400.0  # longer than any demo job lives


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """The service's URL, an operator key, and the state folder."""

    url: str
    key: str  # an operator's
    folder: Path
    allow_unisolated_jobs: bool = False  # on nodes of this machine


class LocalCluster:
    """Local nodes and, with `demo`, tenants that submit jobs."""

    def __init__(
        self,
        service: ServiceAccess,
        nodes: Sequence[LocalNode],
        *,
        demo: bool,
        provisioner: LocalProvisioner | None = None,
    ) -> None:
        self._service = service
        self._nodes = nodes
        self._demo = demo
        self._provisioner = provisioner
        self._children: Children | None = None
        self._lock = (
            threading.RLock()
        )  # reentrant: a signal handler may call `end` while it is held
        self._stop_event = threading.Event()

    def start(self, on_started: Callable[[], None]) -> None:
        """Start in the background, then call `told`. The service must answer meanwhile."""
        if not self._nodes and not self._demo and self._provisioner is None:
            on_started()
            return
        threading.Thread(target=self._start, args=(on_started,), daemon=True).start()

    def _start(self, on_started: Callable[[], None]) -> None:
        try:
            children = Children(self._make_programs())
        except Problem as problem:
            if self._stop_event.is_set():
                return
            print(f"bursar: the local cluster did not start: {problem}", file=sys.stderr)
        else:
            with self._lock:
                if self._stop_event.is_set():
                    return
                self._children = children
                children.start()
                if self._provisioner is not None:
                    self._provisioner.start(children, self._connect_operator)
        on_started()
        while self._demo and not self._stop_event.wait(CLEANUP_INTERVAL_S):
            remove_checkpoints(self._service.folder, time.time() - CHECKPOINT_AGE_MAX_S)

    def _connect_operator(self) -> Client:
        return Client(self._service.url, self._service.key)

    def _make_programs(self) -> list[ChildProgram]:
        with self._connect_operator() as operator:
            create_pool(operator)
            allow = self._service.allow_unisolated_jobs
            programs = [
                make_agent(node, operator, self._service.folder, allow_unisolated_jobs=allow)
                for node in self._nodes
            ]
            return [*programs, self._make_demo_load(operator)] if self._demo else programs

    def _make_demo_load(self, operator: Client) -> ChildProgram:
        """The program that submits the tenants' jobs, with a key for each tenant."""
        folder = self._service.folder
        keys = {org.id: _create_keys(operator, org) for org in ORGS}
        read_or_create(folder / KEYS_FILE, format_keys(keys))
        return ChildProgram(
            name="the demo load",
            arguments=("-P", "-m", "bursar.cli.local_cluster.demo_load", str(folder / KEYS_FILE)),
            environment={"BURSAR_URL": operator.url, "BURSAR_KEY": keys[ORGS[0].id].spend},
            log=folder / LOG_FILE,
        )

    def stop(self) -> None:
        """Ask everything to stop; returns immediately."""
        with self._lock:
            self._stop_event.set()
            if self._children is not None:
                self._children.stop()

    def wait(self) -> None:
        """Wait until everything has stopped."""
        self.stop()
        if self._children is not None:
            self._children.wait()


def remove_checkpoints(state: Path, before: float) -> None:
    """Remove checkpoints of demo jobs last modified before a time."""
    for org in ORGS:
        for folder in checkpoint_folder(state).glob(f"{org.id}/*"):
            if folder.stat().st_mtime < before:
                remove_tree(str(folder))


def _create_keys(operator: Client, org: DemoOrg) -> TenantKeys:
    return TenantKeys(
        spend=_create_key(operator, org, "jobs", ["read", "spend"]),
        issue=_create_key(operator, org, "purchases", ["read", "issue"]),
    )


def _create_key(operator: Client, org: DemoOrg, name: str, scopes: list[str]) -> str:
    """Create a key of an org. Repeating the call returns the same key."""
    idempotency_key = f"up:demo:key:{name}"
    body = {
        "id": make_id(org.id, idempotency_key, "key", 0),
        "name": name,
        "scopes": scopes,
        "account_id": org.account(""),
    }
    return str(operator.post("/v1/keys", body, key=idempotency_key).body["key"])
