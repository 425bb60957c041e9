//! Memory that is borrowed for reading cannot be written.

fn write(array: &gpuheap::DeviceArray<f32>) -> Result<(), gpuheap::Error> {
    array.view().fill(0.0)
}

fn main() {}
