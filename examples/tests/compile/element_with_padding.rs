//! A struct with padding has uninitialized bytes, so it cannot be an element.

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u32,
}

fn upload(target: &gpuheap::Target, of: &[Padded]) {
    let _ = target.array(of);
}

fn main() {}
