//! An upload of a vector of pairs of numbers, or of structs without `Adapt`, does not compile.

struct Sensor(f32);

fn up(target: &gpuheap::Target, sensors: &Vec<Sensor>, pairs: &Vec<(f32, f32)>) {
    let _ = target.adapt(sensors);
    let _ = target.cu(pairs);
}

fn main() {}
