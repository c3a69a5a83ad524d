"""A headless browser, to look at what the product shows a person."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Returns the program of a browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _run(page: Path, profile: Path, *options: str) -> str:
    program = find_browser()
    if program is None:
        raise FileNotFoundError(f"no browser is there (tried {', '.join(NAMES)})")
    command = [
        program,
        "--headless=new",
        "--no-sandbox",  # root has no other way, and the page is our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
        *options,
        page.resolve().as_uri(),
    ]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def rendered_html(page: Path, profile: Path) -> str:
    """Returns a page's HTML after its scripts have run.

    Args:
        page: The file to open.
        profile: A folder for the browser's own files, such as `tmp_path / "profile"`.
    """
    return _run(page, profile, "--dump-dom")


def screenshot(page: Path, profile: Path, target: Path) -> None:
    """Writes a picture (PNG) of a page.

    Args:
        page: The file to open.
        profile: A folder for the browser's own files.
        target: Where the picture goes.
    """
    _run(page, profile, "--window-size=1200,1600", f"--screenshot={target.resolve()}")
