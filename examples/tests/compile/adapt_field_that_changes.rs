//! A field whose type would change has to be a parameter.

#[derive(gpuheap::Adapt)]
struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) {
    let _ = target.adapt(sensor);
}

fn main() {}
