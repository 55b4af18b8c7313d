"""`spider serve`: a model that learns from HTTP, answers beside it, and loses nothing it has acknowledged.

    app.py        routes: what a request is and what its answer looks like
    guard.py      who may ask: token, Host, Origin; headers of every answer
    bodies.py     bodies -> checked entries, or errors that name row, column and value
    owner.py      the one thread that has the model, and the queue before it
    learning.py   learn, journal, checkpoint, replay: the model of a server
    following.py  the model of a read-only follower, which another process writes
    journal.py    what was acknowledged since the last checkpoint (SQLite)
    answers.py    what requests with an Idempotency-Key were answered (SQLite)
    scores.py     running error, floors, coverage, surprising entries
    snapshots.py  what /v1/events, /v1/model and /metrics tell
    metrics.py    the same for Prometheus, and requests by route
    openapi.py    the description of the interface
    server.py     all of this put together, from the start to SIGTERM
    dashboard/    the page at /

Needs the extra `serve`.
"""
