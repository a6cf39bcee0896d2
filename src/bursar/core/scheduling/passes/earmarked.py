"""Step 1: jobs that other jobs made room for start as soon as all of their GPUs are free."""

from bursar.core.scheduling.decisions import Start
from bursar.core.scheduling.model.earmarks import can_start
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.passes.context import PassContext


def start_earmarked(context: PassContext) -> None:
    """Start the jobs whose earmarked GPUs are free by now."""
    cluster = context.cluster
    for job_id in sorted(cluster.earmarks):
        earmark = cluster.earmarks[job_id]
        if can_start(cluster, earmark):
            context.decide(
                Start(
                    job=job_id,
                    gpu_type=earmark.gpu_type,
                    pieces=earmark.pieces,
                    why=StartReason.FREED,
                )
            )
