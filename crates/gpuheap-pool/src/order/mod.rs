//! Stream order decides when a stream may reuse a block that another stream freed.
//!
//! Every free gets a [`Ticket`](crate::Ticket) with its stream, and a number that counts that
//! stream's frees. A block may be handed out again
//!
//! * on its own stream immediately, because the stream runs in order;
//! * on another stream once that stream waits for a fence recorded at or after the free;
//! * on any stream once such a fence is known to be reached.
//!
//! A heap keeps a stream alive until every free on the stream is fenced. It cannot keep a foreign
//! stream alive, so the program announces that stream's end in advance.
//!
//! A fence is recorded when another stream requests a block, not at every free: recording a fence
//! costs 140 ns on an H200, and most blocks are reused by their own stream. A wait for the fence
//! may therefore cover work enqueued after the free. A stream that may end unannounced is fenced at
//! every free, because its handle may be invalid later.
//!
//! A stream keeps few fences. If a stream has too many, it forgets the older half once that half is
//! reached. Until then, the newest fence is recorded again and covers later frees too. A stream
//! that already waits for that fence still waits only for the point recorded before.
//!
//! The program's own waits show progress without a fence. Each wait begins a moment
//! ([`Moments`](crate::Moments)), and each free is noted with its moment. Once a wait completes,
//! all frees of earlier moments are completed too.
//!
//! A stream that is capturing a graph is not fenced and does not wait: both would break the
//! capture. For other streams, frees on the capturing stream stay in flight until the capture ends.
//!
//! `slots.rs` contains the streams, from first use to end. `fences.rs` contains tickets, fences and
//! waits. `polling.rs` contains the queries that show progress.

mod fences;
mod polling;
mod slots;

pub use polling::Candidates;
pub use slots::{Order, StreamGuard};

#[cfg(test)]
mod tests {
    use super::Order;
    use super::fences::MOST_FENCES;
    use crate::source::MemorySource;
    use crate::stream::{StreamHandle, StreamRef};
    use crate::testing::{Model, Unannounced};

    /// Returns a transient stream and an ordinary one.
    fn streams(order: &mut Order, model: &mut Model) -> (StreamRef, StreamRef) {
        let transient = order.stream(1, StreamHandle(10), Unannounced::guard, model);
        (transient, order.stream(2, StreamHandle(20), || None, model))
    }

    #[test]
    fn transient_stream_keeps_few_fences() {
        for immediate in [true, false] {
            let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
            model.immediate = immediate;
            let (stream, other) = streams(&mut order, &mut model);
            let (mut freed, begin) = (Vec::new(), model.calls());
            for _ in 0..1000 {
                let clock = model.work(stream);
                let before = model.calls();
                freed.push((order.note_free(stream, &mut model), clock));
                assert!(model.calls() - before < 3, "one query at most for each free");
                assert!(model.fences() <= MOST_FENCES, "{}", model.fences());
            }
            assert!(!immediate || model.calls() - begin < 1_100, "one call for each free");
            for at in [999, 0, 500] {
                let (ticket, clock) = &freed[at];
                order.order_after(other, *ticket, &mut model).unwrap();
                assert!(model.is_ordered(stream.slot(), clock, other), "{immediate}: {at}");
            }
            model.complete(stream.slot());
            order.poll(&mut model).unwrap();
            assert!(freed.iter().all(|(ticket, _)| order.is_fence_reached(*ticket)));
            assert_eq!(model.fences(), 0);
        }
    }

    #[test]
    fn followed_stream_keeps_few_fences() {
        let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
        model.immediate = false;
        let (_, stream) = streams(&mut order, &mut model);
        let other = order.stream(3, StreamHandle(30), || None, &mut model);
        for _ in 0..1000 {
            let clock = model.work(stream);
            let ticket = order.note_free(stream, &mut model);
            order.order_after(other, ticket, &mut model).unwrap();
            assert!(model.is_ordered(stream.slot(), &clock, other));
            assert!(model.fences() <= MOST_FENCES, "{}", model.fences());
        }
    }

    #[test]
    fn next_fence_covers_failed_ones() {
        let (mut order, mut model) = (Order::default(), Model::new(1 << 30));
        model.immediate = false;
        let (stream, other) = streams(&mut order, &mut model);
        let mut free = |model: &mut Model, failing: Option<u64>| {
            let clock = model.work(stream);
            model.fail_call = failing.map(|nth| model.calls() + nth);
            let ticket = order.note_free(stream, model);
            model.fail_call = None;
            (ticket, clock)
        };
        (0..100).for_each(|_| drop(free(&mut model, None)));
        // The query of a fence fails in the first free, the record of a fence in the second.
        let late = [free(&mut model, Some(1)), free(&mut model, Some(2))];
        let last = free(&mut model, None);
        for (ticket, clock) in late.iter().chain([&last]) {
            order.order_after(other, *ticket, &mut model).unwrap();
            assert!(model.is_ordered(stream.slot(), clock, other));
        }
    }
}
