"""Ranks that are started ahead: a restart takes a process that has its imports behind it.

The launcher keeps one for each of its ranks (``pool``). It is started like the rank, loads what the rank has told
(``imports``), and waits until the launcher needs it (``waiting``).
"""
