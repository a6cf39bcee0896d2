"""Naming rules: one class per name, nouns for modules, plain words.

They hold over src/bursar, benchmarks and tools; the rule on class names over src/bursar only.

What still breaks a rule is counted in `names.txt`, one line per module. A count may only fall: the
tests fail when a module has more than its line allows, and also when it has less, so that the list
shrinks with the code. After a clean-up or a move of modules, run

    python -m tests.test_names --update

It writes the present counts, and refuses if the total of a rule has grown.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SRC: Final = ROOT / "src" / "bursar"
BESIDE: Final = ("benchmarks", "tools")  # folders beside the package; no exceptions are listed
ALLOWED: Final = Path(__file__).with_name("names.txt")

BANNED_NAMES: Final = frozenset({"one", "found", "told", "given", "asked", "kept"})
VAGUE_WORDS: Final = re.compile(r"\b(whoever|nobody|somebody|anybody)\b", re.IGNORECASE)
NOUNS_IN_ING: Final = frozenset(
    {
        "aging",
        "keyring",
        "metering",
        "pricing",
        "provisioning",
        "recording",
        "routing",
        "scaling",
        "scheduling",
        "timing",
    }
)
# A value of the core and the form in which the API sends it share their name.
TWINS: Final = frozenset(
    {
        "Account",
        "Balance",
        "Budget",
        "Context",
        "Debt",
        "Draw",
        "Grant",
        "Hold",
        "Job",
        "LeaseOrder",
        "LeaseOrders",
        "PriceVersion",
        "Rate",
        "Recurrence",
        "Tier",
    }
)
REMEDY: Final = "run `python -m tests.test_names --update`"


@cache
def _sources() -> dict[str, str]:
    """The text of each module by its path below src/bursar, or below the root."""
    paths = {path.relative_to(SRC).as_posix(): path for path in sorted(SRC.rglob("*.py"))}
    for folder in BESIDE:
        modules = sorted((ROOT / folder).rglob("*.py"))
        paths |= {path.relative_to(ROOT).as_posix(): path for path in modules}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


@cache
def _trees() -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in _sources().items()}


@cache
def classes_defined_twice() -> Counter[str]:
    """The class names that several modules define, and in how many; core/wire twins aside."""
    modules: dict[str, list[str]] = {}
    for path, tree in _trees().items():
        if path.startswith(BESIDE):
            continue
        for name in {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}:
            modules.setdefault(name, []).append(path)
    return Counter(
        {
            name: len(paths)
            for name, paths in modules.items()
            if len(paths) > 1 and not (name in TWINS and is_twin(paths))
        }
    )


def is_twin(paths: list[str]) -> bool:
    """Whether of two modules one is in the core and one in the wire."""
    return ["core", "wire"] == sorted(path.split("/")[0] for path in paths)


@cache
def gerund_modules() -> Counter[str]:
    """Modules and folders named by what they do instead of what they are."""
    names = {part: path for path in _sources() for part in path.removesuffix(".py").split("/")}
    words = {name: name.rsplit("_", 1)[-1] for name in names}
    return Counter(
        name for name, word in words.items() if word.endswith("ing") and word not in NOUNS_IN_ING
    )


@cache
def banned_names() -> Counter[str]:
    """How often a module defines one of the banned names."""
    return Counter(
        path
        for path, tree in _trees().items()
        for name in defined_names(tree)
        if name.strip("_").lower() in BANNED_NAMES
    )


def defined_names(tree: ast.AST) -> Iterator[str]:
    """All names that a module binds: functions, classes, parameters, attributes, variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


@cache
def vague_prose() -> Counter[str]:
    """How often docstrings and comments of a module say who without a name."""
    return Counter(
        {
            path: count
            for path in _sources()
            if (count := sum(len(VAGUE_WORDS.findall(text)) for text in prose_of(path)))
        }
    )


def prose_of(path: str) -> Iterator[str]:
    """The docstrings and comments of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(_trees()[path]):
        if isinstance(node, documented):
            yield ast.get_docstring(node, clean=False) or ""
    for token in tokenize.generate_tokens(io.StringIO(_sources()[path]).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


RULES: Final = {
    "class-defined-twice": classes_defined_twice,
    "gerund-module": gerund_modules,
    "banned-name": banned_names,
    "vague-prose": vague_prose,
}


def allowed(rule: str) -> dict[str, int]:
    """What the list allows by a rule. Git merges the list line by line: the least count holds."""
    counts: dict[str, int] = {}
    for line in ALLOWED.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{rule} "):
            _, subject, count = line.split()
            counts[subject] = min(int(count), counts.get(subject, int(count)))
    return counts


@pytest.mark.parametrize("rule", RULES)
def test_names_keep_the_rules(rule: str) -> None:
    """No module breaks a rule more often than it did."""
    limits = allowed(rule)
    grown = {
        subject: f"{count}, allowed {limits.get(subject, 0)}"
        for subject, count in RULES[rule]().items()
        if count > limits.get(subject, 0)
    }
    assert not grown, f"{rule}: new names break the rule; if a module has only moved, {REMEDY}"


@pytest.mark.parametrize("rule", RULES)
def test_list_of_exceptions_only_shrinks(rule: str) -> None:
    """What no longer breaks a rule is no longer allowed to."""
    counts = RULES[rule]()
    stale = {
        subject: f"{counts[subject]}, allowed {limit}"
        for subject, limit in allowed(rule).items()
        if counts[subject] < limit
    }
    assert not stale, f"{rule}: fewer than the list allows; {REMEDY}"


@pytest.mark.parametrize("rule", RULES)
def test_benchmarks_and_tools_have_no_exceptions(rule: str) -> None:
    """The list of exceptions names no module of these folders."""
    assert not [subject for subject in allowed(rule) if subject.startswith(BESIDE)]


def test_each_twin_is_defined_in_core_and_wire() -> None:
    """A name stays in TWINS only while the core and the wire both define it."""
    sides: dict[str, set[str]] = {name: set() for name in TWINS}
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in TWINS:
                sides[node.name].add(path.split("/")[0])
    assert not {name for name, folders in sides.items() if not folders >= {"core", "wire"}}


def update() -> None:
    """Write the present counts; exit with a message if the total of a rule has grown."""
    lines = []
    for rule, count_all in RULES.items():
        counts, limits = count_all(), allowed(rule)
        if counts.total() > sum(limits.values()):
            grown = (
                f"  {subject}: {count}, allowed {limits.get(subject, 0)}"
                for subject, count in sorted(counts.items())
                if count > limits.get(subject, 0)
            )
            sys.exit("\n".join([f"{rule} has grown:", *grown]))
        lines += [f"{rule} {subject} {count}" for subject, count in sorted(counts.items())]
    ALLOWED.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
