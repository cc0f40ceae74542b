"""What the demos share: steps, bars and results on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(us: float) -> str:
    """``71 µs``, ``1.6 ms``."""
    return f"{us:,.0f} µs" if us < 1000 else f"{us / 1000:,.1f} ms"


class Screen:
    """What the demo prints: numbered steps with results below them, bars while a
    step runs (on a terminal only), and at the end what was seen."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._steps = 0
        self._results: list[str] = []

    def step(self, what: str) -> None:
        """Begin a step."""
        self._steps += 1
        self.console.print(f"\n[bold cyan]{self._steps}  {what}[/]")

    def done(self, result: str, seen: str = "") -> None:
        """Show a result; `seen` is what the last lines say of it."""
        self.console.print(f"   [green]✓[/] {result}", highlight=False)
        if seen:
            self._results.append(seen)

    def tell(self, text: str) -> None:
        """Show a line that is no result."""
        self.console.print(f"   [dim]{text}[/]", highlight=False)

    def bar(self, total: int, what: str) -> Progress:
        """A bar to be used in `with`; it has one task, with number 0."""
        progress = Progress(
            f"   {what}",
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        progress.add_task(what, total=total)
        return progress

    def close(self, seconds: float, go_on: str) -> None:
        """What was seen, and where to go on."""
        text = "\n".join(f"[green]✓[/] {result}" for result in self._results)
        text += f"\n\n{go_on}"
        title = f"[bold]all well, in {seconds:.0f} s[/]"
        self.console.print()
        self.console.print(
            Panel(text, title=title, border_style="green", highlight=False)
        )
