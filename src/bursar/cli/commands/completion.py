"""`bursar completion`."""

from enum import StrEnum
from typing import Annotated

import typer

from bursar.cli.lazy_groups import COMPLETION_VARIABLE

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Shell(StrEnum):
    """A supported shell."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the completion script for a shell.

    bash: source <(bursar completion bash). zsh: source <(bursar completion zsh), after compinit.
    fish: bursar completion fish | source. Add the line to the shell's startup file.
    """
    from typer._completion_shared import get_completion_script

    print(
        get_completion_script(
            prog_name="bursar", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )
    )
