"""Shards models over several cards or into host memory, as FSDP does, in one process.

The process is rank 0 of a group without other processes. Collectives of the emulated NCCL wait for
no other rank, and allocate as much memory as real collectives.
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
        """Replaces the functions that move a module to a device."""
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
        """Shards repeated blocks, then the rest. Returns False if the model has no parameters."""
        from torch.distributed.fsdp import FSDPModule

        if model in self.seen:
            return True
        has_parameters = any(True for _ in model.parameters())
        if not has_parameters or any(isinstance(part, FSDPModule) for part in model.modules()):
            return has_parameters
        optimiser = self.torch.optim.Optimizer
        optimisers = [one for one in gc.get_objects() if isinstance(one, optimiser)]
        for _, stack in self.stacks(model):
            for block in stack.children():
                self.shard_part(block, optimisers)
        self.shard_part(model, optimisers)
        self.seen.update(model.modules())
        return True

    def shard_part(self, part, optimisers):
        """Shards a module, and puts the sharded parameters into optimisers in place of whole ones.

        Keeps no reference to a whole parameter. Its memory is then freed before the next module is
        sharded.
        """
        from torch.distributed.fsdp import fully_shard

        names = {id(parameter): name for name, parameter in part.named_parameters()}
        fully_shard(part, **self.prepare())
        new = dict(part.named_parameters())
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["params"] = [new.get(names.get(id(one)), one) for one in group["params"]]

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
