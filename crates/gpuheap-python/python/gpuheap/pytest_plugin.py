"""GPU memory in pytest: budgets for tests, limits for the memory that tests keep, and a summary.

    @pytest.mark.gpu_limit("2 GiB")          # limit of the bytes live at once in the test
    @pytest.mark.gpu_limit("1 GiB", device="cuda:1")     # limit on one device
    @pytest.mark.gpu_limit_leaks("1 MiB")    # limit of the bytes live after the test
    def test_step(gpu_heap): ...

    def test_fits(gpu_dry_run):              # on an emulated card, without a GPU
        assert (result := gpu_dry_run(train, card="T4")).fits, result

    pytest --gpuheap                         # peaks of all tests, in the summary
    pytest --gpuheap-device emulated:16GiB   # the device of the fixture `gpu_heap`
    pytest --gpuheap-card T4                 # the card of `gpu_dry_run`, if a test names none

The plugin counts live memory of the default heap, of all libraries and devices that
`gpuheap.install()` serves, and of PyTorch's own allocator. Both limits apply to the call of the
test. The limits count only memory above the live memory of the test's fixtures.

Pytest loads this module in every run. The module imports nothing of the package until a test uses
it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest

_READING: pytest.StashKey[Any] = pytest.StashKey()
_HEAP: pytest.StashKey[Any] = pytest.StashKey()

_PEAK, _KEPT = "gpu_peak_bytes", "gpu_kept_bytes"
_LIMIT, _LEAKS = "gpu_limit", "gpu_limit_leaks"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuheap", "GPU memory (gpuheap)")
    group.addoption(
        "--gpuheap",
        action="store_true",
        help="measure the GPU memory of each test, and list the peaks",
    )
    group.addoption(
        "--gpuheap-device",
        metavar="DEVICE",
        help="device of the fixture gpu_heap: cuda:0, emulated:16GiB, ... (default: the first GPU, else an emulated one)",
    )
    group.addoption(
        "--gpuheap-card",
        metavar="CARD",
        help="card of the fixture gpu_dry_run, if a test names none: T4, RTX 4090, ... (default: H200)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f'{_LIMIT}(size): fail if the test has more GPU memory live at once ("2 GiB")'
    )
    config.addinivalue_line(
        "markers", f'{_LEAKS}(size): fail if the test leaves more GPU memory behind ("1 MiB")'
    )
    try:
        config.pluginmanager.register(_measuring(), "gpuheap-measuring")
    except TypeError:
        # Pluggy before 1.2 has no hooks with `wrapper`. With such a version, only the measured
        # tests fail.
        config.pluginmanager.register(_TooOld(), "gpuheap-measuring")
    if config.getoption("gpuheap") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(), "gpuheap-summary")


def pytest_unconfigure(config: pytest.Config) -> None:
    before = config.stash.get(_HEAP, None)
    if before is not None:
        import gpuheap

        gpuheap.set_default_heap(before[0])


@pytest.fixture
def gpu_heap(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The default heap. If no default heap exists, or if `--gpuheap-device` names a device, makes a
    default heap that records the line of each allocation. Buffers that the test requests from the
    heap are freed at the test's end."""
    import gpuheap
    from gpuheap._heap import peek_default_heap

    config = request.config
    heap = peek_default_heap()
    device = config.getoption("gpuheap_device")
    if _HEAP not in config.stash and (heap is None or device is not None):
        heap = gpuheap.Heap(device, track="lines")
        config.stash[_HEAP] = (gpuheap.set_default_heap(heap),)
    assert heap is not None
    with heap.scope(request.node.nodeid, on_leak="ignore"):
        yield heap


@pytest.fixture
def gpu_dry_run(request: pytest.FixtureRequest) -> Any:
    """The function `gpuheap.dry_run`. `--gpuheap-card` sets the card for calls that name none."""
    import functools

    import gpuheap

    card = request.config.getoption("gpuheap_card")
    return gpuheap.dry_run if card is None else functools.partial(gpuheap.dry_run, card=card)


def _measuring() -> object:
    class Measuring:
        """Measures the call of a test, and adds the figures to the test's report."""

        @pytest.hookimpl(wrapper=True, trylast=True)
        def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
            if not _is_measured(item):
                return (yield)
            from gpuheap._meter import meter

            most, kept = _limits_of(item, _LIMIT), _limits_of(item, _LEAKS)
            measured = meter()
            try:
                result = yield
            except BaseException:
                # The test raised. Do not check the limits, because the traceback keeps frames
                # alive, and the memory that the frames hold is no leak.
                _note(item, measured.read())
                raise
            gc.collect()
            reading = measured.read()
            _note(item, reading)
            total = reading.peak, reading.kept
            for device, size in most.items():
                peak, _ = reading.devices.get(device, (0, 0)) if device else total
                _check(_LIMIT, device, peak, size, "live at once")
            for device, size in kept.items():
                _, left = reading.devices.get(device, (0, 0)) if device else total
                _check(_LEAKS, device, left, size, "left behind")
            return result

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(
            self, item: pytest.Item, call: pytest.CallInfo[Any]
        ) -> Generator[None, Any, Any]:
            report = yield
            reading = item.stash.get(_READING, None)
            if call.when == "call" and report.failed and reading is not None:
                report.sections.append(("GPU memory", str(reading)))
                explanation = _explained(call)
                if explanation is not None:
                    report.sections.append(("Out of GPU memory", str(explanation)))
            return report

    return Measuring()


class _TooOld:
    """Fails each measured test, because pytest is too old for the measuring hook."""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if _is_measured(item):
            pytest.fail(
                "gpuheap measures tests with pluggy 1.2 or newer; run pip install --upgrade pytest pluggy",
                pytrace=False,
            )


class _Summary:
    """Prints the peaks of the tests. With xdist, the workers send the figures as properties of
    their test reports."""

    def __init__(self) -> None:
        self.figures: dict[str, tuple[int, int]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found: dict[str, Any] = dict(report.user_properties)
            if _PEAK in found:
                self.figures[report.nodeid] = int(found[_PEAK]), int(found[_KEPT])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from gpuheap._heap import size

        terminalreporter.section("GPU memory")
        used = {test: figures for test, figures in self.figures.items() if any(figures)}
        ranked = sorted(used.items(), key=lambda one: (-one[1][0], one[0]))
        for test, (peak, kept) in ranked[:10]:
            rest = f", kept {size(kept)}" if kept else ""
            terminalreporter.write_line(f"peak {size(peak):>11}{rest}  {test}")
        others = len(self.figures) - min(len(ranked), 10)
        if others:
            with_less = "with less" if len(ranked) > 10 else "with none"
            terminalreporter.write_line(f"{others} tests {with_less}")


def _explained(call: pytest.CallInfo[Any]) -> Any:
    if call.excinfo is None:
        return None
    from gpuheap._explain import explain

    try:
        return explain(call.excinfo.value)
    except Exception as error:
        # An exception that cannot be read must not end the run.
        return f"gpuheap cannot read the test's exception: {type(error).__name__}"


def _is_measured(item: pytest.Item) -> bool:
    markers = item.get_closest_marker(_LIMIT), item.get_closest_marker(_LEAKS)
    return any(markers) or bool(item.config.getoption("gpuheap"))


def _note(item: pytest.Item, reading: Any) -> None:
    item.stash[_READING] = reading
    item.user_properties[:] = [
        found for found in item.user_properties if found[0] not in (_PEAK, _KEPT)
    ]
    item.user_properties += [(_PEAK, reading.peak), (_KEPT, reading.kept)]


def _limits_of(item: pytest.Item, name: str) -> dict[str | None, int]:
    """Returns the limits of a test, keyed by device; `None` is the limit of all devices together.
    The closest marker of each device applies."""
    limits: dict[str | None, int] = {}
    for marker in item.iter_markers(name):
        size = _size_of(marker)
        limits.setdefault(marker.kwargs.get("device"), size)
    return limits


def _size_of(marker: pytest.Mark) -> int:
    from gpuheap._gpuheap import _size

    if len(marker.args) != 1 or marker.kwargs.keys() - {"device"}:
        pytest.fail(
            f'@pytest.mark.{marker.name} takes one size: @pytest.mark.{marker.name}("2 GiB")',
            pytrace=False,
        )
    try:
        given = marker.args[0]
        if isinstance(given, str) and "%" in given:
            raise ValueError("it is a share; write bytes or a unit")
        return _size(given) if given != 0 else 0
    except ValueError as error:
        pytest.fail(f"@pytest.mark.{marker.name}({marker.args[0]!r}): {error}", pytrace=False)


def _check(marker: str, device: str | None, found: int, most: int, state: str) -> None:
    from gpuheap._heap import size

    if found <= most:
        return
    where = f" on {device}" if device else ""
    pytest.fail(
        f"{marker}: {size(found)} of GPU memory {state}{where}, {size(found - most)} above {size(most)}",
        pytrace=False,
    )
