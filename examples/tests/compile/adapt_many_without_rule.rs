//! A vector of values without a rule is refused, and so is a vector of pairs of numbers.

struct Sensor(f32);

fn up(target: &gpuheap::Target, sensors: &Vec<Sensor>, pairs: &Vec<(f32, f32)>) {
    let _ = target.adapt(sensors);
    let _ = target.cu(pairs);
}

fn main() {}
