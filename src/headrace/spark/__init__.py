"""Spark: data sources for streams and Postgres, and the pipelines built from them.

Imports no server code.
"""
