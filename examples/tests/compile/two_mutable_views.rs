//! Only one mutable view can exist at a time.

fn write(mut array: gpuheap::DeviceArray<f32>) -> Result<(), gpuheap::Error> {
    let mut first = array.slice_mut(..1)?;
    let mut second = array.slice_mut(..2)?;
    first.fill(0.0)?;
    second.fill(1.0)
}

fn main() {}
