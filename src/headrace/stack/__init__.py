"""The local stack: a supervisor for real processes. Imports no server code."""
