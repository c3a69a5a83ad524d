"""The process in which programs are judged: `python -m tosavk.differential.fuzz.worker`.

It opens the backends, and answers what `RemoteBench` asks. Whatever it does, it says
first which backend is at work, so that it is known who ended or blocked it.
"""

from __future__ import annotations

import faulthandler
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.fuzz.bench import Bench
from tosavk.differential.fuzz.files import read_case, write_case, write_outputs
from tosavk.differential.fuzz.judge import Judge, Key, Kind
from tosavk.differential.process import Message, Progress, answering


class Worker:
    """What answers.

    Args:
        closing: gives the devices back in the end.
    """

    def __init__(self, closing: ExitStack) -> None:
        """Nothing is open yet."""
        self._closing = closing
        self._bench: Bench | None = None
        self._told: Progress = lambda _: None

    def answer(self, question: Message, progress: Progress) -> Message:
        """Answers a question.

        Raises:
            Error: it cannot be done.
        """
        self._told = progress
        match question["do"]:
            case "open":
                return self._open(question)
            case "judge":
                return self._judge(question)
            case "reduce":
                return self._reduce(question)
            case "examine":
                return self._examine(question)
            case "case":
                return self._case(question)
            case other:
                raise InvalidArgument(f"{other!r} is no question")

    def _watch(self, text: str) -> None:
        self._told(text)

    def _open(self, question: Message) -> Message:
        bench = Bench(
            _number(question, "seed"),
            cast("list[str]", question["backends"]),
            optional=bool(question["optional"]),
            numerics=Numerics(str(question["numerics"])),
            watch=self._watch,
            labels=cast("list[str]", question["labels"]),
            least=_number(question, "least"),
        )
        self._closing.callback(bench.close)
        self._bench = bench
        return {
            "labels": list(bench.labels),
            "specs": list(bench.specs),
            "devices": bench.devices,
            "missing": bench.missing,
        }

    def _judge(self, question: Message) -> Message:
        """Judges a program by its number, or a case from files."""
        assert self._bench is not None
        if question["folder"]:
            case = read_case(Path(str(question["folder"])))
            judged = self._bench.judge_case(
                case, validating=_kind(question) is Kind.VALIDATION
            )
        else:
            judged = self._bench.judge(_number(question, "index"))
        files: list[str] = []
        if question["keep"]:
            files = write_outputs(Path(str(question["keep"])), self._bench.outputs)
        return {**asdict(judged), "missing": self._bench.missing, "files": files}

    def _reduce(self, question: Message) -> Message:
        assert self._bench is not None
        words = cast("dict[str, str]", question["key"])
        key = Key(Kind(words["kind"]), words["op"], words["dtype"])
        found = self._bench.reduce(
            _number(question, "index"),
            key,
            _number(question, "budget"),
            self._watch,
            plain=bool(question["plain"]),
        )
        write_case(Path(str(question["folder"])), found.case, title=str(key), about={})
        return {"tried": found.tried}

    def _examine(self, question: Message) -> Message:
        """Judges a case from files, by the backends that are open."""
        assert self._bench is not None
        case = read_case(Path(str(question["folder"])))
        found = self._bench.examine(case, _kind(question))
        return {"findings": [asdict(finding) for finding in found]}

    def _case(self, question: Message) -> Message:
        """Judges a case from files, by backends that are opened for it."""
        case = read_case(Path(str(question["folder"])))
        backends = cast("list[str]", question["backends"])
        with Judge(
            backends,
            optional=True,
            numerics=Numerics(str(question["numerics"])),
            watch=self._watch,
            least=_number(question, "least"),
        ) as j:
            found = j.judge(case, validating=_kind(question) is Kind.VALIDATION)
            return {"keys": [str(finding.key) for finding in found.findings]}


def _kind(question: Message) -> Kind | None:
    name = str(question["kind"])
    return Kind(name) if name else None


def _number(question: Message, name: str) -> int:
    return int(str(question[name]))


def main() -> None:
    """Answers until there are no more questions."""
    faulthandler.enable()
    with ExitStack() as closing:
        answering(Worker(closing).answer)


if __name__ == "__main__":
    main()
