"""TLS, passwords and users of brokers: settings come from a file, and no secret goes anywhere else."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
from pathlib import Path

import pytest

import servers
from command_line import FIT
from servers import OPEN, records
from serving import RATINGS, serving, until
from spidertensor import sources
from spidertensor.sources import SourceError, kafka_topic

pytestmark = [
    pytest.mark.usefixtures("folder", "warm_kernels"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]
SECRET, WRONG = "0123 hunter=2", "no-sword-fish"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """That of the servers, and another one."""
    return [servers.Certificate(tmp_path_factory.mktemp(name)) for name in ("good", "other")]


def settings(name: str, **values: str) -> tuple[str, str]:
    Path(name).write_text("".join(f"{each.replace('__', '.')} = {value}\n" for each, value in values.items()))
    return "--broker-config", name


def fit(url: str) -> tuple[str, ...]:
    return ("fit", url, *FIT, "--model", "m.spider", "--until-end", "--force")


def assert_no_secret(*texts: str) -> None:
    """Neither in what was said nor in any file but those that were made to have it."""
    files = [each for each in Path().rglob("*") if each.is_file() and each.suffix != ".properties"]
    assert Path("m.spider") in files
    for content in [*(each.read_bytes() for each in files), *(text.encode() for text in texts)]:
        assert SECRET.encode() not in content
        assert WRONG.encode() not in content


@pytest.fixture(scope="module")
def nats(certificates):
    good, _ = certificates
    options = ("--tls", "--tlscert", good.cert, "--tlskey", good.key, "--user", "me", "--pass", SECRET)
    known = {"user": "me", "password": SECRET, "tls": ssl.create_default_context(cafile=good.cert)}
    server = servers.Nats(*options, **known)
    server.put("ratings", records(300))
    yield server
    server.close()


@pytest.mark.slow
def test_nats(nats, certificates, spider, fails):
    good, other = certificates
    known = {"user": "me", "password": SECRET, "tls_ca": good.cert}
    code, out, err = spider(*fit(nats.url("ratings")), *settings("good.properties", **known))
    assert code == 0, err
    wrong = {
        "Authorization Violation": {"password": WRONG},
        "certificate verify failed": {"tls_ca": other.cert},
        "settings: tls_ca, tls_cert, tls_key: ": {"tls_ca": "nothing.pem"},
        "unexpected keyword argument 'no_such'": {"no_such": WRONG},
    }
    said = [out, err]
    for text, change in wrong.items():
        said.append(fails(*fit(nats.url("ratings")), *settings("wrong.properties", **(known | change))))
        assert text in said[-1]
    assert "certificate verify failed" in fails(*fit(nats.url("ratings")))
    assert_no_secret(*said)


def test_nats_gets_no_password_without_tls_if_tls_is_asked_for(certificates, fails):
    """It asks for a password, and says that it has no TLS, as one who sits in between would."""
    server = servers.Nats("--user", "me", "--pass", SECRET, user="me", password=SECRET)
    try:
        server.put("ratings", records(300))
        known = {"user": "me", "password": SECRET, "tls_ca": certificates[0].cert}
        said = fails(*fit(server.url("ratings")), *settings("good.properties", **known))
        assert "the server has no TLS, which the settings require" in said
        with sources.open(server.url("ratings"), *OPEN, config={"user": "me", "password": SECRET}) as stream:
            assert stream.lag == 300
    finally:
        server.close()


@pytest.mark.slow
def test_a_server_keeps_secrets(nats, certificates, folder):
    """Also while the broker is away, and in the journal that a kill leaves."""
    config = settings("good.properties", user="me", password=SECRET, tls_ca=certificates[0].cert)
    url = nats.url("ratings")
    with serving(folder, "--model", "m.spider", *RATINGS, "--from", url, *config) as server:
        until(server, entries=300)
        server.learn([{"user": 1, "movie": "m", "rating": 3}], path="/v1/learn")
        assert server.http.post("/v1/checkpoint").status_code == 200
        server.learn([{"user": 2, "movie": "m", "rating": 3}], path="/v1/learn")
        nats.stop()
        try:
            until(server, connected=False)
            told = json.dumps(server.get("/v1/model")) + server.http.get("/metrics").text
        finally:
            nats.start()
        server.stop(signal.SIGKILL)
        assert ": not connected (" in server.said
        assert (folder / "m.spider.journal").exists()
        assert_no_secret(told, server.said)


def test_redis(certificates, spider, fails):
    """The server of the tests has no TLS itself, so it is put before it."""
    good, other = certificates
    server = servers.Redis()
    tls = servers.Tls(server.port, good)
    try:
        server.put("ratings", records(300))
        server.client.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@all")
        server.client.execute_command("ACL", "SETUSER", "default", "off")
        url = f"rediss://127.0.0.1:{tls.port}/ratings"
        known = {"username": "reader", "password": SECRET, "ssl_ca_certs": good.cert}
        code, out, err = spider(*fit(url), *settings("good.properties", **known))
        assert code == 0, err
        wrong = {
            "invalid username-password pair": {"password": WRONG},
            "certificate verify failed": {"ssl_ca_certs": other.cert},
            "settings: ssl_ca_certs: no such file: nothing.pem": {"ssl_ca_certs": "nothing.pem"},
        }
        said = [out, err]
        for text, change in wrong.items():
            said.append(fails(*fit(url), *settings("wrong.properties", **(known | change))))
            assert text in said[-1]
        assert_no_secret(*said)
    finally:
        tls.close()
        server.close()


@pytest.mark.slow
def test_kafka(certificates, spider, fails, monkeypatch):
    """TLS is put before the cluster, which has neither that nor users."""
    monkeypatch.setattr(kafka_topic, "TIMEOUT_S", 1.0)
    good, other = certificates
    server = servers.Kafka()
    plain = server.url("ratings")
    server.put("ratings", records(300))
    tls = servers.Tls(int(server.hosts.rpartition(":")[2]), good)
    server.advertise(tls.port)
    try:
        url = f"kafka://127.0.0.1:{tls.port}/ratings"
        known = {"security__protocol": "SSL", "ssl__ca__location": good.cert}
        code, out, err = spider(*fit(url), *settings("good.properties", **known))
        assert code == 0, err
        sasl = {"security__protocol": "SASL_PLAINTEXT", "sasl__mechanism": "PLAIN", "sasl__username": "me"}
        sasl |= {"sasl__password": SECRET}
        wrong = [
            (url, known | {"ssl__ca__location": other.cert}, "certificate verify failed"),
            (plain, known, "SSL_HANDSHAKE"),
            (plain, sasl, "SASL Handshake not supported by broker"),
            (plain, sasl | {"sasl__pasword": WRONG}, 'No such configuration property: "sasl.pasword"'),
        ]
        said = [out, err]
        for where, change, text in wrong:
            said.append(fails(*fit(where), *settings("wrong.properties", **change)))
            assert text in said[-1]
        assert_no_secret(*said)
    finally:
        tls.close()
        server.close()


def test_each_broker_has_its_part_of_a_file(nats, certificates, monkeypatch):
    monkeypatch.setattr(kafka_topic, "TIMEOUT_S", 0.5)
    known = {"user": "me", "password": SECRET, "tls_ca": certificates[0].cert}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in known.items()]
    Path("all.toml").write_text("[nats]\n" + "".join(lines) + '[redis]\nno_such = "x"\n')
    with sources.open(nats.url("ratings"), *OPEN, config="all.toml") as stream:
        assert stream.lag == 300
    with pytest.raises(SourceError, match="no_such"):
        sources.open("redis://127.0.0.1:1/ratings", *OPEN, config="all.toml")
    with pytest.raises(SourceError, match="refused"):  # no settings, which is not an error
        sources.open("kafka://127.0.0.1:1/ratings", *OPEN, config="all.toml")
