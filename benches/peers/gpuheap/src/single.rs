//! Workloads of one thread on one stream.

use std::time::Instant;

use gpuheap::{Block, Heap, PoolKind};

use crate::random::Random;
use crate::{Done, Peer, median};

/// Times allocations and frees of one size. The cache serves all of them.
pub(crate) fn hot(peer: &mut Peer) -> Done {
    let pairs = (200_000 / peer.scale).max(1);
    let stream = peer.device.default_stream()?;
    for bytes in [1 << 10, 1 << 20, 64 << 20] {
        let run = |count: u64| -> Done {
            for _ in 0..count {
                drop(peer.heap.allocate(bytes, &stream)?);
            }
            Ok(())
        };
        run(100)?;
        let mut times = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            run(pairs)?;
            times.push(start.elapsed().as_secs_f64() / pairs as f64 * 1e9);
        }
        peer.result("hot", &format!("bytes={bytes} ns={:.1}", median(times)))?;
    }
    Ok(())
}

/// Allocates or frees at random, with log-uniform sizes of 256 B to 64 MiB. At most 8 GiB are live.
pub(crate) fn random_sizes(peer: &mut Peer) -> Done {
    const MOST: u64 = 8 << 30;
    let operations = (200_000 / peer.scale).max(1);
    let stream = peer.device.default_stream()?;
    let mut random = Random(1234);
    let mut live: Vec<Block> = Vec::new();
    let (mut bytes, mut peak) = (0, 0);
    let mut times = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        for _ in 0..operations {
            let size = random.any_size();
            if live.is_empty() || (bytes + size <= MOST && random.unit() < 0.52) {
                live.push(peer.heap.allocate(size, &stream)?);
                bytes += size;
                peak = peak.max(bytes);
            } else {
                let at = (random.unit() * live.len() as f64) as usize;
                bytes -= live[at].bytes();
                drop(live.swap_remove(at));
            }
        }
        times.push(start.elapsed().as_secs_f64() / operations as f64 * 1e9);
    }
    drop(live);
    let figures =
        format!("ns={:.1} live_peak={peak} reserved_peak={}", median(times), peer.reserved_peak()?);
    peer.result("random", &figures)
}

/// Prints the two waits at a program's start: for making the heap, and for the first request.
pub(crate) fn first(peer: &mut Peer) -> Done {
    let stream = peer.device.default_stream()?;
    // The first `cuMemAlloc` of a context takes milliseconds, whichever allocator calls it. A
    // separate heap makes that call here.
    let plain = Heap::builder(&peer.device).pool(PoolKind::Simple).build()?;
    let start = Instant::now();
    drop(plain.allocate(1 << 20, &stream)?);
    let driver_ms = start.elapsed().as_secs_f64() * 1e3;
    drop(plain);
    let start = Instant::now();
    let block = peer.heap.allocate(1 << 20, &stream)?;
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    drop(block);
    let open_ms = peer.open_ms;
    let figures = format!("driver_ms={driver_ms:.3} open_ms={open_ms:.3} ms={first_ms:.3}");
    peer.result("first", &figures)
}

/// Allocates blocks of all sizes, 10 GiB together, frees them, and gives them back to the driver.
pub(crate) fn reclaim(peer: &mut Peer) -> Done {
    let enough = (10 << 30) / peer.scale;
    let stream = peer.device.default_stream()?;
    // The first allocation of a process takes some memory permanently. That memory does not count
    // as the allocator's.
    drop(peer.heap.allocate(1 << 20, &stream)?);
    peer.heap.reclaim_all()?;
    let used = || -> Done<u64> {
        let used = peer.heap.memory_status()?.device_used;
        used.ok_or("the driver does not say how much memory is in use".into())
    };
    let before = used()?;
    let mut random = Random(1234);
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    while bytes < enough {
        let size = random.any_size();
        blocks.push(peer.heap.allocate(size, &stream)?);
        bytes += size;
    }
    drop(blocks);
    let cached = used()?;
    let start = Instant::now();
    peer.heap.reclaim_all()?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let after = used()?;
    let held = cached.saturating_sub(before);
    let kept = after.saturating_sub(before);
    peer.result("reclaim", &format!("ms={ms:.3} live_peak={bytes} cached={held} kept={kept}"))
}
