"""What the files of the project promise, apart from the code."""

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "dev.lock"

# Put together here, so that this file does not name them either.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("crates", "io"),
        ("anaconda", "org"),
    )
)
INDEX_OPTION = re.compile(r"--(?:extra-)?index-url|--find[-]links")
MACHINE_PATH = re.compile(
    r"(?<![\w.:/}>)-])/(?:home|Users|root|work|opt|mnt|srv|tmp)/\w|\b[A-Z]:\\\\?Users\b"
)


def files() -> list[Path]:
    """Every file of the project that is not left out by .gitignore."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        told = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return [path for name in sorted(set(told.split("\0"))) if (path := ROOT / name).is_file()]
    # A copy without its history: leave out what .gitignore leaves out, by its names.
    lines = (ROOT / ".gitignore").read_text().splitlines()
    left_out = [line.strip("/") for line in lines if line and not line.startswith("#")]
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and not any(part.match(pattern) for pattern in left_out for part in within(path))
    ]


def within(path: Path) -> list[Path]:
    """Each name on the way from the root to `path`, by itself."""
    return [Path(name) for name in path.relative_to(ROOT).parts]


def complaints(text: str) -> list[str]:
    """Registries and places on one machine that `text` names."""
    found = [host for host in REGISTRIES if host in text]
    found += [match.group() for match in INDEX_OPTION.finditer(text)]
    found += [match.group() for match in MACHINE_PATH.finditer(text)]
    return found


def requirement_names(requirements: list[str]) -> list[str]:
    return [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements]


def test_no_file_names_a_registry_or_a_place_on_one_machine() -> None:
    """The project can be built anywhere, from any mirror."""
    told: dict[str, list[str]] = {}
    for path in files():
        try:
            found = complaints(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # not text
        if found:
            told[str(path.relative_to(ROOT))] = found

    assert {} == told


@pytest.mark.parametrize(
    "text",
    [
        "https://" + REGISTRIES[0] + "/simple",
        '"resolved"' + ': "https://registry.' + REGISTRIES[2] + '/x"',
        "--index" + "-url https://example.com",
        "see " + "/home" + "/anna/bursar",
        'open("' + "/tmp" + '/x")',
    ],
)
def test_a_registry_or_a_place_is_found(text: str) -> None:
    assert complaints(text)


@pytest.mark.parametrize(
    "text", ["#!/usr/bin/env bash", "GET /v1/home/x", "tests/work/x", "a/tmp/b"]
)
def test_other_paths_are_left_alone(text: str) -> None:
    assert [] == complaints(text)


def test_the_lock_pins_every_entry_by_hash() -> None:
    """Nothing is installed that is not exactly what was locked."""
    text = re.sub(r"(?m)^\s*#.*\n?", "", LOCK.read_text()).replace("\\\n", " ")
    entries = [line.split() for line in text.splitlines() if line.strip()]

    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", entry[0]), entry[0]
        assert [part for part in entry if re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", part)], entry


def test_the_lock_has_all_that_the_project_asks_for() -> None:
    """A requirement added to pyproject.toml without `make lock` is told here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["optional-dependencies"]["service"],
        *project["dependency-groups"]["dev"],
    ]
    locked = set(re.findall(r"(?m)^([\w.-]+)==", LOCK.read_text()))

    assert [] == [name for name in requirement_names(asked) if name not in locked]


def test_the_library_needs_no_other_package() -> None:
    """`pip install bursar` brings bursar alone; all else is behind an extra."""
    asked = importlib.metadata.requires("bursar") or []

    assert [] == [
        requirement for requirement in asked if not re.search(r";.*\bextra ==", requirement)
    ]


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    """A hang is a failure that names its test. A process that ignores the limit is ended."""
    limit = float(pytestconfig.getini("timeout"))

    assert 0 < limit <= 600
    assert limit < float(pytestconfig.getini("faulthandler_timeout"))
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True
    assert pytestconfig.pluginmanager.hasplugin("timeout")


def test_make_check_names_files_that_exist() -> None:
    """A test module that was renamed is renamed in the Makefile too."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [checked] = re.findall(r"(?m)^CHECKED := (.*)$", makefile)
    paths = re.sub(r"\$\(.*?\)", "", checked).split()

    assert [] == [path for path in paths if not (ROOT / path).exists()]
