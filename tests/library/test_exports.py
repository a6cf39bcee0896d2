"""What `import bursar` offers."""

import subprocess
import sys
import tomllib
from pathlib import Path

import bursar

ROOT = Path(__file__).parent.parent.parent


def test_package_exports_the_library() -> None:
    """Each name is there, and is the library's own (L17, L18, L19)."""
    assert bursar.__all__ == sorted(bursar.__all__, key=lambda name: (name[0] == "_", name))
    for name in bursar.__all__:
        assert hasattr(bursar, name)


def test_version_is_that_of_the_project() -> None:
    """One number, told in two places."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]

    assert project["version"] == bursar.__version__


def test_importing_the_library_imports_only_the_standard_library() -> None:
    """The standard library alone, in a fresh interpreter (L17)."""
    code = (
        "import sys; before = set(sys.modules); from bursar import *; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - sys.stdlib_module_names - {'bursar'}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "[]\n" == told.stdout
