//! Memory is of one kind.

use gpuheap::MemoryKind;

fn up(target: &gpuheap::Target) {
    let _ = target.kind(MemoryKind::Unified | MemoryKind::Pinned).cu(&vec![1_i32, 2]);
    let _ = target.kind(MemoryKind::Unified, MemoryKind::Pinned).cu(&vec![1_i32, 2]);
}

fn main() {}
