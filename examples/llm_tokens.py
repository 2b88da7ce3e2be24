"""Resumable answers of a model in a browser: one stream per answer, read over SSE.

    uvicorn examples.llm_tokens:app --timeout-graceful-shutdown 5

Open http://127.0.0.1:8000, ask, and reload while the answer arrives: it continues. Open the
address in a second tab: both show the same. The answer is written into its stream whether anybody
reads or not, so a closed laptop costs nothing.

Headrace is mounted under /streams here, so that one program is all you need. With a server of its
own, set its URL in `Client` below and list this page's origin in `http.cors_origins`.

Put your model's stream of tokens in place of `model_tokens`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
from fastapi import BackgroundTasks, FastAPI
from fastapi.responses import FileResponse

from headrace.http.asgi import create_app

PAGE = Path(__file__).with_name("llm_tokens.html")
TOKEN_SECS = float(os.environ.get("TOKEN_SECS", "0.1"))
TEXT = {"Content-Type": "text/plain; charset=utf-8"}

streams = create_app()
# Requests to the mounted application, without a socket.
inside = httpx.AsyncClient(transport=httpx.ASGITransport(streams), base_url="http://localhost")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await inside.aclose()
    await streams.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)


@app.get("/")
def page() -> FileResponse:
    return FileResponse(PAGE)


@app.post("/ask")
async def ask(question: str, background: BackgroundTasks) -> dict[str, str]:
    """Start an answer; the page reads it from the stream."""
    name = f"answers/{uuid4()}"
    url = f"/v1/stream/{name}"
    (await inside.put(url, headers=TEXT | {"Stream-TTL": "86400"})).raise_for_status()
    background.add_task(write_answer, url, question)
    return {"stream": f"/streams{url}"}


async def write_answer(url: str, question: str) -> None:
    """Append each token; producer headers make a repeated append harmless."""
    producer = {"Producer-Id": "model", "Producer-Epoch": "0"}
    seq = 0
    async for token in model_tokens(question):
        headers = TEXT | producer | {"Producer-Seq": str(seq)}
        (await inside.post(url, headers=headers, content=token)).raise_for_status()
        seq += 1
    headers = TEXT | producer | {"Producer-Seq": str(seq), "Stream-Closed": "true"}
    (await inside.post(url, headers=headers)).raise_for_status()


async def model_tokens(question: str) -> AsyncIterator[str]:
    """In place of a model: the question, word by word."""
    for number, word in enumerate(question.split() * 3):
        await asyncio.sleep(TOKEN_SECS)
        yield word if number == 0 else f" {word}"
