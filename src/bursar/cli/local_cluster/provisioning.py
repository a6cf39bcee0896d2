"""Provides ordered nodes on this machine, with simulated GPUs and real agents.

A node starts after the delay of its offer. Nothing is stored: after a restart the service
orders its nodes again.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from bursar.agent.local.trees import remove_tree
from bursar.cli.local_cluster.children import Children
from bursar.cli.local_cluster.nodes import NODES_MAX, LocalNode, make_agent, node_folder
from bursar.client import Client, Problem
from bursar.core.dispatch.node_orders import NodeOrder, ProviderReply
from bursar.core.instant import SECOND
from bursar.service.pools.provisioning import NotDone, ProviderAnswer


class LocalProvisioner:
    """A provisioner of nodes with simulated GPUs."""

    def __init__(self, folder: Path, *, allow_unisolated_jobs: bool = False) -> None:
        self._folder = folder
        self._allow_unisolated_jobs = allow_unisolated_jobs
        self._names: dict[str, dict[str, str]] = {}  # by pool and order: of programs
        self._children: Children | None = None
        self._operator: Callable[[], Client] | None = None
        self._lock = threading.Lock()

    def start(self, children: Children, operator: Callable[[], Client]) -> None:
        """Accept orders from now on; nodes run as `children`."""
        with self._lock:
            self._children, self._operator = children, operator

    def order(self, pool: str, order: NodeOrder) -> ProviderAnswer:
        """Start a node after the delay of its offer."""
        children, operator = self._require_started()
        with self._lock:
            program_names = self._names.setdefault(pool, {})
            if order.id not in program_names and sum(map(len, self._names.values())) >= NODES_MAX:
                return ProviderAnswer(ProviderReply.NO, f"the maximum is {NODES_MAX} nodes")
        ordered = order.node
        node = LocalNode(
            ordered.id, ordered.gpus, ordered.gpu_type, ordered.slots, ordered.memory_gib
        )
        try:
            with operator() as client:
                allow = self._allow_unisolated_jobs
                program = make_agent(node, client, self._folder, pool, allow_unisolated_jobs=allow)
        except Problem as problem:
            raise NotDone(str(problem)) from problem
        # A node that was already there starts without delay.
        delay = order.ready_by - order.ordered_at if order.arrived_at is None else 0
        children.add(program, delay / SECOND)
        with self._lock:
            program_names[order.id] = program.name
        return ProviderAnswer(ProviderReply.YES)

    def remove(self, pool: str, order: NodeOrder) -> ProviderAnswer:
        """Stop a node and remove its folder."""
        children, _ = self._require_started()
        with self._lock:
            name = self._names.get(pool, {}).get(order.id)
        if name is not None and not children.remove(name):
            return ProviderAnswer(None)
        remove_tree(str(node_folder(order.node.id, self._folder)))
        with self._lock:
            self._names.get(pool, {}).pop(order.id, None)
        return ProviderAnswer(ProviderReply.REMOVED)

    def listed(self, pool: str) -> frozenset[str]:
        """The orders whose nodes run or will run."""
        self._require_started()
        with self._lock:
            return frozenset(self._names.get(pool, ()))

    def close(self) -> None:
        """Nothing to release."""

    def _require_started(self) -> tuple[Children, Callable[[], Client]]:
        with self._lock:
            if self._children is None or self._operator is None:
                raise NotDone("the service is still starting")
            return self._children, self._operator
