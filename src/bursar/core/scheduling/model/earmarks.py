"""When a job can start on its earmarked GPUs, and which GPUs can be earmarked."""

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Earmark


def can_start(cluster: Cluster, earmark: Earmark) -> bool:
    """Whether all victims have left, and all GPUs that are held for the job are free."""
    victims = (cluster.running.get(victim) for victim in earmark.victims)
    if any(victim is not None and victim.stops_at is not None for victim in victims):
        return False
    return all(cluster.nodes.by_id[piece.node].is_free_for(piece) for piece in earmark.pieces)


def can_hold(cluster: Cluster, earmark: Earmark) -> bool:
    """Whether GPUs can be held for a job: they are free, or their holders are stopping."""
    leaving = frozenset(
        victim
        for victim in earmark.victims
        if victim in cluster.running and cluster.running[victim].stops_at is not None
    )
    nodes = cluster.nodes.by_id
    return all(
        piece.node in nodes and nodes[piece.node].can_earmark(piece, leaving)
        for piece in earmark.pieces
    )
