#!/usr/bin/env python3
"""Times an allocation and its free inside a scope, and the ends of scopes with many arrays.

    python benches/python/scopes.py [--count 100000] [--tasks 3000] [--depth 800]

Prints a table. The device is emulated, so that the figures show only the host's time.
"""

import argparse
import asyncio
import contextlib
import time

import gpuheap


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pair(heap, count=20_000):
    """Returns the nanoseconds of an allocation and its free: the best of five runs."""

    def run():
        for _ in range(count):
            heap.alloc(1000)

    return min(seconds(run) for _ in range(5)) / count * 1e9


def kept(heap, count):
    """Times the end of a scope whose buffers were kept."""
    scope = heap.scope("kept").__enter__()
    buffers = [scope.keep(heap.alloc(16)) for _ in range(count)]
    took = seconds(lambda: scope.__exit__(None, None, None))
    assert not any(buffer.freed for buffer in buffers)
    return took


def owned(heap, count):
    """Times the end of a scope that frees its buffers."""
    scope = heap.scope("owned").__enter__()
    buffers = [heap.alloc(16) for _ in range(count)]
    took = seconds(lambda: scope.__exit__(None, None, None))
    assert all(buffer.freed for buffer in buffers)
    return took


def tasks(heap, count):
    """Times how long the scopes of many tasks take to end. All scopes are open at the same time."""

    async def main():
        go = asyncio.Event()

        async def task():
            with heap.scope("task"):
                _buffer = heap.alloc(16)
                await go.wait()

        open_tasks = [asyncio.create_task(task()) for _ in range(count)]
        await asyncio.sleep(0)
        begin = time.perf_counter()
        go.set()
        await asyncio.gather(*open_tasks)
        return time.perf_counter() - begin

    return asyncio.run(main())


def nested(heap, depth):
    """Times the ends of scopes that are open inside each other."""
    stack, buffers = contextlib.ExitStack(), []
    for _ in range(depth):
        stack.enter_context(heap.scope("nested"))
        buffers.append(heap.alloc(16))
    return seconds(stack.close)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="buffers of a scope")
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--depth", type=int, default=800)
    given = parser.parse_args()
    heap = gpuheap.Heap("emulated:4GiB", track="lines")
    plain = gpuheap.Heap("emulated:1GiB", track="off")
    print("| figure | |\n|---|--:|")
    print(f"| a pair, no scope | {pair(plain):.0f} ns |")
    with plain.scope("bench"):
        print(f"| a pair in a scope | {pair(plain):.0f} ns |")
    print(f"| the end of {given.count:,} kept | {kept(heap, given.count):.3f} s |")
    print(f"| the end of {given.count:,} freed | {owned(heap, given.count):.3f} s |")
    print(f"| the ends of {given.tasks:,} tasks | {tasks(heap, given.tasks):.3f} s |")
    print(f"| the ends of {given.depth:,} nested | {nested(heap, given.depth):.3f} s |")


if __name__ == "__main__":
    main()
