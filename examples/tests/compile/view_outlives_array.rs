//! A view does not outlive its array. A shared handle would keep the array alive.

fn view(target: &gpuheap::Target) -> Result<gpuheap::DeviceView<'static, f32>, gpuheap::Error> {
    target.zeroed::<f32, _>(3)?.into_slice(1..)?.slice(..)
}

fn main() {}
