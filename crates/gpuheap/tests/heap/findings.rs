//! Tests that the emulator's checks find wrong uses of single blocks.

use std::time::Duration;

use gpuheap::emu::{Finding, FindingKind, Schedule};
use gpuheap::{Block, Device, DeviceArray, Heap, PoolKind, Stream};
use gpuheap_driver::check;
use gpuheap_pool::testing::Random;

use crate::planted::{self, Bug, By};
use crate::support::{allocate_filled, assert_all_returned, emulated, fill, heap, order};

const MIB: u64 = 1 << 20;

fn schedules() -> [Schedule; 4] {
    let lag = Schedule::Lag(Duration::from_millis(1));
    [Schedule::Immediate, Schedule::OnDemand, lag, Schedule::Seeded(5)]
}

fn findings(device: &Device) -> Vec<Finding> {
    device.emulator().unwrap().findings().unwrap()
}

fn kind_of(bug: Bug) -> FindingKind {
    match bug {
        Bug::UseAfterFree => FindingKind::UseAfterFree,
        Bug::OneByteMore | Bug::IntoTheNeighbour => FindingKind::OutOfBounds,
        Bug::NeverWritten => FindingKind::Uninitialised,
        Bug::UnorderedReuse => FindingKind::Unordered,
    }
}

/// Plants bugs in small blocks of a thread's cache, and in larger blocks of the pool.
#[test]
fn planted_bugs_are_found() {
    for pool in PoolKind::ALL {
        for schedule in schedules() {
            for bytes in [1000, 3 * MIB + 100] {
                for (bug, by) in Bug::ALL.into_iter().flat_map(|bug| By::ALL.map(|by| (bug, by))) {
                    let what = format!("{pool}, {schedule:?}, {bytes} bytes, {bug:?}, {by:?}");
                    let device = emulated(1 << 30, schedule);
                    planted::run(&device, &heap(&device, pool), bytes, bug, by);
                    let found = findings(&device);
                    if pool == PoolKind::None && bug == Bug::UnorderedReuse {
                        // The block's free waits for the device, so the program has no bug.
                        assert_eq!(found, [], "{what}");
                        continue;
                    }
                    assert!(!found.is_empty(), "{what}");
                    let kind = kind_of(bug);
                    assert!(found.iter().all(|one| one.kind == kind), "{what}: {found:#?}");
                    let name = format!(" a block of {bytes} bytes at 0x");
                    assert!(found[0].text.contains(&name), "{what}: {}", found[0].text);
                }
            }
        }
    }
}

/// Formats findings in the order in which they were found, with letters for addresses and streams.
fn readable(found: &[Finding]) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for finding in found {
        let mut words = Vec::new();
        let mut follows_stream = false;
        for word in finding.text.split(' ') {
            let bare = word.trim_end_matches([',', ';']);
            let end = &word[bare.len()..];
            let is_name = follows_stream || bare.starts_with("0x");
            follows_stream = bare == "stream";
            if !is_name {
                words.push(word.to_owned());
                continue;
            }
            let names = bare.split("..").map(|one| {
                let at = names.iter().position(|known| known == one).unwrap_or_else(|| {
                    names.push(one.to_owned());
                    names.len() - 1
                });
                char::from(b'A' + at as u8).to_string()
            });
            words.push(names.collect::<Vec<_>>().join("..") + end);
        }
        lines.push(words.join(" "));
    }
    lines.join("\n")
}

#[test]
fn findings_name_block_and_free() {
    let mut texts = Vec::new();
    for bug in Bug::ALL {
        let device = emulated(1 << 30, Schedule::Immediate);
        planted::run(&device, &heap(&device, PoolKind::Split), 1000, bug, By::Calls);
        texts.push(format!("{bug:?}:\n{}", readable(&findings(&device))));
    }
    insta::assert_snapshot!(texts.join("\n"));
}

/// The pool `stitched` maps freed memory at new addresses for a large block. No earlier work used
/// these addresses, so the checks find the early reuse only if they follow the physical memory.
#[test]
fn unordered_reuse_is_found_by_bytes() {
    for schedule in schedules() {
        for ordered in [true, false] {
            let device = emulated(64 * MIB, schedule);
            let heap = heap(&device, PoolKind::Stitched);
            let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
            let blocks: Vec<Block> =
                (0..8).map(|_| heap.allocate(8 * MIB, &one).unwrap()).collect();
            let first = blocks.iter().map(Block::address).min().unwrap();
            for block in blocks.iter().step_by(2) {
                fill(block, 1, &two);
            }
            if ordered {
                order(&device, &two, &one);
            }
            let kept: Vec<Block> = blocks
                .into_iter()
                .enumerate()
                .filter(|(nth, _)| nth % 2 == 1)
                .map(|b| b.1)
                .collect();
            let large = heap.allocate(32 * MIB, &one).unwrap();
            let addresses: Vec<u64> = kept.iter().map(Block::address).collect();
            let is_stitched = addresses
                .iter()
                .all(|at| !(large.address()..large.address() + large.bytes()).contains(at));
            assert!(is_stitched && large.address() != first, "it is elsewhere");
            let kinds: Vec<_> = findings(&device).iter().map(|found| found.kind).collect();
            let expected = if ordered { vec![] } else { vec![FindingKind::Unordered] };
            assert_eq!(kinds, expected, "{schedule:?}: {:#?}", findings(&device));
        }
    }
}

/// Reads a recycled block, on a device whose heap fills blocks with zeros.
fn read_recycled(
    pool: PoolKind,
    schedule: Schedule,
    on_free: bool,
    on_alloc: bool,
) -> Vec<Finding> {
    let device = emulated(1 << 30, schedule);
    let builder = Heap::builder(&device).pool(pool);
    let heap = builder.zero_on_free(on_free).zero_on_alloc(on_alloc).build().unwrap();
    let stream = device.stream().unwrap();
    for _ in 0..2 {
        let _block = allocate_filled(&heap, 1000, 1, &stream);
    }
    let block = heap.allocate(1000, &stream).unwrap();
    read(&device, &block, &stream);
    drop(block);
    heap.reclaim_all().unwrap();
    findings(&device)
}

fn read(device: &Device, block: &Block, stream: &Stream) {
    stream.synchronize().unwrap();
    let mut host = vec![0_u8; block.bytes() as usize];
    let copied = device.with_current(|driver| {
        // SAFETY: `host` has as many bytes as the live block.
        unsafe { driver.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), block.address(), host.len()) }
    });
    check("cuMemcpyDtoH_v2", copied.unwrap()).unwrap();
}

#[test]
fn zero_filled_memory_counts_as_written() {
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        for schedule in schedules() {
            assert_eq!(read_recycled(pool, schedule, true, false), [], "{pool}");
            assert_eq!(read_recycled(pool, schedule, false, true), [], "{pool}");
            assert_eq!(read_recycled(pool, schedule, true, true), [], "{pool}");
            let found = read_recycled(pool, schedule, false, false);
            assert_eq!(found.len(), 1, "{pool}: {found:#?}");
        }
    }
}

/// Random programs without a bug use blocks to their last byte, on three streams that wait for each
/// other if needed. The checks find nothing.
#[test]
fn clean_random_programs_have_no_findings() {
    for pool in PoolKind::ALL {
        for seed in 0..6 {
            let mut random = Random(seed);
            let schedule = if seed % 2 == 0 { Schedule::Seeded(seed) } else { Schedule::OnDemand };
            let device = emulated(256 * MIB, schedule);
            let heap = heap(&device, pool);
            let streams = [(); 3].map(|()| device.stream().unwrap());
            let mut live: Vec<(Block, usize)> = Vec::new();
            for _ in 0..300 {
                let nth = random.below(3) as usize;
                match random.below(4) {
                    0 | 1 if live.len() < 20 => {
                        let doublings = 4 + random.below(20);
                        let bytes = 1 + random.below(1 << doublings);
                        let block = heap.allocate(bytes, &streams[nth]).unwrap();
                        fill(&block, 1, &streams[nth]);
                        live.push((block, nth));
                    }
                    2 if !live.is_empty() => {
                        let at = random.below(live.len() as u64) as usize;
                        let (block, last) = live.swap_remove(at);
                        if last != nth {
                            order(&device, &streams[last], &streams[nth]);
                        }
                        fill(&block, 2, &streams[nth]);
                        block.free_on(&streams[nth]).unwrap();
                    }
                    _ if !live.is_empty() => {
                        let (block, last) = &live[random.below(live.len() as u64) as usize];
                        read(&device, block, &streams[*last]);
                    }
                    _ => {}
                }
            }
            drop(streams);
            for (block, _) in live {
                device.synchronize().unwrap();
                drop(block);
            }
            assert_all_returned(&device, &heap, &format!("{pool}, {seed}"));
        }
    }
}

fn upload(device: &Device, address: u64, bytes: usize, stream: &Stream) {
    let host = vec![3_u8; bytes];
    let copied = device.with_current(|driver| {
        let from = host.as_ptr().cast();
        // SAFETY: the emulator checks the target range; pageable memory is read during the call.
        unsafe { driver.cuMemcpyHtoDAsync_v2(address, from, bytes, stream.raw()) }
    });
    check("cuMemcpyHtoDAsync_v2", copied.unwrap()).unwrap();
}

/// An upload copies more bytes than the array has, as if the array's shape were too small.
#[test]
fn oversized_upload_is_found() {
    // Only in these pools is an array part of a larger driver allocation. In other pools, the
    // driver itself refuses an upload past the array's end.
    for pool in [PoolKind::Binned, PoolKind::Split, PoolKind::Stitched] {
        let device = emulated(64 * MIB, Schedule::Immediate);
        let stream = device.stream().unwrap();
        let heap = heap(&device, pool);
        let array = heap.on(&stream).zeroed::<u8, _>(1000).unwrap();
        let address = array.device_ptr(&stream).unwrap();
        upload(&device, address, 1000, &stream);
        assert_eq!(findings(&device), [], "{pool}");
        upload(&device, address, 1001, &stream);
        let found = findings(&device);
        let [beyond] = &found[..] else { panic!("{pool}: {found:#?}") };
        assert_eq!(beyond.kind, FindingKind::OutOfBounds, "{pool}");
        assert!(beyond.text.contains("into a block of 1000 bytes at "), "{beyond}");
    }
}

#[test]
fn small_arrays_have_separate_bounds() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Stitched);
    let stream = device.stream().unwrap();
    let up: Vec<DeviceArray<u8>> = heap.on(&stream).adapt(&vec![vec![1_u8; 100]; 3]).unwrap();
    let address = up[0].device_ptr(&stream).unwrap();
    upload(&device, address, 100, &stream);
    assert_eq!(findings(&device), []);
    upload(&device, address, 101, &stream);
    upload(&device, address + 128, 1, &stream);
    let found = findings(&device);
    let kinds: Vec<_> = found.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [FindingKind::OutOfBounds; 2], "{found:#?}");
    let part = format!("a part of 100 bytes at {address:#x} of the block of ");
    assert!(found[0].text.contains(&part), "{}", found[0]);
    drop(up);
    upload(&device, address, 100, &stream);
    assert_eq!(findings(&device)[2].kind, FindingKind::UseAfterFree);
}
