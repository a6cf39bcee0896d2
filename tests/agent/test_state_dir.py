"""What a node remembers (S10, IS6)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.agent.state_dir import Disk, Occupied
from bursar.core.ids import NodeId

N1 = NodeId("n1")


def test_starts_are_counted_and_fences_kept(tmp_path: Path) -> None:
    """A fence never gets smaller, whatever is asked for."""
    with Disk(tmp_path / "state", "p1", N1) as disk:
        assert (1, 0) == (disk.begin(), disk.fence)
        disk.remember(7)
        disk.remember(5)
    with Disk(tmp_path / "state", "p1", N1) as disk:
        assert (2, 7) == (disk.begin(), disk.fence)


def test_a_node_never_has_two_agents(tmp_path: Path) -> None:
    """Not in one process, and not in two; and one that was killed is in nobody's way."""
    with Disk(tmp_path, "p1", N1), pytest.raises(Occupied, match="another agent"):
        Disk(tmp_path, "p1", N1)
    source = (
        "import sys, time; from pathlib import Path; from bursar.agent.state_dir import Disk;"
        "disk = Disk(Path(sys.argv[1]), 'p1', 'n1'); print('mine', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert "mine\n" == other.stdout.readline()
        with pytest.raises(Occupied):
            Disk(tmp_path, "p1", N1)
        other.kill()
    Disk(tmp_path, "p1", N1).__exit__()


@pytest.mark.parametrize(("pool", "node"), [("p2", "n1"), ("p1", "n2")])
def test_a_folder_is_one_node_s(tmp_path: Path, pool: str, node: str) -> None:
    with Disk(tmp_path, "p1", N1) as disk:
        disk.begin()
    with pytest.raises(Occupied, match="node n1 in pool p1"):
        Disk(tmp_path, pool, NodeId(node))


def test_a_disk_that_has_lost_its_memory_is_not_a_new_one(tmp_path: Path) -> None:
    """Who forgets its fences could start something twice."""
    (tmp_path / "node.json").write_text("")
    with pytest.raises(Occupied, match="another name"):
        Disk(tmp_path, "p1", N1)
    (tmp_path / "node.json").write_text(
        json.dumps({"pool": "p1", "node": "n1", "boots": 3, "fence": 4})
    )
    with Disk(tmp_path, "p1", N1) as disk:
        assert (4, 4) == (disk.begin(), disk.fence)
