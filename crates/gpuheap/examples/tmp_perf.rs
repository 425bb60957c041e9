use std::time::Instant;
fn main() {
    let device = gpuheap::Device::open("emulated:1GiB").unwrap();
    let heap = device.heap().unwrap();
    let stream = device.stream().unwrap();
    let target = heap.on(&stream);
    let n = 2_000_000u32;
    for _ in 0..4 {
        let t = Instant::now();
        for _ in 0..n { drop(std::hint::black_box(heap.allocate(1 << 20, &stream).unwrap())); }
        let raw = t.elapsed() / n;
        let t = Instant::now();
        for _ in 0..n { drop(std::hint::black_box(target.uninit::<u8, _>(1 << 20).unwrap())); }
        let arr = t.elapsed() / n;
        let t = Instant::now();
        heap.scope(|s| { let target = s.on(&stream); for _ in 0..n { drop(std::hint::black_box(target.uninit::<u8, _>(1 << 20).unwrap())); } });
        let sc = t.elapsed() / n;
        println!("raw {raw:?} array {arr:?} in scope {sc:?}");
    }
}
