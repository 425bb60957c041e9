//! A field whose type changes when it is adapted has to be a type parameter.

#[derive(gpuheap::Adapt)]
struct Sensor {
    samples: Vec<f32>,
}

fn up(target: &gpuheap::Target, sensor: &Sensor) {
    let _ = target.adapt(sensor);
}

fn main() {}
