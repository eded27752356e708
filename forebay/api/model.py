"""PoolingModel: the Python front door. Texts in, typed arrays out, in order.

It enters the walk at tokenization and leaves it at the reply: the same functions, and the same numbers, as the server.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from forebay.api.async_engine import AsyncEngine
from forebay.core.config import DType, EngineLimits, ModelOptions, PoolerConfig
from forebay.core.errors import InvalidRequest, Overloaded
from forebay.core.info import ModelInfo
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import EmbeddingOutput, Item, Lane, Reply, Request

# Chunks of a long job that are under way at once: while one is computed the next is tokenized.
_CHUNKS_IN_FLIGHT = 3
_CHUNK_ITEMS = 1024
_PROGRESS_ITEMS = 512

_UnderWay = deque[tuple[Request, Future[Reply]]]


class PoolingModel:
    """A loaded model. Use it in a ``with`` block, or ``close`` it.

    ``model`` is a folder, a hub id, or ``default``; the other arguments are those of
    :class:`forebay.ModelOptions`. Raises LoadError where the checkpoint can't be loaded.

    >>> with PoolingModel("default") as model:
    ...     vectors = model.embed(["a text", "another"]).embeddings
    """

    def __init__(  # noqa: PLR0913  (keyword-only options, each a field of ModelOptions)
        self,
        model: str = "default",
        *,
        revision: str | None = None,
        dtype: DType = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        pooler_config: PoolerConfig | Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        pooler = pooler_config if isinstance(pooler_config, PoolerConfig) else PoolerConfig.parse(pooler_config or {})
        options = ModelOptions(model, revision, dtype, device, max_model_len, pooler, cache_dir)
        self.engine = AsyncEngine.load(options, limits)

    @property
    def info(self) -> ModelInfo:
        """What was loaded, and who decided what."""
        return self.engine.info

    def embed(  # noqa: PLR0913  (keyword-only, each a field of TextParams or PoolingParams)
        self,
        texts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        input_type: str | None = None,
        dimensions: int | None = None,
        use_activation: bool | None = None,
        truncate: bool = True,
        truncation_side: Literal["left", "right"] | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
    ) -> EmbeddingOutput:
        """Embed one text or many; token ids are taken as they are, with special tokens put around them.

        Returns float32 [n, dim], in input order (n is 1 for a single text). ``show_progress`` None shows a bar
        for long work on a terminal. Raises InvalidRequest or InputTooLong for what can't be embedded, ItemFailed
        for an item whose forward failed.
        """
        items = _as_items(texts)
        text = TextParams(prompt, prompt_name, input_type, truncate, truncation_side, max_tokens)
        pooling = PoolingParams(dimensions=dimensions, use_activation=use_activation)
        if len(items) <= 1:  # the short way: no chunks, no bar
            replies = [self.engine.submit(Request(items, pooling, text)).result()]
        else:
            stream = self.stream(items, pooling=pooling, text=text)
            replies = list(_with_progress(stream, len(items), show_progress))
        return self._join(replies, pooling)

    def stream(
        self,
        items: Iterable[Item],
        *,
        pooling: PoolingParams | None = None,
        text: TextParams | None = None,
        chunk_items: int = _CHUNK_ITEMS,
    ) -> Iterator[Reply]:
        """Answer items chunk by chunk, in order, with a bounded number of chunks under way.

        Takes any iterable, endless ones too. Errors of single items stay in each ``reply.errors``.
        """
        pooling, text = pooling or PoolingParams(), text or TextParams()
        if chunk_items < 1:
            raise InvalidRequest(f"chunk_items is {chunk_items}; expected 1 or more", field="chunk_items")
        source = iter(items)
        under_way: _UnderWay = deque()
        try:
            while True:
                while len(under_way) < _CHUNKS_IN_FLIGHT and (chunk := list(islice(source, chunk_items))):
                    request = Request(chunk, pooling, text, lane=Lane.BULK)
                    under_way.append((request, self.engine.submit(request)))
                if not under_way:
                    return
                reply = self._wait_for_first(under_way)
                under_way.popleft()
                yield reply
        finally:
            for _, future in under_way:
                future.cancel()

    def _wait_for_first(self, under_way: "_UnderWay") -> Reply:
        """Return the first chunk's reply; one that found the queue full, of our own chunks maybe, is sent again."""
        while True:
            request, future = under_way[0]
            try:
                return future.result()
            except Overloaded as error:
                others = [other for _, other in under_way if not other.done()]
                if others:
                    wait(others, timeout=error.retry_after, return_when=FIRST_COMPLETED)
                else:
                    time.sleep(error.retry_after)
                under_way[0] = (request, self.engine.submit(request))

    def close(self) -> None:
        """Stop the engine's threads; later calls raise NotReady."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _join(self, replies: list[Reply], pooling: PoolingParams) -> EmbeddingOutput:
        for reply in replies:
            reply.raise_errors()
        rows = [row for reply in replies for row in reply.rows]
        abilities = self.info.abilities
        size = pooling.dimensions or abilities.default_dimension
        return EmbeddingOutput(
            embeddings=np.stack(rows) if rows else np.zeros((0, size), np.float32),
            num_tokens=np.concatenate([np.zeros(0, np.int32), *(reply.num_tokens for reply in replies)]),
            truncated=np.concatenate([np.zeros(0, np.bool_), *(reply.truncated for reply in replies)]),
        )


def _as_items(texts: Any) -> Sequence[Item]:
    """Tell one text, one list of ids and many of either apart."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, np.ndarray) and texts.dtype.kind in "iu" and texts.ndim == 1:
        return [texts.tolist()]
    if (
        isinstance(texts, bytes | bytearray | dict)
        or not hasattr(texts, "__len__")
        or not hasattr(texts, "__getitem__")
    ):
        raise InvalidRequest(
            f"texts is of type {type(texts).__name__}; expected a text, a list of texts, or lists of token ids",
            field="texts",
        )
    if len(texts) and all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in texts):
        return [list(texts)]
    return list(texts)


def _with_progress(replies: Iterator[Reply], total: int, show: bool | None) -> Iterator[Reply]:
    """Pass replies on, and count their items on a bar where that is wanted."""
    if show is False or (show is None and (total < _PROGRESS_ITEMS or not sys.stderr.isatty())):
        yield from replies
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TextColumn("texts"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("embedding", total=total)
        for reply in replies:
            yield reply
            progress.advance(task, len(reply.rows))
