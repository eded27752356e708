"""How far a bulk run is: a bar on the terminal while it runs, and lines on stderr. Knows only counts."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class RateColumn(ProgressColumn):
    """Texts a second, over the last half minute."""

    def render(self, task: Task) -> Text:
        """Draw the rate, or a dash before there is one."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} texts/s" if speed else "– texts/s")


class Meter:
    """Counts texts and tokens. ``shown`` draws the bar on stderr; a total of None draws one without an end."""

    def __init__(self, *, shown: bool) -> None:
        self.is_shown = shown
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.texts = self.tokens = self.truncated = 0
        self._started = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not shown, transient=True)
        self._task = self._progress.add_task("loading", total=None)

    def __enter__(self) -> "Meter":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, action: str, total: int | None, *, done: int) -> None:
        """Start the clock; ``action`` is what the bar says, ``done`` texts are there from an earlier run."""
        self._started = time.monotonic()
        self._progress.reset(self._task, total=total, completed=done, description=action)

    def advance(self, texts: int, tokens: int, truncated: int) -> None:
        """Count a chunk."""
        self.texts += texts
        self.tokens += tokens
        self.truncated += truncated
        self._progress.advance(self._task, texts)

    def summarize(self) -> str:
        """Tell the run in one line."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        line = f"{self.texts:,} texts in {seconds:,.1f} s: {self.texts / seconds:,.0f} texts/s, {self.tokens:,} tokens"
        return f"{line}; {self.truncated:,} texts were truncated" if self.truncated else line

    def tell(self, line: str, style: str | None = None) -> None:
        """Print one line on stderr."""
        self._console.print(line, style=style, markup=False)
