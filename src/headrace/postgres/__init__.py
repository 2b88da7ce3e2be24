"""Postgres: change decoding, snapshot hand-off and the COPY sink. Imports no server code."""
