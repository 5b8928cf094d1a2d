"""The service: JSON for handshake, status and console; a WebSocket with msgpack for questions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import WebSocketRoute

from sfumato.errors import InvalidInput
from sfumato.node import catalogue, console
from sfumato.node.catalogue import CATALOGUE, Refusal
from sfumato.node.guard import App, Guard, Receive, Scope, Send, send_refusal
from sfumato.node.session import Session
from sfumato.node.state import Node
from sfumato.node.tokens import Token
from sfumato.tools.version import __version__

STATIC = Path(__file__).parent / "static"
PAGES = {"/": "console.html", "/console.css": "console.css", "/console.js": "console.js", "/icon.svg": "icon.svg"}
SWEEP_SECONDS = 0.5


class RefusalBody(BaseModel):
    """What every refusal looks like."""

    ok: bool
    code: str
    error: str
    status: int


class Fine(BaseModel):
    """Done."""

    ok: bool = True


class Health(Fine):
    """Alive."""

    state: str


class Plan(BaseModel):
    """What the planner's sliders ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)
    study: str = Field(max_length=64)
    epsilon: float = Field(ge=1e-3, le=30, allow_inf_nan=False)
    delta: float = Field(ge=1e-15, le=0.1, allow_inf_nan=False)
    n: int = Field(ge=2, le=10**12)


class Planned(Fine):
    """What a budget would buy."""

    plan: dict[str, Any]


class Name(BaseModel):
    """Which token."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(max_length=64)


class Nothing(BaseModel):
    """An empty object."""

    model_config = ConfigDict(extra="forbid", strict=True)


_bearer = HTTPBearer(auto_error=False)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": RefusalBody} for status in sorted({entry.status for entry in CATALOGUE.values()})
}


def make_app(node: Node) -> App:
    """Build the service around a node."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(node))
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            node.close()

    app = FastAPI(
        title="sfumato node", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan, responses=_REFUSALS
    )  # fmt: skip
    _public(app, node)
    _for_analysts(app, node)
    _for_the_owner(app, node)
    _errors(app, node)
    app.router.routes.append(WebSocketRoute("/ws", _Door(node)))
    _describe(app)
    return Guard(app, node.file.listen, node.limits, node.log, node.metrics)


async def _sweep(node: Node) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        # A token file being written over, a full disk: try again in a moment, and let neither keep the other from its work.
        try:
            node.sweep()
        except Exception as error:
            node.log.unexpected("sweep", error)
        try:
            await asyncio.to_thread(node.tidy)
        except Exception as error:
            node.log.unexpected("tidy", error)


class _Door:
    """The WebSocket's way in: the token is checked before the connection is accepted."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        node, entered, token = self._node, False, None
        headers = {name.lower(): value for name, value in scope["headers"]}
        address = str((scope.get("client") or ("?",))[0])
        await receive()  # websocket.connect
        try:
            token = await node.authenticate(headers.get(b"authorization", b"").decode("latin-1"), address, "analyst")
            node.turnstile.enter(token.name)
            entered = True
            await send({"type": "websocket.accept"})
            await Session(node, token, receive, send, scope["extensions"].get("sfumato.wire")).serve()
        except Refusal as refusal:
            node.metrics.refusals[refusal.code] += 1
            node.log.event("refused", code=refusal.code, who=token.name if token else "", what=refusal.detail)
            await send_refusal(scope, send, refusal.code)
        finally:
            if entered and token is not None:
                node.turnstile.leave(token.name)


# -- addresses ------------------------------------------------------------------------------------------------------


def _public(app: FastAPI, node: Node) -> None:
    @app.get("/healthz", tags=["operations"])
    async def healthz() -> Health:
        """Tell whether the node is up; says nothing else."""
        return Health(state="paused" if node.paused else "serving")

    def page(path: str, file: str) -> None:
        @app.get(path, include_in_schema=False)
        async def static() -> FileResponse:
            return FileResponse(STATIC / file)

    for path, file in PAGES.items():
        page(path, file)


def _caller(node: Node, *kinds: str) -> Callable[..., Awaitable[Token]]:
    async def caller(request: Request, _: Annotated[Any, Depends(_bearer)]) -> Token:
        address = request.client.host if request.client else "?"
        return await node.authenticate(request.headers.get("authorization"), address, *kinds)

    return caller


def _for_analysts(app: FastAPI, node: Node) -> None:
    analyst = Depends(_caller(node, "analyst"))

    @app.get("/api/handshake", tags=["analyst"], response_model=dict[str, Any])
    async def handshake(token: Annotated[Token, analyst]) -> Response:
        """Everything public that an analyst needs before asking: studies, fingerprints, records, domain, budget left."""
        return _json(await asyncio.to_thread(node.handshake, token.name))

    @app.get("/api/status", tags=["analyst"], response_model=dict[str, Any])
    async def status(token: Annotated[Token, analyst]) -> Response:
        """The caller's own budget and runs."""
        return _json(await asyncio.to_thread(_status, node, token.name))


def _for_the_owner(app: FastAPI, node: Node) -> None:
    owner = Depends(_caller(node, "owner"))
    watcher = Depends(_caller(node, "owner", "monitor"))
    planning = asyncio.Lock()  # a plan is a second's work: one at a time, and answers go first

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics(_: Annotated[Token, watcher]) -> PlainTextResponse:
        """Counters in Prometheus' text format; releasable numbers only."""
        total = await asyncio.to_thread(node.books.total)
        gauges = {"connections": node.turnstile.inside, "paused": int(node.paused)}
        return PlainTextResponse(
            node.metrics.text(gauges | {"budget_cap_mu_squared": total.cap, "budget_spent_mu_squared": total.spent}),
            media_type="text/plain; version=0.0.4",
        )

    @app.get("/api/console/state", tags=["owner"], response_model=dict[str, Any])
    async def state(token: Annotated[Token, owner]) -> Response:
        """Everything the console shows."""
        return _json(await asyncio.to_thread(console.state, node, token.name))

    @app.post("/api/console/pause", tags=["owner"])
    async def pause(token: Annotated[Token, owner], _: Nothing) -> Fine:
        """Stop all answers."""
        node.pause(token.name)
        return Fine()

    @app.post("/api/console/resume", tags=["owner"])
    async def resume(token: Annotated[Token, owner], _: Nothing) -> Fine:
        """Answer again."""
        node.resume(token.name)
        return Fine()

    @app.post("/api/console/revoke", tags=["owner"])
    async def revoke(token: Annotated[Token, owner], which: Name) -> Fine:
        """Revoke a token and close its connections."""
        node.revoke(which.name, token.name)
        return Fine()

    @app.post("/api/console/plan", tags=["owner"])
    async def plan(_: Annotated[Token, owner], asked: Plan) -> Planned:
        """Forecast what a budget would buy; spends nothing, reads no record."""
        if asked.study not in node.studies:
            raise Refusal("not-found", f"study {asked.study!r}")
        try:
            async with planning:
                made = await asyncio.to_thread(node.studies[asked.study].plan, asked.epsilon, asked.delta, asked.n)
        except InvalidInput as error:
            raise Refusal("bad-number", str(error)) from None
        return Planned(plan=made)


# -- what they show -------------------------------------------------------------------------------------------------


def _status(node: Node, analyst: str) -> dict[str, Any]:
    mine = [state for state in node.books.accounts() if state.get("analyst") == analyst and state["kind"] == "run"]
    budget = node.books.budget(analyst, node.studies)
    return {"ok": True, "analyst": analyst, "budget": budget, "paused": node.paused, "runs": mine}


# -- refusals -------------------------------------------------------------------------------------------------------


def _errors(app: FastAPI, node: Node) -> None:
    def refuse(code: str, detail: str = "", headers: dict[str, str] | None = None) -> JSONResponse:
        node.metrics.refusals[code] += 1
        node.log.event("refused", code=code, what=detail[:300])
        return JSONResponse(catalogue.body(code), CATALOGUE[code].status, headers)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        challenge = {"WWW-Authenticate": "Bearer"} if error.code == "unauthorised" else None
        return refuse(error.code, f"{request.url.path[:100]}: {error.detail}", challenge)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return refuse("bad-request", f"{request.url.path[:100]}")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not-found", 405: "wrong-method", 413: "too-large"}.get(error.status_code, "bad-request")
        return refuse(code, f"{request.url.path[:100]}", dict(error.headers or {}))


def _describe(app: FastAPI) -> None:
    """The OpenAPI document, with our own refusals in place of FastAPI's: JSON, whatever the answer itself is."""
    made = app.openapi()
    shape = {"application/json": {"schema": {"$ref": f"#/components/schemas/{RefusalBody.__name__}"}}}
    for path in made["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    response["content"] = shape


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
