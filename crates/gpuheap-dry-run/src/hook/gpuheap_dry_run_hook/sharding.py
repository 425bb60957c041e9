"""Shards models over several cards or into host memory, as FSDP does, in one process.

The process is rank 0 of a group without other processes. Collectives of the emulated NCCL wait for
no other rank, and take their memory.
"""

import functools
import gc
import weakref


class Sharding:
    """Shards each model of a program when it moves to the device, or else at its first call."""

    def __init__(self, torch, ranks, is_offloaded, stacks):
        self.torch = torch
        self.ranks = ranks
        self.is_offloaded = is_offloaded
        self.stacks = stacks
        self.options = None
        self.seen = weakref.WeakSet()

    def start(self):
        """Changes the functions of modules that move them to a device."""
        module, sharding = self.torch.nn.Module, self
        to, cuda = module.to, module.cuda

        @functools.wraps(to)
        def sharded_to(model, *arguments, **keywords):
            device = sharding.torch._C._nn._parse_to(*arguments, **keywords)[0]
            if device is not None and device.type == "cuda" and sharding.shard(model):
                # Parameters that are in host memory stay there.
                return model if sharding.is_offloaded else to(model, *arguments, **keywords)
            return to(model, *arguments, **keywords)

        @functools.wraps(cuda)
        def sharded_cuda(model, device=None):
            if sharding.shard(model) and sharding.is_offloaded:
                return model
            return cuda(model, device)

        module.to, module.cuda = sharded_to, sharded_cuda

    def shard(self, model):
        """Shards the repeated blocks of a model, then the rest. False if it has no parameters."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if model in self.seen:
            return True
        before = dict(model.named_parameters())
        if not before or any(isinstance(part, FSDPModule) for part in model.modules()):
            return bool(before)
        options = self.prepare()
        for _, stack in self.stacks(model):
            for block in stack.children():
                fully_shard(block, **options)
        fully_shard(model, **options)
        self.seen.update(model.modules())
        self.replace_in_optimisers(before, dict(model.named_parameters()))
        return True

    def prepare(self):
        """Makes the group of processes, and returns the options of `fully_shard`."""
        if self.options is None:
            from torch import distributed
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import CPUOffloadPolicy

            self.torch.cuda.set_device(self.torch.cuda.current_device())
            distributed.init_process_group(
                "nccl", rank=0, world_size=self.ranks, store=distributed.HashStore()
            )
            self.options = {"mesh": init_device_mesh("cuda", (self.ranks,))}
            if self.is_offloaded:
                self.options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        return self.options

    def replace_in_optimisers(self, before, after):
        """Gives the sharded parameters to the optimisers that have the whole ones."""
        new = {id(whole): after[name] for name, whole in before.items() if name in after}
        for found in gc.get_objects():
            if isinstance(found, self.torch.optim.Optimizer):
                for group in found.param_groups:
                    group["params"] = [new.get(id(one), one) for one in group["params"]]
