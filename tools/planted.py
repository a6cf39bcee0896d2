"""Apply the bugs of tests/planted, one at a time, and check that a test catches each.

    python -m tools.planted [--only WORDS] [--jobs 2] [--limit 300]

Works on copies of the project, one per job. The tests that must catch the bugs first run without
any bug, because a test that always fails catches nothing.
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
NOT_COPIED = (".*_cache", ".coverage*", ".git", ".hypothesis", ".venv", "build", "dist", "mutants")
TESTS_FAILED = 1  # pytest's exit status; others but 0 mean that no test could run
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) tests/(\S+::[^\n]+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one bug."""

    bug: Bug
    caught_by: str | None  # the test that failed
    failure: str  # what happened if no test failed
    seconds: float


class ProjectCopy:
    """A copy of the project to apply bugs to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._writes = 0
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*NOT_COPIED, "__pycache__"))
        code = "import bursar; print(bursar.__file__)"
        imported = self._run(["-c", code], 60).stdout.strip()
        if not Path(imported).is_relative_to(root):
            raise SystemExit(f"the copy is not imported, but {imported}")

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Apply the bug until the end of the block."""
        path = self.root / bug.path
        text = path.read_text()
        self._write(path, bug.planted_in(text))
        try:
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Write a file with a new time; Python finds compiled files by time and size."""
        at = path.stat().st_mtime
        path.write_text(text)
        self._writes += 1
        os.utime(path, (at + self._writes, at + self._writes))

    def test(
        self, tests: Iterable[str], limit: float, *more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run tests in the copy, with a time limit in seconds."""
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


def check_bug(bug: Bug, copies: SimpleQueue[ProjectCopy], limit: float) -> Verdict:
    """Apply a bug in a free copy and run the tests that must catch it."""
    copy = copies.get()
    started_s = time.monotonic()
    try:
        with copy.planted(bug):
            run = copy.test(bug.tests, limit, "-x", "-p", "no:xdist")
        match = FAILED_TEST.search(run.stdout) if run.returncode == TESTS_FAILED else None
        caught_by = match.group(1) if match else None
        failure = "no test failed" if run.returncode == 0 else f"pytest ended with {run.returncode}"
    except subprocess.TimeoutExpired:
        caught_by, failure = None, f"timed out after {limit:g} s"
    except ValueError as error:  # the quoted source no longer exists
        caught_by, failure = None, str(error)
    finally:
        copies.put(copy)
    return Verdict(bug, caught_by, failure, time.monotonic() - started_s)


def passes_without_bugs(tree: ProjectCopy, chosen: list[Bug], jobs: int, limit: float) -> bool:
    """Whether all tests pass without a bug; prints the failures."""
    tests = list(dict.fromkeys(test for bug in chosen for test in bug.tests))
    run = tree.test(tests, limit * 10, "-n", str(jobs))
    if run.returncode:
        print(run.stdout[-4000:] + run.stderr[-4000:])
    return run.returncode == 0


def check_bugs(chosen: list[Bug], jobs: int, limit: float, console: Console) -> list[Verdict]:
    """The verdicts on all bugs, in order; empty if the tests fail without a bug."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copies: SimpleQueue[ProjectCopy] = SimpleQueue()
        all_copies = [ProjectCopy(Path(folder) / str(number)) for number in range(jobs)]
        for tree in all_copies:
            copies.put(tree)
        console.print("· tests without a bug")
        if not passes_without_bugs(all_copies[0], chosen, jobs, limit):
            return []
        console.print(f"· {len(chosen)} bugs, one at a time")
        with Progress(*columns, console=console) as bar, ThreadPoolExecutor(jobs) as pool:
            task = bar.add_task("", total=len(chosen))
            futures = [pool.submit(check_bug, bug, copies, limit) for bug in chosen]
            for done in as_completed(futures):
                verdict = done.result()
                bar.update(task, advance=1, description=verdict.bug.name)
                if verdict.caught_by is None:
                    bar.print(f"[red]not caught[/]: {verdict.bug.name} ({verdict.failure})")
            bar.update(task, description="")
        return [future.result() for future in futures]


def render_verdicts(verdicts: list[Verdict]) -> Table:
    """The verdicts as a table."""
    table = Table("bug", box=None, pad_edge=False)
    table.add_column("caught by", overflow="fold")
    table.add_column("s", justify="right")
    for verdict in verdicts:
        caught_by = escape(verdict.caught_by) if verdict.caught_by else f"[red]{verdict.failure}[/]"
        table.add_row(verdict.bug.name, caught_by, f"{verdict.seconds:.1f}")
    return table


def main() -> int:
    """Test the chosen bugs; the exit status is 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="only bugs with this text in their name or file")
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of bugs tested at the same time"
    )
    parser.add_argument(
        "--limit", type=float, default=300, help="time limit for one bug, in seconds"
    )
    options = parser.parse_args()

    chosen = [bug for bug in bugs() if options.only in bug.name or options.only in bug.file]
    if not chosen:
        print(f"no bug has {options.only!r} in its name or file")
        return 1
    console = Console()
    verdicts = check_bugs(chosen, min(options.jobs, len(chosen)), options.limit, console)
    if not verdicts:
        print("some tests fail without any bug")
        return 1
    console.print(render_verdicts(verdicts))
    caught = sum(verdict.caught_by is not None for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} planted bugs were caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
