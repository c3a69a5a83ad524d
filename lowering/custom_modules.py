"""Modules of users that give CUSTOM operators their meaning."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tosavk.core.errors import InvalidArgument
from tosavk.lowering.custom import CustomOperators, custom


def registry_of(name: str) -> CustomOperators:
    """Imports what is named, as `CustomOperators.load` says.

    Returns:
        The object's own registry, or without an object the one of this process.

    Raises:
        InvalidArgument: it cannot be imported, or registers nothing.
    """
    where, attribute = _parted(name)
    try:
        module = _of_file(Path(where)) if _is_file(where) else _of_name(where)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidArgument(f"cannot import {where!r}: {reason}") from error
    found: object = custom
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, CustomOperators):
            raise InvalidArgument(
                f"{where!r} has no registry {attribute!r}; make it by "
                f"{attribute} = tosavk.lowering.custom.CustomOperators()"
            )
    assert isinstance(found, CustomOperators)
    if not found.names:
        raise InvalidArgument(
            f"{name!r} registers no CUSTOM operator; decorate a function with "
            "@tosavk.custom.register(domain, name)"
        )
    return found


def _parted(name: str) -> tuple[str, str]:
    """Module or file, and object or ""."""
    if _is_file(name):
        return name, ""
    where, colon, attribute = name.rpartition(":")
    # A drive's letter is no module.
    return (where, attribute) if colon and attribute.isidentifier() else (name, "")


def _is_file(where: str) -> bool:
    return where.endswith(".py")


def _of_name(where: str) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        raise ModuleNotFoundError("it is no name of a module, and no file *.py")
    return importlib.import_module(where)


def _of_file(path: Path) -> ModuleType:
    """The module of a file, which is run once in a process."""
    whole = path.resolve()
    digest = hashlib.sha256(str(whole).encode("utf-8", "surrogateescape")).hexdigest()
    name = f"tosavk_custom_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
