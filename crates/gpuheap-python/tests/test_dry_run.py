"""Runs functions under `gpuheap.dry_run`, in child processes on the emulated driver."""

import functools

import pytest
from test_pytest_plugin import PLUGIN

import gpuheap

pytest_plugins = ["pytester"]

PROGRAM = "import test_dry_run; test_dry_run.allocate(20)"


def allocate(gib, times=1):
    heap = gpuheap.Heap("cuda:0")
    kept = [heap.alloc(gib << 30) for _ in range(times)]
    print("allocated", len(kept))


def compute():
    return sum(range(10))


def fail():
    raise ValueError("a wrong value")


class Trainer:
    @staticmethod
    def train():
        allocate(20)


def test_function_fits_or_not():
    result = gpuheap.dry_run(allocate, 10, card="RTX 4090,T4")
    assert result.fits and result.outcome == "fits", result
    assert result.output == "allocated 1\n"
    assert [card.card for card in result.cards] == ["RTX 4090", "T4 16GB"]
    assert result.peak == max(card.peak for card in result.cards) > 10 << 30
    assert str(result).startswith("gpuheap dry-run: ") and "It fits on" in str(result)
    result = gpuheap.dry_run(allocate, 20, card="RTX 4090,T4")
    assert not result.fits and [card.fits for card in result.cards] == [True, False]


@pytest.mark.parametrize(
    "function, arguments",
    [
        (functools.partial(allocate, times=2), (5,)),
        (Trainer.train, ()),
        ("test_dry_run:Trainer.train", ()),
        (["-c", PROGRAM], ()),
    ],
)
def test_other_callables_run(function, arguments, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", __file__.rpartition("/")[0])
    assert gpuheap.dry_run(function, *arguments, card="RTX 4090").fits


def test_margin_and_memory_bound_the_card():
    assert gpuheap.dry_run(allocate, 10, memory="12GiB").fits
    assert not gpuheap.dry_run(allocate, 10, memory="12GiB", margin=0.2).fits


@pytest.mark.parametrize(
    "function, text",
    [(fail, "ValueError: a wrong value"), (compute, "used no GPU"), ("nosuch_module:f", "nosuch")],
)
def test_run_without_verdict_raises(function, text):
    with pytest.raises(gpuheap.DryRunFailed, match=text):
        gpuheap.dry_run(function, card="T4")


def test_wrong_use_is_refused():
    with pytest.raises(gpuheap.BadInput, match="inside another function"):
        gpuheap.dry_run(lambda: None)
    with pytest.raises(gpuheap.BadInput, match="is no function"):
        gpuheap.dry_run(3)
    with pytest.raises(gpuheap.BadInput, match="cannot be passed"):
        gpuheap.dry_run(allocate, lambda: None)
    with pytest.raises(gpuheap.BadInput, match="no card"):
        gpuheap.dry_run(compute, card="no card")


def test_fixture_has_default_card(pytester):
    pytester.makepyfile(
        train="import gpuheap\ndef main(): gpuheap.Heap('cuda:0').alloc(20 << 30)\n"
    )
    pytester.makepyfile("""
import train

def test_default(gpu_dry_run):
    result = gpu_dry_run(train.main)
    assert result.fits, result

def test_own(gpu_dry_run):
    assert gpu_dry_run(train.main, card="RTX 4090").fits
""")
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", *PLUGIN, "--gpuheap-card", "T4"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*It does not fit on T4*"])
