#!/usr/bin/env python3
"""Records PyTorch memory snapshots of whole programs, for the test `programs`.

    python3 record.py --out FOLDER [--only NAME]

Needs PyTorch with CUDA, torchvision, transformers and one GPU. Each program runs in a separate
process that records from start to end. The process writes FOLDER/NAME.pickle.gz, and a line of
FOLDER/figures.csv: name, settings, version, peak reserved, peak allocated, retries. Copy the files
into crates/gpuheap-replay/tests/data/torch-programs.
"""

import argparse
import csv
import gzip
import os
import pickle
import random
import subprocess
import sys

PROGRAMS = [
    ("graphs", ""),
    ("graphs_expandable", "expandable_segments:True"),
    ("graphs_ended", ""),
    ("mempool", ""),
    ("mempool_ended", ""),
    ("resnet", ""),
    ("resnet_split128", "max_split_size_mb:128"),
    ("gpt2_generate", ""),
    ("gpt2_generate_expandable", "expandable_segments:True"),
    ("llama_lora", "garbage_collection_threshold:0.8"),
]

# Objects that live until the snapshot, because only segments held at the snapshot name their pool.
KEPT = []


def graphs(torch, rng, ended):
    """Runs two graphs that share a private pool, and eager work outside of the graphs."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    static = torch.randn(512, 2048, device="cuda")
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        step(static)
    for _ in range(5):
        static.copy_(torch.randn(512, 2048, device="cuda"))
        first.replay()
    second, shape = torch.cuda.CUDAGraph(), torch.randn(300, 2048, device="cuda")
    with torch.no_grad(), torch.cuda.graph(second, pool=first.pool()):
        out = model(shape)
    for _ in range(20):
        batch = torch.randn(rng.randrange(64, 4096), 2048, device="cuda")
        model(batch).sum().backward()
        second.replay()
    torch.cuda.synchronize()
    if ended:
        del out, first
        model(torch.randn(3000, 2048, device="cuda")).sum().backward()
        del second
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    else:
        KEPT.extend([first, second, out])
    for _ in range(5):
        model(torch.randn(rng.randrange(64, 4096), 2048, device="cuda")).sum().backward()


def mempool(torch, rng, ended):
    pools = [torch.cuda.MemPool() for _ in range(2)]
    kept = []
    for at in range(300):
        size = rng.choice([1000, 200_000, 3 << 20, 30 << 20, rng.randrange(1, 80 << 20)])
        if rng.random() < 0.5:
            with torch.cuda.use_mem_pool(pools[at % 2]):
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        else:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        while len(kept) > 25 or (kept and rng.random() < 0.3):
            kept.pop(rng.randrange(len(kept)))
    if ended:
        kept.clear()
        pools.clear()
        torch.cuda.empty_cache()
    else:
        KEPT.extend(pools)
    kept += [
        torch.empty(rng.randrange(1, 40 << 20), dtype=torch.uint8, device="cuda") for _ in range(40)
    ]


def resnet(torch, rng, _ended):
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(10):
        batch, side = rng.randrange(8, 72), rng.choice([160, 192, 224])
        images = torch.randn(batch, 3, side, side, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(images), torch.randint(1000, (batch,), device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(rng.randrange(1, 128), 3, 224, 224, device="cuda"))


def gpt2_generate(torch, rng, _ended):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().half().eval()
    for _ in range(6):
        prompt = torch.randint(50000, (rng.randrange(1, 24), rng.randrange(8, 300)), device="cuda")
        new = rng.randrange(4, 24)
        model.generate(
            prompt, max_new_tokens=new, min_new_tokens=new, do_sample=True, pad_token_id=0
        )


def llama_lora(torch, rng, _ended):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    model = LlamaForCausalLM(config).cuda().bfloat16()
    for parameter in model.parameters():
        parameter.requires_grad = parameter.dim() == 1
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(6):
        tokens = torch.randint(32000, (rng.randrange(1, 8), rng.randrange(64, 1024)), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def play(name, settings, out):
    import torch

    torch.cuda.init()
    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    for known in (graphs, mempool, resnet, gpt2_generate, llama_lora):
        if name.startswith(known.__name__):
            known(torch, random.Random(1), name.endswith("_ended"))
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    path = os.path.join(out, name + ".pickle.gz")
    with gzip.open(path, "wb", compresslevel=9) as file:
        pickle.dump(snapshot, file)
    with open(os.path.join(out, "figures.csv"), "a") as file:
        csv.writer(file).writerow(
            [
                name,
                settings,
                torch.__version__,
                stats["reserved_bytes.all.peak"],
                stats["allocated_bytes.all.peak"],
                stats["num_alloc_retries"],
            ]
        )
    events = len(snapshot["device_traces"][0])
    print(f"{name}: {events} entries, {os.path.getsize(path)} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description="records snapshots of whole PyTorch programs")
    parser.add_argument("--out", required=True)
    parser.add_argument("--only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    chosen = [program for program in PROGRAMS if arguments.only in (None, program[0])]
    if arguments.child:
        play(*chosen[0], arguments.out)
        return 0
    failures = 0
    for name, settings in chosen:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
        environment.pop("PYTORCH_ALLOC_CONF", None)
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--child",
            "--out",
            arguments.out,
            "--only",
            name,
        ]
        code = subprocess.run(command, env=environment, timeout=120).returncode
        if code != 0:
            failures += 1
            print(f"{name}: failed ({code})", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
