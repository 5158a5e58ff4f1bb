"""Runs vLLM's API server and the internal port in one event loop, and ends both when either ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from .admission import CacheShape, process_admission
from .attest import process_attester
from .compat import server_api
from .internal import make_server
from .internal import serve as serve_internal
from .launch import Launch
from .tls import MountedTls


def run(launch: Launch) -> None:
    """Serves until a signal or a failure; the environment of `launch` is set already."""
    import uvloop

    api = server_api()
    api.cli_env_setup()
    parser = api.make_arg_parser(api.FlexibleArgumentParser(prog="blockwarden_engine", allow_abbrev=False))
    args = parser.parse_args(list(launch.vllm_args))
    api.configure_logging_from_args(args)
    api.validate_parsed_serve_args(args)
    uvloop.run(_serve(launch, args))


async def _serve(launch: Launch, args: Any) -> None:
    signal.signal(signal.SIGTERM, _interrupt)  # until uvicorn installs handlers of its own: loading weights takes minutes
    api, attester = server_api(), process_attester()
    tls = MountedTls(launch.tls_directory, require_client=True)
    internal_tls = MountedTls(launch.tls_directory, require_client=False)
    listen_address, socket = api.setup_server(args, reuse_port=False)
    try:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(api.build_async_engine_client(args))
            process_admission().shape = _cache_shape(client.vllm_config)
            attester.bind(client)
            attester.watch_also(lambda: tls.error)
            attester.watch_also(lambda: internal_tls.error)
            await attester.report()
            internal = make_server(attester, internal_tls.context, host=launch.host, port=launch.internal_port)
            side = [tls.watch(), internal_tls.watch(), attester.heartbeat(), serve_internal(internal)]
            public = api.build_and_serve(
                client, listen_address, socket, args, server_header=False,
                ssl_context_factory=lambda _config, _default: tls.context,
            )  # fmt: skip
            shutdown = await _first_ends(public, side)
        await shutdown
    finally:
        socket.close()


async def _first_ends(public: Any, side: list[Any]) -> Any:
    """What `public` returns; if one of `side`, which never end by themselves, ends first, it takes `public` down with it."""
    main = asyncio.ensure_future(public)
    tasks = [asyncio.ensure_future(coroutine) for coroutine in side]
    try:
        await asyncio.wait([main, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not main.done():
                main.cancel()
                task.result()
        return await main
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cache_shape(config: Any) -> CacheShape:
    cache = config.cache_config
    return CacheShape(cache.block_size, cache.num_gpu_blocks - 1, config.model_config.max_model_len)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt("terminated")
