"""Runs Python functions under `gpuheap dry-run`."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuheap._errors import BadInput, DryRunFailed

# Environment variable with the path of a pickled call. The child process makes this call.
CALL = "GPUHEAP_DRY_RUN_CALL"


@dataclass(frozen=True)
class CardFit:
    """The result of a dry run on one card. Sizes are bytes, or `None` if nothing was recorded."""

    #: Name of the card.
    card: str
    #: `True` if the function did not run out of memory on the card.
    fits: bool
    #: Peak of memory in use, including CUDA's own memory.
    peak: int | None
    #: Peak that PyTorch's allocator reserved.
    reserved: int | None
    #: Peak that PyTorch's allocator handed out.
    allocated: int | None
    #: Memory of the card.
    total: int


@dataclass(frozen=True, repr=False)
class DryRun:
    """The verdict of a dry run. `str()` returns the text that `gpuheap dry-run` prints."""

    #: `True` if the function fits on every card.
    fits: bool
    #: `"fits"`, `"fits_as_far_as_known"` (sizes depended on kernels' results, and a dry run has no
    #: such results), `"oversubscribed"` or `"does_not_fit"`.
    outcome: str
    #: Results by card, in the order of the request.
    cards: tuple[CardFit, ...]
    #: Bytes at the peak by kind, such as `"parameters"` and `"activations"`.
    kinds: dict[str, int]
    #: Bytes at the peak, keyed by PyTorch module.
    modules: dict[str, int]
    #: Lines that hold the most at the peak, with their bytes.
    lines: tuple[tuple[str, int], ...]
    #: Standard output of the function.
    output: str
    #: All figures, as `gpuheap dry-run --json` writes them.
    json: dict[str, Any] = field(compare=False)
    #: Text that `gpuheap dry-run` prints.
    text: str = field(compare=False)

    @property
    def peak(self) -> int | None:
        """Largest peak of memory in use over all cards, in bytes."""
        return max((card.peak for card in self.cards if card.peak is not None), default=None)

    def __str__(self) -> str:
        return self.text

    # Pytest shows this text if an assertion fails.
    __repr__ = __str__

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.text)}</pre>"


def dry_run(
    function: Callable[..., Any] | str | Sequence[str],
    *arguments: Any,
    card: str = "H200 141GB",
    memory: int | str | None = None,
    devices: int = 1,
    steps: int | None = None,
    time_limit: float | None = None,
    margin: float | None = None,
    remedies: bool = False,
) -> DryRun:
    """Runs a function on an emulated GPU, and returns whether it fits on a card.

    The function runs in a child process, with the installed PyTorch and kernels that do nothing. No
    GPU is needed or used. The function is defined in a module, or is a `functools.partial` of such
    a function. A text names a function (`"train:main"`) or a program (`"train.py"`); a list is a
    program with its arguments. `card` may have several names with commas between them. `memory`
    replaces the card's size. `margin` is the part of a card to leave free (0.05 is 5 %; default 0).
    `time_limit` is in seconds. With `remedies`, the function runs once more for each remedy that
    gpuheap can switch on by itself.

    If the function raised an exception or used no GPU, there is no verdict. `gpuheap.DryRunFailed`
    is then raised, with the end of the output.

        def train():
            model = torch.nn.Linear(4096, 4096, device="cuda")
            ...

        assert gpuheap.dry_run(train, card="T4").fits
    """
    options = ["--card", card, "--devices", str(devices)]
    for option, value in (
        ("--memory", memory),
        ("--steps", steps),
        ("--time-limit", None if time_limit is None else f"{time_limit}s"),
        ("--margin", None if margin is None else f"{margin * 100:g}%"),
    ):
        if value is not None:
            options += [option, str(value)]
    options.append("--remedies=always" if remedies else "--remedies=never")
    with tempfile.TemporaryDirectory(prefix="gpuheap-dry-run-") as folder:
        call, verdict = Path(folder) / "call.pickle", Path(folder) / "verdict.json"
        program = _program(function, arguments, call)
        environment = dict(os.environ)
        package = str(Path(__file__).resolve().parent.parent)
        paths = [package, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment[CALL] = str(call)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "gpuheap",
                "dry-run",
                *options,
                "--json",
                verdict,
                "--",
                *program,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
        )
        text = verdict.read_text() if verdict.exists() else ""
    if not text:
        kind = BadInput if done.returncode == 2 else DryRunFailed
        raise kind(done.stderr.strip() or f"gpuheap dry-run ended with exit code {done.returncode}")
    figures = json.loads(text)
    if figures["outcome"] == "no_verdict":
        raise DryRunFailed(f"the dry run has no verdict:\n{_end(done.stderr)}")
    return _result(figures, done.stdout, done.stderr)


def _result(figures: dict[str, Any], output: str, errors: str) -> DryRun:
    peak = figures["peak"] or {}
    title = errors.rfind("\ngpuheap dry-run: ")
    return DryRun(
        fits=figures["outcome"] in ("fits", "fits_as_far_as_known"),
        outcome=figures["outcome"],
        cards=tuple(_card(card) for card in figures["cards"]),
        kinds={kind["kind"]: kind["bytes"] for kind in peak.get("kinds", ())},
        modules={module["module"]: module["bytes"] for module in peak.get("modules", ())},
        lines=tuple((held["line"], held["bytes"]) for held in peak.get("holders", ())),
        output=output,
        json=figures,
        text=errors[title + 1 :],
    )


def _card(card: dict[str, Any]) -> CardFit:
    devices = [device for process in card["processes"] for device in process["devices"]]

    def most(key: str) -> int | None:
        return max((one[key] for one in devices if one[key] is not None), default=None)

    return CardFit(
        card=card["card"],
        fits=card["outcome"] in ("fits", "fits_as_far_as_known"),
        peak=most("in_use"),
        reserved=most("reserved"),
        allocated=most("allocated"),
        total=card["total"],
    )


def _program(function: Any, arguments: tuple[Any, ...], call: Path) -> list[str]:
    """Returns the child's command line. Writes the function's call to the file `call`."""
    if isinstance(function, str) and ":" in function:
        module, _, name = function.rpartition(":")
        target = (module, None, name)
    elif isinstance(function, str):
        return [sys.executable, function, *map(str, arguments)]
    elif isinstance(function, Sequence):
        return [sys.executable, *map(str, (*function, *arguments))]
    else:
        keywords: dict[str, Any] = {}
        while isinstance(function, functools.partial):
            arguments = (*function.args, *arguments)
            keywords = {**function.keywords, **keywords}
            function = function.func
        return _call(_target(function), arguments, keywords, call)
    return _call(target, arguments, {}, call)


def _target(function: Any) -> tuple[str, str | None, str]:
    """Returns a function's module, the module's file, and the function's name in the module."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if not callable(function) or name is None or module is None:
        raise BadInput(
            f"dry_run: {function!r} is no function; pass a function of a module, a text such as "
            '"train:main", or a program ("train.py")'
        )
    if "<" in name:
        raise BadInput(
            f"dry_run: {name} is defined inside another function, and a child process cannot import "
            "it; define it in its module, and pass its values as arguments"
        )
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" and file is None:
        raise BadInput(
            f"dry_run: {name} is defined in a notebook or at a prompt, and a child process cannot "
            "import it; write it into a file, and import that"
        )
    return module, None if file is None else os.path.abspath(file), name


def _call(
    target: tuple[str, str | None, str],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    call: Path,
) -> list[str]:
    try:
        values = pickle.dumps((arguments, keywords))
    except Exception as error:
        raise BadInput(
            f"dry_run: the arguments cannot be passed to a child process: {error}; pass numbers, texts "
            "and functions of modules, and make models in the function"
        ) from error
    call.write_bytes(pickle.dumps((sys.path, target, values)))
    return [sys.executable, "-m", "gpuheap._dry_run_call"]


def _end(errors: str) -> str:
    lines = errors.strip().splitlines()
    return "\n".join(lines[-40:])
