"""Which machine this is, and whether a process of it still lives: what a lock needs to know."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path


def machine_identity() -> str:
    """Returns a text equal for two processes exactly when one can judge if the other lives.

    The host name, and on Linux the boot and the process namespace: containers on several machines
    may share a host name, and a process id means nothing in another namespace or after a reboot.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def process_start(pid: int) -> str | None:
    """Returns when a process of this machine started, in the machine's own notation.

    Compared for equality only: a process id is used again, a pair of id and start is not.

    Returns:
        The start; "" when the process lives and its start cannot be found out; None when no such
        process lives (one that has ended but not been waited for is dead).
    """
    if pid <= 0:
        return None
    if os.path.isdir("/proc/self"):
        return _start_from_proc(pid)
    return _start_from_ps(pid)


def _start_from_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""
    # The command in parentheses may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _start_from_ps(pid: int) -> str | None:
    try:
        found = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=10,
            env={"LC_ALL": "C", "PATH": "/bin:/usr/bin"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    state, _, start = found.stdout.strip().partition(" ")
    return start.strip() if state and not state.startswith("Z") else None
