"""Opens a session for each directory below ``states``, as so many starts of a job with learning on."""

from __future__ import annotations

import tiny

from nemo_resiliency_plugins import runtime

for directory in sorted((tiny.ROOT / "states").iterdir()):
    with runtime.session() as session:
        session.attach(None, directory, save=print, load=print, latest=lambda: None)
        for _ in session.steps(0, 2):
            pass
    tiny.say(f"done {directory.name}")
