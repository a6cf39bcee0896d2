"""Checkpoints of jobs that are over are removed, in time or for want of room; no others ever."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from bursar.agent import checkpoint_cleanup
from bursar.agent.checkpoint_cleanup import CheckpointCleaner, CheckpointLimits
from bursar.agent.local.files import write_json
from bursar.agent.logs import LogSender
from bursar.agent.transport import CheckpointOwner, NoAnswer
from bursar.wire.agents import LogRequest
from tests.support.patience import eventually

HOUR = 3_600.0
KIB = 1024


class Pool:
    """Knows which jobs are over, and for how long."""

    def __init__(self, **over: float) -> None:
        self.over = {CheckpointOwner("acme", job): span for job, span in over.items()}
        self.asked: list[int] = []
        self.wrong: Exception | None = None

    def over_for_s(self, owners: Sequence[CheckpointOwner]) -> dict[CheckpointOwner, float]:
        self.asked.append(len(owners))
        if self.wrong is not None:
            raise self.wrong
        return {one: self.over[one] for one in owners if one in self.over}


def saved(folder: Path, *jobs: str, size: int = 1) -> None:
    """Checkpoints of some jobs."""
    for job in jobs:
        place = folder / "acme" / job / "deep"
        place.mkdir(parents=True)
        (place / "weights").write_bytes(b"\1" * size)
        (place / "link").symlink_to(folder)


def left(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "acme").iterdir())


def tidied(folder: Path, pool: Pool, **bounds: float | int) -> list[str]:
    CheckpointCleaner(folder, pool.over_for_s, CheckpointLimits(**bounds)).step()  # type: ignore[arg-type]
    return left(folder)


def test_checkpoints_of_jobs_finished_long_ago_are_removed(tmp_path: Path) -> None:
    """What may still be resumed stays, and so does what the pool does not know."""
    saved(tmp_path, "old", "new", "runs")
    (tmp_path / "acme" / "a file").touch()
    pool = Pool(old=HOUR, new=HOUR - 1)

    assert ["a file", "new", "runs"] == tidied(tmp_path, pool, keep_s=HOUR)


def test_links_and_hashed_names_are_not_treated_as_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path, "job")
    (tmp_path / "acme" / "linked").symlink_to(tmp_path / "acme" / "job")
    (tmp_path / "acme" / ".gone-half").mkdir()
    (tmp_path / "acme" / "~hash").mkdir()
    pool = Pool(linked=2 * HOUR, **{"~hash": 2 * HOUR})

    assert ["job", "linked", "~hash"] == tidied(tmp_path, pool, keep_s=HOUR)
    assert [1] == pool.asked


def test_longest_finished_jobs_lose_their_checkpoints_first(tmp_path: Path) -> None:
    """No more than it takes, and never one that is not over, however much it has."""
    saved(tmp_path, "first", "second", "third", "runs", size=64 * KIB)
    pool = Pool(first=30.0, second=20.0, third=10.0)
    assert ["runs", "third"] == tidied(tmp_path, pool, keep_s=HOUR, bytes_max=140 * KIB)

    assert ["runs"] == tidied(tmp_path, pool, keep_s=HOUR, bytes_max=0)


def test_nothing_is_removed_below_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, "over", "runs", size=64 * KIB)
    assert ["over", "runs"] == tidied(tmp_path, Pool(over=1.0), bytes_max=10**9)
    assert [] == [one for one in caplog.records if one.levelno >= logging.WARNING]
    tidied(tmp_path, Pool(), bytes_max=KIB)

    assert "unfinished jobs" in caplog.text


def test_nothing_is_removed_while_the_pool_does_not_answer(tmp_path: Path) -> None:
    saved(tmp_path, "over")
    pool = Pool(over=2 * HOUR)
    pool.wrong = NoAnswer("nobody there")
    with pytest.raises(NoAnswer):
        tidied(tmp_path, pool)

    assert ["over"] == left(tmp_path)


def test_many_jobs_are_looked_up_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_cleanup, "FINISHED_JOBS_MAX", 2)
    saved(tmp_path, "a", "b", "c")
    pool = Pool(a=1.0, c=1.0)

    assert ["b"] == tidied(tmp_path, pool, keep_s=0)
    assert [2, 1] == pool.asked


@pytest.mark.parametrize("wrong", [NoAnswer("nobody there"), RuntimeError("a bug")])
def test_cleanup_continues_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    for name in ("FIRST_DELAY_S", "INTERVAL_S"):
        monkeypatch.setattr(checkpoint_cleanup, name, 0.01)
    saved(tmp_path, "over")
    pool = Pool(over=2 * HOUR)
    pool.wrong = wrong
    stopped = threading.Event()
    thread = threading.Thread(
        target=CheckpointCleaner(tmp_path, pool.over_for_s, CheckpointLimits(HOUR)).run,
        args=(stopped,),
    )
    thread.start()
    try:
        eventually(lambda: len(pool.asked) > 1, "another try")
        pool.wrong = None
        eventually(lambda: not left(tmp_path), "the end of it")
    finally:
        stopped.set()
        thread.join()


def test_folder_removed_by_another_node_is_no_error(tmp_path: Path) -> None:
    """They share the folder, and both were told."""
    saved(tmp_path, "over")

    class Faster(Pool):
        def over_for_s(self, owners: Sequence[CheckpointOwner]) -> dict[CheckpointOwner, float]:
            (tmp_path / "acme" / "over").rename(tmp_path / "elsewhere")
            return super().over_for_s(owners)

    assert [] == tidied(tmp_path, Faster(over=2 * HOUR), keep_s=HOUR)


def test_folders_of_a_forgotten_process_are_removed_before_its_log(tmp_path: Path) -> None:
    """Whatever becomes of the log: they may be large."""

    def nobody(ask: LogRequest) -> int:
        raise NoAnswer("nobody there")

    folder = tmp_path / "ended" / "7"
    for own in ("work", "tmp", "out"):
        (folder / own).mkdir(parents=True)
        (folder / own / "large").touch()
    (folder / "log").write_text("something")
    write_json(str(folder / "exit.json"), {"exit": "done"})
    (tmp_path / "attempts").mkdir()
    with pytest.raises(NoAnswer):
        LogSender(tmp_path / "attempts", tmp_path / "ended", nobody).step()

    assert ["exit.json", "log"] == sorted(one.name for one in folder.iterdir())
