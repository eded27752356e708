"""PoolingModel: the Python front door. Texts in, typed arrays out, in order.

It enters the walk at tokenization and leaves it at the reply: the same functions, and the same numbers, as the server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np

from forebay.api.async_engine import AsyncEngine
from forebay.api.outputs import (
    GivenSide,
    OutputMaker,
    ScoreOptions,
    TextOptions,
    Texts,
    as_items,
    as_side,
    with_progress,
)
from forebay.api.plugin import IOProcessor
from forebay.api.score import chunks_of
from forebay.api.stream import answer_in_order
from forebay.core.config import Convert, DType, EngineLimits, ModelOptions, PoolerConfig, Runner
from forebay.core.errors import ForebayError, InvalidRequest
from forebay.core.info import ModelInfo
from forebay.core.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    EncodeOutput,
    Ranked,
    RerankOutput,
    ScoreOutput,
    SparseOutput,
    TokenClassificationOutput,
    TokenEmbeddingOutput,
    check_top_n,
    rank,
)
from forebay.core.params import PoolingParams, TextParams
from forebay.core.request import Item, Lane, Reply, Request, Scorable, ScoreReply, ScoreRequest
from forebay.core.sides import QUERIES, call_sides, check_one_query
from forebay.core.tasks import Task, parse_outputs
from forebay.text.entities import check_aggregation

_CHUNK_ITEMS = 1024


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
        runner: Runner = "auto",
        convert: Convert = "auto",
        io_processor: str | type[IOProcessor] | None = None,
        prompts: str | None = None,
        template: str | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        own, name = (io_processor, None) if isinstance(io_processor, type) else (None, io_processor)
        pooler = pooler_config if isinstance(pooler_config, PoolerConfig) else PoolerConfig.parse(pooler_config or {})
        if not isinstance(limits, EngineLimits | None):
            raise InvalidRequest(f"limits is of type {type(limits).__name__}; expected EngineLimits", field="limits")
        options = ModelOptions(
            model, revision, dtype, device, max_model_len, pooler, cache_dir, runner, convert, name, prompts, template
        )
        self.engine = AsyncEngine.load(options, limits, processor=own)

    @property
    def info(self) -> ModelInfo:
        """What was loaded, and who decided what."""
        return self.engine.info

    def embed(
        self,
        texts: Texts,
        *,
        dimensions: int | None = None,
        truncate_dim: int | None = None,
        use_activation: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> EmbeddingOutput:
        """Embed one text or many: ``embeddings`` float32 [n, dim], in input order (n is 1 for a single text).

        Token ids are taken as they are, with special tokens put around them. ``dimensions`` slices and normalises
        again, ``truncate_dim`` slices only; ``use_activation`` False leaves vectors as long as they are. The
        options are those of :class:`forebay.TextParams`, and ``show_progress`` (None: a bar for long work on a
        terminal). Raises InvalidRequest or InputTooLong for what can't be embedded, ItemFailed for an item whose
        forward failed.
        """
        pooling = PoolingParams((Task.EMBED,), dimensions, truncate_dim, use_activation)
        output = self._make(texts, pooling, options)[Task.EMBED]
        assert isinstance(output, EmbeddingOutput)
        return output

    def classify(
        self, texts: Texts, *, use_activation: bool | None = None, **options: Unpack[TextOptions]
    ) -> ClassificationOutput:
        """Score all labels for each text: ``scores`` float32 [n, labels]; ``use_activation`` False gives logits."""
        pooling = PoolingParams((Task.CLASSIFY,), use_activation=use_activation)
        output = self._make(texts, pooling, options)[Task.CLASSIFY]
        assert isinstance(output, ClassificationOutput)
        return output

    def token_embed(
        self,
        texts: Texts,
        *,
        dimensions: int | None = None,
        use_activation: bool | None = None,
        chunk_size: int | None = None,
        pool_factor: int | None = None,
        **options: Unpack[TextOptions],
    ) -> TokenEmbeddingOutput:
        """Embed every token, special ones included: float32 [tokens, dim] for each text.

        ``chunk_size`` averages windows of so many tokens instead (late chunking) and tells their characters;
        ``pool_factor`` joins a document's vectors by likeness to about one for so many. Models for late interaction
        read texts as queries or documents, by ``input_type``, and leave out vectors as their checkpoints say.
        """
        pooling = PoolingParams(
            (Task.TOKEN_EMBED,),
            dimensions,
            use_activation=use_activation,
            chunk_size=chunk_size,
            pool_factor=pool_factor,
        )
        output = self._make(texts, pooling, options)[Task.TOKEN_EMBED]
        assert isinstance(output, TokenEmbeddingOutput)
        return output

    def token_classify(
        self,
        texts: Texts,
        *,
        use_activation: bool | None = None,
        aggregation: str | None = None,
        **options: Unpack[TextOptions],
    ) -> TokenClassificationOutput:
        """Score all labels for every token: float32 [tokens, labels] for each text.

        ``aggregation`` (none, simple, first, average, max) also joins tokens to entities with their characters.
        """
        if aggregation is not None:
            check_aggregation(aggregation)
        pooling = PoolingParams((Task.TOKEN_CLASSIFY,), use_activation=use_activation)
        output = self._make(texts, pooling, options, aggregation)[Task.TOKEN_CLASSIFY]
        assert isinstance(output, TokenClassificationOutput)
        return output

    def sparse(
        self, texts: Texts, *, max_active_dims: int | None = None, **options: Unpack[TextOptions]
    ) -> SparseOutput:
        """Make sparse vectors over the vocabulary; ``max_active_dims`` keeps the heaviest entries of each."""
        pooling = PoolingParams((Task.SPARSE,), max_active_dims=max_active_dims)
        output = self._make(texts, pooling, options)[Task.SPARSE]
        assert isinstance(output, SparseOutput)
        return output

    def encode(
        self,
        texts: Texts,
        *,
        task: Task | str | None = None,
        outputs: Sequence[Task | str] | None = None,
        pooling: PoolingParams | None = None,
        **options: Unpack[TextOptions],
    ) -> EncodeOutput:
        """Make one or several outputs of one forward; ``result["sparse"]`` picks one of them.

        ``task`` None is the model's default task; ``pooling`` gives further parameters, for all outputs at once.
        """
        if task is not None and outputs is not None:
            raise InvalidRequest("'task' names one output and 'outputs' several; give one of them", field="outputs")
        names = outputs if outputs is not None else [task or self.info.abilities.default_task]
        params = replace(pooling or PoolingParams(), outputs=parse_outputs(names))
        return self._make(texts, params, options)

    def score(
        self,
        queries: Scorable | Sequence[Scorable],
        documents: Scorable | Sequence[Scorable],
        *,
        use_activation: bool | None = None,
        **options: Unpack[ScoreOptions],
    ) -> ScoreOutput:
        """Tell how well texts match: ``scores`` float32 [n], higher is better, in the documents' order.

        One query with one document or many, or as many queries as documents, pair by pair. The model decides the way:
        a cross-encoder reads both together, embeddings are compared by the checkpoint's similarity, token vectors by
        MaxSim. Late-interaction models also take token vectors, float32 [tokens, dim]. ``use_activation`` False gives
        a cross-encoder's logits. Raises InvalidRequest where the model can't score, and tells what it can.
        """
        return self._score(as_side(queries, "queries"), as_side(documents, "documents"), use_activation, options)

    def rerank(
        self,
        query: Scorable,
        documents: Sequence[Scorable],
        *,
        top_n: int | None = None,
        return_documents: bool = False,
        use_activation: bool | None = None,
        **options: Unpack[ScoreOptions],
    ) -> RerankOutput:
        """Order documents by how well they match a query, best first; equal scores keep their order.

        ``top_n`` None or 0 lists all of them. ``return_documents`` puts each document beside its score. The rest is
        as in ``score``.
        """
        check_top_n(top_n)
        one, given = as_side(query, "query"), as_side(documents, "documents")
        check_one_query(len(one.items))
        output = self._score(one, given, use_activation, options)
        results = [
            Ranked(index, output[index], given.items[index] if return_documents else None)
            for index in rank(output.scores, top_n)
        ]
        return RerankOutput(results, output.num_tokens, output.truncated)

    def _score(
        self,
        queries: GivenSide,
        documents: GivenSide,
        use_activation: bool | None,
        options: ScoreOptions,
    ) -> ScoreOutput:
        show_progress = options.pop("show_progress", None)
        text = TextParams(**options)  # type: ignore[misc]  # what is left are fields of TextParams
        whole = ScoreRequest(queries.items, documents.items, use_activation, text, lane=Lane.BULK)
        if len(whole.documents) <= 1:
            whole = replace(whole, lane=Lane.INTERACTIVE)
        replies: list[ScoreReply] = []
        num_done = 0
        stream = answer_in_order(chunks_of(whole, _CHUNK_ITEMS), self.engine.submit_score)
        try:
            for reply in with_progress(stream, len(whole.documents), show_progress):
                if reply.errors:
                    raise reply.errors[min(reply.errors)]
                num_done += len(reply)
                replies.append(reply)
        except ForebayError as error:
            if error.name != QUERIES or len(whole.queries) > 1:  # the one query for all stands where it stands
                error.move(num_done)
            raise call_sides(error, queries.name, documents.name) from None
        scores = np.concatenate([reply.scores for reply in replies])
        truncated = np.concatenate([reply.truncated for reply in replies])
        return ScoreOutput(scores, sum(reply.num_tokens for reply in replies), truncated)

    def plugin(self, data: Any) -> Any:
        """Hand data to the model's IO processor and return its answer (the task ``plugin``)."""
        return self.engine.plugin(data)

    def _make(
        self, texts: Texts, pooling: PoolingParams, options: TextOptions, aggregation: str | None = None
    ) -> EncodeOutput:
        items = as_items(texts)
        show_progress = options.pop("show_progress", None)
        text = TextParams(**options)  # type: ignore[misc]  # what is left are the fields of TextParams
        if len(items) <= 1:  # the short way: no chunks, no bar
            replies = [self.engine.submit(Request(items, pooling, text), lends_thread=True).result()]
        else:
            stream = self.stream(items, pooling=pooling, text=text)
            replies = list(with_progress(stream, len(items), show_progress))
        return OutputMaker(self.engine, items, text, aggregation).make(replies, pooling)

    def stream(
        self,
        items: Iterable[Item],
        *,
        pooling: PoolingParams | None = None,
        text: TextParams | None = None,
        chunk_items: int = _CHUNK_ITEMS,
    ) -> Iterator[Reply]:
        """Answer items chunk by chunk, in order, with a bounded number of chunks under way.

        Takes any iterable, endless ones too. Errors of single items stay in each ``reply.errors``, by their place
        in the chunk; an error of a whole chunk is raised and tells the place in ``items``.
        """
        pooling, text = pooling or PoolingParams(), text or TextParams()
        if chunk_items < 1:
            raise InvalidRequest(f"chunk_items is {chunk_items}; expected 1 or more", field="chunk_items")
        source = iter(items)
        requests = (
            Request(chunk, pooling, text, lane=Lane.BULK)
            for chunk in iter(lambda: list(islice(source, chunk_items)), [])
        )
        num_done = 0
        try:
            for reply in answer_in_order(requests, self.engine.submit):
                num_done += len(reply)
                yield reply
        except ForebayError as error:
            raise error.move(num_done) from None

    def close(self) -> None:
        """Stop the engine's threads; later calls raise NotReady."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
