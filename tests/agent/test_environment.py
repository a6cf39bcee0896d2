"""What a process finds when it starts."""

from pathlib import Path

import pytest

from bursar.agent.local.environment import build_environment, checkpoint_folder, folder_name
from bursar.core.ids import JobId, NodeId
from bursar.core.value import replace
from tests.support.agent_node import N1, order


@pytest.mark.parametrize("job", ["..", ".", "../../etc", "a/b", "-x", "", "~", "é", "a" * 200])
def test_job_id_cannot_leave_the_checkpoint_folder(tmp_path: Path, job: str) -> None:
    """Orgs choose names of their own (K33)."""
    found = checkpoint_folder(tmp_path, replace(order(1), job=JobId(job)))

    assert tmp_path / "acme" == found.parent
    assert found.resolve() == found
    assert found.name not in ("", ".", "..")
    found.mkdir(parents=True)


def test_different_ids_get_different_folder_names() -> None:
    """A plain one is kept as it is; no other comes out as the same."""
    names = ["job", "job-1", "a.b", "a/b", "a_b", "~", folder_name("a/b")]

    assert ["job", "job-1", "a.b"] == [folder_name(one) for one in names[:3]]
    assert len(names) == len({folder_name(one) for one in names})


def test_process_of_a_gang_gets_the_names_of_all_nodes() -> None:
    """The first leads."""
    gang = replace(order(1, gpus=()), nodes=(NodeId("n0"), N1))
    found = build_environment(gang, Path("/f"), Path("/c"), {"PATH": "/bin", "KEY": "x"})

    assert ("n0,n1", "1", "") == (
        found["BURSAR_NODES"], found["BURSAR_NODE_RANK"], found["CUDA_VISIBLE_DEVICES"],
    )  # fmt: skip
    assert ("/bin", "/c") == (found["PATH"], found["BURSAR_CHECKPOINT_DIR"])
    assert "KEY" not in found
