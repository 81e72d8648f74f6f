"""Closing the connections of a process from inside it."""

from __future__ import annotations

import os
import select
import socket
from contextlib import closing

import psutil

from nemo_resiliency_plugins.compat import gloo


def test_looking_for_connections_leaves_no_descriptor_behind() -> None:
    reader, writer = os.pipe()
    with closing(select.epoll()) as poll, socket.create_server(("127.0.0.1", 0)) as server:
        poll.register(reader)
        poll.register(server)
        before = psutil.Process().num_fds()
        for _ in range(3):
            gloo.shut_down_connections()
            gloo.shut_down_store(server.getsockname()[1])
        after = psutil.Process().num_fds()
    os.close(reader)
    os.close(writer)
    assert after == before
