//! A scope does not outlive its closure.

fn leak(heap: &gpuheap::Heap) -> &gpuheap::Scope {
    heap.scope(|scope| scope).0
}

fn main() {}
