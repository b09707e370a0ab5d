"""A tiny process between a notebook's kernel and its server, so that the server never outlives the kernel.

It is run by path and told what to do by one line of JSON on its standard input. It ends the server, with every
process that the server started, when told "stop", when that input closes, or when its parent is gone: a kernel
that is killed can do nothing by itself, but its end of the pipe closes all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

POSIX = os.name == "posix"
LINUX = sys.platform.startswith("linux")
TURN = 0.05  # seconds between two looks at everything
PATIENCE = 10.0  # seconds for killed processes to be gone
DEATH_SIGNAL, SUBREAPER = 1, 36  # from <sys/prctl.h>


def main() -> int:
    """Run the command until it ends or must end; give its exit code, or 128 + the signal that ended it."""
    parent, order = os.getppid(), json.loads(sys.stdin.readline())
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    prctl = adopt_orphans()
    try:
        child = spawn(order, prctl)
        if child is None:
            return 127
        print(child.pid, flush=True)
        watch(child, told_to_stop(), parent)
        end(child, order["grace"])
        sweep(child.pid)
    finally:
        shutil.rmtree(order["temporary"], ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def adopt_orphans():
    """On Linux, become the parent of whatever the server leaves behind; give prctl, for the child's use."""
    if not LINUX:
        return None
    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1, 0, 0, 0)
    return prctl


def spawn(order: dict, prctl) -> subprocess.Popen | None:
    """Start the command in a group of its own, its words in the log, its temporary files in one folder."""

    def in_child() -> None:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)  # a child inherits what is ignored
        if prctl:
            prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

    apart = dict(start_new_session=True, preexec_fn=in_child) if POSIX else dict(creationflags=0x200)
    with open(order["log"], "ab") as log:
        try:
            return subprocess.Popen(
                order["command"], cwd=order["cwd"], env=os.environ | order["env"] | {"TMPDIR": order["temporary"]},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, **apart,
            )  # fmt: skip
        except OSError as error:
            log.write(f"cannot start {order['command'][0]}: {error}\n".encode())
            return None


def told_to_stop() -> threading.Event:
    """An event that is set once a line or the end of standard input comes."""
    told = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    return told


def watch(child: subprocess.Popen, told: threading.Event, parent: int) -> None:
    """Return once the child has ended, once told to stop, or once the parent has gone."""
    while child.poll() is None and not told.wait(TURN):
        if os.getppid() != parent:  # the pipe may be held open by a fork of the parent
            return


def end(child: subprocess.Popen, grace: float) -> None:
    """Ask the child to end, as Ctrl-C does: vLLM may hang on SIGTERM while it is answering. Then kill it."""
    if child.poll() is None:
        with contextlib.suppress(OSError):
            child.send_signal(signal.SIGINT if POSIX else signal.CTRL_BREAK_EVENT)
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()


def sweep(group: int) -> None:
    """Kill what is left of the child's group, then whatever else came from it, until nothing is left."""
    if not POSIX:
        return
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        for pid in own_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not reap() and not group_lives(group):
            return
        time.sleep(TURN)


def own_children() -> list[int]:
    """Processes whose parent is this one: on Linux that includes all orphans of the server."""
    if not LINUX:
        return []
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def reap() -> bool:
    """Collect children that have ended; whether any still runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def group_lives(group: int) -> bool:
    """Whether the group has a process left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # what macOS says of a group of zombies
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
