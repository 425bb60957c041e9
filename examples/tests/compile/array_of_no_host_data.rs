//! Iterators and references to references cannot be uploaded.

use gpuheap::Target;

fn iterator(target: &Target) {
    let _ = target.array(&(0..3).map(|n| n as f32));
}

fn reference(target: &Target, elements: &Vec<f32>) {
    let _ = target.array(&elements);
}

fn main() {}
