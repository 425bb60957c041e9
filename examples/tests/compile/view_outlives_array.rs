//! Does not compile: a view borrows its array and cannot outlive it. A shared handle could.

fn view(target: &gpuheap::Target) -> Result<gpuheap::DeviceView<'static, f32>, gpuheap::Error> {
    target.zeroed::<f32, _>(3)?.into_slice(1..)?.slice(..)
}

fn main() {}
