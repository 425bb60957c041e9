"""Draws a chart of live and cached GPU memory by library, and redraws it each second."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import html
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuheap import _heap
from gpuheap._install import installed
from gpuheap._meter import torch_devices

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: Seconds between two drawings.
PERIOD = 1.0
#: Maximum number of points of a curve. A full curve drops every second point, and later gets points
#: half as often. So the chart shows the whole time, and a saved notebook stays small.
POINTS = 240
WIDTH, ROW, CURVE = 640, 66, 36


class Row(NamedTuple):
    """Memory of a library on a device, in bytes."""

    name: str
    live: int
    cached: int

    def __str__(self) -> str:
        return f"{self.name}: {self.figures}"

    @property
    def figures(self) -> str:
        return f"{_heap.size(self.live)} live, {_heap.size(self.cached)} cached"


class Watch:
    """A chart of GPU memory over time, started by `gpuheap.watch()`. The chart ends with its `with`
    block, by `stop()`, with the notebook's cell or with the program."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._history = _History()
        self._failure = ""
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._rows = self._read()
        self._screen = _screen(self)
        self._screen.show(self)
        atexit.register(self.stop)
        self._thread = threading.Thread(target=self._run, name="gpuheap-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the chart, and draws it once more. A second call does nothing."""
        # A forked child has a copy of the object, but not its thread.
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        self._ended.set()
        atexit.unregister(self.stop)
        self._thread.join()
        self._rows = self._read()
        self._screen.end(self)

    @property
    def seconds(self) -> float:
        """Seconds since the chart began."""
        return time.monotonic() - self._began

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self._rows = self._read()
            self._screen.show(self)

    def _read(self) -> list[Row]:
        rows: list[Row] = []
        failures = {}
        for library, read in (("gpuheap", _heaps), ("PyTorch", _torch), ("CuPy", _cupy)):
            try:
                rows += read()
            except Exception as error:
                # The chart shows the error, such as a lost device, and the program continues.
                failures[library] = f"the figures of {library} cannot be read: {error}"
        self._failure = ", ".join(failures.values())
        self._history.add(self.seconds, rows, tuple(failures))
        return rows

    def __str__(self) -> str:
        return "\n".join([self._title(), *(f"  {row}" for row in self._rows)])

    def _line(self) -> str:
        return "; ".join([self._title(), *map(str, self._rows)])

    def _title(self) -> str:
        nothing = "" if self._rows or self._failure else ", no library has memory yet"
        failure = f", {self._failure}" if self._failure else ""
        return f"GPU memory after {self.seconds:.0f} s{nothing}{failure}"

    def _bundle(self) -> dict[str, str]:
        """Returns the chart in the formats that a notebook saves."""
        return {"image/svg+xml": self._svg(), "text/plain": str(self)}

    def _svg(self) -> str:
        """Returns the chart as an image, because an untrusted notebook shows images, but removes
        drawings in HTML."""
        curves = self._history.curves
        height = ROW * len(curves) + 26
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" role="img">'
            f"<title>{html.escape(str(self))}</title>"
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        ]
        now = {row.name: row for row in self._rows}
        for at, (name, points) in enumerate(curves.items()):
            parts.append(self._curve(ROW * at, now.get(name, Row(name, 0, 0)), points))
        parts.append(
            f'<text x="8" y="{height - 9}" fill="#444">{html.escape(self._title())}</text>'
            + _legend(WIDTH - 132, height - 18, _LIVE, "live")
            + _legend(WIDTH - 74, height - 18, _CACHED, "cached")
            + "</svg>"
        )
        return "".join(parts)

    def _curve(self, top: int, row: Row, points: list[tuple[float, int, int]]) -> str:
        """Draws one library's memory over time. Cached memory is stacked on live memory."""
        most = max(live + cached for _, live, cached in points)
        left, right, base = 8, WIDTH - 8, top + 22 + CURVE
        end = max(self._history.last, 1e-9)

        def area(value: Any, colour: str) -> str:
            drawn = " ".join(
                f"{left + (right - left) * point[0] / end:.1f},"
                f"{base - CURVE * value(point) / max(most, 1):.1f}"
                for point in points
            )
            first = left + (right - left) * points[0][0] / end
            last = left + (right - left) * points[-1][0] / end
            around = f"{first:.1f},{base} {drawn} {last:.1f},{base}"
            return f'<polygon points="{around}" fill="{colour}"/>'

        return (
            f'<text x="{left}" y="{top + 16}" font-weight="bold">{html.escape(row.name)}</text>'
            f'<text x="{right}" y="{top + 16}" text-anchor="end">{row.figures}, '
            f"at most {_heap.size(most)}</text>"
            + area(lambda point: point[1] + point[2], _CACHED)
            + area(lambda point: point[1], _LIVE)
            + f'<path d="M{left} {base}H{right}" stroke="#888"/>'
        )

    def _ipython_display_(self) -> None:
        """Displays nothing, because the chart is on the screen already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


_LIVE, _CACHED = "#2b6fa8", "#a9cbe8"


def _legend(x: int, y: int, colour: str, name: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{x + 14}" y="{y + 9}" fill="#444">{name}</text>'
    )


class _History:
    """Points of the curves. Each library has a curve. A point has the time, live bytes and cached
    bytes."""

    def __init__(self) -> None:
        self.curves: dict[str, list[tuple[float, int, int]]] = {}
        #: Time of the last point.
        self.last = 0.0
        self._skip, self._taken = 1, 0

    def add(self, seconds: float, rows: list[Row], failed: tuple[str, ...] = ()) -> None:
        """Adds a point to each curve. Leaves out libraries whose figures cannot be read."""
        self.last = seconds
        now = {row.name: row for row in rows}
        for name in [*self.curves, *(name for name in now if name not in self.curves)]:
            if name.startswith(failed):
                continue
            row = now.get(name, Row(name, 0, 0))
            points = self.curves.setdefault(name, [])
            point = (seconds, row.live, row.cached)
            # Each point stands for `_skip` readings. The last point has the newest reading.
            if points and self._taken % self._skip:
                points[-1] = point
            else:
                points.append(point)
        self._taken += 1
        if any(len(points) > POINTS for points in self.curves.values()):
            self._skip *= 2
            for points in self.curves.values():
                points[:] = [*points[:-1:2], points[-1]]


def watch() -> Watch:
    """Draws a chart of live and cached GPU memory by library, and redraws it once a second. In a
    notebook, the chart ends with the cell and is saved in the notebook. In a terminal, the chart is
    one line on stderr. Elsewhere, one line is written at the end.

    Shows the heaps that `gpuheap.record` records, PyTorch's own allocator, and CuPy's own pool on
    each device. Opens no device and imports no library.

    >>> import gpuheap
    >>> before = gpuheap.set_default_heap(gpuheap.Heap("emulated:1GiB"))
    >>> with gpuheap.watch() as chart:
    ...     kept = gpuheap.default_heap().alloc(1000)
    >>> str(chart).splitlines()[1].split(",")[0]
    '  gpuheap on emulated:1GiB: 1000 bytes live'
    >>> kept.free()
    >>> _ = gpuheap.set_default_heap(before)
    """
    return Watch()


def _heaps() -> list[Row]:
    rows = []
    served = installed()
    names = [name for name, outcome in served.libraries.items() if outcome.done] if served else []
    through = f" ({', '.join(names)})" if names else ""
    for heap in _heap.known_heaps():
        stats, device = heap.stats(), heap.device.name
        rows.append(Row(f"gpuheap{through} on {device}", stats["live"], stats["cached"]))
        rows += [
            Row(f"{name} in the heap of {device}", live, 0) for name, live in heap._libraries()
        ]
    return rows


def _torch() -> list[Row]:
    rows = []
    for device, cuda in torch_devices():
        live = cuda.memory_allocated(device)
        cached = cuda.memory_reserved(device) - live
        rows.append(Row(f"PyTorch on cuda:{device}", live, cached))
    return rows


def _cupy() -> list[Row]:
    """Returns the memory of CuPy's own pool on each device where the pool has memory."""
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "get_default_memory_pool"):
        return []
    rows: Future[list[Row]] = Future()

    def read() -> None:
        try:
            rows.set_result(_pools(cupy))
        except Exception as error:
            rows.set_exception(error)

    # CuPy's pool reports only the current device, so `_pools` makes each device current in turn. To
    # restore this thread's device afterwards could open a context on that device. So `_pools` runs
    # on a short-lived thread, where nothing has to be restored.
    threading.Thread(target=read).start()
    return [row for row in rows.result() if row.live + row.cached]


def _pools(cupy: Any) -> list[Row]:
    pool, rows = cupy.get_default_memory_pool(), []
    for device in filter(_has_context, range(cupy.cuda.runtime.getDeviceCount())):
        cupy.cuda.Device(device).use()
        rows.append(Row(f"CuPy on cuda:{device}", pool.used_bytes(), pool.free_bytes()))
    return rows


def _has_context(ordinal: int) -> bool:
    """Returns whether this process has a context on a device. Reading CuPy's pool on a device
    without a context would open one."""
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuDevicePrimaryCtxGetState(ordinal, ctypes.byref(flags), ctypes.byref(is_active))
    return bool(is_active.value)


def libraries(in_heap: list[tuple[str, int]], device: str) -> str:
    """Returns the memory of libraries as JSON for other processes. The JSON has the libraries' live
    bytes in a heap on `device`, and their own pools. If `install` could not serve a library, the
    JSON has the reason."""
    served = installed()
    failed = served._failures().items() if served else ()
    pools: list[Row] = []
    for read in (_torch, _cupy):
        # If one library fails, keep the figures of the other.
        with contextlib.suppress(Exception):
            pools += read()
    found = [
        *((name, device, live, 0, False, None) for name, live in in_heap),
        *((*row.name.rsplit(" on ", 1), *row[1:], True, None) for row in pools if sum(row[1:])),
        *((_NAMES.get(name, name), "", 0, 0, False, text) for name, text in failed),
    ]
    fields = ("name", "device", "live", "cached", "is_own", "failure")
    return json.dumps([dict(zip(fields, one)) for one in found])


#: Names of libraries as texts show them, keyed by module.
_NAMES = {"torch": "PyTorch", "cupy": "CuPy", "rmm": "RMM", "numba": "Numba", "jax": "JAX"}


class _Notebook:
    """The output of a cell."""

    def __init__(self, watch: Watch, shell: Any) -> None:
        from IPython.display import display

        self._shell = shell
        self._handle: Any = display(watch._bundle(), raw=True, display_id=True)
        self._end_of_cell = lambda *_: watch.stop()
        shell.events.register("post_run_cell", self._end_of_cell)

    def show(self, watch: Watch) -> None:
        self._handle.update(watch._bundle(), raw=True)

    def end(self, watch: Watch) -> None:
        self._shell.events.unregister("post_run_cell", self._end_of_cell)
        self.show(watch)


class _Terminal:
    """A line on stderr that is rewritten in place."""

    def show(self, watch: Watch, end: str = "") -> None:
        columns = shutil.get_terminal_size().columns
        line = watch._line()
        short = line if len(line) < columns else line[: columns - 2] + "…"
        # The escape sequence erases the rest of the previous line, if that line was longer.
        sys.stderr.write(f"\r{short}\x1b[K{end}")
        sys.stderr.flush()

    def end(self, watch: Watch) -> None:
        self.show(watch, "\n")


class _Log:
    """A line of stderr at the end."""

    def show(self, watch: Watch) -> None:
        pass

    def end(self, watch: Watch) -> None:
        print(watch._line(), file=sys.stderr)


def _screen(watch: Watch) -> _Notebook | _Terminal | _Log:
    # Look only at loaded modules, so that a script without IPython does not import it.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if hasattr(ipython, "get_ipython") else None
    if hasattr(shell, "kernel"):
        return _Notebook(watch, shell)
    return _Terminal() if sys.stderr.isatty() else _Log()
