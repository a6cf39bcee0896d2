"""Executes another program that the kernel terminates when the parent process dies.

    python -I -S die_with_parent.py PARENT PROGRAM [ARGUMENT ...]

This is a separate program because only a process itself can request this signal, and code between
fork and exec is unsafe in a process with threads. The kernel watches the thread that started this
process, so that thread must live as long as the parent does.
"""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent process is gone already")
    os.execv(program[0], program)
