"""A pool on a Dask cluster: Dask carries tasks, watches workers and starts them anew.

The only module that imports Dask, on first use; it comes with the extra `campaign`.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tosavk.core.errors import InvalidArgument, Unsupported
from tosavk.differential.campaign.remote import describe, perform, version
from tosavk.differential.campaign.workers import Running, WorkerRecord, record_of

_CONNECT_S = 20
_DESCRIBES = 3
_STEP_S = 0.02


def dask_module(name: str = "distributed") -> Any:  # noqa: ANN401 - most has no types
    """A module of Dask.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unsupported(
            f"campaigns need Dask, which cannot be imported ({error}): "
            "pip install 'tosavk[campaign]'"
        ) from error


class DaskPool:
    """The workers of a Dask cluster.

    Args:
        client: connected to its scheduler.
    """

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - Dask has no types
        """Asks nothing yet."""
        self._client = client
        self._asking: dict[str, Any] = {}
        self._asked: dict[str, int] = {}
        self._known: dict[str, WorkerRecord] = {}

    def workers(self) -> Mapping[str, WorkerRecord]:
        """The workers that are there and have said what they are."""
        found: dict[str, WorkerRecord] = {}
        listed: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        for address, about in listed.items():
            if address not in self._known:
                self._ask(address, about)
            if address in self._known:
                found[address] = self._known[address]
        for address in [a for a in self._asking if a not in listed]:
            self._asking.pop(address).cancel()
        return found

    def submit(self, address: str, text: str, model: bytes | None) -> Running:
        """Starts a task on one worker, and on no other."""
        return _Task(self._submitted(address, perform, text, model))

    def wait(self, running: Iterable[Running], seconds: float) -> None:
        """Waits for one of the tasks."""
        futures = [item.future for item in running if isinstance(item, _Task)]
        futures += list(self._asking.values())
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(f.done() for f in futures):
            time.sleep(_STEP_S)

    def _submitted(self, address: str, function: Any, *words: Any) -> Any:  # noqa: ANN401 - Dask has no types
        return self._client.submit(
            function,
            *words,
            pure=False,
            workers=[address],
            allow_other_workers=False,
            retries=0,
        )

    def _ask(self, address: str, about: Mapping[str, Any]) -> None:
        """Asks a new worker what it has, or takes in its answer."""
        future = self._asking.get(address)
        if future is None:
            self._asking[address] = self._submitted(address, describe)
            return
        if not future.done():
            return
        del self._asking[address]
        name = str(about.get("name") or about.get("id") or address)
        try:
            text = str(future.result())
            self._known[address] = record_of(
                address, name, about.get("resources") or {}, text, version=version()
            )
        except Exception as error:  # noqa: BLE001 - one worker that cannot is no end
            self._asked[address] = self._asked.get(address, 0) + 1
            if self._asked[address] >= _DESCRIBES:
                reason = f"{type(error).__name__}: {error}"
                self._known[address] = WorkerRecord(
                    address, name, "", "", "", 0, (), (), reason
                )


class _Task:
    """A Dask future that is on its way."""

    def __init__(self, future: Any) -> None:  # noqa: ANN401 - Dask has no types
        self.future = future

    def done(self) -> bool:
        return bool(self.future.done())

    def result(self) -> bytes:
        return bytes(self.future.result())

    def cancel(self) -> None:
        self.future.cancel()


@contextmanager
def connected(scheduler: str) -> Generator[DaskPool]:
    """A pool on the scheduler at an address; `tls://` takes Dask's own configuration.

    Raises:
        Unsupported: Dask is not installed.
        InvalidArgument: nobody answers there.
    """
    distributed = dask_module()
    _check_address(scheduler)
    with _quiet():
        try:
            client = distributed.Client(
                scheduler, timeout=_CONNECT_S, set_as_default=False
            )
        except (OSError, ValueError, TimeoutError) as error:
            raise InvalidArgument(
                f"no Dask scheduler answers at {scheduler!r}: {error}"
            ) from error
        try:
            yield DaskPool(client)
        finally:
            client.close()


def _check_address(scheduler: str) -> None:
    """Refuses what no client can connect to: a client that fails so leaves a traceback.

    Raises:
        InvalidArgument: no address of a scheduler, or TLS without certificates.
    """
    try:
        dask_module("distributed.comm").get_address_host_port(scheduler)
        certificates = dask_module().Security().get_connection_args("client")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{scheduler!r} is no address of a Dask scheduler: {error}; give one such as "
            "tcp://host:8786 or tls://host:8786"
        ) from error
    if scheduler.startswith("tls:") and not certificates.get("ssl_context"):
        raise InvalidArgument(
            f"{scheduler!r} needs certificates: name them in Dask's configuration, "
            "distributed.comm.tls (docs/campaigns.md)"
        )


@contextmanager
def local(workers: Sequence[str]) -> Generator[DaskPool]:
    """A cluster on this machine, with a process for each worker.

    A worker that ends is started again. The cluster listens on the loopback only.

    Args:
        workers: one for each: a device, or several joined by commas; or "" for any.

    Raises:
        Unsupported: Dask is not installed.
    """
    distributed = dask_module()
    spec: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(workers):
        labels = [label for label in text.split(",") if label]
        spec[f"{number} {text}".strip()] = {
            "cls": distributed.Nanny,
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "host": "127.0.0.1",
                "dashboard": False,
                "silence_logs": logging.ERROR,
                "resources": dict.fromkeys(labels, 1),
            },
        }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {
            "host": "127.0.0.1",
            "port": 0,
            "dashboard": False,
            # Its HTTP server is there all the same; any port will do.
            "dashboard_address": "127.0.0.1:0",
        },
    }
    with (
        _quiet(),
        tempfile.TemporaryDirectory(
            prefix="tosavk-dask-", ignore_cleanup_errors=True
        ) as scratch,
        dask_module("dask").config.set({"temporary-directory": scratch}),
        distributed.SpecCluster(
            workers=spec, scheduler=scheduler, silence_logs=logging.ERROR
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield DaskPool(client)


@contextmanager
def _quiet() -> Generator[None]:
    """Models travel with tasks on purpose; no log lines between ours."""
    config = dask_module("dask").config
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            yield
    finally:
        logger.setLevel(level)
