"""Durable streams for the members of chat rooms: who may read and write is yours to say.

    uvicorn examples.permissions:app --timeout-graceful-shutdown 5

    curl -X PUT http://127.0.0.1:8000/streams/v1/stream/rooms/garden \
         -H 'Authorization: Bearer ann-token' -H 'Content-Type: application/json'
    curl http://127.0.0.1:8000/streams/v1/stream/rooms/garden -H 'Authorization: Bearer eve-token'

The second is answered with 403: Eve is not in that room.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from headrace.http.asgi import Action, Scope, create_app

TOKENS = {"ann-token": "ann", "bob-token": "bob", "eve-token": "eve"}  # or verify a JWT
MEMBERS = {"garden": {"ann", "bob"}, "board": {"ann"}}


def user(scope: Scope) -> str | None:
    authorization = dict(scope["headers"]).get(b"authorization", b"")
    return TOKENS.get(authorization.removeprefix(b"Bearer ").decode("latin-1"))


def can(user: str | None, action: Action, stream: str) -> bool:
    place, _, room = stream.partition("/")
    if place != "rooms" or user not in MEMBERS.get(room, ()):
        return False
    return action in (Action.CREATE, Action.APPEND, Action.READ)


streams = create_app(can=can, user=user)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await streams.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/streams", streams)
