"""The nouns of the command line, each in a module that is imported when it is asked for."""

import os
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

# In the order of the help; each is a module in bursar.cli.commands that has an `app`.
NOUNS: Final = MappingProxyType(
    {
        "login": "Keep the URL and key of a service for later commands.",
        "org": "Tenants.",
        "account": "The tree of accounts that credits belong to.",
        "user": "Who spends credits.",
        "grant": "Credits that were issued.",
        "balance": "What an account owns, can spend, has used and owes.",
        "hold": "Reserve credits, charge usage, settle, release.",
        "quote": "What a hold would cost, and what forbids it.",
        "submit": "Run a command on GPUs.",
        "jobs": "Jobs, the newest first.",
        "job": "A job: how far it has got, what it has spent.",
        "why": "Why a job waits, and when it is likely to start.",
        "watch": "Follow a job until it is over.",
        "logs": "What a job has printed.",
        "cancel": "Let a job run no more.",
        "correct": "Say who answers for the end of an attempt.",
        "pools": "What pools have, and what waits for it.",
        "nodes": "The nodes of a pool.",
        "scaling": "Nodes that come and go: what can be ordered, and what was.",
        "share": "Who has which part of a pool.",
        "prio": "Who comes next in a pool.",
        "budget": "Limits on credits per period.",
        "quota": "Limits on GPUs and jobs at once.",
        "price": "Prices of GPU-hours.",
        "key": "Keys to the HTTP interface.",
        "webhook": "Be told what happens.",
        "agent": "Run jobs on this machine, as its pool leases it.",
        "statement": "What an account's grants had, what moved, and what they have then.",
        "usage": "What was charged and used in a period.",
        "top": "Who has, used or burns the most.",
        "completion": "Completion of commands for a shell.",
    }
)


COMPLETING: Final = "_BURSAR_COMPLETE"  # set by a shell that wants to know what may come next


class Group(TyperGroup):
    """A group of commands that is quick to say what is in it."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, which is false and not nothing if it is not given: to learn what
        nothing means, typer would import as much again as all the rest."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


class Nouns(Group):
    """The commands at the root: a help text each, and all else when it is needed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        stubs = {name: TyperCommand(name=name, help=help) for name, help in NOUNS.items()}
        self.commands = {**stubs, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant, imported if it is one of the nouns."""
        if args[:2] == ["simulate", "faults"]:  # a file of that name is ./faults
            args = ["simulate-faults", *args[2:]]
        name, found, rest = super().resolve_command(ctx, args)
        if name in NOUNS:
            module = import_module(f"bursar.cli.commands.{name}")
            found = typer.main.get_command(module.app)
            found.name = name
        return name, found, rest

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run, or tell a shell what may come next."""
        if COMPLETING in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        # Whatever the script is called by: what a shell sets has the name in it.
        return super().main(*args, **{"prog_name": "bursar", **settings})

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what a service says no to is told in sentences, not in a traceback."""
        from bursar.cli.interrupts import INTERRUPTED
        from bursar.cli.problems import Unusable, tell
        from bursar.client import Problem

        try:
            return super().invoke(ctx)
        except (Problem, Unusable) as error:
            raise typer.Exit(tell(error)) from None
        except typer.Abort as error:  # at a question, where the end of the input means it too
            if isinstance(error.__context__, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None
            raise
