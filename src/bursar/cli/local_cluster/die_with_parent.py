"""Become another program, which the kernel ends as soon as whoever started it is gone.

    python -I -S tether.py PARENT PROGRAM [ARGUMENT ...]

A program of its own, because only a process itself can ask for this, and what runs between fork and
exec of a process with many threads had better be nothing. The kernel means the thread that started
it: it has to live as long as its process does.
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
        sys.exit("the kernel does not tie one program to another")
    if os.getppid() != parent:
        sys.exit("whoever started this is gone already")
    os.execv(program[0], program)
