"""Memory of a process and of those that it started, on Linux."""

from __future__ import annotations

from pathlib import Path


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listing.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in children:
            found += tree(int(child))
    return found


def memory_mb(pid: int) -> float:
    """What a process holds, in MB; 0 when it has ended.

    What several processes hold counts in parts (Pss in /proc/PID/smaps_rollup), so that
    the sum over a tree of them is what they hold together.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    words = text.split()
    return int(words[words.index("Pss:") + 1]) * 1024 / 1e6 if "Pss:" in words else 0.0
