"""A lane of lives at scale: a driver that computes nothing and holds everything.

The mock ICD takes every call and keeps books of its objects, but runs no shader: what is
tried is that any number of contexts, buffers, programs and submissions can be made and
given back, that limits hold, and that nothing is left.
"""

from __future__ import annotations

import json
import os
import subprocess

from lane_drivers import ROOT, Start, package_version
from lane_table import Lane
from lane_tests import Outcome

SCALE = int(os.environ.get("TOSAVK_LIVES", "10"))


def run(lane: Lane, start: Start) -> Outcome:
    """Runs the lives of `lives_at_scale.py`.

    Raises:
        RuntimeError: the process failed before it could tell.
    """
    del lane
    path = f"{start.environment['PYTHONPATH']}:{ROOT / 'tests'}"
    script = str(ROOT / "tools" / "lives_at_scale.py")
    done = subprocess.run(
        [start.python, script, "mock", str(SCALE)],
        cwd=ROOT,
        env={**start.environment, "PYTHONPATH": path},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the lives ended with {done.returncode}")
    document = json.loads(done.stdout)
    version = package_version("chromium")
    return Outcome(
        device=document["device"],
        driver=f"mock ICD {document['api_version']}, chromium {version}".rstrip(),
        counts=document["counts"],
        failures=document["failures"],
        details=document["details"],
    )
