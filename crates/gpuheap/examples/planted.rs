//! Runs one planted bug on one device: `planted DEVICE POOL BUG HOW [BYTES]`. Without arguments,
//! lists all bugs. Run it under `compute-sanitizer` on a GPU; docs/emulator.md has the findings.
#![expect(clippy::unwrap_used, reason = "a program that fails says where")]
#![expect(clippy::print_stdout, reason = "a program shows what it found")]

#[path = "../tests/heap/planted.rs"]
mod planted;

use gpuheap::emu::{Options, Profile};
use gpuheap::{Device, Heap, PoolKind};
use planted::{Bug, By};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, pool, bug, by, rest @ ..] = &words[..] else {
        for (bug, by) in Bug::ALL.into_iter().flat_map(|bug| By::ALL.map(|by| (bug, by))) {
            println!("{bug:?} {by:?}");
        }
        return;
    };
    let bug = Bug::ALL.into_iter().find(|known| format!("{known:?}") == *bug).unwrap();
    let by = By::ALL.into_iter().find(|known| format!("{known:?}") == *by).unwrap();
    let bytes = rest.first().map_or(1000, |bytes| bytes.parse().unwrap());
    let device = match &device[..] {
        "emulated" => {
            Device::emulated_with(Options::with_device(Profile::with_memory(1 << 30))).unwrap()
        }
        name => Device::open(name).unwrap(),
    };
    let heap = Heap::builder(&device)
        .without_environment()
        .pool(PoolKind::parse(pool).unwrap())
        .build()
        .unwrap();
    planted::run(&device, &heap, bytes, bug, by);
    if let Some(emulator) = device.emulator() {
        emulator.findings().unwrap().iter().for_each(|finding| println!("{finding}"));
    }
}
