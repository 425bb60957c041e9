//! An upload changes a `Vec<f32>` to a device array, so the struct needs a parameter for that type.

#[derive(gpuheap::Adapt)]
struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) {
    let _ = target.adapt(sensor);
}

fn main() {}
