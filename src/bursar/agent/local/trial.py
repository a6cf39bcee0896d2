"""Tries out whether this machine allows a sandbox, with a command that does nothing."""

import json
import os
import sys
from typing import NoReturn

from bursar.agent.local.kernel import PR_SET_CHILD_SUBREAPER, set_process_option
from bursar.agent.local.sandbox import Sandbox, StartFailed


def main(order: str) -> None:
    """Start a command in the sandbox of an order; print why that fails."""
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    try:
        sandbox = Sandbox(json.loads(order), join=_pass, prepare=os.setsid, execute=_exit)
    except (StartFailed, OSError) as error:
        sys.exit(str(error))
    sandbox.go()
    _, status = os.waitpid(sandbox.leader, 0)
    if sandbox.command_status(status) != 0:
        sys.exit("the command did not run")


def _pass() -> None:
    """Join no cgroup."""


def _exit() -> NoReturn:
    os._exit(0)
