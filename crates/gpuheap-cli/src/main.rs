//! The `gpuheap` command.
fn main() {}
