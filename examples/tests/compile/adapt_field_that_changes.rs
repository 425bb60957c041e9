//! An upload changes `Vec<f32>` to a device array, so the field's type has to be a parameter.

#[derive(gpuheap::Adapt)]
struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) {
    let _ = target.adapt(sensor);
}

fn main() {}
