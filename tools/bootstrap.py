#!/usr/bin/env python3
"""Prepares a fresh check-out: Python environment and graphics drivers.

`make` calls this before each of its commands. When all is there it says nothing and
takes a fraction of a second, needs no network and no root. What is missing it installs
and says so: Python packages into `.venv/`, system packages by apt (as root or by sudo).

    bootstrap.py python            the environment in .venv/
    bootstrap.py drivers           loader, lavapipe, validation layer, SwiftShader
    bootstrap.py python drivers    both

SwiftShader comes with Debian's `chromium`, which also draws reports for the tests. No
package registers it as a Vulkan driver, so a manifest of our own is written into
`build/drivers/`; `driver_env.py` shows it to the Vulkan loader. The same is done for
the validation layer that comes with it (`validation_layer.py`).

Only the standard library is used: this runs before anything is installed.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import validation_layer

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "tosavk-stamp"
DRIVERS = ROOT / "build" / "drivers"
SWIFTSHADER_MANIFEST = DRIVERS / "swiftshader_icd.json"
SWIFTSHADER_LIBRARY = "libvk_swiftshader.so"
MINIMUM = (3, 11)
EXTRAS = "test,dev"


def say(text: str) -> None:
    """Prints one line of progress, at once also when the output is a pipe."""
    print(f"[setup] {text}", flush=True)


class SetupError(Exception):
    """The set-up cannot go on; the message says what a person can do."""


# Python -----------------------------------------------------------------------------


def venv_python(venv: Path) -> Path:
    """Returns the interpreter of a virtual environment."""
    if os.name == "nt":
        return venv / "Scripts" / "python.exe"
    return venv / "bin" / "python"


def environment_key() -> str:
    """Returns a digest of everything that the environment was made from."""
    digest = hashlib.sha256()
    digest.update((ROOT / "pyproject.toml").read_bytes())
    digest.update(repr((str(ROOT), sys.version_info[:2], EXTRAS)).encode())
    return digest.hexdigest()


def venv_package() -> str | None:
    """Returns the Debian package that is lacking for virtual environments."""
    if importlib.util.find_spec("ensurepip") is not None:
        return None
    # Debian keeps ensurepip in a package of its own, one for each version.
    return f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


def make_venv(venv: Path) -> None:
    """Creates a virtual environment with pip, by what the machine has for that."""
    package = venv_package()
    if package is not None:
        failure = Apt().install("Python's venv module", [package])
        if failure is not None:
            raise SetupError(failure)
    say(f"creating {venv.relative_to(ROOT)}/ with Python {sys.version.split()[0]}")
    # A new process: this one may have looked for ensurepip before it was installed.
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=False)
    if made.returncode != 0:
        raise SetupError(f"'{sys.executable} -m venv {venv}' failed; see above")


def pip_install(venv: Path, *arguments: str) -> None:
    """Runs `pip install` in an environment."""
    command = [str(venv_python(venv)), "-m", "pip", "install", "--quiet", "--quiet"]
    command += ["--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise SetupError(
            "pip could not install the packages named above; see its message. "
            "It needs a Python package index that can be reached."
        )


def setup_python() -> None:
    """Brings `.venv/` in line with pyproject.toml."""
    key = environment_key()
    present = venv_python(VENV).exists()
    if present and STAMP.exists() and STAMP.read_text(encoding="utf-8") == key:
        return
    if not present or not usable(VENV):
        make_venv(VENV)
    STAMP.unlink(missing_ok=True)
    say(f"installing tosavk[{EXTRAS}] and what it needs into .venv/ (a minute or two)")
    pip_install(VENV, "--editable", f".[{EXTRAS}]")
    STAMP.write_text(key, encoding="utf-8")
    say("the Python environment is ready")


def usable(venv: Path) -> bool:
    """Whether an environment has a pip and the version of this interpreter."""
    code = "import pip, sys; print(sys.version_info[:2])"
    command = [str(venv_python(venv)), "-c", code]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    return answer.stdout.strip() == repr(sys.version_info[:2])


# System packages --------------------------------------------------------------------


def needs_root(packages: list[str]) -> str:
    """Says what an administrator has to do, once."""
    return (
        "system packages are missing, and this user cannot install them. Once, as "
        f"root: apt-get install --no-install-recommends {' '.join(packages)}"
    )


class Apt:
    """Installs Debian packages, when this machine and this user can."""

    updated = False

    def install(self, purpose: str, packages: list[str]) -> str | None:
        """Installs packages.

        Args:
            purpose: What they are for, for the messages.
            packages: Their names.

        Returns:
            Why it could not be done, or None.
        """
        names = " ".join(packages)
        if shutil.which("apt-get") is None:
            return (
                f"{purpose}: this is no Debian or Ubuntu system. Install what its "
                f"packages '{names}' hold by your system's own means."
            )
        prefix = self.prefix()
        if prefix is None:
            return f"{purpose}: {needs_root(packages)}"
        say(f"{purpose}: installing {names} by apt-get")
        environment = [
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "DEBCONF_NOWARNINGS=yes",
        ]
        apt = [*prefix, *environment, "apt-get", "--quiet=2"]
        apt += ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
        quiet = subprocess.DEVNULL
        if not Apt.updated:
            Apt.updated = True
            say("refreshing apt's package lists")
            subprocess.run([*apt, "update"], check=False, stdout=quiet)
        command = [*apt, "install", "--yes", "--no-install-recommends", *packages]
        if subprocess.run(command, check=False, stdout=quiet).returncode != 0:
            return f"{purpose}: apt-get could not install {names}; see its message"
        return None

    @staticmethod
    def prefix() -> list[str] | None:
        """Returns what makes a command run as root, or None if nothing does."""
        if os.name == "posix" and os.geteuid() == 0:
            return []
        if shutil.which("sudo") is None:
            return None
        if sys.stdin.isatty():
            return ["sudo"]
        # Nobody is there to type a password.
        test = ["sudo", "--non-interactive", "true"]
        allowed = subprocess.run(test, check=False, capture_output=True)
        return test[:2] if allowed.returncode == 0 else None


# Drivers ----------------------------------------------------------------------------


def data_folders() -> list[Path]:
    """Returns the folders in which the Vulkan loader looks for manifests."""
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    own = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    roots = [own, "/etc", *shared.split(":"), "/usr/local/share", "/usr/share"]
    return [Path(root).expanduser() / "vulkan" for root in roots]


def find_loader() -> bool:
    """Whether the Vulkan loader can be opened."""
    names = ["libvulkan.so.1", "libvulkan.so"]
    if sys.platform == "darwin":
        names = ["libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"]
    elif os.name == "nt":
        names = ["vulkan-1.dll"]
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def find_lavapipe() -> bool:
    """Whether Mesa's CPU driver is registered, or named by the environment."""
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        if "lvp_icd" in os.environ.get(variable, ""):
            return True
    return any(any(d.glob("icd.d/lvp_icd*.json")) for d in data_folders())


def layer_folders() -> list[Path]:
    """Returns the folders in which the Vulkan loader looks for explicit layers."""
    return [folder / "explicit_layer.d" for folder in data_folders()]


def find_validation_layer() -> bool:
    """Whether the Khronos validation layer is registered, or came with Chromium."""
    own = os.environ.get("VK_LAYER_PATH", "")
    folders = [Path(path) for path in own.split(os.pathsep) if path]
    write_layer_manifest()
    folders += [*layer_folders(), validation_layer.LAYERS]
    return any((f / validation_layer.MANIFEST.name).exists() for f in folders)


def write_layer_manifest() -> None:
    """Writes the manifest of the validation layer that lies beside SwiftShader."""
    driver = find_swiftshader()
    library = driver.with_name(validation_layer.LIBRARY) if driver else None
    if library is not None and not library.is_file():
        library = None
    layer = validation_layer.write_manifest(library)
    if layer is not None:
        version = ".".join(map(str, layer.version))
        where = validation_layer.MANIFEST.relative_to(ROOT)
        say(f"Chromium's validation layer is {version}; its manifest is {where}")


def find_swiftshader() -> Path | None:
    """Returns SwiftShader's library: named by the environment, or from a browser."""
    named = os.environ.get("TOSAVK_SWIFTSHADER")
    if named:
        return Path(named).resolve() if Path(named).is_file() else None
    folders: list[Path] = []
    for name in (
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ):
        program = shutil.which(name)
        if program is not None:
            folders.append(Path(program).resolve().parent)
    for root in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
        folders += sorted(Path(root).glob("chromium*"))
    folders += sorted(Path("/opt").glob("*/*"))
    for folder in folders:
        if (folder / SWIFTSHADER_LIBRARY).is_file():
            return folder / SWIFTSHADER_LIBRARY
    return None


def write_swiftshader_manifest() -> bool:
    """Writes the manifest that makes a found SwiftShader a Vulkan driver."""
    library = find_swiftshader()
    if library is None:
        SWIFTSHADER_MANIFEST.unlink(missing_ok=True)
        return False
    driver = {"library_path": str(library), "api_version": "1.3.0"}
    manifest = {"file_format_version": "1.0.0", "ICD": driver}
    text = json.dumps(manifest, indent=2) + "\n"
    if not (
        SWIFTSHADER_MANIFEST.exists()
        and SWIFTSHADER_MANIFEST.read_text(encoding="utf-8") == text
    ):
        DRIVERS.mkdir(parents=True, exist_ok=True)
        SWIFTSHADER_MANIFEST.write_text(text, encoding="utf-8")
        where = SWIFTSHADER_MANIFEST.relative_to(ROOT)
        say(f"SwiftShader is {library}; its manifest is {where}")
    return True


@dataclass
class Part:
    """One thing that the tests and the demo need from the system."""

    name: str
    package: str
    group: str
    found: bool
    loss: str


@dataclass
class Group:
    """Parts that are installed together, so that one failure costs only its group."""

    purpose: str
    missing: list[Part] = field(default_factory=list[Part])


def look_for_parts() -> list[Part]:
    """Looks for every part, anew."""
    cpu = "Vulkan and lavapipe"
    browser = "SwiftShader and the headless browser"
    without_lavapipe = "no test and no demo on vulkan:llvmpipe and wgpu:llvmpipe"
    without_layer = "tests on Vulkan need it, or TOSAVK_VALIDATION=0 to do without"
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    return [
        Part("Vulkan loader", "libvulkan1", cpu, find_loader(), "no Vulkan at all"),
        Part("lavapipe", "mesa-vulkan-drivers", cpu, find_lavapipe(), without_lavapipe),
        Part(
            "validation layer",
            "vulkan-validationlayers",
            cpu,
            find_validation_layer(),
            without_layer,
        ),
        Part(
            "SwiftShader",
            "chromium",
            browser,
            write_swiftshader_manifest(),
            "no test and no demo on vulkan:SwiftShader",
        ),
        Part(
            "headless browser",
            "chromium",
            browser,
            (chromium or shutil.which("google-chrome")) is not None,
            "the HTML report is not looked at by the tests",
        ),
    ]


def setup_drivers() -> None:
    """Installs what is missing, group by group, and says what stays missing."""
    parts = look_for_parts()
    groups: dict[str, Group] = {}
    for part in parts:
        if not part.found:
            groups.setdefault(part.group, Group(part.group)).missing.append(part)
    if not groups:
        return
    failures: list[str] = []
    if shutil.which("apt-get") is not None and Apt.prefix() is None:
        missing = (part.package for group in groups.values() for part in group.missing)
        failures.append(needs_root(sorted(set(missing))))
        groups.clear()
    for group in groups.values():
        packages = sorted({part.package for part in group.missing})
        failure = Apt().install(group.purpose, packages)
        if failure is not None:
            failures.append(failure)
    parts = look_for_parts()
    lost = [part for part in parts if not part.found]
    if not lost:
        say("the drivers are ready")
        return
    for part in parts:
        state = "there" if part.found else f"MISSING: {part.loss}"
        say(f"  {part.name:<17} {state}")
    for failure in failures:
        say(failure)
    devices = {"lavapipe", "SwiftShader"}
    if os.environ.get("TOSAVK_SKIP_SYSTEM") == "1":
        say("going on with what is there (TOSAVK_SKIP_SYSTEM=1)")
    elif devices <= {part.name for part in lost} or not parts[0].found:
        raise SetupError(
            "no CPU driver is there. To go on with the drivers of this machine, "
            "set TOSAVK_SKIP_SYSTEM=1."
        )
    else:
        say("going on without what is missing")


def check_privileges(steps: list[str]) -> None:
    """Stops at once, with all names, where the first step cannot be done.

    Without this, a user without root would learn of the packages one step at a time.
    """
    package = venv_package()
    needed = "python" in steps and not venv_python(VENV).exists()
    if package is None or not needed or shutil.which("apt-get") is None:
        return
    if Apt.prefix() is None:
        parts = look_for_parts() if "drivers" in steps else []
        others = {part.package for part in parts if not part.found}
        raise SetupError(needs_root([package, *sorted(others)]))


def main() -> int:
    """Runs the steps that the command line names."""
    if sys.version_info < MINIMUM:
        version = ".".join(str(part) for part in MINIMUM)
        print(
            f"tosavk needs Python {version} or newer, this is "
            f"{sys.version.split()[0]}. Name another: make PYTHON=python3.12 ...",
            file=sys.stderr,
        )
        return 2
    parser = argparse.ArgumentParser(description="Prepares a fresh check-out.")
    steps = {"python": setup_python, "drivers": setup_drivers}
    parser.add_argument("steps", nargs="+", choices=sorted(steps))
    wanted = parser.parse_args().steps
    try:
        check_privileges(wanted)
        for step in wanted:
            steps[step]()
    except SetupError as error:
        print(f"[setup] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
