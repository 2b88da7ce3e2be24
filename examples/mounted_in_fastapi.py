"""Durable streams inside a FastAPI application, under /streams.

    uvicorn examples.mounted_in_fastapi:app --timeout-graceful-shutdown 5

(Without the time limit uvicorn waits for live readers, which may stay for a minute.)

    curl -X PUT  http://127.0.0.1:8000/streams/v1/stream/chat -H 'Content-Type: application/json'
    curl -X POST http://127.0.0.1:8000/streams/v1/stream/chat -H 'Content-Type: application/json' \
         -d '{"text": "hello"}'
    curl http://127.0.0.1:8000/streams/v1/stream/chat

The same rules and engine as `headrace serve`, configured by the same files and variables. A
mounted application gets no lifespan events of its own, so the host closes it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from headrace.http.asgi import create_app

streams = create_app()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await streams.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


@app.get("/")
def home() -> dict[str, str]:
    return {"streams": "/streams/v1/stream/{name}"}
