"""The brokers of this room, each started once."""

from __future__ import annotations

from itertools import count

import pytest

import servers

_numbers = count()


@pytest.fixture(scope="session")
def running():
    """One server of each kind, started when it is first used."""
    started = {}

    def get(name: str):
        if name not in started:
            started[name] = {"redis": servers.Redis, "nats": servers.Nats, "kafka": servers.Kafka}[name]()
        return started[name]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture(params=["redis", "nats", "kafka"])
def server(request, running):
    return running(request.param)


@pytest.fixture
def topic() -> str:
    """A name that no other test has used."""
    return f"ratings{next(_numbers)}"


@pytest.fixture
def broker(running):
    """For tests to which one kind is enough."""
    return running("redis")
