"""The journal of a run of the fuzzer: the same command goes on where it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

from tosavk.core.errors import InvalidArgument
from tosavk.differential.fuzz.bench import Judged
from tosavk.differential.fuzz.coverage import Point
from tosavk.differential.fuzz.finding import Key, Kind
from tosavk.differential.fuzz.record import Filed, Request, Result

JOURNAL = "journal.jsonl"

_CRASHES = 2


class Journal:
    """One line for what begins, ends and is found.

    Args:
        request: what is run.
        labels: the backends that take part.

    Attributes:
        crashed: a program that ended this process twice, or None.
    """

    def __init__(self, request: Request, labels: Sequence[str]) -> None:
        """Reads and writes nothing yet."""
        self._request = request
        self._head = {
            "seed": request.seed,
            "start": request.start,
            "backends": list(labels),
            "numerics": request.numerics.value,
        }
        self._path = None if request.folder is None else request.folder / JOURNAL
        self.crashed: int | None = None

    def resume(self, result: Result) -> int:
        """Reads what an earlier run left; the number of the next program.

        Raises:
            InvalidArgument: the folder is of another run.
        """
        first = self._request.start
        if self._path is None:
            return first
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._head)
            return first
        text = self._path.read_text("utf-8")
        if not text.endswith("\n"):
            with self._path.open("a", encoding="utf-8") as journal:
                journal.write("\n")
        begun: Counter[int] = Counter()
        for number, line in enumerate(text.splitlines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that an interruption cut
            if number == 0:
                if entry != self._head:
                    raise InvalidArgument(
                        f"{self._path.parent} holds another run ({entry}); give the "
                        "same seed and backends, or another folder"
                    )
            elif "begin" in entry:
                begun[entry["begin"]] += 1
            elif "end" in entry:
                del begun[entry["end"]]
                result.done += 1
                first = max(first, entry["end"] + 1)
                for words in entry.get("new", ()):
                    result.coverage.points.setdefault(Point(*words), entry["end"])
                result.exceptions += entry.get("exceptions", 0)
                result.unpredictable += entry.get("open", 0)
                result.validated += entry.get("validated", 0)
                if "left_out" in entry:
                    result.left_out[entry["end"]] = entry["left_out"]
            elif "finding" in entry:
                self._recall(result, entry["finding"])
        # Once it may have been anybody who ended the process. One that judges apart is
        # ended by people only.
        for index, times in begun.items():
            if times >= _CRASHES and not self._request.apart:
                self.crashed = index
                first = max(first, index + 1)
        return first

    def begin(self, index: int) -> None:
        """Notes that a program is being judged."""
        self._write({"begin": index})

    def end(self, index: int, judged: Judged, fresh: Sequence[Point]) -> None:
        """Notes what was said of it; `fresh` is what no program covered before."""
        entry: dict[str, object] = {"end": index}
        numbers: dict[str, object] = {
            "exceptions": judged.exceptions,
            "open": judged.unpredictable,
            "validated": int(judged.validated),
            "left_out": judged.left_out,
        }
        entry |= {name: number for name, number in numbers.items() if number}
        if fresh:
            entry["new"] = [
                [point.operator, point.dtype, point.rule, point.kernels]
                for point in fresh
            ]
        self._write(entry)

    def finding(self, filed: Filed) -> None:
        """Notes a finding, or that one has another program."""
        self._write({"finding": asdict(filed)})

    def _recall(self, result: Result, data: dict[str, object]) -> None:
        words = cast("dict[str, str]", data["key"])
        key = Key(Kind(words["kind"]), words["op"], words["dtype"])
        backends, graphs = data["backends"], data["graphs"]
        result.findings[key] = Filed(
            key=key,
            text=str(data["text"]),
            backends=tuple(cast("list[str]", backends)),
            seed=int(cast("int", data["seed"])),
            graphs=list(cast("list[int]", graphs)),
            operators=int(cast("int", data["operators"])),
            elements=int(cast("int", data["elements"])),
            tried=int(cast("int", data["tried"])),
            folder=str(data["folder"]),
        )

    def _write(self, entry: Mapping[str, object]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry) + "\n")
