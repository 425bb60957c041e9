//! A struct that does not derive `Adapt` is refused, not silently left on the host.

struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) -> Result<(), gpuheap::Error> {
    target.adapt(&(sensor, 1_u8))?;
    Ok(())
}

fn main() {}
