#!/usr/bin/env python3
"""Tests `run` with stand-ins for the programs that it measures. If PEERS_PROGRAM names
gpuheap-peers, tests with that program too, on an emulated device."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
loader = importlib.machinery.SourceFileLoader("peers_run", str(HERE / "run"))
specification = importlib.util.spec_from_loader("peers_run", loader)
run = importlib.util.module_from_spec(specification)
sys.modules["peers_run"] = run
loader.exec_module(run)
WIDTH = 100

STAND_IN = """#!/bin/sh
[ "$1" = pools ] && echo none simple one other && exit
shift 4
[ "$1" = --environment ] && shift
{body}
"""


class Table(unittest.TestCase):
    def test_table_fits_terminal(self):
        names = [peer.name for peer in run.PEERS] + ["gpuheap stitched"]
        sizes = [f"hot bytes={1 << shift} ns=123456.7" for shift in (10, 20, 26)]
        sizes.append("random ns=123456.7 live_peak=5 reserved_peak=9")
        threads = [f"threads threads={1 << shift} mpairs=1234.567" for shift in range(5)]
        once = [
            "crossfree ns=123456.7 allocate_ns=123456.7",
            "first open_ms=1000.5 ms=1000.5",
            "reclaim ms=123456.7 live_peak=5 cached=5 kept=10737418240",
        ]
        traces = sorted((run.ROOT / "examples/traces").glob("*.csv.gz"))
        self.assertEqual(len(traces), 7)
        traces = [trace.name.removesuffix(".csv.gz") for trace in traces]
        replays = [
            f"replay trace={name} cold_ns=5 ns=123456.7 live_peak=5 reserved_peak=9"
            for name in traces
        ]
        found = {}
        for line in sizes + threads + once + replays:
            result = dict(pair.split("=", 1) for pair in f"work={line}".split())
            for section, column, value in run.figures(result):
                cells = found.setdefault(section, {}).setdefault(column, {})
                cells.update((name, value) for name in names)
        run.add_scaling(found)
        self.assertEqual(len(found), 5)
        for title, columns in found.items():
            text = run.table(title, columns, names, run.MARKS.get(title, {}), markdown=False)
            for line in text.splitlines():
                self.assertLessEqual(len(line), WIDTH, line)
        self.assertEqual(set(found[run.THREADS]["8 to 16"].values()), {1.0})
        for title, marks in run.MARKS.items():
            self.assertLessEqual(marks.keys(), found[title].keys(), "a mark without a column")


class Whole(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_with(self, program, *arguments):
        """Returns the script's exit code, its output and its JSON."""
        report = self.folder / "report.json"
        command = [
            sys.executable,
            HERE / "run",
            "--device",
            "emulated",
            "--rust-bin",
            program,
            "--build",
            self.folder / "build",
            "--json",
            report,
            *arguments,
        ]
        ran = subprocess.run(command, capture_output=True, text=True)
        return ran.returncode, ran.stdout, json.loads(report.read_text())

    def stand_in(self, body):
        program = self.folder / "stand-in"
        program.write_text(STAND_IN.format(body=body))
        program.chmod(0o755)
        return program

    def test_pools_have_rows_failures_reasons(self):
        body = """[ "$1" = other ] && echo no such thing >&2 && exit 3
echo RESULT peer=$1 work=hot bytes=1024 ns=12.5"""
        code, text, report = self.run_with(self.stand_in(body), "--works", "hot")
        self.assertEqual(code, 0)
        self.assertEqual(report["medians"], {run.PAIRS: {"1 KiB": {"gpuheap one": 12.5}}})
        self.assertEqual(
            report["skipped"], {"gpuheap other, hot": "it ended with code 3: no such thing"}
        )
        self.assertIn("skipped: gpuheap other, hot: it ended with code 3: no such thing", text)

    def test_unequal_work_is_found(self):
        body = "echo RESULT peer=$1 work=random ns=5 live_peak=${#1} reserved_peak=9"
        code, text, _ = self.run_with(self.stand_in(body), "--works", "random")
        self.assertEqual(code, 1)
        self.assertIn(
            "not the same work, random: peak live {'gpuheap one': '3', 'gpuheap other': '5'}", text
        )

    def test_listed_names_choose_works(self):
        body = "echo RESULT peer=$1 work=replay trace=${2##*/} cold_ns=3 ns=2 live_peak=1 reserved_peak=1"
        for pattern in ("^replay:two_streams$", f"two_streams|{self.folder.name}"):
            _, _, report = self.run_with(self.stand_in(body), "--works", pattern)
            self.assertEqual(list(report["medians"][run.TIME]), ["two_streams"], pattern)

    def test_curve_has_rows_by_value(self):
        body = "echo RESULT peer=$1 work=random ns=$KNOB live_peak=1 reserved_peak=$KNOB"
        _, _, report = self.run_with(
            self.stand_in(body), "--works", "random", "--curve", "KNOB=2,4", "--peers", "one"
        )
        self.assertEqual(
            report["medians"][run.PAIRS],
            {"random": {"one 2": 2, "one 4": 4}, "random used": {"one 2": 0.5, "one 4": 0.25}},
        )

    def refused(self, *arguments):
        """Returns the error text for arguments that are refused."""
        body = "echo RESULT peer=$1 work=hot bytes=1024 ns=12.5"
        command = [
            sys.executable,
            HERE / "run",
            "--device",
            "emulated",
            "--rust-bin",
            self.stand_in(body),
            "--build",
            self.folder / "build",
            *arguments,
        ]
        ran = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
        return ran.stderr

    def test_unknown_names_are_refused(self):
        said = self.refused("--works", "nope")
        self.assertIn("--works: 'nope' is no work; there are hot, random, threads,", said)
        self.assertIn("replay:two_streams", said)
        said = self.refused("--peers", "nope")
        self.assertIn("--peers: 'nope' is no peer; there are gpuheap one, gpuheap other\n", said)
        said = self.refused("--peers", "torch")
        self.assertIn("--peers: 'torch' is no peer on emulated; there are gpuheap one,", said)
        self.assertIn("is no peer with --curve", self.refused("--peers", "torch", "--curve", "A=1"))
        for curve in ("SLACK", "", "=1", "SLACK=", "SLACK=1,"):
            said = self.refused("--curve", curve)
            self.assertIn(f"--curve: '{curve}' is not VARIABLE=VALUE,..., such as", said)
        self.assertIn("--works: '(' is no regular expression", self.refused("--works", "("))

    def test_missing_gpu_suggests_emulator(self):
        body = "echo there is no GPU >&2; exit 1"
        arguments = ("--works", "hot", "--peers", "one")
        _, text, _ = self.run_with(self.stand_in(body), "--device", "cuda:0", *arguments)
        self.assertTrue(
            text.startswith(
                "nothing was measured; on a machine without a GPU take --device emulated\n"
            ),
            text,
        )
        self.assertIn("gpuheap one, hot: it ended with code 1: there is no GPU", text)
        _, text, _ = self.run_with(self.stand_in(body), *arguments)
        self.assertTrue(text.startswith("nothing was measured\n"), text)

    def test_nothing_found_is_failure(self):
        code, text, _ = self.run_with(self.folder / "nothing")
        self.assertEqual(code, 1)
        self.assertIn(f"there is no {self.folder.resolve()}/nothing", text)

    @unittest.skipUnless(os.environ.get("PEERS_PROGRAM"), "PEERS_PROGRAM names no program")
    def test_gpuheap_on_emulated_device(self):
        code, text, report = self.run_with(
            os.environ["PEERS_PROGRAM"],
            "--scale",
            "100",
            "--works",
            f"{'|'.join(run.WORKS)}|two_streams",
        )
        self.assertEqual((code, report["skipped"]), (0, {}), text)
        self.assertEqual(
            list(report["medians"]), [run.PAIRS, run.THREADS, run.ONCE, run.TIME, run.USED]
        )
        for columns in report["medians"].values():
            for column, cells in columns.items():
                self.assertIn("gpuheap split", cells, column)
                self.assertNotIn("gpuheap none", cells, column)
        for line in text.splitlines():
            self.assertLessEqual(len(line), WIDTH, line)


class Wheels(unittest.TestCase):
    def test_named_folder_comes_first(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "json").mkdir()
            self.assertEqual(run.package("json", folder), (Path(folder) / "json").resolve())
            self.assertNotEqual(run.package("json").parent, Path(folder).resolve())
            with self.assertRaisesRegex(run.Missing, f"librmm is not in {folder}, nor installed"):
                run.package("librmm", folder)


if __name__ == "__main__":
    unittest.main()
