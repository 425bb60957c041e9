"""Remedies that a dry run switches on from outside, without a change of the program's text.

`GPUHEAP_DRY_RUN_REMEDY` has the names of the remedies to switch on. Without this variable, the
module only notes which remedies apply to the program.
"""

import functools
import os
import threading
import weakref

from .sharding import Sharding

# Prefix of the names of remedies that shard a model. The number of cards follows.
FSDP = "fsdp_"
# Least number of blocks with which a list of blocks of one class counts as a stack. Each block of a
# stack gets gradient checkpoints.
LEAST_BLOCKS = 2
# Number of elements of an 8-bit optimiser state that share a scale, as bitsandbytes documents.
SCALED_BLOCK = 256
# Least number of elements in a parameter with states of 8 bits. Smaller ones have 32-bit states.
LEAST_IN_8_BITS = 4096


class Remedies:
    """Remedies that are switched on in this process, and remedies that apply to the program."""

    def __init__(self, torch, note):
        self.torch = torch
        self.note = note
        names = os.environ.get("GPUHEAP_DRY_RUN_REMEDY", "")
        self.on = {name for name in names.split(",") if name}
        # The remedies that apply to the program, each with a detail for the report.
        self.found = {}
        # Modules that were called, keyed by whether a call computed gradients.
        self.called = {False: weakref.WeakSet(), True: weakref.WeakSet()}
        self.contexts = threading.local()
        # Batch sizes of data loaders, as the program gave them.
        self.batches = set()
        self.halved = weakref.WeakSet()
        ranks = [int(name[len(FSDP) :]) for name in self.on if name.startswith(FSDP)]
        is_offloaded = "offload_parameters" in self.on
        self.sharding = None
        if ranks or is_offloaded:
            self.sharding = Sharding(torch, max(ranks, default=1), is_offloaded, self.stacks)

    def start(self):
        """Changes PyTorch's classes. Called once PyTorch is imported."""
        self.watch_loaders()
        if "benchmark_off" in self.on:
            self.switch_benchmark_off()
        if "adam_8bit" in self.on:
            for kind in self.adams():
                kind.step = step_of(self.step_in_8_bits)
        # With either remedy, the device holds no optimiser state: the second keeps it on the host.
        if self.on & {"no_state", "offload_parameters"}:
            for kind in (*self.adams(), self.torch.optim.SGD):
                kind.step = step_of(self.step_without_state)
        if self.sharding is not None:
            self.sharding.start()

    def adams(self):
        return self.torch.optim.Adam, self.torch.optim.AdamW

    # ---- calls of the outermost module ----------------------------------------------------------

    def enter(self, module):
        """Called before the program calls an outermost module."""
        torch = self.torch
        # With gradient checkpoints, the backward pass calls modules a second time. In that call,
        # hooks for saved tensors would hide the recomputed tensors from PyTorch.
        is_training = torch.is_grad_enabled() and not self.is_in_backward()
        if module not in self.called[is_training]:
            self.called[is_training].add(module)
            has_gradients = any(parameter.requires_grad for parameter in module.parameters())
            if self.sharding is not None and is_training and has_gradients:
                self.sharding.shard(module)
            self.prepare(module, is_training and has_gradients)
        contexts = []
        if "autocast" in self.on:
            contexts.append(torch.autocast("cuda", dtype=self.half()))
        if "offload_activations" in self.on and is_training:
            contexts.append(torch.autograd.graph.saved_tensors_hooks(pack, self.unpack))
        for context in contexts:
            context.__enter__()
        if contexts:
            self.stack().append((weakref.ref(module), contexts))

    def is_in_backward(self):
        """Returns True on a thread that runs a backward pass."""
        task = getattr(self.torch._C, "_current_graph_task_id", None)
        return task is not None and task() != -1

    def leave(self, module):
        stack = self.stack()
        if stack and stack[-1][0]() is module:
            for context in reversed(stack.pop()[1]):
                context.__exit__(None, None, None)

    def stack(self):
        if not hasattr(self.contexts, "stack"):
            self.contexts.stack = []
        return self.contexts.stack

    def half(self):
        """Returns the 16-bit type that the device supports in hardware."""
        major = self.torch.cuda.get_device_capability()[0]
        return self.torch.bfloat16 if major >= 8 else self.torch.float16

    def prepare(self, module, is_training):
        torch = self.torch
        is_full = any(
            parameter.is_cuda and parameter.dtype == torch.float32
            for parameter in module.parameters()
        )
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        settings += os.environ.get("PYTORCH_ALLOC_CONF", "")
        if "expandable_segments:True" not in settings and "backend" not in settings:
            self.found["expandable_segments"] = ""
        if is_full and not torch.is_autocast_enabled():
            self.found["autocast"] = str(self.half()).rpartition(".")[2]
        if torch.backends.cudnn.benchmark:
            self.found["benchmark_off"] = ""
        if not is_training:
            return
        self.found["offload_activations"] = ""
        if self.is_alone():
            self.found["fsdp"] = ""
            self.found["offload_parameters"] = ""
        place = self.checkpoint(module, "checkpoint" in self.on)
        if place:
            self.found["checkpoint"] = place

    def is_alone(self):
        """Returns True if the process is in no group of `torch.distributed`, and has one device."""
        distributed = getattr(self.torch, "distributed", None)
        return (
            distributed is not None
            and distributed.is_available()
            and not distributed.is_initialized()
            and self.torch.cuda.device_count() == 1
        )

    # ---- gradient checkpoints -------------------------------------------------------------------

    def checkpoint(self, root, is_on):
        """Describes how a user enables checkpoints for a model. If `is_on`, enables them."""
        for module in root.modules():
            enable = getattr(module, "gradient_checkpointing_enable", None)
            if enable is not None and getattr(module, "supports_gradient_checkpointing", False):
                if getattr(module, "is_gradient_checkpointing", False):
                    return ""
                if is_on:
                    enable()
                    # Without this call, checkpoints have no gradient if only adapters are trained.
                    require = getattr(module, "enable_input_require_grads", None)
                    if require is not None and not all(
                        parameter.requires_grad for parameter in module.parameters()
                    ):
                        require()
                return "model.gradient_checkpointing_enable()"
            enable = getattr(module, "set_grad_checkpointing", None)
            if enable is not None and not getattr(module, "grad_checkpointing", False):
                if is_on:
                    enable(True)
                return "model.set_grad_checkpointing()"
        outer = self.stacks(root)
        for _, module in outer if is_on else ():
            for block in module.children():
                self.wrap(block)
        shown = ", ".join(name or type(module).__name__ for name, module in outer[:4])
        return shown and f"torch.utils.checkpoint around each block of {shown}"

    def stacks(self, root):
        """Returns the outermost lists of repeated layers in the model `root`, with their names."""
        names = [(name, module) for name, module in root.named_modules() if self.is_stack(module)]
        return [
            (name, module)
            for name, module in names
            if not any(name.startswith(f"{other}.") for other, _ in names if other != name)
        ]

    def is_stack(self, module):
        """Returns True for a list of at least two blocks, all of one class and with submodules."""
        nn = self.torch.nn
        blocks = (
            list(module.children()) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
        )
        kinds = {type(block) for block in blocks}
        return (
            len(blocks) >= LEAST_BLOCKS
            and len(kinds) == 1
            and any(True for _ in blocks[0].children())
        )

    def wrap(self, block):
        from torch.utils.checkpoint import checkpoint

        torch, forward = self.torch, block.forward

        @functools.wraps(forward)
        def checkpointed(*arguments, **keywords):
            if not torch.is_grad_enabled():
                return forward(*arguments, **keywords)
            return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

        block.forward = checkpointed

    # ---- activations in host memory -------------------------------------------------------------

    def unpack(self, packed):
        size, dtype, device = packed
        return self.torch.empty(size, dtype=dtype, device=device) if device else size

    # ---- cuDNN ----------------------------------------------------------------------------------

    def switch_benchmark_off(self):
        torch = self.torch
        torch._C._set_cudnn_benchmark(False)
        torch._C._set_cudnn_benchmark = lambda _: None
        type(torch.backends.cudnn).benchmark = property(lambda _: False, lambda *_: None)

    # ---- optimisers -----------------------------------------------------------------------------

    def note_optimiser(self, optimiser):
        if isinstance(optimiser, self.adams()):
            self.found["adam_8bit"] = type(optimiser).__name__
            self.found["no_state"] = type(optimiser).__name__
        elif isinstance(optimiser, self.torch.optim.SGD) and any(
            group["momentum"] for group in optimiser.param_groups
        ):
            self.found["no_state"] = "SGD"

    def step_in_8_bits(self, optimiser):
        """Allocates the states of an 8-bit Adam. Launches no kernel: a dry run runs none."""
        torch = self.torch
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                state = optimiser.state[parameter]
                if parameter.grad is None or state:
                    continue
                is_small = parameter.numel() < LEAST_IN_8_BITS
                dtype = torch.float32 if is_small else torch.uint8
                state["step"] = torch.tensor(0.0)
                scales = 0 if is_small else -(-parameter.numel() // SCALED_BLOCK)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(parameter, dtype=dtype)
                    if scales:
                        state[f"{name}_scale"] = torch.zeros(scales, device=parameter.device)

    def step_without_state(self, optimiser):
        """Does nothing: without state, a step changes parameters in place and allocates nothing."""

    # ---- batches --------------------------------------------------------------------------------

    def watch_loaders(self):
        """Notes the batch sizes of data loaders, and halves them if that remedy is on."""
        from torch.utils.data import BatchSampler, DataLoader

        make, is_on, owner = DataLoader.__init__, "half_batch" in self.on, self

        @functools.wraps(make)
        def halving(loader, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None,
                    *others, **keywords):  # fmt: skip
            size = batch_size
            if isinstance(batch_sampler, BatchSampler):
                size = batch_sampler.batch_size
            if isinstance(size, int) and size > 1 and owner.torch.is_grad_enabled():
                owner.batches.add(size)
                owner.found["half_batch"] = str(max(owner.batches))
                if is_on and batch_sampler is None:
                    batch_size = size // 2
                elif is_on and batch_sampler not in owner.halved:
                    batch_sampler.batch_size = size // 2
            make(loader, dataset, batch_size, shuffle, sampler, batch_sampler, *others, **keywords)
            if loader.batch_sampler is not None:
                # Libraries reuse this batch sampler in further loaders: do not halve it again.
                owner.halved.add(loader.batch_sampler)

        DataLoader.__init__ = halving


def pack(tensor):
    """Keeps only the shape of a tensor. Results do not matter, so its data is not copied."""
    if not tensor.is_cuda:
        return tensor, None, None
    return tensor.size(), tensor.dtype, tensor.device


def step_of(change):
    def step(optimiser, closure=None):
        import torch

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            change(optimiser)
        return loss

    return step
