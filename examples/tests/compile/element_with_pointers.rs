//! Strings and vectors are no elements.

use gpuheap::{DeviceArray, Error, Target};

fn strings(target: &Target) -> Result<DeviceArray<String>, Error> {
    target.uninit(3)?.fill(String::new())
}

fn vectors(target: &Target) {
    let _ = target.array(&[vec![1.0_f32]]);
}

fn main() {}
