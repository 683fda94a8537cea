"""`hf-multisource serve`: answer requests for translations over HTTP."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main

NAME = "serve"
SETTINGS = {"bare": options.BARE_OPTIMIZE}
MODULES = ("fastapi", "uvicorn", "prometheus_client")
INSTALL = (
    "hf-multisource serve needs FastAPI, uvicorn and prometheus_client: "
    'run pip install ".[serve]" in a clone of the repository'
)


def serve(
    run: Annotated[str, typer.Argument(help="Run folder, model folder or Hub id.")],
    host: Annotated[
        str, typer.Option("--host", help="Address; one that other machines can reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0: a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option("--token_file", metavar="FILE", help="File whose first line is the token of all requests."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Name of the target language; default: recipe's.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option("--num_beams", help="Beam width; default: that of the confidence, or else 5.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max_new_tokens", help="Longest translation, in tokens; default: the recipe's.")
    ] = None,
    max_beams: Annotated[int, typer.Option("--max_beams", help="Largest beam width that a request may ask for.")] = 10,
    max_body: Annotated[int, typer.Option("--max_body", help="Largest body of a request, in bytes.")] = 2**20,
    max_rows: Annotated[int, typer.Option("--max_rows", help="Largest number of rows of a request.")] = 128,
    max_characters: Annotated[int, typer.Option("--max_characters", help="Longest text, in characters.")] = 5000,
    max_queue: Annotated[int, typer.Option("--max_queue", help="Rows that may wait, of all requests together.")] = 1024,
    max_batch: Annotated[int, typer.Option("--max_batch", help="Rows translated at once.")] = 32,
    max_wait: Annotated[float, typer.Option("--max_wait", help="Seconds that a batch waits for further rows.")] = 0.01,
    time_limit: Annotated[float, typer.Option("--time_limit", help="Seconds until a request must be answered.")] = 60.0,
    optimize: options.Optimize = None,
    device: options.Device = None,
) -> None:
    """Answer requests for translations over HTTP, until SIGTERM or Ctrl-C.

    \b
        hf-multisource serve runs/mine
        hf-multisource serve runs/mine --host 0.0.0.0 --port 8080 --token_file token.txt
        curl localhost:8000/translate -H 'Content-Type: application/json' \\
            -d '{"sources": {"en": "Open", "de": "Öffnen"}, "n_best": 2}'

    `POST /translate` takes one row of sources or a list of rows. It returns candidates, their scores and, if
    RUN/confidence.json exists, the confidence of the best candidate; or the reason why a row is refused. Rows of
    concurrent requests share batches. `/languages` names sources and target, and `/health`, `/ready` and `/metrics`
    are for monitoring.
    """
    if missing := [name for name in MODULES if find_spec(name) is None]:
        raise ImportError(f"{INSTALL} ({missing[0]} is missing)")
    from hf_multisource.serving.running import Serving
    from hf_multisource.serving.running import serve as serve_run
    from hf_multisource.serving.service import Limits

    limits = Limits(
        max_body=max_body,
        max_rows=max_rows,
        max_characters=max_characters,
        max_beams=max_beams,
        max_queue=max_queue,
        max_batch=max_batch,
        max_wait=max_wait,
        time_limit=time_limit,
    )
    job = Serving(
        run,
        host=host,
        port=port,
        token_file=token_file,
        target=target,
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
        limits=limits,
        optimize=optimize,
        device=device,
    )
    serve_run(job, partial(print, flush=True))


main = make_main(NAME, serve, **SETTINGS)

if __name__ == "__main__":
    main()
