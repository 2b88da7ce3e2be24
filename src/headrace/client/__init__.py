"""The client: streams over HTTP, sync and async.

Imports no server code; meets the server in `protocol`."""
