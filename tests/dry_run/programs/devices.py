"""Spreads a model over a machine's devices. The argument is the method: a function of this file.

`pipeline` needs `torchrun`, with a process for each stage.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS = 1024, 8


def data_parallel():
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.DataParallel(nn.Sequential(*layers).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(256, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def device_map():
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=2816,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        vocab_size=8192,
    )
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, device_map="auto")
    with torch.no_grad():
        model(torch.randint(0, 8192, (2, 256), device="cuda:0"))


def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS // size)]
    # Pass the shapes, so that the stages need not exchange objects to find the shapes.
    shape = torch.empty(64, WIDTH, device="meta")
    module = nn.Sequential(*layers).to(device)
    stage = PipelineStage(module, rank, size, device, input_args=shape, output_args=shape)
    optimizer = torch.optim.AdamW(stage.submod.parameters())
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    for _ in range(3):
        inputs = [torch.randn(256, WIDTH, device=device)] if rank == 0 else []
        last = {"target": torch.zeros(256, WIDTH, device=device)} if rank == size - 1 else {}
        schedule.step(*inputs, **last)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


{"data_parallel": data_parallel, "device_map": device_map, "pipeline": pipeline}[sys.argv[1]]()
