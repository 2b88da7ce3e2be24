"""The stream browser: static files, and nothing that runs on the server."""
