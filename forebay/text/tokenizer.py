"""Texts to token ids: a whole request in one batch call, cut to what the model reads, special tokens put once.

Tokens come from the checkpoint's own fast tokenizer without special ones; the frame of special tokens (``[CLS]``
… ``[SEP]``) is read from its template and put around what is left after cutting, so that ids given by the caller
are treated the same way. It knows no model and no task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from forebay.core.errors import InputTooLong, InvalidRequest
from forebay.core.params import TextParams
from forebay.core.request import Item, Reading
from forebay.text.cuts import MARGIN, Side, cut_text, first_limit, last_limit
from forebay.text.framed import FramedPairs, PairLimits
from forebay.text.frames import Frame, read_frame
from forebay.text.late import LateSide
from forebay.text.listing import TokenList, list_tokens
from forebay.text.meaning import check_media, refuse_single
from forebay.text.pairs import check_pairs, longest_first, read_pair_frame
from forebay.text.spans import Spans, read_spans
from forebay.text.templates import PairTemplate
from forebay.text.windows import Windows, cut_ids, split

Ids = NDArray[np.int32]

_NO_LIMIT = 1 << 40
_NO_RULES = LateSide()
_NO_WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class Encoded:
    """The m sequences of a request's n items, in order; m > n where long texts were split into windows.

    ``ids[i]`` int32 with special tokens; ``truncated`` bool [n]; ``prompt_lens`` (int64 [m]) tells how many first
    tokens of each, special ones included, stand for the prompt and are left out of pooling; all 0 where prompts
    are pooled too. ``owners`` int64 [m] are the sequences' items. ``type_ids[i]`` int32 are the types of sequence i's
    tokens; None where all are 0. ``readings`` are how sequences are read for late interaction, None in other models.
    """

    ids: list[Ids]
    truncated: NDArray[np.bool_]
    prompt_lens: NDArray[np.int64]
    owners: NDArray[np.int64]
    type_ids: list[Ids] | None = None
    readings: list[Reading] | None = None


def lowercase_first(tokenizer: Tokenizer) -> None:
    """Lower-case texts before all other normalisation (``do_lower_case`` of sentence-transformers)."""
    lower = normalizers.Lowercase()
    former = tokenizer.normalizer
    tokenizer.normalizer = lower if former is None else normalizers.Sequence([lower, former])


class TextTokenizer:
    """Encodes the items of requests. ``max_len`` counts special tokens too.

    ``has_specials`` False leaves the frame away (static embeddings); ``skips_prompt`` asks for prompt lengths;
    ``windows`` are those of long texts that are not to be cut; ``unknown_id`` is the id of what the vocabulary
    lacks; ``num_types`` the number of token types that the model tells apart; ``late`` are the two sides of late
    interaction, in models for it: a text of no side is read as a document; ``template`` makes one text of a pair,
    and then single texts are refused unless they come without special tokens, whole templates; ``frames_once``
    leaves out a special token that the text has at that end already; ``media_ids`` are tokens that stand for what
    is no text, and are refused.
    """

    def __init__(  # noqa: PLR0913  (keyword-only, each a trait of the model)
        self,
        tokenizer: Tokenizer,
        *,
        max_len: int,
        vocab_size: int,
        side: Side = "right",
        has_specials: bool = True,
        skips_prompt: bool = False,
        windows: Windows = _NO_WINDOWS,
        unknown_id: int | None = None,
        num_types: int = 1,
        template: PairTemplate | None = None,
        frames_once: bool = False,
        late: Mapping[str, LateSide] | None = None,
        media_ids: frozenset[int] = frozenset(),
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.max_len = max_len
        self._vocab_size = vocab_size
        self._side = side
        self._skips_prompt = skips_prompt
        self._windows = windows
        self._unknown_id = unknown_id
        no_frame = Frame(np.zeros(0, np.int32), np.zeros(0, np.int32))
        self._frame = read_frame(tokenizer) if has_specials else no_frame
        self._no_frame = no_frame
        self._pair_frame = read_pair_frame(tokenizer) if has_specials else None
        self._num_types = num_types
        self._late = late
        self._framed = None if template is None else FramedPairs(tokenizer, template, self._encode_batch)
        self._frames_once = frames_once
        self._media_ids = np.array(sorted(media_ids), np.int32)

    @property
    def reads_pairs_only(self) -> bool:
        """Whether a single text means nothing, unless it is a whole template."""
        return self._framed is not None

    @property
    def takes_instruction(self) -> bool:
        """Whether the template of pairs has a place for one."""
        return self._framed is not None and self._framed.template.takes_instruction

    def encode(self, items: Sequence[Item], params: TextParams, prompt: str, *, splits: bool = False) -> Encoded:
        """Tokenize all items. Raises InvalidRequest or InputTooLong, naming the item, and nothing else.

        ``splits`` tells that outputs of windows can be joined: then a longer text is cut into windows with a frame each
        where the request wants that.
        """
        if self._framed is not None and params.add_special_tokens:
            refuse_single(items)
        frame = self._frame if params.add_special_tokens else self._no_frame
        late = self._late_side(params)
        num_specials = len(frame) + len(late.marker)
        room = min(self._room(params, num_specials, late), _side_limit(params))
        side = params.truncation_side or self._side
        most = self._windows.limit(params) if splits else None
        limit = room if most is None else max(room, most - num_specials)
        bodies, was_cut = self._bodies(items, params, prompt, limit, side)
        wrap = frame.wrap_once if self._frames_once else frame.wrap
        is_whole = not any(was_cut) and max(map(len, bodies), default=0) <= room
        if is_whole and self._late is None and not (prompt and self._skips_prompt):
            whole = [wrap(body) for body in bodies]
            check_media(whole, self._media_ids, np.arange(len(items)))
            return _as_they_are(whole)
        num_body = np.fromiter((len(body) for body in bodies), np.int64, len(bodies))
        truncated = (num_body > limit) | np.array(was_cut, np.bool_)
        if not params.truncate and truncated.any():
            index = int(truncated.argmax())
            found = f"has {int(num_body[index]) + num_specials} tokens or more"
            if num_body[index] <= limit:
                found = "has too many characters to be read whole, however few tokens they are"
            raise InputTooLong(
                f"input[{index}] {found}, but at most {limit + num_specials} tokens are read; send a shorter text, or "
                "allow truncation",
                index=index,
            )
        num_cut = np.maximum(num_body - limit, 0)
        prompt_lens = self._prompt_lens(items, prompt, frame, num_cut if side == "left" else np.zeros_like(num_cut))
        prompt_lens = np.minimum(prompt_lens, num_body - num_cut + len(frame.prefix))
        windows = [split(cut_ids(body, limit, side), max(room, 1), self._windows.overlap) for body in bodies]
        counts = np.fromiter(map(len, windows), np.int64, len(windows))
        first = np.cumsum(counts) - counts
        window_prompt_lens = np.zeros(int(counts.sum()), np.int64)  # the prompt stands in a text's first window
        window_prompt_lens[first] = np.minimum(prompt_lens, room + len(frame.prefix))
        ids = [wrap(window) for parts in windows for window in parts]
        check_media(ids, self._media_ids, np.repeat(np.arange(len(items)), counts))
        readings = None
        if self._late is not None:
            completed = [late.complete(row, self.max_len) for row in ids]
            ids, readings = [row for row, _ in completed], [reading for _, reading in completed]
        owners = np.repeat(np.arange(len(items)), counts)
        return Encoded(ids, truncated, window_prompt_lens, owners, readings=readings)

    def _late_side(self, params: TextParams) -> LateSide:
        """The side whose rules a request's texts follow; without special tokens, or in other models, no rule."""
        if self._late is None or not params.add_special_tokens:
            return _NO_RULES
        return self._late["query" if params.input_type == "query" else "document"]

    def encode_pairs(self, firsts: Sequence[Item], seconds: Sequence[str], params: TextParams, prompt: str) -> Encoded:
        """Tokenize pairs of texts, ``prompt`` before the first ones. Raises as ``encode`` does.

        Each distinct text is tokenized once. Of pairs that are too long the longer text is cut, as it was trained, or
        the second text is read by windows, each beside the whole first one.
        """
        if self._framed is not None:
            return self._encode_framed(self._framed, firsts, seconds, params, prompt)
        frame = self._pair_frame
        if frame is None or (self._num_types > 1 and frame.num_types > self._num_types):
            raise InvalidRequest("this model's tokenizer has no format for pairs of texts; send single texts")
        if not params.add_special_tokens:
            raise InvalidRequest("a pair can't do without special tokens", field="add_special_tokens")
        room, side = self._room(params, len(frame)), params.truncation_side or self._side
        split_len = (self._windows.limit(params) or 0) if room > 1 else 0
        first_limit = min(params.max_tokens_per_query or room, room)
        second_limit = min(params.max_tokens_per_doc or room + split_len, room + split_len)
        one, one_was_cut, other, other_was_cut = self._pair_bodies(firsts, seconds, prompt, max(room, split_len), side)
        lens = np.array([[len(body) for body in bodies] for bodies in (one, other)], np.int64).reshape(2, -1)
        wanted = np.minimum(lens, [[first_limit], [second_limit]])
        num_first, num_second = longest_first(wanted[0], wanted[1], room)
        num_read = np.minimum(wanted[1], np.maximum(num_second, split_len - len(frame) - num_first))
        truncated = (num_first < lens[0]) | (num_read < lens[1]) | one_was_cut | other_was_cut
        if not params.truncate and truncated.any():
            index = int(truncated.argmax())
            error = InputTooLong(
                f"input[{index}]: the pair has {lens[0, index]} and {lens[1, index]} tokens or more, of which "
                f"{num_first[index]} and {num_read[index]} are read beside {len(frame)} special ones; send shorter "
                "texts, or allow truncation",
                index=index,
            )
            error.is_first = not (num_read[index] < lens[1, index] or other_was_cut[index])
            raise error
        pairs = [
            (index, cut_ids(first, cut, side), window)
            for index, (first, second, cut, size) in enumerate(
                zip(one, other, num_first.tolist(), num_read.tolist(), strict=True)
            )
            for window in split(cut_ids(second, size, side), max(room - cut, 1), self._windows.overlap)
        ]
        ids = [frame.wrap(first, second) for _, first, second in pairs]
        has_types = min(self._num_types, frame.num_types) > 1
        types = [frame.type_ids(len(first), len(second)) for _, first, second in pairs] if has_types else None
        owners = np.fromiter((index for index, _, _ in pairs), np.int64, len(pairs))
        return Encoded(ids, truncated, np.zeros(len(ids), np.int64), owners, types)

    def _encode_framed(
        self, framed: FramedPairs, firsts: Sequence[Item], seconds: Sequence[str], params: TextParams, prompt: str
    ) -> Encoded:
        """Tokenize pairs by the template."""
        limits = PairLimits.of(params, self.max_len, params.truncation_side or self._side)
        limits = replace(limits, split=self._windows.limit(params) or 0, overlap=self._windows.overlap)
        ids, owners, truncated = framed.read(firsts, seconds, params, prompt, limits)
        check_media(ids, self._media_ids, owners)
        return Encoded(ids, truncated, np.zeros(len(ids), np.int64), owners)

    def _pair_bodies(
        self, firsts: Sequence[Item], seconds: Sequence[str], prompt: str, room: int, side: Side
    ) -> tuple[list[Ids], NDArray[np.bool_], list[Ids], NDArray[np.bool_]]:
        """Token ids of all first and all second texts, and which texts were cut before."""
        check_pairs(firsts, seconds)
        texts = [*(f"{prompt}{first}" for first in firsts), *seconds]
        place_of = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        bodies, was_cut = self._encode_texts(list(place_of), room, side)
        places = [place_of[text] for text in texts]
        flags = np.array([was_cut[place] for place in places], np.bool_)
        found, num = [bodies[place] for place in places], len(firsts)
        return found[:num], flags[:num], found[num:], flags[num:]

    def _room(self, params: TextParams, num_specials: int, late: LateSide = _NO_RULES) -> int:
        """Tokens that are read beside the special ones."""
        max_len = late.limit(min(params.max_tokens or self.max_len, self.max_len))
        if max_len < num_specials:
            raise InvalidRequest(
                f"max_tokens is {max_len}, but the model's special tokens alone take {num_specials}; allow more",
                field="max_tokens",
            )
        return max_len - num_specials

    def spans(self, item: Item, params: TextParams, prompt: str) -> Spans:
        """Tell where the tokens of one item stand in its text; token ids have no text and no offsets."""
        frame = self._frame if params.add_special_tokens else self._no_frame
        room = min(self._room(params, len(frame)), _side_limit(params))
        side = params.truncation_side or self._side
        body = self._text_spans(prompt + item, room, side) if isinstance(item, str) else self._no_spans(item, params)
        cut = slice(0, room) if side == "right" else slice(max(0, len(body.offsets) - room), None)
        offsets = body.offsets[cut] - len(prompt)
        is_prompt = (offsets[:, 1] <= 0) & bool(prompt)
        before, after = len(frame.prefix), len(frame.suffix)
        return Spans(
            np.pad(np.maximum(offsets, 0), ((before, after), (0, 0))),
            np.pad(body.is_special[cut], (before, after), constant_values=True),
            np.pad(body.is_subword[cut], (before, after)),
            np.pad(is_prompt, (before, after)),
        )

    def list_tokens(self, text: str, prompt: str, *, has_specials: bool) -> TokenList:
        """Return every token of a text, however long it is."""
        return list_tokens(self._tokenizer, self._frame if has_specials else self._no_frame, prompt, _mend(text))

    def decode(self, ids: Sequence[int], *, skips_specials: bool) -> str:
        """Return the text of token ids, which must lie in the vocabulary."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skips_specials))

    def token_of(self, token_id: int) -> str:
        """Return a token id's text."""
        return self._tokenizer.id_to_token(token_id) or ""

    def _text_spans(self, text: str, room: int, side: Side) -> Spans:
        text = _mend(text)
        limit = last_limit(room)
        cut = cut_text(text, limit, side)
        encoding = self._tokenizer.encode(cut, add_special_tokens=False)
        first_char = 0 if side == "right" else len(text) - len(cut)
        return read_spans(self._tokenizer, cut, encoding, first_char, self._unknown_id)

    def _no_spans(self, item: Sequence[int], params: TextParams) -> Spans:
        length = len(self._check_ids(item, 0, params))
        flags = np.zeros(length, np.bool_)
        return Spans(np.zeros((length, 2), np.int64), flags, flags, flags)

    def _bodies(
        self, items: Sequence[Item], params: TextParams, prompt: str, room: int, side: Side
    ) -> tuple[list[Ids], list[bool]]:
        """Token ids of every item without the frame, more than ``room`` where there are as many.

        The flags tell which texts were cut although what was read of them gave fewer.
        """
        texts = [prompt + item for item in items if isinstance(item, str)]
        if len(texts) < len(items) and (params.prompt or params.prompt_name):
            raise InvalidRequest(
                "a prompt can be put before texts only; add its tokens to the token ids instead", field="prompt"
            )
        encoded, was_cut = self._encode_texts(texts, room, side)
        rest, flags = iter(encoded), iter(was_cut)
        bodies = [
            next(rest) if isinstance(item, str) else self._check_ids(item, index, params)
            for index, item in enumerate(items)
        ]
        return bodies, [isinstance(item, str) and next(flags) for item in items]

    def _encode_texts(self, texts: list[str], room: int, side: Side) -> tuple[list[Ids], list[bool]]:
        limit = first_limit(room)
        last = last_limit(room)
        ids = self._encode_batch([cut_text(text, limit, side) for text in texts])
        was_cut = [len(text) > last for text in texts]
        for index, text in enumerate(texts):
            own_limit = limit
            while len(text) > own_limit and own_limit < last and len(ids[index]) <= room + MARGIN:
                own_limit = min(own_limit * 8, last)
                ids[index] = self._encode_batch([cut_text(text, own_limit, side)])[0]
        return ids, was_cut

    def _encode_batch(self, texts: list[str]) -> list[Ids]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # lone surrogates, which Rust strings can't hold
            encodings = self._tokenizer.encode_batch_fast([_mend(text) for text in texts], add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        if max((max(row, default=0) for row in ids), default=0) >= self._vocab_size:
            raise InvalidRequest(
                f"the tokenizer gave an id outside of the model's vocabulary of {self._vocab_size}; "
                "tokenizer and weights of this checkpoint do not belong together"
            )
        return [np.array(row, np.int32) for row in ids]

    def _check_ids(self, item: Sequence[int], index: int, params: TextParams) -> Ids:
        name = f"input[{index}]"
        if len(item) == 0 and not params.add_special_tokens:
            raise InvalidRequest(f"{name} is an empty list of token ids; send at least one id", index=index)
        try:
            ids = np.asarray(item)
        except ValueError:
            ids = np.zeros((0, 0))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidRequest(f"{name} must be a text or a flat list of integer token ids", index=index)
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size):
            raise InvalidRequest(
                f"{name} has token ids outside of this model's vocabulary (0 to {self._vocab_size - 1}); ids of "
                "another tokenizer mean nothing here: send texts (langchain: check_embedding_ctx_length=False)",
                index=index,
            )
        body = ids.astype(np.int32)
        return self._late_side(params).strip(self._frame.unwrap(body)) if params.add_special_tokens else body

    def _prompt_lens(
        self, items: Sequence[Item], prompt: str, frame: Frame, num_cut: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """First tokens of each item that pooling leaves out, ``num_cut`` of its prompt's having been cut away [n].

        Token ids are taken as they are: no prompt was put before them.
        """
        if not self._skips_prompt or not prompt:
            return np.zeros(len(items), np.int64)
        num_left = np.maximum(len(self._encode_batch([prompt])[0]) - num_cut, 0)
        is_text = np.fromiter((isinstance(item, str) for item in items), np.bool_, len(items))
        return np.where(is_text, len(frame.prefix) + num_left, 0)


def _as_they_are(ids: list[Ids]) -> Encoded:
    """One sequence an item, of which nothing was cut and all is pooled."""
    num = len(ids)
    return Encoded(ids, np.zeros(num, np.bool_), np.zeros(num, np.int64), np.arange(num))


def _side_limit(params: TextParams) -> int:
    """The most tokens, special ones not counted, that a text of this side of a comparison may have."""
    limits = {"query": params.max_tokens_per_query, "document": params.max_tokens_per_doc}
    return limits.get(params.input_type or "") or _NO_LIMIT


def _mend(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
