"""Runs tests. Writes a line with each test's outcome, name and error, separated by tabs.

outcomes.py OUTPUT pytest FILE... | outcomes.py OUTPUT unittest MODULE...
"""

import sys
import unittest


def line(text):
    """Returns the last non-blank line of an error's text. Replaces tabs with spaces."""
    lines = [each.strip() for each in text.replace("\t", " ").splitlines() if each.strip()]
    return lines[-1][:200] if lines else ""


class Pytest:
    """Pytest plugin that notes each outcome. Notes a test twice if its teardown fails."""

    def __init__(self, note):
        self.note = note

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message.splitlines()[0] if crash else str(report.longrepr)
            self.note("failed", report.nodeid, line(text))
        elif report.skipped:
            self.note("skipped", report.nodeid, "")
        elif report.when == "call":
            self.note("passed", report.nodeid, "")

    def pytest_collectreport(self, report):
        if report.failed:
            self.note("failed", report.nodeid, line(str(report.longrepr)))


class Unittest(unittest.TextTestResult):
    """Result of unittest that notes each test."""

    note = None

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note("passed", test.id(), "")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note("skipped", test.id(), "")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note("skipped", test.id(), "")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note("failed", test.id(), line(str(error[1])))

    def addError(self, test, error):
        super().addError(test, error)
        self.note("failed", test.id(), line(str(error[1])))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.note("failed", test.id(), line(str(error[1])))


def main(output, kind, *targets):
    with open(output, "w", buffering=1) as out:

        def note(outcome, name, error):
            print(outcome, name, error, sep="\t", file=out)

        if kind == "pytest":
            import pytest

            options = ["-p", "no:cacheprovider", "--benchmark-disable", "-q", "--timeout=60"]
            pytest.main([*options, *targets], plugins=[Pytest(note)])
        else:
            Unittest.note = staticmethod(note)
            suite = unittest.defaultTestLoader.loadTestsFromNames(targets)
            unittest.TextTestRunner(resultclass=Unittest, verbosity=2).run(suite)
        note("ended", kind, "")


# Some tests start a process that imports this file. The import must not run the tests again.
if __name__ == "__main__":
    main(*sys.argv[1:])
