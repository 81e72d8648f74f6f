"""Times and numbers as a person reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``1 d 02:03:04``, or seconds below two minutes."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    days, rest = divmod(round(seconds), 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days} d {clock}" if days else clock


def counted(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
