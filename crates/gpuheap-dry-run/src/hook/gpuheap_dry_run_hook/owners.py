"""Finds the owners of memory at the peak: kinds of memory, modules of PyTorch, and lines.

PyTorch records each allocation with a text that a program may set. The Python hook sets this text
to the number of the module that is being called. Parameters, gradients and optimiser states are
recognised by their addresses, read at steps and at failures. The texts and the reads allocate no
device memory and change no size.
"""

import os
import re
import threading
import time
import weakref

from .lines import LIBRARY, is_package

# Kinds of memory that PyTorch's allocator holds. A report lists them in this order.
KINDS = (
    "parameters", "gradients", "optimiser_state", "activations", "backward", "workspaces", "other",
)  # fmt: skip
# Maximum number of times that the hook reads the addresses of all parameters, gradients and states.
# It does so at first steps, new peaks and failures. A thousand parameters take 3 ms each time.
MOST_LOOKS = 48
# Number of optimiser steps, from the first on, after which the hook always reads the tensors'
# addresses. After later steps, it reads them only at a new peak. Optimiser states exist from the
# second step on.
FIRST_STEPS = 3
# Maximum number of lines, and of modules, in a report.
MOST_ROWS = 100
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Outermost functions of Python's threads. Threads of the backward pass have other functions.
OUTERMOST = ("<module>", "_run_module_as_main", "_bootstrap", "_main")
# PyTorch's function that moves a module's parameters, as `cuda()` does, and the function's file.
MOVED, MODULE = "_apply", os.path.join("torch", "nn", "modules", "module.py")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
OUTSIDE = "outside modules"


class Owners:
    """Names of modules, and the addresses of the modules' tensors when the hook read them."""

    def __init__(self, torch, note):
        self.torch = torch
        self.note = note
        # Names of modules, indexed by tag. The tag of a module is recorded with its allocations.
        self.names = [OUTSIDE]
        self.tags = {OUTSIDE: 0}
        # Weak reference and tag (index in `names`) of each named module, keyed by the module's id.
        self.modules = {}
        self.roots = {}
        self.optimisers = weakref.WeakSet()
        # Time in microseconds, kind and tag of each read, keyed by the tensor's address.
        self.seen = {}
        self.looks = 0
        # Size in bytes of the parameters of the largest repeated module, to estimate FSDP's memory.
        self.largest_block = 0
        self.calls = threading.local()
        self.set_text = getattr(torch._C, "_cuda_setMemoryMetadata", None)
        # Functions to call with the outermost module, before and after its call.
        self.on_enter, self.on_leave = [], []

    # ---- modules --------------------------------------------------------------------------------

    def watch(self):
        """Registers hooks that note which module is called."""
        module = self.torch.nn.modules.module
        is_compiling = self.torch.compiler.is_compiling
        # A forked child of a process with CUDA may not call CUDA. Such a child, for example a
        # worker of a DataLoader, may still call modules, such as transforms of images.
        is_worker = getattr(self.torch._C, "_cuda_isInBadFork", lambda: False)
        enter, leave = self.enter, self.leave

        def before(called, arguments):
            if not (is_compiling() or is_worker()):
                enter(called)

        def after(called, arguments, result):
            if not (is_compiling() or is_worker()):
                leave(called)

        module.register_module_forward_pre_hook(before)
        module.register_module_forward_hook(after, always_call=True)

    def enter(self, module):
        stack = self.stack()
        try:
            if not stack:
                self.add_root(module)
                for function in self.on_enter:
                    function(module)
            tag = self.tag(module, stack)
        except Exception as error:
            self.note(f"the hook failed at a module: {type(error).__name__}: {error}")
            tag = 0
        stack.append((module, tag))
        if self.set_text is not None:
            self.set_text(str(tag))

    def leave(self, module):
        stack = self.stack()
        # Removes inner modules too, because an exception may have skipped their `leave`.
        while stack and stack.pop()[0] is not module:
            pass
        if self.set_text is not None:
            self.set_text(str(stack[-1][1]) if stack else "")
        if not stack:
            for function in self.on_leave:
                function(module)

    def stack(self):
        """Returns the modules that this thread is calling, outermost first, with their tags."""
        try:
            return self.calls.stack
        except AttributeError:
            self.calls.stack = []
            return self.calls.stack

    def tag(self, module, stack):
        known = self.modules.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        if stack:
            # The module has no name: the program added it after the outermost module's first call.
            self.name_modules(stack[0][0])
            known = self.modules.get(id(module))
            if known is None or known[0]() is not module:
                return self.name(module, f"{self.names[stack[-1][1]]}.{type(module).__name__}")
        return self.modules[id(module)][1]

    def name(self, module, name):
        tag = self.tags.get(name)
        if tag is None:
            tag = self.tags[name] = len(self.names)
            self.names.append(name)
        self.modules[id(module)] = (weakref.ref(module), tag)
        return tag

    def name_modules(self, root):
        title = type(root).__name__
        for name, module in root.named_modules():
            known = self.modules.get(id(module))
            if known is None or known[0]() is not module or module is root:
                self.name(module, f"{title}.{name}" if name else title)

    def add_root(self, module):
        known = self.roots.get(id(module))
        if known is not None and known() is module:
            return
        self.roots[id(module)] = weakref.ref(module)
        self.name_modules(module)
        self.look_at_root(module, now(), {})

    # ---- tensors --------------------------------------------------------------------------------

    def look(self, optimiser=None, is_due=True):
        """Reads the addresses of all known parameters, gradients and states."""
        if optimiser is not None:
            self.optimisers.add(optimiser)
        if not is_due or self.looks >= MOST_LOOKS:
            return
        self.looks += 1
        at, tags = now(), {}
        for root in [found() for found in list(self.roots.values())]:
            if root is not None:
                self.look_at_root(root, at, tags)
        for optimiser in list(self.optimisers):
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    tag = tags.get(id(parameter), 0)
                    if not tag:
                        self.see(parameter, "parameters", 0, at)
                        self.see(parameter.grad, "gradients", 0, at)
            for parameter, state in optimiser.state.items():
                for tensor in tensors_in(state, self.torch.Tensor):
                    self.see(tensor, "optimiser_state", tags.get(id(parameter), 0), at)

    def look_at_root(self, root, at, tags):
        sizes = {}
        for name, module in root.named_modules():
            known = self.modules.get(id(module))
            tag = known[1] if known is not None and known[0]() is module else 0
            for tensor in module._buffers.values():
                self.see(tensor, "parameters", tag, at)
            for tensor in module._parameters.values():
                if tensor is None:
                    continue
                tags[id(tensor)] = tag
                self.see(tensor, "parameters", tag, at)
                self.see(tensor.grad, "gradients", tag, at)
                block = re.match(r"(.*?\.)?\d+(?=\.|$)", name)
                if block is not None:
                    nbytes = tensor.numel() * tensor.element_size()
                    sizes[block[0]] = sizes.get(block[0], 0) + nbytes
        self.largest_block = max(self.largest_block, max(sizes.values(), default=0))

    def see(self, tensor, kind, tag, at):
        if tensor is None:
            return
        try:
            # A tensor that is sharded over ranks has this rank's part in an attribute.
            tensor = getattr(tensor, "_local_tensor", tensor)
            if tensor.device.type == "cuda":
                address = tensor.untyped_storage().data_ptr()
                self.seen.setdefault(address, []).append((at, kind, tag))
        except Exception:
            # A tensor without storage, such as a tensor of `torch.func`.
            return

    # ---- the peak -------------------------------------------------------------------------------

    def explain(self, snapshot, is_workspace):
        """Returns the owners of memory at the peak of each device, from PyTorch's snapshot."""
        found = []
        for device, entries in enumerate(snapshot.get("device_traces", [])):
            segments = [one for one in snapshot["segments"] if one["device"] == device]
            blocks, live = blocks_at_peak(entries, segments)
            if blocks:
                found.append({"device": device, "live": live, **self.group(blocks, is_workspace)})
        return found

    def group(self, blocks, is_workspace):
        kinds, modules, holders = {}, {}, {}
        torch = os.path.splitext(self.torch.__file__)[0].removesuffix("__init__")
        lines = {}
        for block in blocks:
            kind, tag = self.kind(block, is_workspace)
            name = NUMBER.sub("*", self.names[tag] if tag < len(self.names) else OUTSIDE)
            add(kinds, kind, block.nbytes)
            of_kinds = modules.setdefault(name, {})
            add(of_kinds, kind, block.nbytes)
            key = id(block.frames)
            if key not in lines:
                lines[key] = lines_of(block.frames, torch)
            add(holders, (*lines[key], name, kind), block.nbytes)
        ranked = sorted(holders.items(), key=lambda one: -one[1][0])[:MOST_ROWS]
        rows = [
            {
                "module": name,
                "bytes": sum(nbytes for nbytes, _ in of_kinds.values()),
                "kinds": {kind: nbytes for kind, (nbytes, _) in of_kinds.items()},
            }
            for name, of_kinds in modules.items()
        ]
        rows.sort(key=lambda row: -row["bytes"])
        return {
            "kinds": [
                {"kind": kind, "bytes": kinds[kind][0], "blocks": kinds[kind][1]}
                for kind in KINDS
                if kind in kinds
            ],
            "modules": rows[:MOST_ROWS],
            "holders": [
                {
                    "line": line or "no line of Python",
                    "called_from": caller,
                    "module": None if name == OUTSIDE else name,
                    "kind": kind,
                    "bytes": nbytes,
                    "blocks": count,
                }
                for (line, caller, name, kind), (nbytes, count) in ranked
            ],
            "largest_block": self.largest_block,
        }

    def kind(self, block, is_workspace):
        """Returns the kind of a block, and the tag of its module."""
        for at, kind, tag in self.seen.get(block.address, ()):
            if block.began <= at <= block.ended:
                return kind, tag
        if is_workspace(block.address, block.nbytes):
            return "workspaces", block.tag
        if block.began < 0:
            return "other", block.tag
        if any(
            frame["name"] == MOVED and frame["filename"].endswith(MODULE) for frame in block.frames
        ):
            return "parameters", block.tag
        if block.tag or (block.frames and block.frames[-1]["name"] in OUTERMOST):
            return "activations", block.tag
        return "backward", block.tag


class Block:
    """A block of PyTorch's allocator that is live at the peak. Times are microseconds."""

    __slots__ = ("address", "began", "ended", "frames", "nbytes", "tag")

    def __init__(self, address, nbytes, began, tag, frames):
        self.address, self.nbytes, self.began = address, nbytes, began
        self.ended, self.tag, self.frames = float("inf"), tag, frames


def blocks_at_peak(entries, segments):
    """Returns the blocks that are live at the first peak of requested bytes, and that peak."""
    before = blocks_before(entries, segments)
    sizes = {address: block.nbytes for address, block in before.items()}
    live = most = sum(sizes.values())
    peak = -1
    for index, entry in enumerate(entries):
        action = entry["action"]
        if action == "alloc":
            # If the recording lost the event of a free, `sizes` still has an earlier block at this
            # address. Subtracts the size of that block.
            live += entry["size"] - sizes.get(entry["addr"], 0)
            sizes[entry["addr"]] = entry["size"]
            if live > most:
                most, peak = live, index
        elif action == "free_requested":
            live -= sizes.pop(entry["addr"], 0)
    blocks = dict(before)
    for entry in entries[: peak + 1]:
        action = entry["action"]
        if action == "alloc":
            blocks[entry["addr"]] = block_of(entry)
        elif action == "free_requested":
            blocks.pop(entry["addr"], None)
    open_blocks = dict(blocks)
    for entry in entries[peak + 1 :]:
        if not open_blocks:
            break
        if entry["action"] in ("free_requested", "alloc"):
            block = open_blocks.pop(entry["addr"], None)
            if block is not None:
                block.ended = entry.get("time_us", 0)
    return list(blocks.values()), most


def block_of(entry):
    text = entry.get("user_metadata") or ""
    tag = int(text) if text.isdecimal() else 0
    return Block(
        entry["addr"], entry["size"], entry.get("time_us", 0), tag, entry.get("frames") or []
    )


def blocks_before(entries, segments):
    """Returns the blocks that were allocated before the first entry, keyed by address."""
    first, before = set(), {}
    for entry in entries:
        action = entry["action"]
        if action in ("alloc", "free_requested", "free_completed"):
            address = entry["addr"]
            if address not in first:
                first.add(address)
                if action == "free_requested":
                    before[address] = Block(address, entry["size"], -1, 0, [])
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["address"] not in first:
                nbytes = block.get("requested_size", block["size"])
                frames = block.get("frames") or []
                before[block["address"]] = Block(block["address"], nbytes, -1, 0, frames)
    return before


def lines_of(frames, torch):
    """Returns the innermost line outside PyTorch, and the program's line that called it. The second
    line is None if both are the same line."""
    deep = own = None
    for frame in frames:
        file = frame["filename"]
        if file.startswith((torch, HERE, "<")) or file in ("", "??"):
            continue
        in_package = is_package(file)
        if not in_package and file.startswith(LIBRARY):
            continue
        if deep is None:
            deep = frame
        if not in_package:
            own = frame
            break
    text = lambda frame: f"{frame['filename']}:{frame['line']} in {frame['name']}"
    if deep is None:
        return None, None
    return text(deep), text(own) if own is not None and own is not deep else None


def tensors_in(value, kind):
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one, kind)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one, kind)


def add(sums, key, nbytes):
    old = sums.get(key, (0, 0))
    sums[key] = (old[0] + nbytes, old[1] + 1)


def now():
    return time.time_ns() // 1000
