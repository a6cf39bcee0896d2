"""Who may import whom: the table of docs/architecture.md, held against the source."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "bursar"

DOOR = ""  # bursar/__init__.py itself
MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "failpoints": frozenset(),  # a look at an empty table, where a process may be made to die
    "library": frozenset({"core"}),
    DOOR: frozenset({"library"}),
    "__main__": frozenset({"cli"}),  # `python -m bursar`
    "wire": frozenset({"core"}),
    "sim": frozenset({"core"}),
    "store": frozenset({"core"}),
    "service": frozenset({"core", "store", "failpoints"}),
    "api": frozenset({"core", "wire", "service"}),
    "client": frozenset({"core", "wire"}),
    "agent": frozenset({"core", "wire", "client", "failpoints"}),
    # `bursar up` starts the HTTP interface, `bursar agent` the agent of a node
    "cli": frozenset({"client", "wire", "sim", "service", "core", "library", "api", "agent"}),
}

# `pip install bursar` must be able to run these with nothing else installed.
STANDARD_LIBRARY_ONLY = frozenset({"core", "library", DOOR})

# Ways to the clock, to chance and to the world outside. Time and ids come in as arguments.
# fmt: off
NOT_IN_CORE = frozenset({
    "asyncio", "concurrent", "http", "importlib", "io", "logging", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib",
})
# fmt: on
NOT_CALLED_IN_CORE = frozenset({"__import__", "eval", "exec", "input", "open", "print"})
# As dataclasses do, it writes out one function for each class of values: they are copied often.
EXCUSED = frozenset({("bursar.core.value", "core may not call exec")})
CLOCK_READINGS = frozenset({"now", "today", "utcnow"})  # of datetime and date
MADE_FROM_CLOCK_OR_CHANCE = frozenset({"uuid1", "uuid4", "uuid6", "uuid7", "uuid8"})


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module takes from another: `from module import name`."""

    line: int
    module: str
    name: str = ""


def imports_of(tree: ast.AST, package: str) -> Iterator[Import]:
    """All imports, wherever they stand; `package` is what relative ones start from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, module, alias.name)


def folder_of(found: Import) -> str | None:
    """The folder of ours that is imported, None when it is somebody else's."""
    package, _, rest = found.module.partition(".")
    if package != "bursar":
        return None
    folder = rest.partition(".")[0] or found.name
    # What the door hands out comes from the library.
    return folder if folder in MAY_IMPORT and folder != DOOR else "library" if not rest else folder


def complaints(source: str, module: str) -> list[str]:
    """What in `source`, the text of `module` (such as bursar.core.money), breaks the table."""
    tree = ast.parse(source)
    parts = module.split(".")
    folder = parts[1] if len(parts) > 1 else DOOR
    if folder not in MAY_IMPORT:
        return [f"{module}: the folder {folder} has no line in the table"]

    found: list[tuple[int, str]] = []
    is_package = (SOURCE.parent / Path(*parts)).is_dir()
    for item in imports_of(tree, module if is_package else ".".join(parts[:-1])):
        top = item.module.partition(".")[0]
        ours = folder_of(item)
        if ours is not None and ours != folder and ours not in MAY_IMPORT[folder]:
            found.append((item.line, f"{folder or 'the door'} may not import {ours}"))
        if ours is None and folder in STANDARD_LIBRARY_ONLY and top not in sys.stdlib_module_names:
            found.append((item.line, f"{top} is not of the standard library"))
        if folder == "core" and top in NOT_IN_CORE:
            found.append((item.line, f"core may not import {top}"))
        if folder == "core" and item.name in MADE_FROM_CLOCK_OR_CHANCE:
            found.append((item.line, f"core may not use {item.name}"))
    if folder == "core":
        found.extend(use for use in worldly_uses(tree) if (module, use[1]) not in EXCUSED)
    return [f"{module}:{line}: {what}" for line, what in sorted(found)]


def worldly_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Reading the clock, making ids and touching the world without an import that shows it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if node.attr in CLOCK_READINGS and name in {"date", "datetime"}:
                yield node.lineno, f"core may not read the clock: {name}.{node.attr}"
            if node.attr in MADE_FROM_CLOCK_OR_CHANCE and name == "uuid":
                yield node.lineno, f"core may not use {node.attr}"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in NOT_CALLED_IN_CORE:
            yield node.lineno, f"core may not call {ast.unparse(node.func)}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_follow_the_table() -> None:
    """Each folder imports only what the table allows it, and core knows no world outside."""
    paths = sorted(SOURCE.rglob("*.py"))

    assert paths, "no source was found"
    assert [] == [
        complaint for path in paths for complaint in complaints(path.read_text(), module_name(path))
    ]


def test_the_package_does_not_import_the_benchmarks() -> None:
    """They are not installed."""
    benchmarks_import = [
        f"{module_name(path)}:{found.line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for found in imports_of(ast.parse(path.read_text()), "")
        if found.module.partition(".")[0] in {"benchmarks", "tests", "tools"}
    ]

    assert [] == benchmarks_import


@pytest.mark.parametrize(
    ("module", "source", "want"),
    [
        ("bursar.core.money", "from bursar.store import pool", "core may not import store"),
        ("bursar.core.money", "from ..library import ledger", "core may not import library"),
        ("bursar.core.money", "from bursar import sim", "core may not import sim"),
        ("bursar.core.money", "import bursar.wire.holds", "core may not import wire"),
        ("bursar.core.money", "def f():\n    import numpy", "numpy is not of the standard library"),
        ("bursar.core.money", "from time import monotonic", "core may not import time"),
        ("bursar.core.money", "import os.path", "core may not import os"),
        ("bursar.core.money", "from uuid import uuid4", "core may not use uuid4"),
        ("bursar.core.money", "import uuid\nuuid.uuid1()", "core may not use uuid1"),
        (
            "bursar.core.money",
            "import datetime as d\nd.datetime.now(d.UTC)",
            "core may not read the clock: datetime.now",
        ),
        ("bursar.core.money", "print(1)", "core may not call print"),
        ("bursar.library.credit", "from bursar.cli import app", "library may not import cli"),
        ("bursar.library.credit", "import rich.table", "rich is not of the standard library"),
        ("bursar", "from bursar.core.money import CREDIT", "the door may not import core"),
        ("bursar.sim.world", "from bursar.store import pool", "sim may not import store"),
        ("bursar.client.http", "from bursar.agent import x", "client may not import agent"),
        ("bursar.api.operations", "from bursar.store import pool", "api may not import store"),
        ("bursar.surprise.x", "", "the folder surprise has no line in the table"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str, want: str) -> None:
    """The test above can fail: each kind of breach, made up, is told."""
    told = complaints(source, module)

    assert 1 == len(told), told
    assert told[0].endswith(want)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bursar.core.ledger.books", "from bursar.core.money import CREDIT\nimport bisect"),
        ("bursar.core.budgets.periods", "from datetime import datetime\nimport zoneinfo"),
        ("bursar.core.money", "from .instant import NEVER\nfrom uuid import uuid5"),
        ("bursar.core.money", "def f(books, now):\n    return books.now() + now"),
        ("bursar.library.credit", "import threading\nfrom bursar.core.money import CREDIT"),
        ("bursar", "from bursar.library import CreditLedger\nfrom bursar.library.x import Y"),
        ("bursar.agent.lease", "import httpx\nfrom bursar.client import Client"),
    ],
)
def test_an_allowed_import_is_left_alone(module: str, source: str) -> None:
    assert [] == complaints(source, module)
