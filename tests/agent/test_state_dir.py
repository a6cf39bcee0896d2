"""What a node remembers (S10, IS6)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.agent.state_dir import StateDir, StateDirInUse
from bursar.core.ids import NodeId

N1 = NodeId("n1")


def test_starts_are_counted_and_fences_saved(tmp_path: Path) -> None:
    """A fence never gets smaller, whatever is asked for."""
    with StateDir(tmp_path / "state", "p1", N1) as disk:
        assert (1, 0) == (disk.count_start(), disk.fence)
        disk.remember_fence(7)
        disk.remember_fence(5)
    with StateDir(tmp_path / "state", "p1", N1) as disk:
        assert (2, 7) == (disk.count_start(), disk.fence)


def test_node_never_has_two_agents(tmp_path: Path) -> None:
    """Not in one process, and not in two; and one that was killed is in nobody's way."""
    with StateDir(tmp_path, "p1", N1), pytest.raises(StateDirInUse, match="another agent"):
        StateDir(tmp_path, "p1", N1)
    source = (
        "import sys, time; from pathlib import Path; from bursar.agent.state_dir import StateDir;"
        "state = StateDir(Path(sys.argv[1]), 'p1', 'n1'); print('mine', flush=True); time.sleep(99)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert "mine\n" == other.stdout.readline()
        with pytest.raises(StateDirInUse):
            StateDir(tmp_path, "p1", N1)
        other.kill()
    StateDir(tmp_path, "p1", N1).__exit__()


@pytest.mark.parametrize(("pool", "node"), [("p2", "n1"), ("p1", "n2")])
def test_folder_belongs_to_one_node(tmp_path: Path, pool: str, node: str) -> None:
    with StateDir(tmp_path, "p1", N1) as disk:
        disk.count_start()
    with pytest.raises(StateDirInUse, match="node n1 in pool p1"):
        StateDir(tmp_path, pool, NodeId(node))


def test_damaged_state_is_not_taken_for_a_new_node(tmp_path: Path) -> None:
    """Who forgets its fences could start something twice."""
    (tmp_path / "node.json").write_text("")
    with pytest.raises(StateDirInUse, match="another name"):
        StateDir(tmp_path, "p1", N1)
    (tmp_path / "node.json").write_text(
        json.dumps({"pool": "p1", "node": "n1", "boots": 3, "fence": 4})
    )
    with StateDir(tmp_path, "p1", N1) as disk:
        assert (4, 4) == (disk.count_start(), disk.fence)


def test_addresses_of_the_service_survive_a_restart(tmp_path: Path) -> None:
    """A damaged file is none: the agent has those of its command line."""
    with StateDir(tmp_path, "p1", N1) as disk:
        assert [] == disk.load_addresses()
        disk.save_addresses(["https://a.example", "https://b.example"])
    with StateDir(tmp_path, "p1", N1) as disk:
        assert ["https://a.example", "https://b.example"] == disk.load_addresses()
        for damaged in ("", "7", '{"a": 1}', "[7]"):
            (tmp_path / "addresses.json").write_text(damaged)
            assert [] == disk.load_addresses()
