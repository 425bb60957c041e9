use gpuheap::{DeviceArray, Error};

fn main() -> Result<(), Error> {
    let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    let a: DeviceArray<f32> = target.zeroed(3)?;
    let b: DeviceArray<i32> = target.zeroed(3)?;
    let _ = &a + &b;
    let _ = &a * 2_i32;
    let _ = -&target.zeroed::<u8, _>(3)?;
    Ok(())
}
