"""The engine behind HTTP, and a client that loads any such server. No torch and no tornado until used.

    from helpers.techniques import serving
    serving.serve(engine, tokenizer, "small", serving.listen(8000))                # until SIGINT or SIGTERM
    asyncio.run(serving.run_bench("http://127.0.0.1:8000", jobs, concurrency=8))   # times to first token, …

`protocol` reads a request and writes an answer, `worker` is the one thread that owns the engine, `server` the HTTP
around them, `bench` the client.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .bench import BenchJob, BenchReport, RequestOutcome, Spread, run_bench
    from .protocol import CompletionRequest, RequestError
    from .server import CompletionServer, listen, serve
    from .worker import EngineWorker


__getattr__ = lazy(__name__)
