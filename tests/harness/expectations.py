"""Expected failures as data: tests/expected_failures.toml.

Each entry names a test, a device and a reason, and may name a driver and a part of
the message:

    [[failure]]
    test = "tests/ops/test_reduce.py::test_sum*"
    device = "vulkan:llvmpipe"
    driver = "*Mesa 22.*"
    message = "sign of zero"
    reason = "lavapipe drops the sign of a zero sum (docs/known-issues.md)"

`test`, `device` and `driver` are shell patterns (`[` stands for itself); the device
"none" is a test that takes no device. A failure that an entry matches is reported as
expected. A test that an entry matches and that passes is a failure, and so is an
entry that no collected test matches in a run of the whole suite.
"""

import fnmatch
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

NO_DEVICE = "none"
REQUIRED = frozenset({"test", "device", "reason"})
OPTIONAL = frozenset({"driver", "message"})


class ExpectationError(ValueError):
    """The file of expected failures is wrong."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expected failure."""

    test: str
    device: str
    reason: str
    driver: str = "*"
    message: str = ""

    def names(self, nodeid: str, device: str) -> bool:
        """Whether this is about a test on a device, whatever its driver is."""
        return like(nodeid, self.test) and like(device, self.device)

    def applies(self, nodeid: str, device: str, driver: str) -> bool:
        """Whether a test is expected to fail on a device with a driver."""
        return self.names(nodeid, device) and like(driver, self.driver)

    def explains(self, message: str) -> bool:
        """Whether a failure with this message is the expected one."""
        return self.message in message


def like(text: str, pattern: str) -> bool:
    """Whether a text is like a shell pattern; brackets stand for themselves."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def read(path: Path) -> tuple[Expectation, ...]:
    """Reads the file of expected failures, or nothing where there is none."""
    if not path.exists():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ExpectationError(f"{path}: {error}") from error
    entries = document.pop("failure", [])
    if document or not isinstance(entries, list):
        raise ExpectationError(f"{path}: only [[failure]] tables belong here")
    listed = cast("list[object]", entries)
    return tuple(parse(path, index, entry) for index, entry in enumerate(listed))


def parse(path: Path, index: int, entry: object) -> Expectation:
    """Checks one entry."""
    where = f"{path}: failure {index}"
    if not isinstance(entry, dict):
        raise ExpectationError(f"{where}: not a table")
    values: dict[str, str] = {}
    for key, value in cast("dict[str, object]", entry).items():
        if key not in REQUIRED | OPTIONAL:
            raise ExpectationError(f"{where}: unknown key {key}")
        if not isinstance(value, str) or not value.strip():
            raise ExpectationError(f"{where}: {key} is no text")
        values[key] = value
    lacking = sorted(REQUIRED - values.keys())
    if lacking:
        raise ExpectationError(f"{where}: {lacking[0]} is lacking")
    return Expectation(**values)
