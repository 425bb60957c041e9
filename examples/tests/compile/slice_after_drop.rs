//! Does not compile: a slice of an array's memory on the host is used after the array's drop.

fn slice(array: gpuheap::DeviceArray<f32>) -> Result<f32, gpuheap::Error> {
    let slice = array.as_slice()?;
    drop(array);
    Ok(slice[0])
}

fn main() {}
