"""Owns the least that the framework answers: routes without any work, run as ``holdfast serve`` runs."""

from __future__ import annotations

import json

import uvicorn
from fastapi import FastAPI

from holdfast.web.server import listen

app = FastAPI()


@app.post("/empty")
async def empty() -> None:
    pass


@app.post("/echo")
async def echo(body: dict[str, object]) -> dict[str, object]:
    return body


if __name__ == "__main__":
    with listen("127.0.0.1", 0) as listening:
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
        )
        uvicorn.Server(config).run([listening])
