//! An array that was freed cannot be used.

fn free(array: gpuheap::DeviceArray<f32>) -> Result<Vec<f32>, gpuheap::Error> {
    array.free()?;
    array.to_vec()
}

fn main() {}
