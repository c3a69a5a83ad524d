"""One device's part of a campaign, as data that goes to another machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from tosavk.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffTask:
    """A model on one device and on the reference.

    Attributes:
        spec: backend specification.
        model: the name that the report shows.
        sha256: of the model's file.
        path: where the file is on the machine that asks; others may have it there.
        shapes: of inputs whose dimensions the file leaves open.
        seed: of the inputs.
        samples: runs with different inputs.
        generator: how inputs are chosen.
        numerics: mode.
        limit_s: seconds without a sign of life after which a backend is ended.
        keep: tensors whose values are wanted, not only their digests.
    """

    spec: str
    model: str
    sha256: str
    path: str
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    seed: int = 0
    samples: int = 1
    generator: str = "auto"
    numerics: str = "strict"
    limit_s: float = 120.0
    keep: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Tells it apart; the same wherever the model's file is."""
        return _key(self, "model", "path")

    def __str__(self) -> str:
        """The task in a few words."""
        again = ", values" if self.keep else ""
        return f"{Path(self.model).name} on {self.spec}{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTask:
    """Random programs on one device and on the reference.

    Attributes:
        spec: backend specification.
        seed: of the programs.
        start: number of the first one.
        count: how many.
        numerics: mode.
        limit_s: seconds without a sign of life after which a backend is ended.
        reducing: programs tried to reduce a finding.
    """

    spec: str
    seed: int
    start: int
    count: int
    numerics: str = "strict"
    limit_s: float = 60.0
    reducing: int = 300

    @property
    def key(self) -> str:
        """Tells it apart."""
        return _key(self)

    def __str__(self) -> str:
        """The task in a few words."""
        last = self.start + self.count - 1
        return f"programs {self.start} to {last} of seed {self.seed} on {self.spec}"


Task = DiffTask | FuzzTask


def text_of(task: Task) -> str:
    """The task as JSON text."""
    return json.dumps({"kind": type(task).__name__, **asdict(task)}, sort_keys=True)


def task_of(text: str) -> Task:
    """The task that a text describes.

    Raises:
        InvalidArgument: it describes none.
    """
    try:
        data = cast("dict[str, object]", json.loads(text))
        kind = data.pop("kind")
        if kind == "FuzzTask":
            return FuzzTask(**data)  # type: ignore[arg-type]  # JSON; the fields check
        shapes = cast("dict[str, list[int]]", data.pop("shapes"))
        keep = cast("list[str]", data.pop("keep"))
        return DiffTask(
            **data,  # type: ignore[arg-type]  # JSON; the fields check
            shapes={name: tuple(shape) for name, shape in shapes.items()},
            keep=tuple(keep),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument(f"this is no task of a campaign: {error!r}") from error


def _key(task: Task, *without: str) -> str:
    data = {n: v for n, v in asdict(task).items() if n not in without}
    text = json.dumps([type(task).__name__, data], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
