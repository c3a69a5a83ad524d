#!/usr/bin/env python3
"""Brings the links of typings/tosavk in line with the folders of the repository.

Static tools cannot see the folder mapping of an editable install. They see the package
through these links, which git tracks. tests/unit/test_packaging.py checks them.
"""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FARM = ROOT / "typings" / "tosavk"


def wanted() -> dict[str, Path]:
    """Returns the name of each link, and the file or folder that it stands for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    public = ROOT / folders.pop("tosavk")
    links = {name.removeprefix("tosavk."): ROOT / at for name, at in folders.items()}
    for entry in public.iterdir():
        if entry.name != "__pycache__":
            links[entry.name] = entry
    return links


def main() -> int:
    """Makes missing links and removes dead ones."""
    FARM.mkdir(parents=True, exist_ok=True)
    links = wanted()
    for link in FARM.iterdir():
        if link.name == "__pycache__":  # of whoever imports through the links
            continue
        if link.name not in links or link.resolve() != links[link.name]:
            print(f"removing {link.relative_to(ROOT)}")
            link.unlink()
    for name, target in sorted(links.items()):
        link = FARM / name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(target, FARM))
            print(f"linking {link.relative_to(ROOT)} to {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
