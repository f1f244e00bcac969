"""Progress in a terminal and in notebooks."""

from __future__ import annotations

import html
import sys
import time
from typing import Any, Callable, Optional, Union

# Points done, all points, share of the work, events, messages, simulated microseconds.
Callback = Callable[[int, int, float, int, int, float], Any]


def _text(done: int, points: int, fraction: float, events: int, messages: int, us: float) -> str:
    if events == 0:  # Other processes run the points.
        return f"{fraction:4.0%}  {done}/{points} points"
    return f"{fraction:4.0%}  {done}/{points} points, {messages} messages, {us / 1e3:.1f} ms simulated, {events / 1e6:.0f} M events"


class _Terminal:
    """One line, which is written again and finally removed."""

    def __init__(self) -> None:
        self.width = 0

    def __call__(self, *numbers: Any) -> None:
        line = _text(*numbers)
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = len(line)

    def close(self) -> None:
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


class _Lines:
    """Lines where there is no terminal, as the command prints them: after 10 seconds, then each time after twice as long, up to 10
    minutes."""

    def __init__(self) -> None:
        self.period = 10.0
        self.due = time.monotonic() + self.period

    def __call__(self, *numbers: Any) -> None:
        now = time.monotonic()
        if now < self.due:
            return
        sys.stderr.write(_text(*numbers) + "\n")
        sys.stderr.flush()
        self.period = min(self.period * 2, 600.0)
        self.due = now + self.period

    def close(self) -> None:
        pass


class _Notebook:
    """A progress element below the cell, which is finally emptied."""

    def __init__(self, display: Any) -> None:
        self.display, self.handle, self.shown = display, None, 0.0

    def __call__(self, *numbers: Any) -> None:
        # Each update is a message to the browser.
        now = time.monotonic()
        if now - self.shown < 0.5:
            return
        self.shown = now
        bar = f'<progress max="1" value="{numbers[2]:.3f}"></progress> {html.escape(_text(*numbers))}'
        self._show(bar)

    def close(self) -> None:
        if self.handle is not None:
            self._show("")

    def _show(self, text: str) -> None:
        data = {"text/html": text, "text/plain": ""}
        if self.handle is None:
            self.handle = self.display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


class _Silent:
    def __call__(self, *numbers: Any) -> None:
        pass

    def close(self) -> None:
        pass


class _Custom(_Silent):
    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def __call__(self, *numbers: Any) -> None:
        self.callback(*numbers)


def _notebook() -> Optional[Any]:
    """Returns IPython's ``display`` inside a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def reporter(progress: "Union[bool, Callback, None]") -> Any:
    """Returns what shows progress. ``None`` shows it in a notebook, on a terminal, and in lines elsewhere, which short runs do not print."""
    if callable(progress):
        return _Custom(progress)
    if progress is False:
        return _Silent()
    display = _notebook()
    if display is not None:
        return _Notebook(display)
    if progress or sys.stderr.isatty():
        return _Terminal()
    return _Lines()
