"""Logs are sent in parts, from where the pool has them to, and removed when they are there."""

import threading
from pathlib import Path

import pytest

from bursar.agent import logs as shipping
from bursar.agent.logs import LogSender, drop_partial_character
from bursar.agent.transport import LogRefused, NoAnswer
from bursar.wire.agents import LOG_MAX, LogRequest
from tests.support.agent_node import Bench, order, python
from tests.support.patience import eventually


class Shelf:
    """What a pool has of logs."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.sizes: dict[int, int] = {}
        self.progress: dict[int, int | None] = {}
        self.asks: list[LogRequest] = []
        self.wrong: Exception | None = None
        self.size_max = 1 << 40

    def take(self, ask: LogRequest) -> int:
        self.asks.append(ask)
        if self.wrong is not None:
            raise self.wrong
        if ask.offset == self.sizes.setdefault(ask.fence, 0):
            self.texts[ask.fence] = self.texts.get(ask.fence, "") + ask.text
            self.sizes[ask.fence] += ask.size
            self.progress[ask.fence] = ask.progress_ppm
        self.sizes[ask.fence] = min(self.sizes[ask.fence], self.size_max)
        return self.sizes[ask.fence]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def logs_in(folder: Path, shelf: Shelf) -> LogSender:
    for kind in ("attempts", "ended"):
        (folder / kind).mkdir(exist_ok=True)
    return LogSender(folder / "attempts", folder / "ended", shelf.take)


def wrote(folder: Path, kind: str, fence: int, data: bytes) -> Path:
    path = folder / kind / str(fence)
    path.mkdir(parents=True, exist_ok=True)
    with (path / "log").open("ab") as file:
        file.write(data)
    return path


def test_log_is_sent_as_it_grows(tmp_path: Path, shelf: Shelf) -> None:
    """Nothing twice, nothing left out; a character is sent when it is all there."""
    logs = logs_in(tmp_path, shelf)
    wrote(tmp_path, "attempts", 3, b"one\n" + "é".encode()[:1])
    logs.step()
    assert "one\n" == shelf.texts[3]
    wrote(tmp_path, "attempts", 3, "é".encode()[1:] + b"\0\xff two")
    logs.step()
    logs.step()

    assert "one\né\ufffd\ufffd two" == shelf.texts[3]
    assert [0, 4] == [ask.offset for ask in shelf.asks]


def test_incomplete_character_is_sent_after_the_end(tmp_path: Path, shelf: Shelf) -> None:
    logs = logs_in(tmp_path, shelf)
    folder = wrote(tmp_path, "attempts", 3, b"\xc3")
    logs.step()
    assert {} == shelf.texts
    (folder / "exit.json").write_text("{}")
    logs.step()

    assert "\ufffd" == shelf.texts[3]


def test_last_part_of_a_log_is_marked(tmp_path: Path, shelf: Shelf) -> None:
    """Once, when the process has ended and all of its output is sent, even if it printed none."""
    logs = logs_in(tmp_path, shelf)
    folders = [
        wrote(tmp_path, "attempts", 1, b"text"),
        wrote(tmp_path, "attempts", 2, b""),
        wrote(tmp_path, "attempts", 3, b"x" * (LOG_MAX - 1) + "é".encode()),
    ]
    logs.step()
    assert not any(ask.last for ask in shelf.asks)
    for folder in folders:
        (folder / "exit.json").write_text("{}")
    wrote(tmp_path, "attempts", 1, b"Traceback: boom")
    wrote(tmp_path, "attempts", 3, b"y" * (LOG_MAX - 1) + "é".encode() + b"z")
    logs.step()
    logs.step()

    assert [(1, "Traceback: boom"), (2, ""), (3, "éz")] == [
        (ask.fence, ask.text) for ask in shelf.asks if ask.last
    ]


def test_restarted_agent_marks_the_last_part(tmp_path: Path, shelf: Shelf) -> None:
    """The first agent died after it had sent the text and before it saw the end."""
    folder = wrote(tmp_path, "attempts", 1, b"text")
    logs_in(tmp_path, shelf).step()
    (folder / "exit.json").write_text("{}")
    logs_in(tmp_path, shelf).step()

    assert [False, True] == [ask.last for ask in shelf.asks]
    assert "text" == shelf.texts[1]


def test_last_part_is_marked_when_the_pool_stores_no_more(tmp_path: Path, shelf: Shelf) -> None:
    shelf.size_max = 3
    folder = wrote(tmp_path, "ended", 1, b"long text")
    logs_in(tmp_path, shelf).step()

    assert (3, True) == (shelf.asks[-1].offset, shelf.asks[-1].last)
    assert not folder.exists()


def test_woken_sender_does_not_wait_for_the_interval(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "INTERVAL_S", 600.0)
    logs, stopped = logs_in(tmp_path, shelf), threading.Event()
    wrote(tmp_path, "attempts", 1, b"text")
    thread = threading.Thread(target=logs.run, args=(stopped,))
    thread.start()
    logs.wake()
    eventually(lambda: shelf.texts.get(1) == "text")
    stopped.set()
    logs.wake()
    thread.join()


def test_long_log_is_sent_in_parts(tmp_path: Path, shelf: Shelf) -> None:
    wrote(tmp_path, "attempts", 1, b"x" * (2 * LOG_MAX + 5))
    logs_in(tmp_path, shelf).step()

    assert [LOG_MAX, LOG_MAX, 5] == [ask.size for ask in shelf.asks]
    assert 2 * LOG_MAX + 5 == len(shelf.texts[1])


def test_restarted_agent_continues_at_the_offset_of_the_pool(tmp_path: Path, shelf: Shelf) -> None:
    wrote(tmp_path, "attempts", 1, b"first ")
    logs_in(tmp_path, shelf).step()
    wrote(tmp_path, "attempts", 1, b"second")
    logs_in(tmp_path, shelf).step()

    assert "first second" == shelf.texts[1]


def test_ended_attempt_is_removed_once_its_log_is_sent(tmp_path: Path, shelf: Shelf) -> None:
    """And not before, however often nobody answers."""
    logs = logs_in(tmp_path, shelf)
    folder = wrote(tmp_path, "ended", 1, b"bye")
    shelf.wrong = NoAnswer("gone")
    with pytest.raises(NoAnswer):
        logs.step()
    assert folder.exists()
    shelf.wrong = None
    logs.step()

    assert not folder.exists()
    assert "bye" == shelf.texts[1]


def test_refused_log_is_not_sent_again(tmp_path: Path, shelf: Shelf) -> None:
    """Neither a log that is refused, nor one of which it has all that it keeps."""
    logs = logs_in(tmp_path, shelf)
    folder = wrote(tmp_path, "ended", 1, b"bye")
    wrote(tmp_path, "attempts", 2, b"more")
    shelf.wrong = LogRefused("no such lease")
    logs.step()
    logs.step()

    assert [1, 2] == [ask.fence for ask in shelf.asks]
    assert not folder.exists()
    full = logs_in(tmp_path, Shelf())
    full._send = lambda ask: 0  # it never has more
    full.step()
    full.step()


def test_number_of_ended_attempts_is_limited(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "ENDED_MAX", 2)
    for fence in (1, 2, 10):
        wrote(tmp_path, "ended", fence, b"bye")
    shelf.wrong = NoAnswer("gone")
    with pytest.raises(NoAnswer):
        logs_in(tmp_path, shelf).step()

    assert ["10", "2"] == sorted(one.name for one in (tmp_path / "ended").iterdir())


def test_progress_is_sent_with_the_log(tmp_path: Path, shelf: Shelf) -> None:
    """As it says itself, in a file that its guard reads."""
    bench = Bench(tmp_path)
    source = "import os; open(os.environ['BURSAR_PROGRESS'], 'w').write('0.25'); print('hi')"
    bench.ended(bench.run(order(1, *python(source))))
    logs = LogSender(bench.processes.attempts, bench.processes.ended, shelf.take)
    logs.step()

    assert ("hi\n", 250_000) == (shelf.texts[1], shelf.progress[1])


def test_logs_are_sent_until_the_event_is_set(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that does not answer is asked again."""
    monkeypatch.setattr(shipping, "INTERVAL_S", 0.01)
    shelf.wrong = NoAnswer("gone")
    logs, stopped = logs_in(tmp_path, shelf), threading.Event()
    wrote(tmp_path, "attempts", 1, b"text")
    thread = threading.Thread(target=logs.run, args=(stopped,))
    thread.start()
    eventually(lambda: len(shelf.asks) >= 2)
    shelf.wrong = None
    eventually(lambda: shelf.texts.get(1) == "text")
    stopped.set()
    thread.join()


def test_logs_are_sent_after_a_bug(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends them goes on: nobody would start it again."""
    monkeypatch.setattr(shipping, "INTERVAL_S", 0.01)
    shelf.wrong = RuntimeError("a bug")
    logs, stopped = logs_in(tmp_path, shelf), threading.Event()
    wrote(tmp_path, "attempts", 1, b"text")
    thread = threading.Thread(target=logs.run, args=(stopped,))
    thread.start()
    eventually(lambda: len(shelf.asks) >= 2)
    shelf.wrong = None
    eventually(lambda: shelf.texts.get(1) == "text")
    stopped.set()
    thread.join()


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", b""),
        (b"ab", b"ab"),
        ("aé".encode(), "aé".encode()),
        ("aé".encode()[:-1], b"a"),
        ("a€".encode()[:-1], b"a"),
        ("a😀".encode()[:-1], b"a"),
        ("a😀".encode()[:-3], b"a"),
        ("a😀".encode(), "a😀".encode()),
        (b"\xc3", b""),
        (b"a\x80\x80\x80\x80", b"a\x80\x80\x80\x80"),
    ],
)
def test_character_is_not_cut(data: bytes, whole: bytes) -> None:
    assert whole == drop_partial_character(data)
