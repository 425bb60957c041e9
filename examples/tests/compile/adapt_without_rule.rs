//! A type without a rule is not left on the host in silence.

struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) -> Result<(), gpuheap::Error> {
    target.adapt(&(sensor, 1_u8))?;
    Ok(())
}

fn main() {}
