//! Elements that were not written cannot be read.

fn read(target: &gpuheap::Target) -> Result<Vec<f32>, gpuheap::Error> {
    target.uninit::<f32, _>(3)?.to_vec()
}

fn main() {}
