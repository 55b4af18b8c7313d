"""`spider serve`: a model that learns and predicts over HTTP, and never loses an acknowledged request.

    app.py        routes: parse requests, format answers
    guard.py      access control: token, Host, Origin; headers of every answer
    bodies.py     parse bodies into checked entries, or errors that name row, column and value
    owner.py      the thread that owns the model, and its queue
    journaled.py  the learner of a server: learn, journal, checkpoint, replay
    following.py  the model of a read-only follower, written by another process
    consumer.py   the thread that reads a stream, for --from
    journal.py    requests acknowledged since the last checkpoint (SQLite)
    answers.py    answers to requests with an Idempotency-Key (SQLite)
    surprises.py  the latest surprising entries
    snapshots.py  the content of /v1/events, /v1/model and /metrics
    metrics.py    snapshots for Prometheus, and requests by route
    openapi.py    the OpenAPI description
    server.py     startup and shutdown
    dashboard/    the page at /

Needs the extra `serve`.
"""
