"""The step loop: one thread takes steps from the scheduler, runs them and answers the jobs.

A caller that does nothing but wait may lend its own thread while the loop sleeps: two hand-overs between threads cost
a short text a good part of what its forward costs. There is never more than one step under way.
Failure is local: a step that fails is run again one sequence at a time, so that the guilty item gets the error
and its neighbours their vectors. The loop itself goes on.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from forebay.core.config import EngineLimits
from forebay.core.errors import Cancelled, DeadlineExceeded, EngineError, ItemFailed, NotReady, Overloaded
from forebay.core.events import Event, Observer, RequestDone, RequestDropped, StepDone, ignore
from forebay.core.info import Decision
from forebay.core.request import Reply
from forebay.engine.prefill import Prefill
from forebay.engine.runner import Ran, Runner
from forebay.engine.scheduler import Scheduler, Step
from forebay.engine.sequence import Job, Sequence

log = logging.getLogger(__name__)


class Engine:
    """Answers jobs in the background until closed. ``longest`` is how many tokens a text may have."""

    def __init__(self, runner: Runner, limits: EngineLimits, observer: Observer, *, longest: int = 0) -> None:
        self._runner = runner
        self._limits = limits
        self._observer = observer
        self._prefill, self._reserved, self._reserved_bytes = _reserve(runner, limits, longest)
        self._scheduler = Scheduler(limits, self._prefill)
        self._wakeup = threading.Condition()
        self._is_closing = False
        self._is_drained = False
        self._is_busy = False
        self._thread = threading.Thread(target=self._loop, name="forebay-engine", daemon=True)
        self._thread.start()

    @property
    def reserved(self) -> Decision | None:
        """What is reserved for keys and values; None where the model keeps none."""
        return self._reserved

    def count_reserved(self) -> tuple[int, int]:
        """(blocks, bytes) for keys and values."""
        return 0 if self._prefill is None else self._prefill.pool.size, self._reserved_bytes

    def submit(self, job: Job, *, lends_thread: bool = False) -> None:
        """Queue a filled job. Raises Overloaded when too many tokens wait, NotReady once closed.

        ``lends_thread``: where nothing else waits or runs, the first step is run before this returns.
        """
        step = None
        num_tokens = sum(len(seq.ids) for seq in job.sequences)
        with self._wakeup:
            if self._is_closing:
                raise NotReady("the engine is stopping; send the request to another instance, or later")
            limit = self._limits.max_queued_tokens
            if self._scheduler.num_tokens + num_tokens > limit:
                self._scheduler.purge()
            waiting = self._scheduler.num_tokens
            if waiting and waiting + num_tokens > limit:
                raise Overloaded(
                    f"{waiting} tokens wait and this request adds {num_tokens}, over the limit of {limit} "
                    "(max_queued_tokens); retry later or send fewer texts at once"
                )
            num_items = len(job.sequences)  # the future must not keep the job
            job.future.add_done_callback(lambda future: self._see_cancel(future, num_items))
            is_idle = not self._is_busy and not self._scheduler.num_sequences
            self._scheduler.add(job.sequences, job.lane)
            if lends_thread and is_idle and job.sequences:
                step = self._take_step()
            else:
                self._wakeup.notify()
        if not job.sequences:
            self._answer(job)
        if step is not None:
            self._run_lent(step)

    def count_queued(self) -> tuple[int, int]:
        """(sequences, tokens) that wait."""
        with self._wakeup:
            return self._scheduler.num_sequences, self._scheduler.num_tokens

    def close(self, drain: float) -> None:
        """Refuse new jobs, give those under way up to ``drain`` seconds, then abort the rest."""
        limit = time.monotonic() + drain
        with self._wakeup:
            self._is_closing = True
            self._wakeup.notify_all()
            while (self._scheduler.num_sequences or self._is_busy) and time.monotonic() < limit:
                self._wakeup.wait(timeout=max(0.0, limit - time.monotonic()))
            left = self._scheduler.drain()
            self._is_drained = True
            self._wakeup.notify_all()
        for job in left:
            self._drop(job, _stopped())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wakeup:
                while self._is_busy or not self._scheduler.num_sequences:
                    self._wakeup.notify_all()
                    if self._is_closing and not self._is_busy:
                        return
                    self._wakeup.wait()
                step = self._take_step()
            self._run_guarded(step)
            del step  # what has been answered is not kept until the next request comes
            with self._wakeup:
                self._is_busy = False

    def _run_lent(self, step: Step) -> None:
        """Run a step on the caller's thread; what it leaves is the loop's."""
        try:
            self._run_guarded(step)
        finally:
            with self._wakeup:
                self._is_busy = False
                if self._scheduler.num_sequences or self._is_closing:
                    self._wakeup.notify_all()

    def _take_step(self) -> Step:
        """Begin a step: with the lock held, and nobody at one."""
        self._is_busy = True
        return self._scheduler.schedule(time.monotonic())

    def _run_guarded(self, step: Step) -> None:
        """Run a step; should the engine itself be at fault, its jobs end with an error and the loop goes on."""
        for job in step.dropped:
            self._drop(job, DeadlineExceeded("the request's deadline passed while it waited; it was not computed"))
        if not step.sequences:
            return
        try:
            self._run(step)
        except BaseException as error:
            log.exception("the engine failed outside of the model; the requests of this step are answered with 500")
            for seq in step.sequences:
                self._release(seq)
            for job in {id(seq.job): seq.job for seq in step.sequences}.values():
                self._drop(job, EngineError(f"the engine failed ({type(error).__name__}); please report this"))
            if not isinstance(error, Exception):  # the interrupt of a caller who lent its thread
                raise

    def _run(self, step: Step) -> None:
        now = time.monotonic()
        for seq in step.sequences:
            if seq.job.started_at is None:
                seq.job.started_at = now
        try:
            ran = self._runner.run(step.sequences)
        except Exception as error:
            log.exception("a step of %d sequences failed; retrying them one by one", len(step.sequences))
            self._run_alone(step.sequences, error)
            return
        num_read = sum(seq.num_read for seq in step.sequences if seq.table and seq.start == seq.num_read)
        pool = None if self._prefill is None else self._prefill.pool
        num_held = 0 if pool is None else pool.num_held
        if self._runner.device.type == "cpu":
            with self._wakeup:
                self._scheduler.note_speed(step.num_tokens, ran.forward_seconds)
        self._take(ran)
        self._add_back([seq for seq in step.sequences if not seq.is_last_chunk])

        def tell() -> StepDone:
            queued_sequences, queued_tokens = self.count_queued()
            return StepDone(
                num_sequences=len(step.sequences),
                num_tokens=step.num_tokens,
                budget=step.budget,
                pack_seconds=ran.pack_seconds,
                forward_seconds=ran.forward_seconds,
                queued_sequences=queued_sequences,
                queued_tokens=queued_tokens,
                prefix_tokens=num_read,
                held_blocks=num_held,
                num_blocks=0 if pool is None else pool.size,
            )

        self._observe(tell)

    def _add_back(self, sequences: list[Sequence]) -> None:
        """Queue what is not complete yet, unless nobody waits for it."""
        with self._wakeup:
            alive = [seq for seq in sequences if not (seq.job.is_over or self._is_drained)]
            self._scheduler.add_back(alive)
        for seq in sequences:
            if seq not in alive:
                self._release(seq)
                self._drop(seq.job, _stopped())

    def _run_alone(self, sequences: list[Sequence], error: Exception) -> None:
        for seq in sequences:  # all of them first, so that there are blocks for those that need them
            self._release(seq)
        for seq in sequences:
            if len(sequences) > 1:
                try:
                    self._take(self._run_anew(seq))
                    continue
                except Exception as own_error:
                    error = own_error
            self._release(seq)
            self._fail(seq, f"computing the item failed ({type(error).__name__}: {error})")

    def _run_anew(self, seq: Sequence) -> Ran:
        """Compute a sequence from its start to its end, beside nobody."""
        if self._prefill is not None:
            with self._wakeup:
                self._prefill.restart(seq)
        ran = self._runner.run([seq])
        while self._prefill is not None and not seq.is_last_chunk:
            seq.start = seq.end
            self._prefill.advance(seq)
            ran = self._runner.run([seq])
        return ran

    def _release(self, seq: Sequence, *, is_kept: bool = False) -> None:
        """Free a sequence's blocks; what is in them may be found by others if ``is_kept``."""
        if self._prefill is not None:
            with self._wakeup:
                if is_kept:
                    self._prefill.keep(seq)
                self._prefill.release(seq)

    def _take(self, ran: Ran) -> None:
        for seq, rows, is_finite in ran.results:
            self._release(seq, is_kept=is_finite)
            if not is_finite:
                self._fail(seq, _NOT_FINITE if seq.query is None else _NO_SCORE)
            elif seq.job.deliver(seq, rows):
                self._answer(seq.job)

    def _fail(self, seq: Sequence, message: str) -> None:
        if seq.job.fail(seq.index, ItemFailed(f"input[{seq.index}]: {message}", index=seq.index)):
            self._answer(seq.job)

    def _answer(self, job: Job) -> None:
        reply = job.reply()
        if job.is_over or not job.future.set_running_or_notify_cancel():
            return
        self._observe(
            lambda: RequestDone(
                num_items=len(job.sequences),
                num_tokens=int(reply.num_tokens.sum()),
                num_truncated=int(reply.truncated.sum()),
                num_failed=len(reply.errors),
                timings=reply.timings,
            )
        )
        job.future.set_result(reply)

    def _see_cancel(self, future: "Future[Reply]", num_items: int) -> None:
        if future.cancelled():
            self._observe(lambda: RequestDropped(Cancelled.code, num_items))

    def _observe(self, tell: Callable[[], Event]) -> None:
        """Tell the observer, if there is one; what it raises must not cost a request its answer."""
        if self._observer is ignore:
            return
        event = tell()
        try:
            self._observer(event)
        except Exception:
            log.exception("the observer failed on %s", type(event).__name__)

    def _drop(self, job: Job, error: EngineError) -> None:
        job.release()
        if job.abort(error):
            self._observe(lambda: RequestDropped(error.code, len(job.sequences)))


_NOT_FINITE = (
    "the model gave NaN or infinite numbers for this item; load the model with dtype float32, or check its weights"
)
_NO_SCORE = (
    "its score is NaN or infinite: the query's token vectors are too large, or the model's are at fault; send vectors "
    "of about unit length, or load the model with dtype float32"
)


def _stopped() -> NotReady:
    return NotReady("the engine stopped before this request was computed; send it again elsewhere")


def _reserve(runner: Runner, limits: EngineLimits, longest: int) -> tuple[Prefill | None, Decision | None, int]:
    """Reserve what a causal model keeps and tell how many bytes that is; nothing for all others, which keep nothing.

    Where there is no room for a text of ``longest`` tokens, only what the usual ones need.
    """
    if not runner.is_causal or not (limits.enable_chunked_prefill or limits.enable_prefix_caching):
        return None, None, 0
    prefill, source = Prefill(limits, runner.count_spare, longest), "the larger of 2 max_step_tokens and max_model_len"
    try:
        num_bytes = runner.reserve(prefill.pool.size + 1, prefill.pool.block_size)
    except (RuntimeError, MemoryError):
        prefill = Prefill(limits, runner.count_spare)
        num_bytes = runner.reserve(prefill.pool.size + 1, prefill.pool.block_size)
        source = "no memory for max_model_len: longer texts get one step; 2 max_step_tokens"
    num_blocks, block_size = prefill.pool.size, prefill.pool.block_size
    size = f"{num_blocks * block_size} tokens in blocks of {block_size}, {num_bytes / (1 << 20):.1f} MiB"
    decision = Decision("keys and values", size, f"{source} + prefix_cache_tokens")
    log.info("%s: %s (%s)", decision.name, decision.value, decision.source)
    return prefill, decision, num_bytes
