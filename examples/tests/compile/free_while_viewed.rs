//! A view keeps its array from being freed.

fn free(array: gpuheap::DeviceArray<f32>) -> Result<(), gpuheap::Error> {
    let view = array.slice(1..)?;
    array.free()?;
    view.to_vec().map(|_| ())
}

fn main() {}
