"""Single faults as data, and copies of the tree that have one of them.

The faults are in `mutation_faults.toml`. A copy has the layout of an installed package;
it lies in a temporary folder, and the working tree is never written to.
"""

import ast
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import build_shaders
import build_variants
from specialize_spirv import specialize

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutation_faults.toml")
ANY = "*"
"""Stands for the operator whose dispatch the fault changes."""

_FOLDERS = ("backends", "core", "differential", "lowering", "shaders")
_NEWER_TOOLS = ROOT / "build/newer/shader-tools/bin"
_JUDGES = {
    "lowering/lower.py": ("live_operators",),
    "lowering/folding.py": ("constant_value",),
    "lowering/builder.py": (),
    "lowering/control.py": ("called_region",),
    "lowering/hazards.py": (),
    "lowering/arena.py": (),
}
"""Files that faults may be in besides rules and kernels, with what the reference and the
check of plans use of them: that must stay as it is."""


class BadTable(Exception):
    """The table of faults does not fit the sources; the message says where."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the table; see its head for the fields."""

    id: str
    kind: str
    file: str
    find: str
    replace: str
    operators: tuple[str, ...]
    kernel: str = ""

    @property
    def where(self) -> str:
        """The part that it is in: glsl, wgsl, lower or plan."""
        return self.id.partition("-")[0]

    @property
    def digest(self) -> str:
        """Changes with anything that the table says of it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def line(self, source: str) -> int:
        """Number of the first line that it changes."""
        start = source.index(self.find)
        start += len(self.find) - len(self.find.lstrip("\n"))
        return source.count("\n", 0, start) + 1

    def mutated(self, source: str) -> str:
        """The file with the fault.

        Raises:
            BadTable: the text is not there exactly once, or the replacement is equal.
        """
        count = source.count(self.find)
        if count != 1:
            raise BadTable(
                f"{self.id}: its text is in {self.file} {count} times; bring "
                f"{TABLE.name} in line with the source"
            )
        if self.find == self.replace:
            raise BadTable(f"{self.id}: the replacement is the text itself")
        return source.replace(self.find, self.replace)


def read_faults(table: Path = TABLE) -> tuple[Fault, ...]:
    """The table.

    Raises:
        BadTable: an entry is incomplete, or two have one name.
    """
    document = tomllib.loads(table.read_text(encoding="utf-8"))
    found: dict[str, Fault] = {}
    for entry in document["fault"]:
        entry["operators"] = tuple(entry["operators"])
        try:
            fault = Fault(**entry)
        except TypeError as error:
            raise BadTable(f"{entry.get('id', entry)}: {error}") from error
        if fault.id in found:
            raise BadTable(f"{fault.id}: there are two of that name")
        found[fault.id] = fault
    return tuple(found.values())


def problems(faults: Sequence[Fault], root: Path = ROOT) -> list[str]:
    """What is wrong with the table, one line each."""
    found: list[str] = []
    for fault in faults:
        try:
            source = (root / fault.file).read_text(encoding="utf-8")
            changed = fault.mutated(source)
            if fault.file.endswith(".py"):
                _check_python(fault, source, changed)
        except (BadTable, OSError, SyntaxError) as error:
            found.append(str(error))
    return found


def _check_python(fault: Fault, source: str, changed: str) -> None:
    """What judges must not have the fault, and the file must still be Python."""
    before, after = _functions(source), _functions(changed)
    if fault.file.startswith("lowering/rules/"):
        return
    for name in _judges(fault):
        if before.get(name) != after.get(name):
            raise BadTable(f"{fault.id}: {name} is used by what judges")


def _judges(fault: Fault) -> tuple[str, ...]:
    if fault.file not in _JUDGES:
        raise BadTable(f"{fault.id}: {fault.file} is used by what judges")
    return _JUDGES[fault.file]


def _functions(source: str) -> dict[str, str]:
    return {
        node.name: ast.dump(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }


def shader_tools() -> build_shaders.Tools | None:
    """The GLSL compiler with what belongs to it, or None where there is none."""
    for folders in (os.environ.get("PATH", ""), str(_NEWER_TOOLS)):
        compiler = shutil.which("glslangValidator", path=folders)
        if compiler and shutil.which("spirv-opt", path=folders):
            validator = shutil.which("spirv-val", path=folders)
            return build_shaders.find_tools(compiler, validator)
    return None


class Tree:
    """A copy of the sources that takes one fault at a time.

    Args:
        folder: an empty folder; `sys.path` of a process that is to use the copy.
        tools: the GLSL compiler, needed for faults in GLSL only.
    """

    def __init__(self, folder: Path, tools: build_shaders.Tools | None) -> None:
        """Copies the sources."""
        self.folder = folder
        self._tools = tools
        self._turn = 0
        skip = shutil.ignore_patterns("__pycache__")
        package = folder / "tosavk"
        shutil.copytree(ROOT / "package", package, ignore=skip)
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, package / name, ignore=skip)

    @contextmanager
    def having(self, fault: Fault) -> Generator[None, None, None]:
        """The copy with a fault, which is taken out again in the end.

        Raises:
            BadTable: its text is not in the copy.
            build_shaders.BuildError: the kernel does not compile, or there is no
                compiler.
        """
        path = self._path(fault.file)
        source = path.read_text(encoding="utf-8")
        saved: dict[Path, bytes] = {path: path.read_bytes()}
        try:
            self._write(path, fault.mutated(source).encode())
            if fault.where == "glsl":
                for module, code in self._modules(fault).items():
                    saved[module] = module.read_bytes()
                    self._write(module, code)
            yield
        finally:
            for changed, data in saved.items():
                self._write(changed, data)

    def _path(self, file: str) -> Path:
        return self.folder / "tosavk" / file

    def _write(self, path: Path, data: bytes) -> None:
        """Writes a file; its time tells its bytecode apart from that of the others."""
        path.write_bytes(data)
        self._turn += 1
        stamp = path.stat().st_mtime + 10 * self._turn
        os.utime(path, (stamp, stamp))

    def _modules(self, fault: Fault) -> dict[Path, bytes]:
        """The modules of the one kernel, built again."""
        optimiser = self._optimiser()
        name = fault.kernel or Path(fault.file).stem
        source = self._path(f"shaders/glsl/{name}.comp")
        assert self._tools is not None
        general = build_shaders.compile_source(source, self._tools)
        built = {self._path(f"shaders/spirv/{name}.spv"): general}
        for module, (kernel, values) in build_variants.wanted().items():
            if kernel.name == name:
                path = self._path(f"shaders/spirv/{module}.spv")
                built[path] = specialize(general, values, optimiser)
        return built

    def _optimiser(self) -> str:
        if self._tools is None:
            raise build_shaders.BuildError(
                "glslangValidator and spirv-opt not found: install glslang-tools and "
                "spirv-tools, or run tools/newer_debian.py shader-tools"
            )
        beside = str(Path(self._tools.glslang).parent)
        found = shutil.which("spirv-opt", path=beside) or shutil.which("spirv-opt")
        assert found is not None
        return found
