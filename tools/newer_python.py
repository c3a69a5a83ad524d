"""The Python beside an unpacked driver, and the packages that the tests need there.

A driver built for another C library cannot be loaded into our Python, so
`newer_debian.py` unpacks one that came with it. What Debian has no package for is put
beside it by pip.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWER = ROOT / "build" / "newer"
COMPILED = (
    "hypothesis>=6.100",
    "ml_dtypes>=0.5",
    "safetensors>=0.5",
    "wgpu>=0.32,<0.33",
)
PURE = (
    "pytest-timeout>=2.3",
    "sortedcontainers",
    "vulkan>=1.3.275.1,<1.4",
)


class MissingError(Exception):
    """Driver or packages cannot be had here; the message says what and why."""


@dataclass(frozen=True)
class Beside:
    """An unpacked bundle, ready to run our tests.

    Attributes:
        python: its interpreter, with its driver and layers.
        packages: the folder of further packages.
        root: the unpacked system.
    """

    python: Path
    packages: Path
    root: Path

    @property
    def library_path(self) -> str:
        """PYTHONPATH for the interpreter."""
        return f"{ROOT / 'typings'}:{self.packages}"


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[newer] {text}", flush=True)


def prepare(bundle: str) -> Beside:
    """Brings a bundle of `newer_debian.py` and the packages for its Python.

    Raises:
        MissingError: something cannot be had here.
    """
    folder = NEWER / bundle
    python = folder / "bin" / "python3"
    if not python.exists():
        command = [sys.executable, str(ROOT / "tools" / "newer_debian.py"), bundle]
        if subprocess.run(command, check=False).returncode != 0:
            raise MissingError(f"the drivers of {bundle} cannot be unpacked here")
    answer = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=False,
        capture_output=True,
        text=True,
    )
    version = answer.stdout.strip()
    if not version:
        raise MissingError(f"{python} does not start: {answer.stderr.strip()[-200:]}")
    packages = NEWER / f"python-{version}"
    found = Beside(python, packages, folder / "root")
    if (packages / "ml_dtypes").is_dir() and (packages / "vulkan").is_dir():
        return found
    say(f"installing packages for Python {version}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--disable-pip-version-check", "--target", str(packages)]
    binary = ["--python-version", version, "--only-binary=:all:"]
    for arguments in ([*binary, *COMPILED], [*PURE]):
        if subprocess.run([*pip, *arguments], check=False).returncode != 0:
            raise MissingError(f"pip cannot install {', '.join(arguments)}")
    return found
