"""What is remembered of where things belong, by many threads at once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bursar.service.cache import LruCache

ROUNDS = 60_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_threads_read_and_write_the_cache_at_once() -> None:
    """A fact may be forgotten for another at any instant; whoever asks has it or has it not."""
    known: LruCache[int, str] = LruCache(size_max=2)

    def used(thread: int) -> None:
        for n in range(ROUNDS):
            key = (n + thread) % 5
            known.put(key, f"fact {key}")
            assert known.get(key) in (None, f"fact {key}")

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(used, thread) for thread in range(4)]:
            done.result()


def test_the_least_recently_used_entry_is_evicted() -> None:
    known: LruCache[str, int] = LruCache(size_max=2)
    known.put("a", 1)
    known.put("b", 2)
    known.get("a")
    known.put("c", 3)

    assert (1, None, 3) == tuple(known.get(key) for key in "abc")
