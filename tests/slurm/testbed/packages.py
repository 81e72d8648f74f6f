"""The Debian packages that the testbed needs, installed without starting their services."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE_OF = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sacct": "slurm-client",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}
POLICY = Path("/usr/sbin/policy-rc.d")
APT_OPTIONS = ("--option=DPkg::Lock::Timeout=300", "--option=Acquire::Retries=3")
INSTALL_DEADLINE_S = 600
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TestbedError(Exception):
    """The cluster cannot be started here; the message says why."""

    __test__ = False


def require() -> None:
    """Make every daemon available, installing what is missing."""
    if os.geteuid() != 0:
        raise TestbedError("the testbed needs root")
    packages = missing()
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise TestbedError(f"not installed, and there is no apt-get: {', '.join(packages)}")
    with _services_stay_down():
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", *packages)
    if missing():
        raise TestbedError(f"still missing after the installation: {', '.join(missing())}")


def missing() -> list[str]:
    return sorted(package for name, package in PACKAGE_OF.items() if shutil.which(name, path=SYSTEM_PATH) is None)


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Debian's maintainer scripts ask policy-rc.d, where there is one, before they start a service."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _apt_get(*arguments: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": SYSTEM_PATH}
    command = ["apt-get", "--quiet=2", *APT_OPTIONS, *arguments]
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"apt-get {arguments[0]} took more than {INSTALL_DEADLINE_S} s") from error
    if done.returncode != 0:
        raise TestbedError(f"apt-get {arguments[0]} failed:\n{done.stdout[-2000:]}")
