"""A diff's result, read back from the JSON document of another machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import OperatorName
from tosavk.differential.result import (
    BackendRun,
    Comparison,
    DiffResult,
    Ending,
    Excerpt,
    Finding,
    FindingKind,
    InputOrigin,
    OperatorComparison,
    Share,
    Worst,
)

Data = Mapping[str, Any]


def result_of(document: object) -> DiffResult:
    """The result that `DiffResult.document` wrote.

    Raises:
        InvalidArgument: it is no such document.
    """
    try:
        data = cast("Data", document)
        if (data["format"], data["version"]) != ("tosavk.diff", 2):
            raise InvalidArgument(
                f"a result of format {data['format']!r}, version {data['version']!r}"
            )
        return DiffResult(
            model=str(data["model"]),
            model_sha256=str(data["model_sha256"]),
            numerics=str(data["numerics"]),
            inputs=tuple(map(_origin, data["inputs"])),
            runs=tuple(map(_run, data["runs"])),
            outputs=tuple(map(_comparison, data["outputs"])),
            operators=tuple(map(_operator, data["operators"])),
            findings=tuple(map(_finding, data["findings"])),
            notes=tuple(map(str, data["notes"])),
            samples=int(data["samples"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"a result is not sound: {error!r}") from error


def _run(data: Data) -> BackendRun:
    words: Any = {
        **data,
        "ending": Ending(data["ending"]),
        "traits": tuple(data["traits"]),
    }
    return BackendRun(**words)


def _comparison(data: Data) -> Comparison:
    worst, histogram, picture = data["worst"], data["histogram"], data["error_map"]
    words: Any = {
        **data,
        "shape": tuple(data["shape"]),
        "worst": None if worst is None else _worst(worst),
        "histogram": None if histogram is None else tuple(histogram),
        "error_map": None if picture is None else tuple(tuple(r) for r in picture),
        "samples": tuple(data["samples"]),
        "operands": tuple(map(_excerpt, data["operands"])),
    }
    return Comparison(**words)


def _worst(data: Data) -> Worst:
    words: Any = {**data, "index": tuple(data["index"])}
    return Worst(**words)


def _excerpt(data: Data) -> Excerpt:
    many = {name: tuple(data[name]) for name in ("start", "shape", "values", "bits")}
    words: Any = {**data, **many}
    return Excerpt(**words)


def _operator(data: Data) -> OperatorComparison:
    return OperatorComparison(
        operator=OperatorName(**data["operator"]),
        comparisons=tuple(map(_comparison, data["comparisons"])),
        shares=tuple(Share(**share) for share in data["shares"]),
    )


def _finding(data: Data) -> Finding:
    operator = data["operator"]
    words: Any = {
        **data,
        "kind": FindingKind(data["kind"]),
        "backends": tuple(data["backends"]),
        "operator": None if operator is None else OperatorName(**operator),
    }
    return Finding(**words)


def _origin(data: Data) -> InputOrigin:
    words: Any = {**data, "shape": tuple(data["shape"])}
    return InputOrigin(**words)
