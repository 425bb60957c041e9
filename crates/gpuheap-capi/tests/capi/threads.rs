//! Tests many threads that use one heap and free each other's allocations.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_pool::testing::Random;

use crate::client::{Client, Memory, Status, destroy_stream, last_error, make_stream};
use crate::support::on_real_gpu;

const THREADS: usize = 16;

/// Each thread allocates on its own stream and passes every other block to its neighbour. The
/// neighbour frees the block in the order of the stream that it was allocated on.
#[test]
fn threads_free_each_others_memory() {
    for pool in PoolKind::ALL {
        let (device, client) = Client::scheduled(Schedule::Seeded(9), pool);
        let rounds = if on_real_gpu() { 2000 } else { 100 };
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::channel::<Memory>()).unzip();
        let streams: Vec<_> = (0..THREADS).map(|_| make_stream(&device)).collect();
        std::thread::scope(|scope| {
            for (index, received) in receivers.into_iter().enumerate() {
                let (device, stream) = (&device, streams[index]);
                let neighbour = senders[(index + 1) % THREADS].clone();
                scope.spawn(move || {
                    let mut random = Random(index as u64);
                    for round in 0..rounds {
                        let most = 1 << (8 + random.below(12));
                        let bytes = 1 + random.below(most);
                        let memory = client.allocate(bytes, stream).unwrap();
                        memory.fill(device, round as u8, stream);
                        if round % 2 == 0 {
                            neighbour.send(memory).unwrap();
                        } else {
                            assert_eq!(client.free_on(memory, stream), Status::Ok);
                        }
                        while let Ok(memory) = received.try_recv() {
                            assert_eq!(client.free(memory), Status::Ok, "{}", last_error());
                        }
                    }
                    drop(neighbour);
                    received.iter().for_each(|memory| assert_eq!(client.free(memory), Status::Ok));
                });
            }
            drop(senders);
        });
        let now = client.statistics();
        assert_eq!(now.allocations, (THREADS * rounds) as u64, "{pool}");
        client.assert_all_returned(pool.name());
        streams.into_iter().for_each(|stream| destroy_stream(&device, stream));
    }
}

/// Every thread makes and ends streams while other threads use other streams. The threads also try
/// to free addresses that the heap does not own.
#[test]
fn threads_end_shared_streams() {
    for pool in [PoolKind::Split, PoolKind::Binned, PoolKind::None] {
        let (device, client) = Client::scheduled(Schedule::Seeded(6), pool);
        let rounds = if on_real_gpu() { 300 } else { 30 };
        let left: Vec<Vec<Memory>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|index| {
                    let device = &device;
                    scope.spawn(move || {
                        let mut random = Random(index as u64);
                        let mut left = Vec::new();
                        for round in 0..rounds {
                            let stream = make_stream(device);
                            for _ in 0..10 {
                                let memory =
                                    client.allocate(1 + random.below(5000), stream).unwrap();
                                memory.fill(device, round as u8, stream);
                                let nobodys = Memory {
                                    address: std::ptr::without_provenance_mut(1 + index),
                                    bytes: 1,
                                };
                                assert_eq!(client.free(nobodys), Status::UnknownAddress);
                                match random.below(8) {
                                    0 => left.push(memory),
                                    _ => assert_eq!(client.free(memory), Status::Ok),
                                }
                            }
                            assert_eq!(client.stream_ended(stream), Status::Ok);
                            destroy_stream(device, stream);
                        }
                        left
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // The streams and threads that allocated these blocks have ended.
        left.iter().flatten().for_each(|memory| assert_eq!(client.free(*memory), Status::Ok));
        client.assert_all_returned(pool.name());
    }
}

/// Many threads free one address at once. Exactly one free succeeds.
#[test]
fn one_of_many_frees() {
    let (device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let stream = make_stream(&device);
    for _ in 0..50 {
        let memory = client.allocate(1 << 20, stream).unwrap();
        let start = Arc::new(Barrier::new(4));
        let freed: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                let start = start.clone();
                scope.spawn(move || {
                    start.wait();
                    let status = client.free(memory);
                    assert!(matches!(status, Status::Ok | Status::UnknownAddress), "{status:?}");
                    usize::from(status == Status::Ok)
                })
            });
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(freed, 1);
    }
    client.assert_all_returned("one of many");
}
