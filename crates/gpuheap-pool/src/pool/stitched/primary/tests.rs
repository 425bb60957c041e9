//! Tests of the bins and the blocks against naive models.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::bins::Bins;
use super::blocks::{Block, Blocks, UsedPart};
use super::*;
use crate::pool::kind::ROUNDING;
use crate::pool::stitched::SMALL;
use crate::pool::stitched::memory::LEAST;
use crate::stream::{StreamHandle, Ticket};
use crate::testing::{Model, cases, fewer};

fn free_block(bytes: u64, address: u64) -> Block {
    Block {
        address,
        bytes,
        before: NONE,
        after: NONE,
        next: NONE,
        previous: NONE,
        last: LastUse::COMPLETED,
        part: UsedPart::ALL,
        range: NONE,
        state: State::Free,
        small: false,
        boundary: false,
        binned: false,
        listed: false,
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn bins_find_nearly_smallest_fitting_block(
        sizes in prop::collection::vec(prop_oneof![1_u64..300, 1_u64..90_000, Just(1 << 38)], 1..fewer(60)),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        asked in prop::collection::vec(prop_oneof![1_u64..300, 1_u64..100_000], 1..fewer(20)),
    ) {
        let (mut blocks, mut bins) = (Blocks::default(), Bins::default());
        let mut naive: Vec<(u64, u32)> = Vec::new();
        for (at, units) in sizes.iter().enumerate() {
            let key = blocks.insert(free_block(units * ROUNDING, at as u64));
            bins.insert(key, &mut blocks);
            naive.push((units * ROUNDING, key));
        }
        for index in removed {
            if naive.is_empty() {
                break;
            }
            let (_, key) = naive.swap_remove(index.index(naive.len()));
            bins.remove(key, &mut blocks);
        }
        let mut keys: Vec<u32> = bins.keys(&blocks).collect();
        let mut expected: Vec<u32> = naive.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(keys, expected);
        for units in asked {
            let bytes = units * ROUNDING;
            let best = naive.iter().map(|found| found.0).filter(|found| *found >= bytes).min();
            let found = bins.best(bytes, 64, &blocks, |_| true, |_| true).usable;
            let found = found.map(|key| blocks[key].bytes);
            prop_assert_eq!(found.is_some(), best.is_some());
            if let (Some(found), Some(best)) = (found, best) {
                // Each size up to 64 KiB has a separate bin. For a larger size, the result may be
                // 1/64 larger than the best.
                prop_assert!(found == best || best > SMALL && found <= best + best / 64, "{found} {best}");
            }
            // The first condition accepts no block, so `other` is chosen by the second.
            let other = bins.best(bytes, 1, &blocks, |_| false, |_| true);
            prop_assert!(other.usable.is_none());
            prop_assert_eq!(other.other.is_some(), best.is_some());
        }
    }

    /// Takes, frees, fills and empties ranges at random. Checks that blocks tile their address
    /// range, and that each address leads to its block. Free neighbours must be merged, or be
    /// recorded as a boundary where a merge failed.
    #[test]
    #[cfg_attr(miri, ignore = "it looks at every page at every step")]
    fn blocks_tile_their_addresses(
        actions in prop::collection::vec((0_u8..8, any::<u64>(), 1_u64..9000), 1..fewer(150)),
    ) {
        let (mut model, mut order, mut primary) = (Model::new(1 << 40), Order::default(), Primary::default());
        model.immediate = false;
        let streams: Vec<_> = (0..3)
            .map(|n| order.stream(100 + n, StreamHandle(n as usize + 10), || None, &mut model))
            .collect();
        primary.add_address_range(1 << 40, 64 * LEAST);
        let mut live: Vec<u32> = Vec::new();
        // Ticket of the last free of each unit of 512 bytes, keyed by address. It is exact, but a
        // merged block records only one last use for all its bytes.
        let mut freed: BTreeMap<u64, Ticket> = BTreeMap::new();
        for (what, pick, units) in actions {
            let stream = streams[(pick % 3) as usize];
            match what {
                0 => {
                    let unbacked = primary.unbacked.first().copied();
                    if let Some(unbacked) = unbacked {
                        let pages = primary.blocks[unbacked].bytes / LEAST;
                        primary.back(unbacked, (1 + pick % pages) * LEAST, &order);
                    }
                }
                1 | 2 => {
                    primary.merge_deferred(&order);
                    let bytes = units * ROUNDING;
                    let small = bytes <= SMALL;
                    let found = primary.find(bytes, small, 8, stream, &order);
                    if let Some(key) = found.usable.or(found.other) {
                        let address = primary.blocks[key].address;
                        live.push(primary.take(key, address, bytes, State::Live));
                    }
                }
                3 | 6 if !live.is_empty() => {
                    let key = live.swap_remove(pick as usize % live.len());
                    primary.blocks[key].small = primary.blocks[key].bytes <= SMALL;
                    let ticket = order.note_free(stream, &mut model);
                    let block = &primary.blocks[key];
                    let steps = (block.address..block.end()).step_by(ROUNDING as usize);
                    freed.extend(steps.map(|step| (step, ticket)));
                    if what == 3 || primary.blocks[key].small {
                        primary.free_block(key, LastUse::from_ticket(ticket, &order), &order);
                    } else {
                        primary.free_deferred(key, LastUse::from_ticket(ticket, &order));
                    }
                }
                4 => {
                    // Takes a range that may begin and end inside free blocks of different streams.
                    let address = (1 << 40) + pick % (64 * LEAST) / ROUNDING * ROUNDING;
                    let bytes = units * ROUNDING;
                    if let Some(first) = primary.large_run_at(address, bytes) {
                        let key = primary.take(first, address, bytes, State::Live);
                        prop_assert_eq!((primary.blocks[key].address, primary.blocks[key].bytes), (address, bytes));
                        live.push(key);
                    }
                }
                5 => {
                    primary.merge_deferred(&order);
                    primary.cut_completed_parts(&order, |last| last.is_usable_on(stream, &order));
                }
                _ => {
                    (0..3).filter(|slot| pick >> slot & 1 == 1).for_each(|slot| model.complete(slot));
                    order.poll(&mut model).unwrap();
                    primary.merge_deferred(&order);
                    primary.merge_boundaries(&order);
                    primary.merge_empty_small_runs(&order);
                }
            }
            primary.check();
            for key in primary.free_blocks(true).chain(primary.free_blocks(false)) {
                let block = &primary.blocks[key];
                let (from, to) = block.in_use(&order);
                for (step, ticket) in freed.range(block.address..block.end()) {
                    let known = (from..to).contains(step) && Some(ticket.slot()) == block.last.ticket().map(Ticket::slot);
                    prop_assert!(known || order.is_fence_reached(*ticket), "{step} {ticket:?} {block:?}");
                }
            }
            for key in &live {
                let block = &primary.blocks[*key];
                prop_assert_eq!(primary.block_at(block.address), Some(*key));
                prop_assert_eq!(primary.block_at(block.end() - 1), Some(*key));
            }
        }
    }
}
