//! An upload of a vector does not compile if its elements are pairs, or structs without `Adapt`.

struct Sensor(f32);

fn up(target: &gpuheap::Target, sensors: &Vec<Sensor>, pairs: &Vec<(f32, f32)>) {
    let _ = target.adapt(sensors);
    let _ = target.cu(pairs);
}

fn main() {}
