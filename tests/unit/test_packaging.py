"""The mapping of folders to names, the package list, the links and the wheel agree."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tosavk

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
DATA = {".spv", ".wgsl", ".typed", ".html", ".css", ".js", ".json", ".jinja"}


def source_files() -> dict[str, Path]:
    """Returns every module and data file, by its place in the wheel."""
    return {
        "/".join((*name.split("."), *path.relative_to(ROOT / folder).parts)): path
        for name, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and (path.suffix == ".py" or is_data(path))
    }


def is_data(path: Path) -> bool:
    return path.suffix in DATA or path.name.endswith(".typed") or path.suffix == ".j2"


def test_there_is_one_version() -> None:
    assert tosavk.__version__ == PROJECT["project"]["version"]


def test_every_package_is_listed() -> None:
    found = {
        ".".join((name, *init.parent.relative_to(ROOT / folder).parts))
        for name, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(SETUPTOOLS["packages"]), "bring pyproject.toml in line"


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {
        path.parent.relative_to(ROOT)
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert not bare


def test_typings_has_the_shape_of_the_package() -> None:
    farm = ROOT / "typings" / "tosavk"
    wanted = {
        name.removeprefix("tosavk."): ROOT / folder
        for name, folder in FOLDERS.items()
        if name != "tosavk"
    }
    wanted |= {
        entry.name: entry
        for entry in (ROOT / FOLDERS["tosavk"]).iterdir()
        if entry.name != "__pycache__"
    }
    found = [link for link in farm.iterdir() if link.name != "__pycache__"]
    assert {link.name: link.resolve() for link in found} == wanted, "run: make links"
    assert all(link.is_symlink() for link in found)


def test_the_type_checkers_see_every_code_folder() -> None:
    others = {"tests", "tools", "benchmarks", "examples"}
    others = {folder for folder in others if (ROOT / folder).is_dir()}
    assert set(PROJECT["tool"]["mypy"]["files"]) == {"typings/tosavk", *others}
    include = PROJECT["tool"]["pyright"]["include"]
    assert set(include) == {*FOLDERS.values(), *others}


def test_the_folder_names_are_banned_as_imports() -> None:
    tidy = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
    assert set(FOLDERS.values()) <= set(tidy["banned-api"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy, so that nothing is left in the check-out."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-build-isolation"]
    command += ["--wheel-dir", str(target), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("tosavk/")}
    assert held == set(source_files())


def test_the_wheel_works_without_the_check_out(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = """
        import importlib, sys
        from importlib import resources
        from pathlib import Path

        site = Path(sys.argv[1])
        sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f)]
        sys.path.insert(0, str(site))
        for name in sys.argv[2:]:
            module = importlib.import_module(name)
            assert Path(module.__file__).is_relative_to(site), module.__file__
        shaders = resources.files("tosavk.shaders")
        for kernel in [*site.rglob("*.spv"), *site.rglob("*.wgsl")]:
            parts = kernel.relative_to(site / "tosavk" / "shaders").parts
            assert shaders.joinpath(*parts).read_bytes(), kernel
    """
    lines = [line[8:] for line in code.strip("\n").splitlines()]
    command = [sys.executable, "-I", "-c", "\n".join(lines), str(tmp_path / "site")]
    command += SETUPTOOLS["packages"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
