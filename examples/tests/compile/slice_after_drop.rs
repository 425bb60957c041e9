//! The host's slice does not outlive the array.

fn slice(array: gpuheap::DeviceArray<f32>) -> Result<f32, gpuheap::Error> {
    let slice = array.as_slice()?;
    drop(array);
    Ok(slice[0])
}

fn main() {}
