"""Trains each named model for one step, and runs it once: step.py LIBRARY NAME[:CLASS]...

Prints a line for each model. The line has the model's peaks of requested and reserved memory, or
its error. Makes the models on the device, because the host fills weights more slowly.
"""

import gc
import sys

import torch

library, *names = sys.argv[1:]
device = "cuda"
SMALL = {
    "hidden_size": 64,
    "d_model": 64,
    "dim": 64,
    "n_embd": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "n_head": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}


def tensors(value):
    """Yields the floating point tensors in an output."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def timm_model(name, _):
    import timm

    model = timm.create_model(name, pretrained=False)
    return model, (torch.rand(2, *model.pretrained_cfg["input_size"], device=device),)


def torchvision_model(name, _):
    import torchvision

    options = {"weights": None}
    if "rcnn" in name or "retinanet" in name or "fcos" in name or "ssd" in name:
        options |= {"weights_backbone": None, "num_classes": 5}
        box = torch.tensor([[10.0, 20.0, 100.0, 200.0]], device=device)
        label = torch.tensor([1], device=device)
        target = {
            "boxes": box,
            "labels": label,
            "masks": torch.ones((1, 320, 320), dtype=torch.uint8, device=device),
            "keypoints": torch.rand(1, 17, 3, device=device),
        }
        pictures = [torch.rand(3, 320, 320, device=device) for _ in range(2)]
        inputs = (pictures, [dict(target) for _ in pictures])
    elif "deeplab" in name or "fcn" in name or "lraspp" in name:
        options["weights_backbone"] = None
        inputs = (torch.rand(2, 3, 224, 224, device=device),)
    elif name.startswith("raft"):
        inputs = tuple(torch.rand(2, 3, 128, 128, device=device) for _ in range(2))
    elif name in ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t"):
        inputs = (torch.rand(2, 3, 16, 224, 224, device=device),)
    else:
        size = 299 if name == "inception_v3" else 224
        inputs = (torch.rand(2, 3, size, size, device=device),)
    return torchvision.models.get_model(name, **options), inputs


def transformers_model(name, kind):
    import transformers

    config = transformers.AutoConfig.for_model(name)
    for key, value in SMALL.items():
        if key in vars(config) and isinstance(getattr(config, key), int):
            setattr(config, key, value)
    model = getattr(transformers, kind).from_config(config)
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        size = size if isinstance(size, int) else size[0]
        inputs = {"pixel_values": torch.rand(2, 3, size, size, device=device)}
    elif model.main_input_name in ("input_values", "input_features"):
        shape = (2, 16000) if model.main_input_name == "input_values" else (2, 80, 3000)
        inputs = {model.main_input_name: torch.rand(*shape, device=device)}
    else:
        tokens = torch.randint(3, 500, (2, 64), device=device)
        inputs = {"input_ids": tokens}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 500, (2, 32), device=device)
    return model, inputs


def step(name):
    """Trains a model for one step and runs it. Returns peaks of requested and reserved bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    make = {
        "timm": timm_model,
        "torchvision": torchvision_model,
        "transformers": transformers_model,
    }[library]
    with torch.device(device):
        model, inputs = make(*name.partition(":")[::2])
    model = model.to(device).train()
    call = lambda: model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sum(value.float().mean() for value in tensors(call()) if value.requires_grad).backward()
    optimizer.step()
    if library != "torchvision" or not isinstance(inputs[0], list):
        model.eval()
        with torch.no_grad():
            call()
    stats = torch.cuda.memory_stats()
    return [stats[f"{key}_bytes.all.peak"] for key in ("requested", "reserved")]


failed = False
for name in names:
    try:
        print("step:", name, *step(name), flush=True)
    except Exception as error:
        failed = True
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print("step:", name, "failed", text[:300], flush=True)
sys.exit(failed)
