"""Follows the first steps of docs/emulator.md, and compares the examples' output with the page.

    first_steps.py PAGE PINS LIBRARY_FOLDER

PINS is a file of package versions, which the running interpreter needs. Checks that the page
installs these versions. Runs each Python example with the page's settings. An example's output,
errors included, has to equal the text block after the example.
"""

import os
import re
import subprocess
import sys

page_file, pins_file, folder = sys.argv[1:]
with open(page_file) as page:
    steps = page.read().split("## First steps from Python")[1].split("\n## ")[0]
with open(pins_file) as pins:
    known = {line.strip() for line in pins}
installed = re.search(r"pip install (.*)", steps)[1].split()
other = [version for version in installed if version not in known]
if other:
    sys.exit(f"first_steps: {page_file} installs {other}; {pins_file} has other versions")

settings = dict(re.findall(r"(GPUHEAP_\w+)=(\S+)", re.search(r"export .*", steps)[0]))
environment = {**os.environ, **settings, "LD_LIBRARY_PATH": folder}
examples = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", steps, re.DOTALL)
for program, expected in examples:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    if done.returncode != 0 or done.stdout != expected:
        sys.exit(f"first_steps: expected {expected!r}, got {done.stdout!r} of\n{program}")
print(f"first_steps: {len(examples)} examples print what the page says")
if len(examples) != 2:
    sys.exit("first_steps: the page should have two examples, each with its output")
