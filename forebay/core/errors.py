"""Every error that Forebay raises on purpose.

::

    ForebayError
    ├── RequestError            the caller's to mend
    │   ├── InvalidRequest      400  a field has a wrong type, value or combination
    │   │   └── InputTooLong    400  more tokens than the model reads, truncation refused
    │   ├── Unauthorized        401
    │   ├── UnknownModel        404
    │   └── PayloadTooLarge     413
    ├── LoadError               the checkpoint, or what was asked of it
    │   ├── CheckpointNotFound
    │   ├── UnsupportedCheckpoint   a module, an architecture or a setting is not understood
    │   └── WeightsMismatch         a tensor is missing, left over or of another shape
    └── EngineError             ours, or the moment's
        ├── ItemFailed          500  one item's forward failed or gave a non-finite result
        ├── Overloaded          429  the queue is full
        ├── Cancelled           499  the caller went away
        ├── NotReady            503  loading, draining or stopped
        └── DeadlineExceeded    504

A message says what was found, what was expected and what to do; it never repeats the input text.
"""

from typing import Self


class ForebayError(Exception):
    """The root. ``status`` is the HTTP status, ``code`` a stable word for programs, ``field`` the request's field.

    ``index`` is the place of the item at fault, where there is one; its message and field call it ``input[index]``
    until whoever knows the caller's own list gives it another ``name``. ``is_first`` tells that of an item that is a
    pair of texts the first alone is at fault.
    """

    status = 500
    code = "internal_error"
    is_first = False

    def __init__(
        self, message: str, *, field: str | None = None, code: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.index = index
        self.name = "input"
        self.field = field if index is None else self._place
        if code is not None:
            self.code = code

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self), *self.args)  # the constructors of single classes ask for more
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def _place(self) -> str:
        return f"{self.name}[{self.index}]"

    def move(self, offset: int) -> Self:
        """Say that the item stands ``offset`` places later, in the caller's own list; return the error itself."""
        return self if self.index is None else self.call(self.name, self.index + offset)

    def call(self, name: str, index: int | None) -> Self:
        """Say what the caller calls the item: its list and its place there, or a name alone (``index`` None), which
        is final; return the error itself. Errors of no item stay as they are.
        """
        if self.index is not None:
            old = self._place
            self.name, self.index = name, index
            self.field = name if index is None else self._place
            self.message = self.message.replace(old, self.field)
            self.args = (self.message,)
        return self


class RequestError(ForebayError):
    """The request can't be served as it stands; the caller can mend it."""

    status = 400
    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field is missing, or has a wrong type, value or combination."""


class InputTooLong(InvalidRequest):
    """An item has more tokens than the model reads, and the caller forbade truncation."""

    code = "context_length_exceeded"


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"


class UnknownModel(RequestError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class PayloadTooLarge(RequestError):
    """The body exceeds the server's limit."""

    status = 413
    code = "payload_too_large"


class LoadError(ForebayError):
    """A model can't be loaded."""

    code = "load_error"


class CheckpointNotFound(LoadError):
    """No checkpoint lies under that name."""

    code = "checkpoint_not_found"


class UnsupportedCheckpoint(LoadError):
    """The checkpoint holds something that Forebay does not understand; the message names it."""

    code = "unsupported_checkpoint"


class WeightsMismatch(LoadError):
    """The weight files and the model disagree; the message names the tensors."""

    code = "weights_mismatch"


class EngineError(ForebayError):
    """The request was fine, but the engine did not answer it."""


class ItemFailed(EngineError):
    """One item could not be computed."""

    code = "item_failed"

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message, index=index)


class Overloaded(EngineError):
    """The queue is full; the same request may succeed after ``retry_after`` seconds."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(EngineError):
    """The caller went away before the result was there."""

    status = 499
    code = "cancelled"


class NotReady(EngineError):
    """The model is still loading, or the server is stopping."""

    status = 503
    code = "not_ready"


class DeadlineExceeded(EngineError):
    """The request's deadline passed before its result was there."""

    status = 504
    code = "deadline_exceeded"
