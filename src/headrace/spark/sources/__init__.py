"""The data sources of this package: one module each, all of them named in `registry`.

Each is plain Python that reads and plans through `headrace.client` or `headrace.postgres`, and can
be tested without a session. Nothing is imported here: a worker of Spark starts with the one source
it was given, and starting is what the first batch waits for.
"""
