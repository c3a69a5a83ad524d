"""A result on its way: a JSON document and named blobs in one string of bytes.

It says of itself how long every part is, and is checked when it is opened, so that what
another machine sends is never more than data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from tosavk.core.errors import InvalidArgument

Blob = bytes | memoryview

_MAGIC = b"TOSAVKP1"
_HEAD = struct.Struct("<8sQ")


@dataclass(frozen=True, slots=True)
class Packet:
    """A result.

    Attributes:
        document: JSON data.
        blobs: bytes by name.
    """

    document: Mapping[str, object]
    blobs: Mapping[str, Blob] = field(default_factory=dict[str, Blob])

    def packed(self) -> bytes:
        """The whole as bytes."""
        sizes = {name: len(blob) for name, blob in self.blobs.items()}
        head = json.dumps({"document": self.document, "blobs": sizes}).encode()
        return b"".join((_HEAD.pack(_MAGIC, len(head)), head, *self.blobs.values()))


def opened(data: Blob) -> Packet:
    """The result in these bytes; its blobs are views of them.

    Raises:
        InvalidArgument: they are not what `Packet.packed` makes.
    """
    view = memoryview(data)
    try:
        magic, length = _HEAD.unpack_from(view)
        if magic != _MAGIC:
            raise InvalidArgument("no result of a campaign: it does not begin like one")
        start = _HEAD.size + length
        head = cast("dict[str, object]", json.loads(bytes(view[_HEAD.size : start])))
        sizes = cast("dict[str, int]", head["blobs"])
        blobs: dict[str, Blob] = {}
        for name, size in sizes.items():
            if size < 0 or start + size > len(view):
                raise InvalidArgument(f"the result is cut off in {name!r}")
            blobs[name] = view[start : start + size]
            start += size
        document = cast("dict[str, object]", head["document"])
        if start != len(view):
            raise InvalidArgument(f"the result has {len(view) - start} bytes too many")
        if not isinstance(document, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  # the cast believes it
            raise InvalidArgument("the result has no document")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the result is damaged: {error!r}") from error
    return Packet(document, blobs)
