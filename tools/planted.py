"""Plant the bugs of tests/planted, one at a time, and see that a test catches each.

    python -m tools.planted [--only WORDS] [--jobs 2] [--limit 300]

Works on copies of the tree, one for each job; the tree itself is never touched. Before the first
bug all tests that are to catch one are run without any: a test that fails anyway catches nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.planted.bugs import ROOT, Bug, bugs

PYTEST = ("-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:cov")
LEFT_OUT = (".*_cache", ".coverage*", ".git", ".hypothesis", ".venv", "build", "dist", "mutants")
TESTS_FAILED = 1  # pytest's word for it; any other but 0 says that it could not test
TOLD = re.compile(r"^(?:FAILED|ERROR) tests/(\S+::[^\n]+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one bug."""

    bug: Bug
    caught_by: str | None  # the test that failed
    instead: str  # what happened if none did
    seconds: float


class Tree:
    """A copy of the project that bugs are planted in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._writes = 0
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT, "__pycache__"))
        asked = "import bursar; print(bursar.__file__)"
        found = self._run(["-c", asked], 60).stdout.strip()
        if not Path(found).is_relative_to(root):
            raise SystemExit(f"the copy is not what is imported, but {found}")

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """The tree with the bug in it, until the end of the block."""
        path = self.root / bug.path
        text = path.read_text()
        self._write(path, bug.planted_in(text))
        try:
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Write a file, a second later each time: its compiled form is known by time and size."""
        at = path.stat().st_mtime
        path.write_text(text)
        self._writes += 1
        os.utime(path, (at + self._writes, at + self._writes))

    def test(
        self, tests: Iterable[str], limit: float, *more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run tests in the copy, for so many seconds at most."""
        return self._run([*PYTEST, *more, *tests], limit)

    def _run(self, arguments: list[str], limit: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": str(self.root / "src"),
                "PYTHONHASHSEED": "0",
                "HYPOTHESIS_PROFILE": "mutants",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )


def judged(bug: Bug, trees: SimpleQueue[Tree], limit: float) -> Verdict:
    """Plant a bug in a free tree and run the tests that must catch it."""
    tree = trees.get()
    began = time.monotonic()
    try:
        with tree.planted(bug):
            run = tree.test(bug.tests, limit, "-x", "-p", "no:xdist")
        found = TOLD.search(run.stdout) if run.returncode == TESTS_FAILED else None
        caught_by = found.group(1) if found else None
        instead = "no test failed" if run.returncode == 0 else f"pytest ended with {run.returncode}"
    except subprocess.TimeoutExpired:
        caught_by, instead = None, f"not done after {limit:g} s"
    except ValueError as error:  # it cannot be planted any more
        caught_by, instead = None, str(error)
    finally:
        trees.put(tree)
    return Verdict(bug, caught_by, instead, time.monotonic() - began)


def passes_without(tree: Tree, chosen: list[Bug], jobs: int, limit: float) -> bool:
    """Whether all the tests pass as long as no bug is planted; told if not."""
    tests = list(dict.fromkeys(test for bug in chosen for test in bug.tests))
    run = tree.test(tests, limit * 10, "-n", str(jobs))
    if run.returncode:
        print(run.stdout[-4000:] + run.stderr[-4000:])
    return run.returncode == 0


def all_judged(chosen: list[Bug], jobs: int, limit: float, console: Console) -> list[Verdict]:
    """The verdicts on all bugs, in the order of the list; empty if the tests fail without any."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        made = [Tree(Path(folder) / str(number)) for number in range(jobs)]
        for tree in made:
            trees.put(tree)
        console.print("· the tests without a bug")
        if not passes_without(made[0], chosen, jobs, limit):
            return []
        console.print(f"· {len(chosen)} bugs, one at a time")
        with Progress(*columns, console=console) as bar, ThreadPoolExecutor(jobs) as pool:
            task = bar.add_task("", total=len(chosen))
            asked = [pool.submit(judged, bug, trees, limit) for bug in chosen]
            for done in as_completed(asked):
                verdict = done.result()
                bar.update(task, advance=1, description=verdict.bug.name)
                if verdict.caught_by is None:
                    bar.print(f"[red]not caught[/]: {verdict.bug.name} ({verdict.instead})")
            bar.update(task, description="")
        return [one.result() for one in asked]


def shown(verdicts: list[Verdict]) -> Table:
    """The verdicts as a table."""
    table = Table("bug", box=None, pad_edge=False)
    table.add_column("caught by", overflow="fold")
    table.add_column("s", justify="right")
    for one in verdicts:
        caught_by = escape(one.caught_by) if one.caught_by else f"[red]{one.instead}[/]"
        table.add_row(one.bug.name, caught_by, f"{one.seconds:.1f}")
    return table


def main() -> int:
    """Judge the bugs that are asked for; 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="bugs with these words in their name or file")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one bug")
    asked = parser.parse_args()

    chosen = [bug for bug in bugs() if asked.only in bug.name or asked.only in bug.file]
    if not chosen:
        print(f"no bug has {asked.only!r} in its name or file")
        return 1
    console = Console()
    verdicts = all_judged(chosen, min(asked.jobs, len(chosen)), asked.limit, console)
    if not verdicts:
        print("some tests fail without any bug")
        return 1
    console.print(shown(verdicts))
    caught = sum(one.caught_by is not None for one in verdicts)
    print(f"{caught} of {len(verdicts)} planted bugs were caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
