"""An Electric-compatible Shape API over our own decoding; each shape's log is a durable stream.

`definition` and `where` say what may be asked for, `catalog` describes, publishes and recognises
tables, `tables` reads their rows, `messages` turns changes into log entries (pure), `logs` keeps a
shape's log in streams, `feed` follows the replication slot, `service` owns the shapes, `api` is the
HTTP surface. Imports no server code.
"""
