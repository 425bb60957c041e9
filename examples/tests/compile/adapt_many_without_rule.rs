//! A vector of structs that do not derive `Adapt` is refused, and so is a vector of pairs.

struct Sensor(f32);

fn up(target: &gpuheap::Target, sensors: &Vec<Sensor>, pairs: &Vec<(f32, f32)>) {
    let _ = target.adapt(sensors);
    let _ = target.cu(pairs);
}

fn main() {}
