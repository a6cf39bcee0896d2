"""Ctrl-C ends a command, whatever the command is doing when it is pressed."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bursar.cli.interrupts import INTERRUPTED
from tests.support.patience import PATIENCE_S

BEGINNING = """
import ctypes, os, operator, signal, sys, time
from functools import partial
from bursar.cli.interrupts import watch_interrupts

press = partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGINT)
never, _ = os.pipe()
wait = partial(os.read, never, 1)

def run():
    with watch_interrupts():
        try:
            work()
        except KeyboardInterrupt:
            sys.exit(130)
"""
IN_A_DESTRUCTOR = """
class Dying:
    def __del__(self):
        press()
        for _ in range(3):
            pass

def work():
    Dying()
    wait()
"""
IN_A_CALLBACK = """
import weakref

class Dying:
    pass

def ends(_):
    press()
    for _ in range(3):
        pass

def work():
    dying = Dying()
    watched = weakref.ref(dying, ends)
    del dying
    wait()
"""
UNDER_A_WIDE_EXCEPT = """
def work():
    try:
        press()
        wait()
    except BaseException:
        pass
    wait()
"""
# Between these two calls, all of them in C, Python looks for no signals.
JUST_BEFORE_IT_BLOCKS = """
def work():
    list(map(operator.call, [press, wait]))
"""
WHILE_IT_SLEEPS = """
def work():
    list(map(operator.call, [press, partial(time.sleep, 600)]))
"""
WAITING_FOR_A_PROGRAM = """
import subprocess

def work():
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    list(map(operator.call, [press, partial(os.waitpid, program.pid, 0)]))
"""
FORKED = """
def work():
    child = os.fork()
    if child == 0:
        os.read(never, 1)
    try:
        time.sleep(0.5)  # so that the child waits
        os.kill(child, signal.SIGINT)  # as a terminal does to all of a group
        press()
        wait()
    finally:
        os.waitpid(child, 0)
        time.sleep(1)
        print("cleaned up", flush=True)
"""
CLEANING_UP = """
def work():
    try:
        press()
        wait()
    finally:
        print("cleaning up", flush=True)
        try:
            raise ValueError
        except ValueError:
            time.sleep(1)
        time.sleep({more})
        print("cleaned up", flush=True)
"""
SWALLOWING_ALL = """
def work():
    try:
        print("ready", flush=True)
        wait()
    except BaseException:
        print("swallowed", flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""
OWN_HANDLER = """
from bursar.cli.signals import stop_event_on_signals

def work():
    stop_event = stop_event_on_signals()
    print("ready", flush=True)
    stop_event.wait()
    print("stopping", flush=True)
    time.sleep(600)
"""


def program(work: str) -> list[str]:
    return [sys.executable, "-c", f"{BEGINNING}{work}\nrun()"]


def listen() -> None:
    """Let SIGINT arrive in a child, even if these tests run as a job in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(work: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        program(work),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=listen,
    )


@contextmanager
def started(*command: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(IN_A_DESTRUCTOR, id="in a destructor"),
        pytest.param(IN_A_CALLBACK, id="in a callback"),
        pytest.param(UNDER_A_WIDE_EXCEPT, id="under a wide except"),
        pytest.param(JUST_BEFORE_IT_BLOCKS, id="just before a read blocks"),
        pytest.param(WHILE_IT_SLEEPS, id="just before a sleep"),
        pytest.param(WAITING_FOR_A_PROGRAM, id="just before a wait for a program"),
    ],
)
def test_an_interrupt_is_never_lost(work: str) -> None:
    """Python drops the interrupt in each of these places, or delivers it when the wait is over."""
    assert INTERRUPTED == run(work).returncode


def test_cleaning_up_is_not_interrupted_again() -> None:
    result = run(CLEANING_UP.format(more=1))

    assert (INTERRUPTED, "cleaning up\ncleaned up\n") == (result.returncode, result.stdout)


def test_the_interrupt_of_a_fork_is_not_counted() -> None:
    result = run(FORKED)

    assert (INTERRUPTED, "cleaned up\n") == (result.returncode, result.stdout), result.stderr


@pytest.mark.parametrize(
    ("work", "lines"),
    [
        pytest.param(CLEANING_UP.format(more=600), ["cleaning up\n"], id="cleaning up"),
        pytest.param(SWALLOWING_ALL, ["ready\n", "swallowed\n"], id="swallowing all"),
        pytest.param(OWN_HANDLER, ["ready\n", "stopping\n"], id="with its own handler"),
    ],
)
def test_second_ctrl_c_ends_a_command_at_once(work: str, lines: list[str]) -> None:
    with started(*program(work)) as process:
        assert process.stdout is not None
        for line in lines:
            assert line == process.stdout.readline()
            process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert INTERRUPTED == process.wait(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2


def test_an_interrupt_while_commands_are_imported_leaves_no_traceback() -> None:
    pressing = """
import os, signal, sys
from bursar.cli import main

class Pressing:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressing())
sys.argv = ["bursar", "watch"]
main()
"""
    with started(sys.executable, "-c", pressing) as process:
        output = process.communicate(timeout=PATIENCE_S)

    assert (INTERRUPTED, ("", "")) == (process.returncode, output)


def test_background_job_of_a_shell_ignores_ctrl_c() -> None:
    """A shell without job control starts it so, and expects it to go on."""
    work = "\ndef work():\n    press()\n    print('goes on')\n"
    result = subprocess.run(
        program(work),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )

    assert (0, "goes on\n") == (result.returncode, result.stdout)
