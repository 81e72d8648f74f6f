"""Whether hangs can be detected here: the answer is given once, early, with the reason and the remedy."""

from __future__ import annotations

import os

from nemo_resiliency_plugins.compat.nvrx import (
    INSTALL_HINT,
    MONITOR_SOCKET,
    MonitorLost,
    check_version,
    installed_version,
)
from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.hang_detection import HangDetection, NoHangDetection
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.not_working import report

START_WITH_FT_LAUNCHER = (
    "Start the ranks with ft_launcher and --ft-rank_section_timeouts, or submit with FaultTolerancePlugin"
)

WHAT = "fault tolerance was asked for, but hangs are not detected"


def start(
    config: FaultToleranceConfig, identity: Identity, events: EventLog, *, strict: bool, alone: bool = False
) -> NoHangDetection:
    """Hang detection, or its stand-in where it was not asked for or cannot work. ``alone``: this rank learns alone.

    Raises:
        NotWorkingError: under ``strict``, when it was asked for and cannot work.
    """
    if not config.enable_ft_package:
        _say_that_it_is_off(identity)
        return NoHangDetection()
    detection: NoHangDetection = NoHangDetection()
    try:
        reason, remedy = _obstacle()
        if reason is None:
            detection = HangDetection(config, identity, events, alone=alone)
            if detection.watches:
                return detection
            reason, remedy = "the launcher was given no timeout", "Give ft_launcher --ft-rank_section_timeouts"
    except (MonitorLost, ImportError) as error:
        reason, remedy = f"the rank monitor cannot be reached: {error}", INSTALL_HINT
    if strict:
        detection.close(finished=False)
    report(WHAT, reason, remedy, feature="hang detection", rank=identity.rank, events=events, strict=strict)
    return detection


def _obstacle() -> tuple[str | None, str]:
    if MONITOR_SOCKET not in os.environ:
        return f"ft_launcher did not start this rank ({MONITOR_SOCKET} is not set)", START_WITH_FT_LAUNCHER
    try:
        check_version(installed_version())
    except UnsupportedError as error:
        return f"{error.field} {error.rule}", error.remedy.rstrip(".")
    return None, ""


def _say_that_it_is_off(identity: Identity) -> None:
    if identity.rank != 0:
        return
    if MONITOR_SOCKET in os.environ:
        text = "ft_launcher is here, but enable_ft_package is False: hangs are not detected"
    elif identity.launched:
        text = "enable_ft_package is False: hangs are not detected"
    else:
        text = "not started by a launcher: the session watches nothing, checkpoints work"
    logger().info(line(0, text))
