"""The rules of the Durable Streams protocol, and nothing else.

No socket, file, clock or random source: every function here is a function of its arguments.
"""
