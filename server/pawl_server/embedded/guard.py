"""Runs a program that must not outlive the process that started it.

    python -I -S guard.py signal PARENT_PID PROGRAM [ARG…]   Linux: SIGTERM by the kernel when the parent dies
    python -I -S guard.py pipe FD PROGRAM [ARG…]             anywhere: SIGTERM when the other end of FD closes

`signal` replaces itself by PROGRAM, so pid and inherited descriptors stay the same. PR_SET_PDEATHSIG fires
when the *thread* that forked ends: use it only from the main thread. `pipe` stays as PROGRAM's parent, passes
SIGTERM and SIGINT on, and ends with PROGRAM's exit code (128 + n for signal n).

A program of its own, because running code between fork and exec is unsafe in a process with threads.
It imports the standard library only and never `pawl_server`.
"""

from __future__ import annotations

import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def run_with_signal(parent: int, argv: list[str]) -> None:
    """Becomes `argv`, to be sent SIGTERM when process `parent` (our parent) dies."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the line above
        sys.exit(0)
    os.execv(argv[0], argv)


def run_with_pipe(fd: int, argv: list[str]) -> int:
    """Runs `argv` as a child until it ends by itself or the other end of pipe `fd` closes; its exit code."""
    os.set_inheritable(fd, False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    child = 0

    def pass_on(number: int, _frame: object) -> None:
        if child:
            os.kill(child, number)

    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    child = os.posix_spawn(argv[0], argv, os.environ, setsigdef=[signal.SIGTERM, signal.SIGINT])
    watched = [fd, woken]
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        ready = select.select(watched, [], [])[0]
        if woken in ready:
            os.read(woken, 64)
        if fd in ready and not os.read(fd, 1):
            watched = [woken]
            os.kill(child, signal.SIGTERM)


def main(args: list[str]) -> int:
    """Entry point; see the module's text."""
    mode, number, *argv = args
    if mode == "signal":
        run_with_signal(int(number), argv)
        return 0
    return run_with_pipe(int(number), argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
