"""An Electric-compatible Shape API over our own decoding; each shape's log is a durable stream.

`definition` and `where` say what may be asked for, `tables` reads and publishes tables, `messages`
turns changes into log entries (pure), `logs` keeps a shape's log as a stream, `feed` follows the
replication slot, `service` owns the shapes, `api` is the HTTP surface. Imports no server code.
"""
