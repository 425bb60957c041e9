//! Workloads of several threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap::{Block, Error, Heap, Stream};

use crate::random::Random;
use crate::{Done, Peer, median};

/// Duration of one measured run.
const RUN: Duration = Duration::from_millis(300);
/// Number of live blocks in each thread.
const RING: usize = 16;
/// Number of blocks that a thread passes to the other thread in each turn.
const HANDFUL: usize = 64;

/// Times threads that each have a stream and 16 live blocks of 256 B to 512 KiB.
pub(crate) fn threads(peer: &mut Peer) -> Done {
    for count in [1, 2, 4, 8, 16] {
        let streams =
            (0..count).map(|_| peer.device.stream()).collect::<Result<Vec<Stream>, Error>>()?;
        let mut rates = Vec::new();
        for _ in 0..3 {
            rates.push(rate(&peer.heap, &streams, RUN / peer.scale.min(1000) as u32)?);
        }
        peer.result("threads", &format!("threads={count} mpairs={:.3}", median(rates)))?;
    }
    Ok(())
}

/// Returns the rate of all threads together, in millions of pairs per second. Counting starts once
/// all threads run.
fn rate(heap: &Heap, streams: &[Stream], run: Duration) -> Done<f64> {
    let (begin, stop) = (Barrier::new(streams.len() + 1), AtomicBool::new(false));
    let pairs = thread::scope(|scope| -> Result<f64, Error> {
        let threads: Vec<_> = (0_u64..)
            .zip(streams)
            .map(|(index, stream)| {
                let (begin, stop) = (&begin, &stop);
                scope.spawn(move || {
                    let mut ring = Ring::new(heap, stream, index);
                    // A failed thread goes to the barrier too, because the others wait there.
                    let ready = (0..20).try_for_each(|_| ring.turn());
                    begin.wait();
                    ready?;
                    let (start, mut turns) = (Instant::now(), 0_u64);
                    while !stop.load(Ordering::Relaxed) {
                        ring.turn()?;
                        turns += 1;
                    }
                    let seconds = start.elapsed().as_secs_f64();
                    Ok((turns * RING as u64) as f64 / seconds)
                })
            })
            .collect();
        begin.wait();
        thread::sleep(run);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(rate) => rate,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .sum()
    })?;
    Ok(pairs / 1e6)
}

struct Ring<'a> {
    heap: &'a Heap,
    stream: &'a Stream,
    random: Random,
    blocks: [Option<Block>; RING],
}

impl<'a> Ring<'a> {
    fn new(heap: &'a Heap, stream: &'a Stream, seed: u64) -> Ring<'a> {
        Ring { heap, stream, random: Random(seed), blocks: [const { None }; RING] }
    }

    /// Replaces each block with a block of another size.
    fn turn(&mut self) -> Result<(), Error> {
        for slot in &mut self.blocks {
            drop(slot.take());
            *slot = Some(self.heap.allocate(self.random.small_size(), self.stream)?);
        }
        Ok(())
    }
}

/// Allocates on one thread and frees on another. The threads take turns, so neither waits for the
/// other's lock. An allocation's time includes work that earlier frees deferred.
pub(crate) fn cross_free(peer: &mut Peer) -> Done {
    let rounds = (5000 / peer.scale).max(10);
    let stream = peer.device.stream()?;
    let hands = Mutex::new(Vec::with_capacity(HANDFUL));
    // Allocates in even turns, and frees in odd turns.
    let turn = AtomicU64::new(0);
    let await_turn = |number| {
        while turn.load(Ordering::Acquire) != number {
            thread::yield_now();
        }
    };
    let (allocations, frees) = thread::scope(|scope| -> Result<_, Error> {
        let freeing = scope.spawn(|| {
            let mut times = Vec::new();
            for round in 0..rounds {
                await_turn(2 * round + 1);
                let mut blocks = hands.lock().unwrap_or_else(PoisonError::into_inner);
                let start = Instant::now();
                blocks.drain(..).for_each(drop::<Block>);
                times.push(start.elapsed().as_secs_f64() / HANDFUL as f64 * 1e9);
                drop(blocks);
                turn.store(2 * round + 2, Ordering::Release);
            }
            times
        });
        let mut random = Random(1234);
        let mut times = Vec::new();
        let mut failure = None;
        for round in 0..rounds {
            await_turn(2 * round);
            let mut blocks = hands.lock().unwrap_or_else(PoisonError::into_inner);
            let start = Instant::now();
            for _ in 0..HANDFUL {
                match peer.heap.allocate(random.small_size(), &stream) {
                    Ok(block) => blocks.push(block),
                    // Continues, because the freeing thread would wait forever for a missing turn.
                    Err(error) => failure = Some(error),
                }
            }
            times.push(start.elapsed().as_secs_f64() / HANDFUL as f64 * 1e9);
            drop(blocks);
            turn.store(2 * round + 1, Ordering::Release);
        }
        match (freeing.join(), failure) {
            (_, Some(error)) => Err(error),
            (Ok(frees), None) => Ok((times, frees)),
            (Err(panic), None) => std::panic::resume_unwind(panic),
        }
    })?;
    let (allocate_ns, ns) = (median(allocations), median(frees));
    peer.result("crossfree", &format!("ns={ns:.1} allocate_ns={allocate_ns:.1}"))
}
