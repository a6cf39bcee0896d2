"""The command line as somebody at a terminal meets it."""

import importlib.metadata
import subprocess
import sys

from typer.testing import CliRunner

from bursar.cli.app import app


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_version_is_that_of_the_package() -> None:
    told = CliRunner().invoke(app, ["--version"])

    assert 0 == told.exit_code
    assert f"bursar {importlib.metadata.version('bursar')}\n" == told.output


def test_help_names_every_command() -> None:
    told = CliRunner().invoke(app, ["--help"])

    assert 0 == told.exit_code
    assert "walkthrough" in told.output
    assert "submit" in told.output


def test_missing_packages_are_named_with_the_install_command() -> None:
    """The script is there after a plain `pip install bursar`, which brings no other package."""
    told = run_python(
        "import sys; sys.modules['typer'] = None\nfrom bursar.cli import main\nmain()"
    )

    assert 2 == told.returncode
    assert "" == told.stdout
    assert (
        "bursar: the command line needs more packages: pip install 'bursar[service]'\n"
        == told.stderr
    )


def test_missing_module_of_bursar_is_not_reported_as_a_missing_package() -> None:
    told = run_python(
        "import sys; sys.modules['bursar.cli.app'] = None\nfrom bursar.cli import main\nmain()"
    )

    assert 1 == told.returncode
    assert "ModuleNotFoundError" in told.stderr


def test_command_tree_loads_few_modules() -> None:
    """`bursar --help` pays for no command: neither the ledger nor the tables are imported.

    The package's door brings the library with it, and so the little of the core that it needs.
    """
    told = run_python(
        "import sys, bursar.cli.app\n"
        "print([m for m in ('bursar.core.ledger', 'bursar.sim', 'pydantic', 'rich.table')"
        " if m in sys.modules])"
    )

    assert "[]\n" == told.stdout, told.stderr


def test_the_ledger_walkthrough_plays_to_its_end() -> None:
    told = CliRunner().invoke(app, ["walkthrough", "ledger"])

    assert 0 == told.exit_code, told.output
