"""Times training steps of PyTorch under its own allocators and under gpuheap's C hook.

Also finds the smallest limit with which each program completes. Prints Markdown tables.

    c++ -shared -fPIC -O2 crates/gpuheap-capi/examples/torch_allocator.cpp \\
        -o libtorch_gpuheap.so -I crates/gpuheap-capi/include -L target/release -lgpuheap_capi \\
        -Wl,-rpath,$PWD/target/release
    python benches/python/steps.py ./libtorch_gpuheap.so [--turns 5] [--expandable]
        [--only NAME,...] [--without-limits]

A step's time includes a wait for the device. A turn's time is the median of the steps after the
third, and a figure is the median of all turns. In each turn, each allocator has a process that runs
all programs, one after the other. The limits are searched in steps of 0.5 % of the peak of live
bytes, with a process for each limit.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

WAYS = {
    "torch": {},
    "gpuheap": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}


def main():
    arguments = read_arguments()
    if arguments.child:
        sys.exit(child(arguments.child, arguments.hook, arguments.only))
    names = arguments.only or list(PROGRAMS)
    ways = [way for way in WAYS if way != "expandable" or arguments.expandable]
    times = {name: {way: [] for way in ways} for name in names}
    for turn in range(arguments.turns):
        for way in ways if turn % 2 == 0 else ways[::-1]:
            for told in run(arguments.hook, way, names):
                times[told["program"]][way].append(told["milliseconds"])
        print(
            f"turn {turn + 1} of {arguments.turns}: {json.dumps(times)}",
            file=sys.stderr,
            flush=True,
        )
    print_times(times)
    if not arguments.without_limits:
        with ThreadPoolExecutor(4) as pool:
            live = dict(zip(names, pool.map(lambda name: peak(arguments.hook, name), names)))
            found = pool.map(lambda name: smallest(arguments.hook, name, live[name]), names)
            print_limits(live, dict(zip(names, found)))


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("hook", help="the library that examples/torch_allocator.cpp makes")
    parser.add_argument("--turns", type=int, default=5, help="processes of each way (5)")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="programs, with commas between"
    )
    parser.add_argument(
        "--expandable", action="store_true", help="PyTorch with expandable segments too"
    )
    parser.add_argument("--without-limits", action="store_true", help="times alone")
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    return parser.parse_args()


def run(hook, way, names, **environment):
    """Runs programs in a separate process. Returns their figures; None if memory ran out."""
    command = [sys.executable, __file__, hook, "--child", way, "--only", ",".join(names)]
    done = subprocess.run(
        command,
        env=os.environ | WAYS[way] | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode == OUT_OF_MEMORY:
        return None
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def peak(hook, name):
    return run(hook, "gpuheap", [name])[0]["live_peak"]


def smallest(hook, name, live):
    """Returns the smallest memory limit with which a program completes, divided by `live`, its peak
    of live bytes. Searches in steps of 0.5 %. Returns None if the program needs more than 1.10."""
    fails, passes = -1, 21
    while passes - fails > 1:
        # Most programs complete with a limit little above `live`, so small limits are tried first.
        middle = min((fails + passes) // 2, fails + 4)
        limit = live + live * middle // 200
        if run(hook, "gpuheap", [name], GPUHEAP_MEMORY_LIMIT=str(limit)) is None:
            fails = middle
        else:
            passes = middle
    return 1 + passes / 200 if passes <= 20 else None


def print_times(times):
    names = next(iter(times.values()))
    print("| ms a step |", " | ".join(names), "| gpuheap ÷ torch |")
    print("|---|" + "---:|" * (len(names) + 1))
    for name, ways in times.items():
        medians = {way: statistics.median(each) for way, each in ways.items()}
        cells = [f"{median:.3f}" for median in medians.values()]
        print(f"| {name} |", " | ".join(cells), f"| {medians['gpuheap'] / medians['torch']:.3f} |")
    sys.stdout.flush()


def print_limits(live, found):
    print("\n| | most live, bytes | smallest limit ÷ live |\n|---|---:|---:|")
    for name, bytes_live in live.items():
        limit = f"{found[name]:.3f}" if found[name] else "above 1.1"
        print(f"| {name} | {bytes_live} | {limit} |")


# The functions below run in the child process.

OUT_OF_MEMORY = 7


def child(way, hook, names):
    statistics_of = install(hook) if way == "gpuheap" else dict
    import torch

    for name in names or PROGRAMS:
        random.seed(0)
        torch.manual_seed(0)
        try:
            # On the host, making the weights would take seconds.
            with torch.device("cuda"):
                step, steps = PROGRAMS[name](torch)
            took = [timed(torch, step) for _ in range(steps)]
        except RuntimeError as error:
            if "out of GPU memory" not in str(error):
                raise
            print(error, file=sys.stderr)
            return OUT_OF_MEMORY
        told = {"program": name, "milliseconds": statistics.median(took[3:])}
        print(json.dumps(told | statistics_of()), flush=True)
        del step
        if way != "gpuheap":
            torch.cuda.empty_cache()
    return 0


def timed(torch, step):
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def install(hook):
    """Installs the hook in PyTorch; returns a function that reads the heap's statistics."""
    import torch

    library = ctypes.CDLL(hook)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(hook, "allocate", "release")
    allocator._allocator.set_record_stream_fn(ctypes.cast(library.used_on, ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)
    library.live_peak.restype = ctypes.c_uint64
    library.live_peak.argtypes = [ctypes.c_int]
    return lambda: {"live_peak": library.live_peak(0)}


def trained(torch, model, loss, optimizer=None):
    """Returns a training step. It computes the gradients of `loss` and runs the optimizer."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())

    def step():
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformer(torch, width, layers, heads):
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()


def gpt(torch, width, layers, heads, batch, length, dtype, checkpointed=False):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            parts = (
                self.three(self.first(x))
                .unflatten(2, (3, heads, width // heads))
                .permute(2, 0, 3, 1, 4)
            )
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.wide(self.second(x))

    torch.backends.cuda.enable_cudnn_sdp(False)
    words = 50304
    blocks = nn.ModuleList([Block() for _ in range(layers)])
    model = nn.ModuleList([nn.Embedding(words, width), blocks, nn.Linear(width, words)]).to(
        "cuda", dtype
    )

    def loss(model):
        text = torch.zeros((batch, length), dtype=torch.long, device="cuda")
        x = model[0](text)
        for block in model[1]:
            x = (
                torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                if checkpointed
                else block(x)
            )
        return functional.cross_entropy(model[2](x).view(-1, words).float(), text.view(-1))

    return trained(torch, model, loss)


def gpt_small(torch):
    return gpt(torch, 768, 12, 12, 8, 1024, torch.float32), 12


def gpt_bf16_ckpt(torch):
    return gpt(torch, 1536, 24, 16, 8, 2048, torch.bfloat16, checkpointed=True), 7


def gpt_1b(torch):
    return gpt(torch, 2048, 24, 16, 8, 2048, torch.bfloat16), 7


def encoder(torch):
    nn = torch.nn
    model = nn.Sequential(
        nn.Embedding(32000, 1024), transformer(torch, 1024, 6, 16), nn.Linear(1024, 32000)
    ).cuda()

    def loss(model):
        text, next_words = torch.randint(0, 32000, (2, 8, 512), device="cuda")
        return nn.functional.cross_entropy(model(text).flatten(0, 1), next_words.flatten())

    return trained(torch, model, loss), 20


def amp(torch):
    nn = torch.nn
    layers = [
        nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.LayerNorm(2048)) for _ in range(12)
    ]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        x = torch.randn(random.randint(1000, 5000), 2048, device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, 40


def resnet(torch):
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = lambda model: model(torch.randn(32, 3, 224, 224, device="cuda")).sum()
    return trained(torch, model, images, optimizer), 15


def lstm(torch):
    model = torch.nn.LSTM(512, 1024, 3, batch_first=True).cuda()
    loss = lambda model: model(torch.randn(64, 200, 512, device="cuda"))[0].sum()
    return trained(torch, model, loss, torch.optim.Adam(model.parameters())), 15


def varied(torch):
    """Batch and length differ from step to step."""
    model = transformer(torch, 1024, 8, 16)
    shape = lambda: (random.randint(4, 24), random.randint(64, 768), 1024)
    loss = lambda model: model(torch.randn(shape(), device="cuda")).pow(2).mean()
    return trained(torch, model, loss), 60


def small(torch):
    """Runs many small operations, so that the host's work determines the time of a step."""
    model = transformer(torch, 128, 8, 4)
    return trained(
        torch, model, lambda model: model(torch.randn(4, 32, 128, device="cuda")).mean()
    ), 60


def streams(torch):
    """Inputs are made on a separate stream, and used on the main stream."""
    model = transformer(torch, 768, 6, 12)
    side = torch.cuda.Stream()

    def loss(model):
        with torch.cuda.stream(side):
            x = torch.randn(random.randint(4, 16), random.randint(64, 512), 768, device="cuda")
            x = (x * 2).tanh()
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        return model(x).pow(2).mean()

    return trained(torch, model, loss), 60


PROGRAMS = {
    each.__name__: each
    for each in (
        gpt_small,
        gpt_bf16_ckpt,
        gpt_1b,
        encoder,
        amp,
        resnet,
        lstm,
        varied,
        small,
        streams,
    )
}

if __name__ == "__main__":
    main()
