"""Blocks of a training script with a time limit of their own."""

from __future__ import annotations

from contextlib import AbstractContextManager

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.features import Features


class Blocks:
    """The part of the session that opens them."""

    _features: Features

    def section(self, name: str) -> AbstractContextManager[None]:
        """A block with a limit of its own: ``setup``, ``step``, ``checkpointing``, or a name with a timeout.

        For an evaluation inside the loop, say. Where ``name`` has no timeout, the limit out of sections holds.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError("session.section", name, "must be a name", 'For example section("evaluation").')
        return self._features.detection.section(name)

    def pause(self) -> AbstractContextManager[None]:
        """A block in which no hang is assumed, however long it takes; a crash is seen all the same."""
        return self._features.detection.paused()
