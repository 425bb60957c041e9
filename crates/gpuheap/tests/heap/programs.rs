//! Runs random programs over several streams, under every policy and several schedules. Blocks keep
//! their contents, no use of memory is unordered, and all memory is returned.

use gpuheap::emu::Schedule;
use gpuheap::{Block, Device, PoolKind, Stream};
use gpuheap_pool::testing::{Action, programs};
use proptest::prelude::*;

use crate::support::{Witness, assert_all_returned, device, fill, heap, on_real_gpu, order};

const STREAMS: usize = 3;
const MEMORY: u64 = 256 << 20;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0_u64),
        1_u64..1024,
        (1_u64 << 10)..(3 << 20),
        (1_u64 << 20)..(96 << 20),
        Just((128 << 20) + 1),
    ]
}

struct Held {
    block: Block,
    stream: usize,
    tag: u8,
}

fn run(device: &Device, pool: PoolKind, actions: &[Action]) {
    let heap = heap(device, pool);
    let mut witness = Witness::new(device, 128);
    {
        let streams: Vec<Stream> = (0..STREAMS)
            .map(|n| match n {
                // The first stream is the default stream, which other code of the process shares.
                0 => device.default_stream().unwrap(),
                _ => device.stream().unwrap(),
            })
            .collect();
        let mut held: Vec<Held> = Vec::new();
        for (number, action) in actions.iter().enumerate() {
            match *action {
                Action::Allocate { bytes, stream } => {
                    match heap.allocate(bytes, &streams[stream]) {
                        Ok(block) => {
                            let tag = number as u8 + 1;
                            fill(&block, tag, &streams[stream]);
                            held.push(Held { block, stream, tag });
                        }
                        Err(error) => assert!(error.out_of_memory().is_some(), "{error}"),
                    }
                }
                Action::Move { index, stream } if !held.is_empty() => {
                    let index = index % held.len();
                    order(device, &streams[held[index].stream], &streams[stream]);
                    held[index].stream = stream;
                    held[index].tag = number as u8 + 1;
                    fill(&held[index].block, held[index].tag, &streams[stream]);
                }
                Action::Free { index, .. } if !held.is_empty() => {
                    let Held { block, stream, tag } = held.swap_remove(index % held.len());
                    witness.see(&block, tag, &streams[stream]);
                    block.free_on(&streams[stream]).unwrap();
                }
                Action::Release { bytes } => {
                    heap.reclaim(bytes).unwrap();
                }
                Action::Complete { stream } => streams[stream].synchronize().unwrap(),
                _ => {}
            }
            let live: u64 = held.iter().map(|held| held.block.bytes()).sum();
            assert_eq!(heap.usage().unwrap().live, live, "{pool}");
        }
        for Held { block, stream, tag } in held {
            witness.see(&block, tag, &streams[stream]);
            block.free_on(&streams[stream]).unwrap();
        }
    }
    witness.check();
    assert_all_returned(device, &heap, pool.name());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if on_real_gpu() { 24 } else { 96 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn policies_match_naive_model(actions in programs(sizes(), STREAMS, 4, 90), seed in any::<u64>(), lag in any::<bool>()) {
        for pool in PoolKind::ALL {
            let schedule = if lag {
                Schedule::Lag(std::time::Duration::from_micros(seed % 50))
            } else {
                Schedule::Seeded(seed)
            };
            run(&device(MEMORY, schedule), pool, &actions);
        }
    }
}
