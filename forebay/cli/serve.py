"""``forebay serve``: options → ModelOptions, EngineLimits and ServerOptions. Knows nothing of HTTP."""

from typing import Annotated

import typer

from forebay.cli.options import IOProcessorName, LoadOptions, ModelArgument, takes_options
from forebay.core.config import EngineLimits, ModelOptions, ServerOptions

LIMITS, SERVER = EngineLimits(), ServerOptions()
MIB = 1 << 20


@takes_options
def serve(
    model: ModelArgument = "default",
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = SERVER.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = SERVER.port,
    served_name: Annotated[
        list[str] | None, typer.Option(help="Name that clients may use for the model; may be repeated.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Lower the model's limit of tokens a text.")] = None,
    io_processor: IOProcessorName = None,
    cache_dir: Annotated[str | None, typer.Option(help="Folder of downloaded models.")] = None,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = LIMITS.max_step_tokens,
    max_queued_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that may wait before requests are refused.")
    ] = LIMITS.max_queued_tokens,
    max_passes: Annotated[
        int, typer.Option(min=0, help="How often shorter texts may pass a waiting one.")
    ] = LIMITS.max_passes,
    max_lane_wait: Annotated[
        float, typer.Option(min=0, help="Seconds that small requests may hold back bulk ones.")
    ] = LIMITS.max_lane_wait,
    api_key: Annotated[
        str | None, typer.Option(envvar="FOREBAY_API_KEY", help="Key that every request must carry.")
    ] = None,
    max_items: Annotated[int, typer.Option(min=1, help="Texts that one request may carry.")] = SERVER.max_items,
    max_body_mb: Annotated[int, typer.Option(min=1, help="MiB of one request's body.")] = SERVER.max_body_bytes // MIB,
    max_bodies_mb: Annotated[
        int, typer.Option(min=1, help="MiB of the bodies of all requests under way; beyond it new ones get 503.")
    ] = SERVER.max_bodies_bytes // MIB,
    bulk_items: Annotated[
        int, typer.Option(min=1, help="Requests with at least so many texts wait in the bulk lane.")
    ] = SERVER.bulk_items,
    request_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds until a request is given up.")
    ] = SERVER.request_timeout,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests get when the server stops.")
    ] = SERVER.drain_seconds,
    loading: LoadOptions,
) -> int:
    """Serve a model over HTTP."""
    from forebay.server import app

    return app.serve(
        ModelOptions(
            model=model,
            revision=loading.revision,
            dtype=loading.dtype,
            device=loading.device,
            max_model_len=max_model_len,
            pooler=loading.pooler(),
            cache_dir=cache_dir,
            runner=loading.runner,
            convert=loading.convert,
            io_processor=io_processor,
            prompts=loading.prompts,
            template=loading.template,
        ),
        loading.limits(
            max_step_tokens=max_step_tokens,
            max_queued_tokens=max_queued_tokens,
            max_passes=max_passes,
            max_lane_wait=max_lane_wait,
        ),
        ServerOptions(
            host=host,
            port=port,
            served_names=tuple(served_name or ()),
            api_key=api_key or None,
            max_body_bytes=max_body_mb * MIB,
            max_bodies_bytes=max_bodies_mb * MIB,
            max_items=max_items,
            bulk_items=bulk_items,
            request_timeout=request_timeout,
            drain_seconds=drain_seconds,
        ),
    )
