"""The test support itself: a harness that passes everything proves nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from harness import devices, expectations, shared, validation, values

CONFTEST = 'pytest_plugins = ["harness.plugin"]'
CONFIG = f"""
[pytest]
testpaths = tests
pythonpath = {Path(__file__).resolve().parents[1]}
addopts = --import-mode=importlib -p no:cacheprovider
"""
FAKE_TOSAVK = """
import sys, types

class Device:
    def __init__(self, backend, name, usable=True, reason=""):
        self.backend, self.name, self.usable, self.reason = backend, name, usable, reason
        self.spec = f"{backend}:{name}"

tosavk = types.ModuleType("tosavk")
tosavk.devices = lambda: [
    Device("vulkan", "llvmpipe 1.2"),
    Device("vulkan", "SwiftShader", False, "too old"),
    Device("reference", "reference"),
]
sys.modules["tosavk"] = tosavk
validation = types.ModuleType("tosavk.backends.vulkan.validation")
validation.said = []
def validation_messages():
    said, validation.said = validation.said, []
    return said
validation.validation_messages = validation_messages
sys.modules["tosavk.backends.vulkan.validation"] = validation
"""


@dataclass
class Project:
    """A small project that uses the plugin, with a tosavk that is not ours."""

    pytester: pytest.Pytester

    def run(self, test: str, *arguments: str, expected: str = "") -> pytest.RunResult:
        self.pytester.makefile(".ini", pytest=CONFIG)
        tests = self.pytester.mkdir("tests")
        (tests / "conftest.py").write_text(FAKE_TOSAVK + CONFTEST, encoding="utf-8")
        (tests / "test_it.py").write_text(test, encoding="utf-8")
        if expected:
            file = tests / "expected_failures.toml"
            file.write_text(expected, encoding="utf-8")
        return self.pytester.runpytest_subprocess(*arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for variable in ("TOSAVK_REQUIRE_DEVICES", "TOSAVK_TEST_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return Project(pytester)


ON_VULKAN = "def test_it(vulkan_device):\n    assert False, 'wrong sum'\n"
PASSES = "def test_it(vulkan_device):\n    pass\n"


def test_a_missing_device_is_skipped_with_its_reason(project: Project) -> None:
    result = project.run(PASSES)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*vulkan:SwiftShader: MISSING: too old*"])


def test_a_missing_device_that_is_required_fails(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSAVK_REQUIRE_DEVICES", "1")
    result = project.run(PASSES)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*required device vulkan:SwiftShader: too old*"])


def test_only_the_devices_that_are_named_are_required(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSAVK_REQUIRE_DEVICES", "vulkan:llvmpipe")
    project.run(PASSES).assert_outcomes(passed=1, skipped=1)


def test_a_required_device_gets_a_lane_of_its_own(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSAVK_REQUIRE_DEVICES", "vulkan:RADV")
    project.run(PASSES).assert_outcomes(passed=1, skipped=1, errors=1)


def test_a_message_in_another_process_fails_the_test(project: Project) -> None:
    said = json.dumps([1, "VUID-2", "it is wrong"]) + "\n"
    code = f"import os; open(os.environ['TOSAVK_VALIDATION_LOG'], 'a').write({said!r})"
    test = f"""
import subprocess, sys

def test_it():
    for _ in range(2):
        subprocess.run([sys.executable, "-c", {code!r}], check=True)

def test_other():
    pass
"""
    result = project.run(test)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*2 validation messages (test):*", "*VUID-2: it is w*"]
    )


@pytest.mark.parametrize("where", ["set-up", "test", "clean-up"])
def test_a_validation_message_fails_the_test(project: Project, where: str) -> None:
    lines: dict[str, str] = dict.fromkeys(("set-up", "test", "clean-up"), "pass")
    lines[where] = "validation.said.append('VUID-1')"
    test = f"""
import sys, pytest
validation = sys.modules["tosavk.backends.vulkan.validation"]

@pytest.fixture
def speaker():
    {lines["set-up"]}
    yield
    {lines["clean-up"]}

def test_it(speaker):
    {lines["test"]}

def test_next():
    pass
"""
    result = project.run(test)
    failed = 1 if where == "test" else 0
    passed = 2 if where == "clean-up" else 1
    result.assert_outcomes(passed=passed, failed=failed, errors=1 - failed)
    result.stdout.fnmatch_lines([f"*1 validation messages ({where}):*", "*VUID-1*"])


ENTRY = """
[[failure]]
test = "tests/test_it.py::test_it*"
device = "vulkan:llvmpipe"
driver = "llvmpipe 1.*"
message = "{message}"
reason = "known"
"""


def test_an_expected_failure_is_reported_as_such(project: Project) -> None:
    result = project.run(ON_VULKAN, expected=ENTRY.format(message="wrong sum"))
    result.assert_outcomes(xfailed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_failure_with_another_message_fails(project: Project) -> None:
    result = project.run(ON_VULKAN, expected=ENTRY.format(message="lost device"))
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*another message: 'lost device'*"])


def test_an_unexpected_pass_fails(project: Project) -> None:
    result = project.run(PASSES, expected=ENTRY.format(message="wrong sum"))
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*XPASS*expected to fail on vulkan:llvmpipe: known*"])


def test_an_entry_for_another_driver_changes_nothing(project: Project) -> None:
    entry = ENTRY.format(message="wrong sum").replace("pipe 1.*", "pipe 9.*")
    project.run(ON_VULKAN, expected=entry).assert_outcomes(failed=1, skipped=1)


def test_an_entry_that_no_test_matches_fails_a_whole_run(project: Project) -> None:
    entry = ENTRY.format(message="wrong").replace("test_it.py", "test_gone.py")
    result = project.run(PASSES, expected=entry)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*expected failures that no test matches*"])
    part = project.pytester.runpytest_subprocess("tests/test_it.py")
    assert part.ret == pytest.ExitCode.OK


def test_a_run_on_chosen_devices_is_no_whole_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSAVK_TEST_DEVICES", "vulkan:llvmpipe")
    entry = ENTRY.format(message="wrong").replace("vulkan:llvmpipe", "vulkan:other")
    result = project.run(PASSES, expected=entry)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "only .*failure"),
        ("[[failure]]\ntest = 'a'\nreason = 'b'", "device is lacking"),
        ("[[failure]]\ntest = 'a'\ndevice = 'b'\nreason = ''", "reason is no text"),
        ("[[failure]]\nwhy = 'a'", "unknown key why"),
        ("[[failure", "expected_failures.toml: "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "expected_failures.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(expectations.ExpectationError, match=message):
        expectations.read(file)


def test_brackets_of_a_pattern_stand_for_themselves() -> None:
    assert expectations.like("test_it[vulkan:llvmpipe-1]", "test_it[vulkan:*]")
    assert not expectations.like("test_itv", "test_it[vulkan]")


def test_a_missing_corpus_says_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOSAVK_SHARED", str(tmp_path / "none"))
    assert str(tmp_path / "none" / "models") in shared.missing("models")
    assert shared.conformance_tests() == []


def test_no_messages_where_the_backend_was_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "MODULE", "tosavk.not_imported")
    assert validation.take_messages() == []


def test_a_lane_is_known_by_backend_and_name() -> None:
    @dataclass
    class Record:
        backend: str
        name: str
        spec: str
        usable: bool = True
        reason: str = ""

    record = Record("vulkan", "llvmpipe (LLVM 15)", "vulkan:0")
    assert devices.matches(record, "vulkan:llvmpipe")
    assert devices.matches(record, "vulkan:0")
    assert not devices.matches(record, "wgpu:llvmpipe")


@pytest.mark.parametrize(
    "dtype",
    [
        np.bool_,
        np.int8,
        np.int32,
        np.float16,
        np.float32,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    ],
)
def test_random_arrays_repeat_and_hold_edge_values(dtype: type[np.generic]) -> None:
    first = values.random_array((13, 7), dtype, edges=True)
    again = values.random_array((13, 7), dtype, edges=True)
    assert first.dtype == np.dtype(dtype)
    assert first.tobytes() == again.tobytes()
    held = {value.tobytes() for value in first.reshape(-1)}
    assert {value.tobytes() for value in values.edge_values(dtype)} <= held
