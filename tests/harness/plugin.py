"""The pytest plugin of this repository: lanes, validation, expected failures."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import hypothesis
import pytest

from harness import devices, expectations, shared, validation

# The fixtures that stand for a device, and which lanes each runs on.
DEVICE_FIXTURES: dict[str, tuple[str, ...]] = {
    "device": ("vulkan", "wgpu", "reference"),
    "gpu_device": ("vulkan", "wgpu"),
    "vulkan_device": ("vulkan",),
    "wgpu_device": ("wgpu",),
}
DEVICE = pytest.StashKey[str]()
STATE = pytest.StashKey["State"]()

hypothesis.settings.register_profile(
    "tosavk", deadline=None, derandomize=True, print_blob=True
)


class State:
    """What the plugin keeps for a session."""

    def __init__(self, file: Path) -> None:
        """Reads the expected failures."""
        self.file = file
        self.expected = expectations.read(file)
        self.unmatched: list[expectations.Expectation] = []
        self.folder = TemporaryDirectory(prefix="tosavk-tests-")
        self.log = validation.Log(Path(self.folder.name) / "validation")


class ValidationError(AssertionError):
    """The validation layer said something during a test."""


def pytest_configure(config: pytest.Config) -> None:
    """Reads the expected failures before anything runs."""
    hypothesis.settings.load_profile("tosavk")
    try:
        state = State(config.rootpath / "tests" / "expected_failures.toml")
    except expectations.ExpectationError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[STATE] = state


# Lanes ------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test of a device for every lane."""
    for name, backends in DEVICE_FIXTURES.items():
        if name not in metafunc.fixturenames:
            continue
        specs = [s for s in devices.lanes() if s.partition(":")[0] in backends]
        metafunc.parametrize(name, specs, ids=specs, indirect=True, scope="session")


def checked_lane(request: pytest.FixtureRequest) -> str:
    """Returns the specification of a lane, whose device is there."""
    spec = str(request.param)
    lane = devices.lane(spec)
    if lane.missing:
        if spec in devices.required():
            pytest.fail(f"required device {spec}: {lane.missing}", pytrace=False)
        pytest.skip(f"{spec}: {lane.missing}")
    return spec


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The specification of a device, of every backend in turn."""
    return checked_lane(request)


@pytest.fixture(scope="session")
def gpu_device(request: pytest.FixtureRequest) -> str:
    """The specification of a device that runs plans: Vulkan's and wgpu's in turn."""
    return checked_lane(request)


@pytest.fixture(scope="session")
def vulkan_device(request: pytest.FixtureRequest) -> str:
    """The specification of a Vulkan device."""
    return checked_lane(request)


@pytest.fixture(scope="session")
def wgpu_device(request: pytest.FixtureRequest) -> str:
    """The specification of a wgpu device."""
    return checked_lane(request)


@pytest.fixture(scope="session")
def available_devices() -> tuple[str, ...]:
    """The specifications of all devices that are there; the required ones are."""
    for spec in devices.required():
        missing = devices.lane(spec).missing
        if missing:
            pytest.fail(f"required device {spec}: {missing}", pytrace=False)
    return devices.available()


@pytest.fixture
def accelerator(device: str) -> Iterator[Any]:
    """An open accelerator, on every device in turn, closed after the test."""
    import tosavk

    opening = cast("AbstractContextManager[Any]", vars(tosavk)["open"](device))
    with opening as opened:
        yield opened


# The corpus -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real models; the test is skipped where it is absent."""
    missing = shared.missing("models")
    if missing:
        pytest.skip(missing)
    return shared.shared_root() / "models"


@pytest.fixture(scope="session")
def shared_corpus() -> Path:
    """The folder of official tests; the test is skipped where it is absent."""
    missing = shared.missing("tosa", "corpus")
    if missing:
        pytest.skip(missing)
    return shared.shared_root() / "tosa" / "corpus"


# Validation -------------------------------------------------------------------------


@pytest.fixture
def layer_log(request: pytest.FixtureRequest) -> validation.Log:
    """What the layer says in processes that the test starts; what is taken is right."""
    return request.config.stash[STATE].log


def fail_on_messages(item: pytest.Item, phase: str) -> None:
    """Raises if the validation layer said something, here or in a process started."""
    messages = validation.take_messages() + item.config.stash[STATE].log.take()
    if messages:
        text = "\n\n".join(messages)
        raise ValidationError(f"{len(messages)} validation messages ({phase}):\n{text}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test whose fixtures made the layer speak."""
    result = yield
    fail_on_messages(item, "set-up")
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that made the layer speak."""
    result = yield
    fail_on_messages(item, "test")
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test whose cleaning up made the layer speak."""
    result = yield
    fail_on_messages(item, "clean-up")
    return result


# Expected failures ------------------------------------------------------------------


def device_of(item: pytest.Item) -> str:
    """Returns the lane that a test runs on, or the word for none."""
    callspec = getattr(item, "callspec", None)
    params: dict[str, object] = getattr(callspec, "params", {})
    for name in DEVICE_FIXTURES:
        if name in params:
            return str(params[name])
    return expectations.NO_DEVICE


def is_whole_run(config: pytest.Config) -> bool:
    """Whether the whole suite was asked for, and not a part of it."""
    options = config.option
    chosen = ("keyword", "markexpr", "deselect", "lf", "ignore", "ignore_glob")
    if any(getattr(options, name, None) for name in chosen):
        return False
    if devices.named("TOSAVK_TEST_DEVICES"):  # entries of other devices match nothing
        return False
    return config.args_source in (
        pytest.Config.ArgsSource.TESTPATHS,
        pytest.Config.ArgsSource.INVOCATION_DIR,
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Notes each test's device, and the entries that no test matches."""
    state = config.stash[STATE]
    for item in items:
        item.stash[DEVICE] = device_of(item)
    if not is_whole_run(config):
        return
    state.unmatched = [
        entry
        for entry in state.expected
        if not any(entry.names(item.nodeid, item.stash[DEVICE]) for item in items)
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns an expected failure into that, and an unexpected pass into a failure."""
    report = yield
    state = item.config.stash[STATE]
    spec = item.stash.get(DEVICE, expectations.NO_DEVICE)
    if not state.expected or call.when != "call" or report.skipped:
        return report
    driver = "" if spec == expectations.NO_DEVICE else devices.lane(spec).driver
    entries = [e for e in state.expected if e.applies(item.nodeid, spec, driver)]
    if not entries:
        return report
    if report.passed:
        report.outcome = "failed"
        report.longrepr = (
            f"[XPASS] expected to fail on {spec}: {entries[0].reason}\n"
            f"Remove the entry from {state.file.name} if this is now right."
        )
        return report
    message = f"{call.excinfo.exconly() if call.excinfo else ''}\n{report.longreprtext}"
    for entry in entries:
        if entry.explains(message):
            report.outcome = "skipped"
            report.wasxfail = entry.reason
            return report
    report.sections.append(
        (
            "Expected failure",
            f"expected to fail with another message: {entries[0].message!r}",
        )
    )
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run when an entry matched no test."""
    state = session.config.stash[STATE]
    if state.unmatched and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: "pytest.TerminalReporter", config: pytest.Config
) -> None:
    """Says which devices were used, which were missing, and which entries are dead."""
    if devices.records.cache_info().currsize:
        terminalreporter.section("devices")
        for spec in devices.lanes():
            lane = devices.lane(spec)
            what = f"MISSING: {lane.missing}" if lane.missing else lane.driver
            terminalreporter.write_line(f"{spec}: {what}")
        layer = validation.in_use()
        if layer:
            terminalreporter.write_line(f"validation: {layer}")
    state = config.stash[STATE]
    if state.unmatched:
        terminalreporter.section("expected failures that no test matches", red=True)
        for entry in state.unmatched:
            terminalreporter.write_line(str(entry), red=True)
