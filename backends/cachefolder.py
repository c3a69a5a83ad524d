"""The folder for cache files, and how files get there.

The folder is `TOSAVK_CACHE_DIR`, or `tosavk` in the user's cache folder; an empty
`TOSAVK_CACHE_DIR` turns caching off. A folder that other users may write to is not
used: drivers, and the C interface of a library, are believed what stands in such files.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class CacheRejected(Exception):
    """A cache file cannot be used; the message says why."""


def cache_folder(
    environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Path | None:
    """The folder for cache files, or None if the cache is off or has no home."""
    env = os.environ if environment is None else environment
    chosen = env.get("TOSAVK_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    if platform == "win32":
        local = env.get("LOCALAPPDATA")
        return Path(local) / "tosavk" / "cache" if local else None
    xdg = env.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "tosavk"
    home = env.get("HOME")
    if not home:
        return None
    if platform == "darwin":
        return Path(home) / "Library" / "Caches" / "tosavk"
    return Path(home) / ".cache" / "tosavk"


def read_file(path: Path, most: int) -> bytes:
    """At most `most` bytes of a cache file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        CacheRejected: others may write to the folder.
    """
    require_private(path.parent)
    with path.open("rb") as file:
        return file.read(most)


def write_file(path: Path, content: bytes) -> None:
    """Writes a cache file in one step: a reader sees the old one or the new one.

    Raises:
        OSError: it cannot be written.
        CacheRejected: others may write to the folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_private(path.parent)
    # Only the process that writes pays for this import.
    import tempfile

    # mkstemp makes a file that only this user can read or write.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def require_private(folder: Path) -> None:
    """Refuses a folder that somebody else could put a file into.

    Raises:
        CacheRejected: others may write to it.
    """
    if sys.platform == "win32":
        return
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        raise CacheRejected("the folder is writable for everybody")
    if status.st_uid not in (os.getuid(), 0):
        raise CacheRejected("the folder belongs to another user")
