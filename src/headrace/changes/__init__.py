"""Changes of rows as messages say them: parsed, named by key, and folded.

Pure: no input or output, and nothing about where the rows are kept. Understands the State Protocol,
session events and the messages of postgres-to-stream (docs/state.md), and Debezium's envelope.
"""
