"""Results of a campaign on disk, as they come; a second start finds them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from tosavk.core.errors import InvalidArgument
from tosavk.differential.arrays import map_file
from tosavk.differential.campaign.packet import Packet, opened
from tosavk.differential.campaign.task import Task

RESULTS = "results"
FINDINGS = "findings"


class Store:
    """A folder with one file for each result.

    Args:
        folder: the campaign's; made where it is not there.

    Raises:
        InvalidArgument: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        """Makes the folder."""
        self._folder = folder
        try:
            (folder / RESULTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"cannot make the folder {str(folder)!r}: {error.strerror or error}"
            ) from error

    def get(self, task: Task) -> Packet | None:
        """The result of a task, or None where there is none that is whole."""
        try:
            return opened(map_file(self._path(task)))
        except (OSError, InvalidArgument):
            return None

    def put(self, task: Task, data: bytes) -> Packet:
        """Keeps a result; a crash in between leaves none, or the whole.

        Raises:
            InvalidArgument: it is no result.
            OSError: it cannot be written.
        """
        opened(data)
        path = self._path(task)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        return opened(map_file(path))

    def unpack(self, packet: Packet, prefix: str) -> Path:
        """Writes the files that a fuzz result holds; returns their folder.

        Raises:
            InvalidArgument: a name is no plain name in a plain folder.
        """
        root = self._folder / FINDINGS / prefix
        for name, blob in packet.blobs.items():
            parts = PurePosixPath(name).parts
            if len(parts) != 2 or not all(map(_is_plain, parts)):
                raise InvalidArgument(f"a result names the file {name!r}")
            path = root.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(blob)
        return root

    def _path(self, task: Task) -> Path:
        return self._folder / RESULTS / f"{task.key}.packet"


def _is_plain(name: str) -> bool:
    """Whether a name from another machine can only mean a file in its folder."""
    allowed = set("-_.")
    return name.strip(".") != "" and all(
        c in allowed or (c.isascii() and c.isalnum()) for c in name
    )
