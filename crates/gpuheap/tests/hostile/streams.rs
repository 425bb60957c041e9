//! Streams, events and frees in every order, by several threads: an array holds what was written to
//! it, whatever was freed on any stream.

use std::time::{Duration, Instant};

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Block, Device, DeviceArray, Error, Event, Heap, Meter, PoolKind, Stream};

use crate::random::Random;

const MIB: u64 = 1 << 20;
/// Number of steps of one program.
const STEPS: usize = 80;
/// Number of programs for each pool and schedule. `GPUHEAP_HOSTILE_SECONDS` sets a time instead.
const PROGRAMS: u64 = 6;

fn device(schedule: Schedule) -> Device {
    let profile = Profile::with_memory(1 << 30).without_context();
    Device::emulated_with(Options { schedule, ..Options::with_device(profile) }).unwrap()
}

impl Random {
    fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    fn of<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        (!values.is_empty()).then(|| &values[self.index(values.len())])
    }

    fn taken<T>(&mut self, values: &mut Vec<T>) -> Option<T> {
        (!values.is_empty()).then(|| values.swap_remove(self.index(values.len())))
    }
}

/// State of a program.
struct Client<'a> {
    device: &'a Device,
    heap: &'a Heap,
    random: Random,
    streams: Vec<Stream>,
    events: Vec<Event>,
    blocks: Vec<Block>,
    /// Arrays, each with its expected contents.
    arrays: Vec<(DeviceArray<u8>, u8)>,
    meters: Vec<Meter>,
    tag: u8,
}

/// Returns the value of a request, which may fail in a tight heap.
fn got<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.out_of_memory().is_some(), "{error}");
            None
        }
    }
}

impl Client<'_> {
    fn size(&mut self) -> usize {
        match self.random.index(6) {
            0 => 0,
            1 => 1 + self.random.index(100),
            2 => self.random.index(64 << 10),
            3 => 1 << 20,
            4 => 2 << 20,
            _ => self.random.index(3 << 20),
        }
    }

    fn stream(&mut self) -> Stream {
        let at = self.random.index(self.streams.len());
        self.streams[at].clone()
    }

    fn step(&mut self) {
        let stream = self.stream();
        match self.random.index(24) {
            0..=2 => {
                let size = self.size() as u64;
                self.blocks.extend(got(self.heap.allocate(size, &stream)));
            }
            3..=6 => {
                let (size, tag) = (self.size(), self.tag);
                self.tag = self.tag.wrapping_add(1);
                let filled = got(self.heap.on(&stream).filled(size, tag));
                self.arrays.extend(filled.map(|array| (array, tag)));
            }
            7 | 8 => {
                if let Some((array, tag)) = self.random.of(&self.arrays) {
                    let copy = got(array.copy_to(&self.heap.on(&stream)));
                    let copy = copy.map(|copy| (copy, *tag));
                    self.arrays.extend(copy);
                }
            }
            9 | 10 => {
                if let Some(block) = self.random.taken(&mut self.blocks) {
                    block.free_on(&stream).unwrap();
                }
            }
            11 => drop(self.random.taken(&mut self.blocks)),
            12 | 13 => drop(self.random.taken(&mut self.arrays)),
            14 => {
                // Refused if another array may be in the way; otherwise filled again.
                let at = self.random.index(self.arrays.len().max(1));
                if let Some((array, tag)) = self.arrays.get_mut(at) {
                    *tag = self.tag;
                    array.fill(self.tag).unwrap();
                }
            }
            15 => {
                if let Some((array, tag)) = self.random.of(&self.arrays) {
                    assert!(array.to_vec().unwrap().iter().all(|byte| byte == tag));
                }
            }
            16 => {
                if let Some((array, _)) = self.random.of(&self.arrays) {
                    // From here on the array is used on this stream.
                    array.device_ptr(&stream).unwrap();
                }
            }
            17 => self.events.push(stream.record().unwrap()),
            18 => {
                if let Some(event) = self.random.of(&self.events) {
                    stream.wait(event).unwrap();
                }
            }
            19 => match (self.random.index(3), self.random.taken(&mut self.events)) {
                (0, Some(event)) => event.synchronize().unwrap(),
                (1, Some(event)) => drop(event.is_done().unwrap()),
                _ => drop(stream.is_done().unwrap()),
            },
            20 => match self.random.index(3) {
                0 => stream.synchronize().unwrap(),
                1 => self.device.synchronize().unwrap(),
                _ => drop(self.heap.reclaim(MIB).unwrap()),
            },
            21 => {
                // Dropped, and made anew. Safe code has no foreign streams, and for all other
                // streams the call does nothing.
                let at = self.random.index(self.streams.len());
                self.heap.retire(&self.streams[at]).unwrap();
                self.streams[at] = self.device.stream().unwrap();
            }
            22 => match self.random.index(4) {
                0 => self.heap.retire_all().unwrap(),
                1 => self.meters.extend(self.heap.meter().map(Meter::with_thread).ok()),
                2 => drop(self.random.taken(&mut self.meters)),
                _ => drop(self.heap.usage().unwrap()),
            },
            _ => {
                // Frees on another thread, on a stream that is not ordered after the block's work.
                let block = self.random.taken(&mut self.blocks);
                let array = self.random.taken(&mut self.arrays);
                let free = move || {
                    drop(array);
                    block.map(|block| block.free_on(&stream))
                };
                if let Some(freed) = std::thread::spawn(free).join().unwrap() {
                    freed.unwrap();
                }
            }
        }
    }
}

fn program(pool: PoolKind, schedule: Schedule, seed: u64) {
    let device = device(schedule);
    let builder = Heap::builder(&device).without_environment().pool(pool);
    let builder = match seed % 3 {
        0 => builder,
        // So tight that freed memory is handed out next.
        1 => builder.hard_limit(64 * MIB),
        _ => builder.hard_limit(64 * MIB).thread_cache(0),
    };
    let heap = builder.build().unwrap();
    let mut client = Client {
        device: &device,
        heap: &heap,
        random: Random(seed),
        streams: (0..4).map(|_| device.stream().unwrap()).collect(),
        events: Vec::new(),
        blocks: Vec::new(),
        arrays: Vec::new(),
        meters: Vec::new(),
        tag: 1,
    };
    for _ in 0..STEPS {
        client.step();
    }
    let what = format!("{pool} {schedule:?} program {seed}");
    for (array, tag) in &client.arrays {
        assert!(array.to_vec().unwrap().iter().all(|byte| byte == tag), "{what}");
    }
    let Client { blocks, arrays, meters, .. } = client;
    drop((blocks, arrays, meters));
    device.synchronize().unwrap();
    heap.flush().unwrap();
    let usage = heap.usage().unwrap();
    assert_eq!((usage.live, usage.stats.failed_frees), (0, 0), "{what}: {usage:?}");
    let findings = device.emulator().unwrap().findings().unwrap();
    assert!(findings.is_empty(), "{what}: {findings:#?}");
}

#[test]
fn random_programs_over_streams_break_nothing() {
    let seconds = std::env::var("GPUHEAP_HOSTILE_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let begin = Instant::now();
    let mut programs = 0;
    for seed in 0.. {
        match seconds {
            Some(seconds) if begin.elapsed() >= seconds => break,
            None if seed == PROGRAMS => break,
            _ => {}
        }
        for pool in PoolKind::ALL {
            for schedule in [Schedule::OnDemand, Schedule::Seeded(seed), Schedule::Immediate] {
                program(pool, schedule, seed);
                programs += 1;
            }
        }
    }
    println!("{programs} programs of {STEPS} steps");
}

/// An array is dropped while another stream reads it. Its memory is then reused through blocks
/// alone.
#[test]
fn block_freed_elsewhere_keeps_order() {
    const COUNT: usize = 4 << 20;
    for pool in PoolKind::ALL {
        let device = device(Schedule::OnDemand);
        let limit = match pool {
            PoolKind::None | PoolKind::Driver => 32 * MIB,
            _ => 8 * MIB,
        };
        let heap = Heap::builder(&device).without_environment().pool(pool).hard_limit(limit);
        let heap = heap.build().unwrap();
        let [a, b, c] = [(); 3].map(|()| device.stream().unwrap());
        let x = heap.on(&a).filled(COUNT, 7_u8).unwrap();
        let read = x.copy_to(&heap.on(&c)).unwrap();
        drop(x);
        heap.allocate(COUNT as u64, &a).unwrap().free_on(&b).unwrap();
        let after = heap.on(&b).filled(COUNT, 9_u8).unwrap();
        b.synchronize().unwrap();
        assert!(read.to_vec().unwrap().iter().all(|byte| *byte == 7), "{pool}");
        drop(after);
    }
}

/// Events and streams of a device that was reset, of another device, and of streams that ended.
#[test]
fn events_and_streams_outlive_heap() {
    let (one, other) = (device(Schedule::OnDemand), device(Schedule::OnDemand));
    let heap = Heap::builder(&one).without_environment().build().unwrap();
    let stream = one.stream().unwrap();
    let mut array = heap.on(&stream).filled(100, 1_u8).unwrap();
    let event = stream.record().unwrap();
    let theirs = other.stream().unwrap();
    assert!(theirs.wait(&event).is_err());
    assert!(heap.allocate(MIB, &theirs).is_err());
    assert!(heap.retire(&theirs).is_err());
    let block = heap.allocate(MIB, &stream).unwrap();
    assert!(block.free_on(&theirs).is_err());
    drop((stream, other));
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    array.fill(2).unwrap();
    assert!(array.to_vec().unwrap().iter().all(|byte| *byte == 2));
    drop((heap, one));
    assert!(array.to_vec().unwrap().iter().all(|byte| *byte == 2));
}
