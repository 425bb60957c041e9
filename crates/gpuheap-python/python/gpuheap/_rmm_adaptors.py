"""Reads the figures of the RMM adaptors that wrap a device's current resource."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from typing import Any

from gpuheap import _gpuheap
from gpuheap._heap import size


def adaptors(device: _gpuheap.Device) -> list[dict[str, Any]]:
    """Returns the figures of a device's RMM adaptors for statistics, tracking, logging and limits,
    the outermost first. Imports nothing."""
    found = []
    for resource in _resources(device):
        name = type(resource).__name__
        figures: dict[str, Any] = {"adaptor": name}
        if name == "StatisticsResourceAdaptor":
            figures |= dataclasses.asdict(resource.allocation_counts)
        elif name == "LoggingResourceAdaptor":
            figures["file"] = resource.get_file_name()
        elif name in ("TrackingResourceAdaptor", "LimitingResourceAdaptor"):
            figures["current_bytes"] = resource.get_allocated_bytes()
            if name.startswith("Limiting"):
                figures["limit"] = resource.get_allocation_limit()
        else:
            continue
        found.append(figures)
    return found


def sentence(figures: dict[str, Any]) -> str:
    """Returns the figures of one RMM adaptor, such as its live bytes, as a line of text."""
    name = f"RMM's {figures['adaptor']}"
    if "file" in figures:
        return f"{name}: writes {figures['file']}; gpuheap report reads it"
    text = f"{name}: {size(figures['current_bytes'])}"
    if "limit" in figures:
        return f"{text} of its limit of {size(figures['limit'])}"
    if "peak_bytes" in figures:
        return (
            f"{text} in {figures['current_count']:,} allocations, at most "
            f"{size(figures['peak_bytes'])}; in all {figures['total_count']:,} allocations of "
            f"{size(figures['total_bytes'])}"
        )
    return f"{text} outstanding"


def callers(device: _gpuheap.Device) -> dict[int, str]:
    """Returns the function that requested each outstanding allocation, keyed by the allocation's
    address. Contains only allocations whose stack a tracking adaptor captured."""
    found = {}
    for resource in _resources(device):
        if type(resource).__name__ == "TrackingResourceAdaptor":
            text = resource.get_outstanding_allocations_str()
            for address, stack in re.findall(
                r"^(0x[0-9a-f]+): [^\n]*\n((?:#[^\n]*\n?)*)", text, re.M
            ):
                frames = re.findall(r"#\d+ in (.*?)(?: \[0x[0-9a-f]+\])?$", stack, re.M)
                outside = [frame for frame in frames if not re.search("rmm::|librmm|/rmm/", frame)]
                if outside:
                    found[int(address, 16)] = outside[0]
    return found


def _resources(device: _gpuheap.Device) -> Iterator[Any]:
    """Yields RMM's current resource of a device, and the resources below it."""
    mr = getattr(sys.modules.get("rmm"), "mr", None)
    resource = None if mr is None or device.emulated else mr.get_per_device_resource(device.ordinal)
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream_mr", None)
