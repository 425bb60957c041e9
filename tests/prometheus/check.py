"""Scrapes `gpuheap export` with a Prometheus server, and checks queries, alerts and the dashboard.

`run` unpacks Prometheus, builds gpuheap, and passes the folder of the built files. The exporter
reads an emulated NVML that lists an ended process. The exporter also reads a program whose heap is
near its limit.
"""

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
MONITORING = HERE.parents[1] / "packaging/monitoring"
FOLDER = Path(sys.argv[1])
MIB, GIB = 1 << 20, 1 << 30
ACCEPT = "application/openmetrics-text;version=1.0.0"

# A pid that no process has: Linux gives out only smaller pids.
ENDED = 4_194_304
NVML = {
    "driver": "580.1",
    "devices": [
        {"profile": "t4", "uuid": "GPU-a", "processes": [{"pid": ENDED, "bytes": 2 * GIB}]}
    ],
}
ENVIRONMENT = {
    **os.environ,
    "LD_LIBRARY_PATH": str(FOLDER),
    "GPUHEAP_EMULATED_NVML": json.dumps(NVML),
    "XDG_RUNTIME_DIR": str(FOLDER / "runtime"),
}


def main():
    (FOLDER / "runtime").mkdir(mode=0o700)
    processes = []
    try:
        program = started(processes, [sys.executable, HERE / "hold.py"], **HOLD)
        assert program.stdout.readline() == b"ready\n"
        address, exporter = start_exporter(processes)
        check_driver_is_unused(exporter)
        check_formats(address)
        print_time(address)
        check_rules()
        check_server(processes, address, program.pid)
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(10) == 0, exporter.returncode
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print("prometheus: formats, rules, scrapes, queries, alerts and the dashboard agree")


# Options of the process that runs hold.py. The preloaded drop-in serves its CUDA allocations from a
# heap, and hold.py takes 500 of the heap's 512 MiB.
HOLD = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "env": {
        **ENVIRONMENT,
        "LD_PRELOAD": str(FOLDER / "libgpuheap_malloc.so"),
        "GPUHEAP_EMULATED_DEVICE": "1GiB",
        "GPUHEAP_MEMORY_LIMIT": "512MiB",
        "GPUHEAP_PUBLISH": "1",
        "GPUHEAP_TRACK": "counts",
    },
}


def started(processes, command, **options):
    process = subprocess.Popen([str(word) for word in command], **options)
    processes.append(process)
    return process


def start_exporter(processes):
    command = [FOLDER / "gpuheap", "export", "--listen", "127.0.0.1:0", "--interval", "1s"]
    exporter = started(processes, command, env=ENVIRONMENT, stderr=subprocess.PIPE)
    for line in exporter.stderr:
        if found := re.search(rb"serves http://(\S+)/metrics", line):
            return found[1].decode(), exporter
    raise AssertionError("the exporter ended")


def fetch(address, path, **headers):
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.headers["Content-Type"], response.read().decode()


def check_driver_is_unused(exporter):
    """The exporter loads only NVML, so it has no CUDA context."""
    maps = Path(f"/proc/{exporter.pid}/maps").read_text()
    assert "libnvidia-ml.so" in maps and "libcuda.so" not in maps, maps


def print_time(address):
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        fetch(address, "/metrics")
        seconds.append(time.perf_counter() - start)
    print(f"prometheus: a scrape takes {statistics.median(seconds) * 1000:.1f} ms (median of 100)")


def check_formats(address):
    kind, text = fetch(address, "/metrics", Accept=ACCEPT)
    assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["gpuheap_device_memory_bytes"].unit == "bytes"
    assert families["gpuheap_heap_allocations"].type == "counter"
    assert families["gpuheap_build"].type == "info"
    kind, text = fetch(address, "/metrics")
    assert kind.startswith("text/plain; version=0.0.4"), kind
    promtool(["check", "metrics"], input=text)


def promtool(arguments, **options):
    command = ["promtool", *(str(word) for word in arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, **options)
    text = ended.stdout + ended.stderr
    assert ended.returncode == 0, f"{' '.join(command)}: {text}"
    return text


def check_rules():
    rules = MONITORING / "gpuheap.rules.yml"
    promtool(["check", "rules", rules])
    (FOLDER / "gpuheap.rules.yml").write_bytes(rules.read_bytes())
    (FOLDER / "alerts.yml").write_bytes((HERE / "alerts.yml").read_bytes())
    promtool(["test", "rules", FOLDER / "alerts.yml"])


def check_server(processes, address, pid):
    """Starts a server that scrapes the exporter each second. Alerts fire after one second."""
    rules = (MONITORING / "gpuheap.rules.yml").read_text()
    (FOLDER / "fast.rules.yml").write_text(re.sub(r"\bfor: \w+", "for: 1s", rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["fast.rules.yml"],
        "scrape_configs": [{"job_name": "gpuheap", "static_configs": [{"targets": [address]}]}],
    }
    (FOLDER / "prometheus.yml").write_text(json.dumps(config))
    promtool(["check", "config", FOLDER / "prometheus.yml"])
    server = free_address()
    log = (FOLDER / "prometheus.log").open("wb")
    command = [
        *("prometheus", f"--config.file={FOLDER / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={FOLDER / 'tsdb'}", f"--web.listen-address={server}"),
    ]
    started(processes, command, stdout=log, stderr=log)

    def query(expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.loads(fetch(server, path)[1])["data"]["result"]

    def firing():
        alerts = json.loads(fetch(server, "/api/v1/alerts")[1])["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    wanted = {"GpuheapOrphanHoldsMemory", "GpuheapLimitNear"}
    until(lambda: wanted <= firing())
    assert firing() == wanted, firing()
    [up] = query("up")
    assert up["value"][1] == "1", up
    [memory] = query(f'gpuheap_process_memory_bytes{{pid="{ENDED}"}}')
    assert float(memory["value"][1]) == 2 * GIB, memory
    [live] = query(f'gpuheap_heap_live_bytes{{pid="{pid}"}}')
    assert float(live["value"][1]) == 500 * MIB, live
    assert live["metric"]["program"].endswith("hold.py"), live
    check_dashboard(query, address)


def check_dashboard(query, address):
    """Evaluates each expression of the dashboard. Only expressions with `delta` may return nothing.
    Checks that each expression and legend names existing labels."""
    families = text_string_to_metric_families(fetch(address, "/metrics", Accept=ACCEPT)[1])
    samples = [sample for family in families for sample in family.samples]
    dashboard = json.loads((MONITORING / "gpuheap-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*")
            found = query(expression.replace("$__rate_interval", "1m"))
            assert found or "delta(" in expression, expression
            named = set(re.findall(r"\bgpuheap_\w+", expression))
            labels = {label for one in samples if one.name in named for label in one.labels}
            used = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
            used += re.findall(r"(\w+)[!=]?[=~]\"", expression)
            for listed in re.findall(r"(?:by|ignoring) \(([\w, ]+)\)", expression):
                used += listed.split(", ")
            assert named and set(used) <= labels | {"instance"}, (expression, used, labels)


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def until(condition):
    """Waits until the condition holds. Ignores refused connections while the server starts."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError((FOLDER / "prometheus.log").read_text()[-4000:])


if __name__ == "__main__":
    main()
