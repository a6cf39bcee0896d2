"""Failpoints: the list is what is in the code, and an armed one strikes once, where it should."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bursar import failpoints
from tests.chaos.programs import state_of
from tests.support.patience import eventually

SOURCE = Path(failpoints.__file__).parent
THRICE = (
    "from bursar.failpoints import failpoint\n"
    "for time in range(3): print(time, flush=True); failpoint('leader.planned')"
)


def points_in(source: str) -> list[str]:
    """The points that a module's code comes to."""
    if "from bursar.failpoints import" not in source:
        return []
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint"
    ]


def test_every_point_is_in_one_place_of_the_code_and_no_other_is() -> None:
    found = [name for path in SOURCE.rglob("*.py") for name in points_in(path.read_text())]

    assert sorted(failpoints.ALL) == sorted(found)


def thrice(armed: str, marks: Path) -> "subprocess.Popen[str]":
    """A process that comes to a point three times."""
    given = {**os.environ, failpoints.VARIABLE: armed, failpoints.MARKS: str(marks)}
    command = [sys.executable, "-c", THRICE]
    return subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_point_kills_at_its_time_and_once_in_all_processes(tmp_path: Path) -> None:
    """Who comes there for the second time is gone; the next process goes on."""
    with thrice("leader.planned=kill@2", tmp_path) as first:
        told, _ = first.communicate(timeout=120)
    assert ("0\n1\n", -signal.SIGKILL) == (told, first.returncode)
    assert f"{first.pid}\n" == (tmp_path / "leader.planned.kill").read_text()

    with thrice("leader.planned=kill@2", tmp_path) as second:
        told, _ = second.communicate(timeout=120)
    assert ("0\n1\n2\n", 0) == (told, second.returncode)


def test_a_point_lets_stand_still(tmp_path: Path) -> None:
    with thrice("leader.planned=stop@1,pool.before_commit=kill@1", tmp_path) as process:
        eventually(lambda: state_of(process.pid) == "T", "it stands still")
        assert ["leader.planned.stop"] == os.listdir(tmp_path)
        process.send_signal(signal.SIGCONT)
        assert ("0\n1\n2\n", "") == process.communicate(timeout=120)


@pytest.mark.parametrize(
    "armed", ["nowhere=kill@1", "leader.planned=explode@1", "leader.planned=kill", "leader.planned"]
)
def test_unusable_options_are_refused(armed: str, tmp_path: Path) -> None:
    with thrice(armed, tmp_path) as process:
        _, told = process.communicate(timeout=120)

    assert 1 == process.returncode
    assert "is not POINT=kill@N or POINT=stop@N" in told


def test_marks_need_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "leader.planned=kill@1000000")
    monkeypatch.delenv(failpoints.MARKS, raising=False)
    with pytest.raises(ValueError, match="must name a folder"):
        failpoints.arm()
