"""What the tests of peers ask for, on RRQ's Python runtime."""

import asyncio
import os
import time

from rrq import ExecutionError, ExecutionOutcome, PythonRunnerSettings, Registry
from rrq.exc import RetryJob

registry = Registry()
settings = PythonRunnerSettings(registry=registry)


def handler(function):
    registry.register(function.__name__, function)


@handler
async def echo(request):
    return request.params


@handler
async def sleep(request):
    await asyncio.sleep(request.params["ms"] / 1000)
    return request.params


@handler
async def fail(request):
    raise ValueError(request.params["message"])


@handler
async def retry(request):
    if request.context.attempt <= request.params["times"]:
        raise RetryJob("again", defer_seconds=request.params.get("after"))
    return {"attempt": request.context.attempt}


@handler
async def crash(request):
    os._exit(request.params["code"])


@handler
async def hang(request):
    while True:
        time.sleep(3600)  # the whole event loop


@handler
async def big(request):
    return "x" * request.params["bytes"]


@handler
async def context(request):
    return request.context


@handler
async def unsendable(request):
    return object()


@handler
async def detailed(request):
    return ExecutionOutcome(status="error", error=ExecutionError(message="m", type="t", code="c", details={"n": 1}))
