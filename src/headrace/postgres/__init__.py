"""Postgres: change decoding, snapshot hand-off and the COPY sink. Imports no server code.

`server` starts a real Postgres, `pgoutput` turns replication messages into changes,
`replication` reads them off a slot, `slots` owns publications and slots, `snapshot` reads a
table as of a slot, `sink` writes rows exactly once.
"""
