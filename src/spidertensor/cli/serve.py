"""`spider serve`: a model that learns and predicts over HTTP."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import bad_rows, event_options, files, model_options, options, output, streams
from spidertensor.cli.bad_rows import BadRows, OnBad
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.estimator.columns import Schema
    from spidertensor.service.consumer import ConsumedStream
    from spidertensor.service.journaled import JournaledLearner
    from spidertensor.service.server import ServerSettings
    from spidertensor.sources import Stream

Model = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The model file; created if it does not exist.")
]
Modes = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="The id columns of a new model, such as user,movie; with attributes user+age,movie+genres, "
        "when=hour+time (see spider fit).",
    ),
]
Value = Annotated[str | None, typer.Option(metavar="NAME", help="The value column of a new model.")]
Binary = Annotated[bool, typer.Option("--binary", help="Values are 0 or 1; predict probabilities.")]
Counts = Annotated[bool, typer.Option("--counts", help="Values are counts; predict rates.")]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on. Any but this machine needs a token.")
]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 picks a free one.")]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with the token that clients must send.")
]
Every = Annotated[
    str, typer.Option(metavar="TIME|N", help="Save after this time (30s, 5m) or number of entries (100000).")
]
Follow = Annotated[
    Path | None,
    typer.Option(metavar="MODEL", help="Only predict, from a model file that another process writes."),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="Allow web pages of this origin, such as https://example.org."),
]
MaxBody = Annotated[int, typer.Option(metavar="BYTES", min=1, help="Maximum size of a request body.")]
MaxRows = Annotated[int, typer.Option(metavar="N", min=1, help="Maximum rows per request.")]
MaxForecasts = Annotated[
    int, typer.Option(metavar="N", min=1, help="Maximum number of forecasts remembered; the oldest go first.")
]
MaxRemember = Annotated[
    str, typer.Option(metavar="TIME", help="Maximum time that a forecast is remembered, such as 12h.")
]
MaxQueue = Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of waiting requests.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="URL", help="Also learn from a stream: kafka://, redis:// or nats://host:port/name."
    ),
]
Format = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="Message format of --from: json, csv, tsv or fields.")
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Start although requests are missing in a damaged journal, without these."
    ),
]
Demo = Annotated[bool, typer.Option("--demo", help="Serve a demo that learns a year of flights.")]


def serve(
    model: Model = None,
    modes: Modes = None,
    value: Value = None,
    kind: options.Kinds = None,
    attributes: options.AttributeFiles = None,
    binary: Binary = False,
    labels: model_options.Labels = None,
    events: event_options.Events = False,
    over: event_options.Over = None,
    negatives: event_options.Negatives = None,
    remember_seen: event_options.RememberSeen = None,
    counts: Counts = False,
    levels: model_options.Levels = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token_file: TokenFile = None,
    checkpoint_every: Every = "30s",
    follow: Follow = None,
    demo: Demo = False,
    from_: From = None,
    format: Format = None,  # noqa: A002
    columns: options.Columns = None,
    on_gap: streams.OnGapOption = streams.OnGap.RAISE,
    rejects: bad_rows.Rejects = None,
    dead_letter: streams.DeadLetter = None,
    broker_config: streams.BrokerConfig = None,
    scaling: options.Scaling = None,
    bounds: options.Bounds = None,
    memory: options.Memory = None,
    max_nodes: options.MaxNodes = None,
    committee: options.Committee = None,
    seed: options.Seed = None,
    allow_origin: AllowOrigin = None,
    max_body: MaxBody = 8 << 20,
    max_rows: MaxRows = 10_000,
    max_queue: MaxQueue = 1000,
    max_forecasts: MaxForecasts = 1_000_000,
    max_remember: MaxRemember = "168h",
    accept_loss: AcceptLoss = False,
) -> None:
    """Serve a model that learns and answers over HTTP.

    Acknowledged entries survive a crash. SIGTERM and Ctrl-C finish waiting requests and save. There is a
    dashboard at /, and the API is described at /openapi.json. With --from it also learns from a stream,
    each message once; bad messages do not stop it. Requires pip install 'spidertensor[serve]'.

    \b
    spider serve --model ratings.spider --modes user,movie --value rating
    spider serve --model r.spider --modes user+age,movie --value rating
    spider serve --model r.spider --attributes movie=movies.csv
    spider serve --model ratings.spider --from redis://localhost:6379/ratings
    spider serve --follow ratings.spider --port 8081
    spider serve --model r.spider --host 0.0.0.0 --token-file token
    spider serve --demo

    For other settings, create the model with spider fit, then serve it.
    """
    if (model is not None) + (follow is not None) + demo != 1:
        raise CommandError("use one of --model, --follow and --demo")
    of_streams = (format, columns, rejects, dead_letter, broker_config)
    if from_ is None and (any(of_streams) or on_gap != streams.OnGap.RAISE):
        raise CommandError(
            "--format, --columns, --on-gap, --rejects, --dead-letter and --broker-config are for --from"
        )
    if from_ is not None and model is None:
        raise CommandError("--from needs --model, a model that learns")
    every = _every(checkpoint_every)
    names, schema = options.modes_and_schema(modes, kind)
    given = {
        "scaling": options.scaling(scaling),
        "bounds": options.bounds(bounds),
        "memory": memory,
        "max_nodes": None if max_nodes is None else options.max_nodes(max_nodes),
        "committee": committee,
        "random_state": seed,
    }
    given = {name: setting for name, setting in given.items() if setting is not None}
    valued = {"binary": binary, "counts": counts, "levels": levels is not None}
    if events and (value is not None or any(valued.values())):
        raise CommandError("--events means rows without a value; omit --value, --binary and --counts")
    given |= event_options.settings(events, over, negatives, remember_seen, new=modes is not None)
    kinds = [name for name, is_it in {**valued, "events": events}.items() if is_it]
    if len(kinds) > 1:
        raise CommandError("use only one of --binary, --counts and --levels")
    for name in ("scaling", "bounds"):
        if kinds and name in given:
            raise CommandError(f"--{name} is for continuous values, not with --{kinds[0]}")
    if counts:
        given["likelihood"] = "count"
    if (known := model_options.levels(levels)) is not None:
        given |= {"likelihood": "ordinal", "levels": known}
    if labels is not None and not binary:
        raise CommandError("--labels is for --binary")
    try:
        from spidertensor.service.app import Limits
        from spidertensor.service.forecasts import Keeping
        from spidertensor.service.guard import is_loopback, read_token
        from spidertensor.service.server import ServerSettings, run
    except ModuleNotFoundError as error:
        raise CommandError(f"needs {error.name}: pip install 'spidertensor[serve]'") from None
    token = None if token_file is None else read_token(token_file)
    if token is None and not is_loopback(host):
        raise CommandError(f"--host {host} is reachable from other machines; set a token with --token-file")
    limits = Limits(body=max_body, rows=max_rows, queue=max_queue)
    settings = ServerSettings(host, port, token, tuple(allow_origin or ()), *every, limits=limits)
    if demo:
        if attributes:
            raise CommandError("--attributes is for --model")
        _demo(settings, given)
    elif follow is not None:
        if modes or value or binary or labels or given or attributes:
            raise CommandError("--follow takes modes, value, attributes and settings from the model")
        from spidertensor.service.following import Following

        run(Following(follow), settings, _announce(follow))
    elif model is not None:
        rejects = rejects or model.with_suffix(".rejects.jsonl")
        files.check_apart({"--model": model, "--rejects": rejects})
        files.check_writable(model)
        with files.locked(model):
            served = _opened(
                model, names, value, binary, labels, schema, given, rejects, accept_loss=accept_loss
            )
            served.forecasts.keeping = Keeping(max_forecasts, options.seconds(max_remember))
            try:
                _describe(served, attributes)
                consumed = None
                if from_ is not None:
                    stream = _stream(from_, format, columns, on_gap, broker_config)
                    letters = streams.dead_letters(dead_letter, broker_config, stream)
                    consumed = _consumed(served, stream, rejects, letters)
            except BaseException:
                served.close()
                raise
            run(served, settings, _announce(model), consumed)


def _demo(settings: ServerSettings, given: dict[str, Any]) -> None:
    """Serve a temporary model, and send it the flights."""
    from spidertensor.cli import playing
    from spidertensor.demo import clock
    from spidertensor.service.opening import opened
    from spidertensor.service.server import run

    if settings.token is not None:
        raise CommandError("--demo serves this machine only; omit --token-file")
    played = playing.stream()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{played.dataset.name}.spider"
        new = playing.new_model(played, given)

        def started(url: str) -> None:
            output.say(f"watch {played.dataset.name} at {url} (Ctrl-C stops)")
            playing.start(url, played)

        served = opened(path, new)
        served.learner.replayed = clock(played.dataset).case
        run(served, settings, started)


def _every(text: str) -> tuple[float, float]:
    """Seconds and entries between checkpoints; one of them is infinite."""
    if text.strip().isdigit():
        return math.inf, max(1.0, float(text))
    return options.seconds(text), math.inf


def _announce(path: Path) -> Callable[[str], None]:
    return lambda url: output.say(f"serving {path} at {url} (Ctrl-C stops)")


def _opened(
    path: Path,
    modes: list[str] | None,
    value: str | None,
    binary: bool,
    labels: str | None,
    schema: Schema | None,
    given: dict[str, Any],
    rejects: Path,
    *,
    accept_loss: bool,
) -> JournaledLearner:
    from spidertensor.cli import text_labels
    from spidertensor.cli.same_settings import check_no_new_columns, check_same
    from spidertensor.estimator.labels import are_zero_one
    from spidertensor.service.from_stream import Rejects
    from spidertensor.service.opening import NewModel, opened

    events, classes = "negatives_over" in given, text_labels.parsed(labels)
    if modes is not None:
        given = event_options.with_mode_numbers(given, modes)
    kind = "SpiderClassifier" if binary or events else "SpiderRegressor"
    new = None
    if modes is not None and (value is not None or events):
        own = None if classes is None or are_zero_one(classes) else list(classes)
        new = NewModel(kind, modes, value, given, None if schema is None else schema.to_json(), own)
    if new is None and not path.exists() and not path.with_name(f"{path.name}.journal").exists():
        raise CommandError(f"{path}: no such model; a new one needs --modes and --value, or --events")
    columns = () if schema is None else schema.inputs
    if modes is not None and (len({*modes, value}) != len(modes) + 1 or value in columns):
        raise CommandError("a column is named twice in --modes and --value")

    def note(reason: str) -> None:
        output.note(f"note: {reason}; its files are renamed to {path.name}.journal.lost")

    served = opened(path, new, value, note if accept_loss else None)
    # Even without --from, because the journal may contain messages of a stream.
    served.rejects = Rejects(lambda stream, after: _rejects(rejects, stream, after))
    try:
        if modes is None:
            given = event_options.with_mode_numbers(given, served.learner.modes)
        check_same(
            served.learner, modes, value, binary=binary, paper=False, classes=classes, schema=schema, **given
        )
        check_no_new_columns(served.learner, schema)
    except CommandError:
        served.close()
        raise
    return served


def _describe(served: JournaledLearner, texts: list[str] | None) -> None:
    """Describe nodes as the files of --attributes say, by requests in the journal."""
    if not texts:
        return
    from spidertensor.cli import attribute_files
    from spidertensor.faults import EntryError
    from spidertensor.service.errors import ServiceError
    from spidertensor.service.requests import describing

    served.replay()  # the files come after what is in the journal
    learner = served.learner
    for each in attribute_files.read_all(learner.estimator, texts):
        try:
            learner.estimator._check_attributes(each.mode, each.table)
            outcome = served.learn([describing(each.mode, each.table, learner)])[0]
            if isinstance(outcome, ServiceError):
                raise outcome
        except EntryError as error:
            raise each.refused(error) from None
        except ServiceError as error:
            raise CommandError(f"{each.source.name}: {error.reason}") from None


def _rejects(path: Path, stream: str, after: int) -> BadRows:
    from spidertensor import sources

    source = sources.stream_at(stream, "json")  # only its name is used
    return BadRows(source, OnBad.FILE, path, after=after)


def _stream(
    url: str,
    format: str | None,  # noqa: A002
    columns: str | None,
    on_gap: streams.OnGap,
    config: Path | None,
) -> Stream:
    from spidertensor import sources

    if not sources.is_url(url):
        raise CommandError(f"--from takes the URL of a stream, not {url!r}")
    names = None if columns is None else options.words(columns)
    return sources.stream_at(url, format, names, config=config, on_gap=on_gap.value)


def _consumed(
    served: JournaledLearner, stream: Stream, rejects: Path, letters: Stream | None
) -> ConsumedStream:
    """Open the stream at the model's position. letters: the stream for bad messages"""
    from spidertensor import sources
    from spidertensor.learner import position
    from spidertensor.learner.labels import label_texts
    from spidertensor.learner.opening import standing
    from spidertensor.service.consumer import ConsumedStream
    from spidertensor.service.from_stream import DeadLetters

    learner = served.learner
    found = standing(learner, stream, served.position_after_replay())
    if found.place is None and found.known and found.known[0]["stream"] is not None:
        raise CommandError(
            f"{learner.path}: has learned another stream ({found.known[0]['source']}); to continue with "
            f"{stream.name}, first add it with spider fit --add --until-end"
        )
    if (name := found.other_name(stream)) is not None:
        output.note(f"note: {learner.path} was learned from {name} and continues with {stream.name}")
    start = found.place or {"row": 0, "bad": 0, "stream": None}
    files.check_writable(rejects)
    _rejects(rejects, stream.name, start["row"])  # fails if the file contains anything else
    about = position.at_start(stream, learner.value, found.all_text, found.before)
    about["bad"] = start["bad"]
    if found.is_latest:
        del about["bad"]  # the model continues its own count
    how = {
        "likelihood": learner.estimator.likelihood_, "position": start["stream"],
        "labels": label_texts(learner.classes),
        "all_text": found.all_text and [found.all_text[mode] for mode in learner.with_ids],
        "attributes": learner.attributes,
    }  # fmt: skip
    if letters is not None and served.rejects is not None:
        served.rejects.letters = DeadLetters(letters.sender())
    return ConsumedStream(sources.open(stream, learner.id_columns, learner.value, **how), about)
