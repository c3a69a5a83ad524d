"""One diff as data: a job that another process or machine can do, and its result.

from tosavk.differential.job import run_job
document = run_job({"model": "m.tosa", "backends": ["vulkan", "reference"]})
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tosavk.backends.session import parse_numerics
from tosavk.core.errors import InvalidArgument
from tosavk.differential.arrays import map_file
from tosavk.differential.childside import Children
from tosavk.differential.diff import DiffRequest, Progress, diff
from tosavk.differential.generators import Generator
from tosavk.differential.process import DEFAULT_LIMIT_S
from tosavk.lowering.custom import custom
from tosavk.lowering.graph import Graph
from tosavk.lowering.program import load_graph

_KEYS = frozenset(
    {
        "model",
        "backends",
        "shapes",
        "seed",
        "samples",
        "generator",
        "numerics",
        "node_by_node",
        "optional",
        "repeats",
        "limit_s",
        "custom",
    }
)


def run_job(
    job: Mapping[str, object], progress: Progress = lambda _: None
) -> dict[str, object]:
    """Runs a diff that is described by JSON data.

    Args:
        job: `model` (a path) and `backends`; optional `shapes` (name to list), `seed`,
            `samples`, `generator`, `numerics`, `node_by_node`, `optional`, `repeats`
            and `limit_s`, as in `DiffRequest` and `Children`; `custom`, a list of what
            `tosavk.custom.load` is to import.
        progress: told what is under way.

    Returns:
        The document of docs/json.md, `tosavk.diff`.

    Raises:
        InvalidArgument: the job or its model is wrong.
        DeviceUnavailable: a backend specification names no device, or several.
    """
    return diff(request_of(job), progress).document()


def request_of(job: Mapping[str, object]) -> DiffRequest:
    """The request that a job describes; raises as `run_job`."""
    unknown = sorted(set(job) - _KEYS)
    if unknown:
        raise InvalidArgument(
            f"{', '.join(map(repr, unknown))}: a job has {', '.join(sorted(_KEYS))}"
        )
    try:
        model = str(job["model"])
        shapes = {
            name: tuple(map(int, shape))
            for name, shape in cast(
                "dict[str, list[int]]", job.get("shapes", {})
            ).items()
        }
        for name in cast("list[str]", job.get("custom", [])):
            custom.load(str(name))
        graph, digest = read_program(model, shapes)
        return DiffRequest(
            graph=graph,
            model=model,
            source=model,
            shapes=shapes,
            model_sha256=digest,
            backends=tuple(map(str, cast("list[str]", job["backends"]))),
            optional=bool(job.get("optional", False)),
            seed=int(str(job.get("seed", 0))),
            samples=int(str(job.get("samples", 1))),
            generator=Generator(str(job.get("generator", "auto"))),
            numerics=parse_numerics(str(job.get("numerics", "strict"))),
            node_by_node=bool(job.get("node_by_node", False)),
            repeats=int(str(job.get("repeats", 0))),
            children=Children(limit_s=float(str(job.get("limit_s", DEFAULT_LIMIT_S)))),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the job is not sound: {error!r}") from error


def read_program(
    model: str, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Graph, str]:
    """A program whose constants stay in its file, and the SHA-256 of that.

    Raises:
        InvalidArgument: the file cannot be read, or is no sound program.
    """
    try:
        data = map_file(Path(model))
    except OSError as error:
        raise InvalidArgument(
            f"cannot read model {model!r}: {error.strerror or error}"
        ) from error
    return load_graph(data, shapes=shapes), hashlib.sha256(data).hexdigest()
