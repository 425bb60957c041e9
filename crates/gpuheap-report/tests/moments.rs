//! Compares the holders at any moment with a naive model of the heap.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;

use gpuheap_report::{At, Report};
use gpuheap_trace::{Format, Trace, TraceBuilder};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        thread: u64,
        bytes: u64,
    },
    /// Frees one of the live blocks.
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let allocate = (0..3_u64, 1..5_u64)
        .prop_map(|(thread, size)| Step::Allocate { thread, bytes: size * 1000 });
    let free = any::<prop::sample::Index>().prop_map(Step::Free);
    prop::collection::vec(prop_oneof![allocate, free], 1..60)
}

/// Thread and bytes of each live block, by address.
type Heap = BTreeMap<u64, (u64, u64)>;

/// Runs the steps. Returns the trace, and the heap after each event.
fn run(steps: &[Step]) -> (Trace, Vec<Heap>) {
    let mut builder = TraceBuilder::new("made up", Format::RmmCsv);
    let mut heaps = vec![Heap::new()];
    for step in steps {
        let mut heap = heaps.last().unwrap().clone();
        let event = heaps.len() as u64;
        let at = |thread| gpuheap_trace::At { time_ns: event * 10, stream: 0, thread, stack: 0 };
        match step {
            Step::Allocate { thread, bytes } => {
                let address = event * 0x10000;
                builder.allocate(at(*thread), address, *bytes).unwrap();
                heap.insert(address, (*thread, *bytes));
            }
            Step::Free(_) if heap.is_empty() => continue,
            Step::Free(index) => {
                let address = *heap.keys().nth(index.index(heap.len())).unwrap();
                let (_, bytes) = heap.remove(&address).unwrap();
                builder.free(at(9), address, bytes).unwrap();
            }
        }
        heaps.push(heap);
    }
    (builder.finish(), heaps)
}

/// Groups the heap's blocks by name. Returns the bytes and the number of blocks of each group.
fn held(heap: &Heap, name: impl Fn(u64, u64) -> String) -> BTreeMap<String, (u64, u64)> {
    let mut groups = BTreeMap::new();
    for &(thread, bytes) in heap.values() {
        let group: &mut (u64, u64) = groups.entry(name(thread, bytes)).or_default();
        group.0 += bytes;
        group.1 += 1;
    }
    groups
}

fn shown(holders: &[gpuheap_report::Holder]) -> BTreeMap<String, (u64, u64)> {
    assert!(holders.is_sorted_by_key(|holder| std::cmp::Reverse(holder.bytes)));
    holders.iter().map(|holder| (holder.name.clone(), (holder.bytes, holder.blocks))).collect()
}

proptest! {
    #[test]
    fn holders_match_naive_model(steps in steps(), at in any::<prop::sample::Index>()) {
        let (trace, heaps) = run(&steps);
        prop_assume!(heaps.len() > 1);
        let event = at.index(heaps.len());
        let report = Report::new(&trace, At::Event(event as u64)).unwrap();
        let size = |_, bytes| format!("blocks of {}", gpuheap_text::Amount(bytes));
        let thread = |thread, _| format!("thread {thread}");
        prop_assert_eq!(shown(&report.held), held(&heaps[event], size));
        prop_assert_eq!(shown(&report.held_by_thread), held(&heaps[event], thread));
        prop_assert_eq!(shown(&report.left), held(heaps.last().unwrap(), size));
        let live = |heap: &Heap| heap.values().map(|&(_, bytes)| bytes).sum::<u64>();
        let peak = Report::new(&trace, At::Peak).unwrap();
        prop_assert_eq!(peak.held_bytes(), heaps.iter().map(live).max().unwrap());
    }
}
