"""The command groups, each in a module that is imported when the group is used."""

import os
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

# In the order of the help; each is a module in bursar.cli.commands that has an `app`.
COMMANDS: Final = MappingProxyType(
    {
        "login": "Save the URL and key of a service for later commands.",
        "org": "Manage orgs (tenants).",
        "account": "Manage the account tree of an org.",
        "user": "Manage the users who spend credits.",
        "grant": "Issue credits and manage grants.",
        "balance": "Show an account's balance.",
        "hold": "Reserve credits, charge usage, settle and release.",
        "quote": "Show what a hold would cost, without opening it.",
        "submit": "Run a command on GPUs.",
        "jobs": "List jobs, newest first.",
        "job": "Show a job's state and cost.",
        "why": "Explain why a job waits and when it can start.",
        "watch": "Follow a job until it finishes.",
        "logs": "Print a job's output.",
        "cancel": "Cancel a job.",
        "correct": "Change who is responsible for the end of an attempt.",
        "pools": "Show pools: GPUs, nodes and queued jobs.",
        "nodes": "Show and drain the nodes of a pool.",
        "scaling": "Configure autoscaling and show node orders.",
        "share": "Show each tenant's share of a pool.",
        "prio": "Show the queue of a pool in scheduling order.",
        "budget": "Limit the credits spent per period.",
        "quota": "Limit GPUs and jobs in use at the same time.",
        "price": "Manage prices per GPU-hour.",
        "key": "Manage API keys.",
        "webhook": "Send events to a URL.",
        "agent": "Run the agent of a node.",
        "statement": "Show an account's opening balance, postings and closing balance.",
        "usage": "Show usage and charges of a period.",
        "top": "Rank accounts, users and jobs by credits.",
        "completion": "Print the completion script for a shell.",
    }
)


COMPLETION_VARIABLE: Final = "_BURSAR_COMPLETE"  # set by a shell that asks for completions


class FastHelpGroup(TyperGroup):
    """A group of commands with a fast --help."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help with a default of False. With a default of None, typer imports the
        modules that format defaults, which doubles the start-up time."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


class RootGroup(FastHelpGroup):
    """The root group. It knows each command's help text and imports the rest on use."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        stubs = {name: TyperCommand(name=name, help=help) for name, help in COMMANDS.items()}
        self.commands = {**stubs, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command; import its module if it is in COMMANDS."""
        if args[:2] == ["simulate", "faults"]:  # a file of that name is ./faults
            args = ["simulate-faults", *args[2:]]
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module = import_module(f"bursar.cli.commands.{name}")
            command = typer.main.get_command(module.app)
            command.name = name
        return name, command, rest

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the command, or print completions for a shell."""
        if COMPLETION_VARIABLE in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        # The completion variable contains the program name, so the name is fixed.
        return super().main(*args, **{"prog_name": "bursar", **settings})

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Problems of the service are printed without a traceback."""
        from bursar.cli.interrupts import INTERRUPTED
        from bursar.cli.problems import LocalProblem, print_problem
        from bursar.client import Problem

        try:
            return super().invoke(ctx)
        except (Problem, LocalProblem) as error:
            raise typer.Exit(print_problem(error)) from None
        except typer.Abort as error:  # at a question, where the end of the input means it too
            if isinstance(error.__context__, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None
            raise
