//! Returns cached memory to the driver while a heap is idle.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::device::is_visiting;
use crate::error::Error;
use crate::heap::{Heap, HeapInner};
use crate::logging;
use crate::size::Bytes;
use crate::sync::this_thread;

/// Shortest idle time. A shorter time would make a busy loop.
const SHORTEST: Duration = Duration::from_millis(1);

/// The thread that watches a heap. Dropping this value ends the thread.
pub(crate) struct IdleTrim {
    shared: Arc<IdleState>,
    thread: Thread,
}

#[derive(Default)]
struct IdleState {
    ended: AtomicBool,
    /// [Identifier](this_thread) of the thread, once it runs.
    number: AtomicU64,
    /// `true` while nothing may use the device.
    paused: AtomicBool,
    /// Lock that the thread holds while it uses the heap.
    pass: Mutex<()>,
}

impl IdleTrim {
    /// Starts a thread that gives back all cached memory of `heap` once nothing was allocated or
    /// freed for `after`.
    pub(crate) fn start(heap: Weak<HeapInner>, after: Duration) -> io::Result<IdleTrim> {
        let shared: Arc<IdleState> = Arc::default();
        let watched = shared.clone();
        let name = "gpuheap-idle".to_owned();
        let spawned = thread::Builder::new().name(name).spawn(move || {
            watched.number.store(this_thread(), Ordering::Relaxed);
            watch(&heap, after.max(SHORTEST), &watched);
        })?;
        Ok(IdleTrim { shared, thread: spawned.thread().clone() })
    }

    /// Stops the thread from using the heap. If the thread is using the heap, waits until it is
    /// done.
    pub(crate) fn pause(&self) {
        self.shared.paused.store(true, Ordering::Release);
        let _pass = self.shared.pass.lock();
    }

    /// Allows the thread to use the heap again.
    pub(crate) fn resume(&self) {
        self.shared.paused.store(false, Ordering::Release);
    }

    /// Ends the thread. Takes no lock, because the thread itself may call this while it drops the
    /// last reference to the heap. A forked child, in which the thread does not run, may call this
    /// too.
    pub(crate) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Heap {
    /// Drops the heap, and waits until it has ended. If no other clone and no block of the heap
    /// exist, all its memory has returned to the driver when this call returns. Three kinds of
    /// threads may hold the heap for a moment, and this call waits for them. One is the thread of
    /// an [idle trim](crate::HeapBuilder::idle_trim). Another is the thread that answers other
    /// processes. The third is a thread whose request to another heap reclaims this heap's cached
    /// memory.
    pub fn close(self) {
        // Does not wait in a forked child: a thread that no longer exists may have held the lock.
        // Does not wait on a thread that is visiting heaps, because it would wait for itself.
        let can_wait = !self.is_forked() && !is_visiting();
        let visits = can_wait.then(|| self.inner().visits.clone());
        self.drop_and_wait();
        if let Some(visits) = visits {
            drop(visits.write());
        }
    }

    fn drop_and_wait(self) {
        // Skips the wait if the idle trim's thread does not exist, or is the calling thread.
        let idle = self.inner().idle.get().map(|idle| idle.shared.clone()).filter(|idle| {
            // `std::thread::current` panics in destructors that run after the thread-local
            // variables were destroyed.
            !self.is_forked() && idle.number.load(Ordering::Relaxed) != this_thread()
        });
        let Some(shared) = idle else { return };
        // Drops the heap before it takes a lock, because the drop calls the logger, and the logger
        // may reset the device.
        drop(self);
        // Waits until the idle trim's thread is done with the heap: it drops its reference before
        // it releases `pass`, and cannot get another one.
        drop(shared.pass.lock());
    }
}

impl Drop for IdleTrim {
    fn drop(&mut self) {
        self.end();
    }
}

fn watch(heap: &Weak<HeapInner>, after: Duration, shared: &IdleState) {
    let (mut last, mut since) = (None, Instant::now());
    // `true` if nothing was allocated or freed since all cached memory was given back.
    let mut done = false;
    loop {
        let wait = if done { after } else { after.saturating_sub(since.elapsed()) };
        thread::park_timeout(wait);
        let pass = shared.pass.lock();
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        if shared.paused.load(Ordering::Acquire) {
            since = Instant::now();
            continue;
        }
        let Some(inner) = heap.upgrade() else { return };
        if inner.context.check_alive().is_err() {
            return;
        }
        let now = inner.events();
        if last != Some(now) {
            (last, since, done) = (Some(now), Instant::now(), false);
        } else if !done && since.elapsed() >= after {
            // If this fails, the thread tries again after its next wait.
            let regained: Result<u64, Error> =
                inner.stores().map(|store| store.reclaim(u64::MAX)).sum();
            (done, since) = (regained.is_ok(), Instant::now());
            let device = inner.context.to_string();
            // Drops the heap and the lock before the log call: the logger may reset the device.
            drop(inner);
            drop(pass);
            let regained = Bytes(regained.unwrap_or(0));
            logging::debug(
                logging::RECLAIM,
                format_args!(
                    "{regained} of {device} went back to the driver, unused for {after:?}"
                ),
            );
        }
    }
}

impl HeapInner {
    /// Returns the number of allocations and frees of all kinds.
    fn events(&self) -> u64 {
        let stats = self.stores().map(|store| store.lock().stats());
        stats.map(|stats| stats.allocations + stats.frees).sum()
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::error::Error;
    use crate::{Device, PoolKind};

    #[test]
    fn close_waits_for_idle_thread() -> Result<(), Error> {
        let device = Device::open("emulated:1GiB")?;
        let heap = Heap::builder(&device).pool(PoolKind::Split);
        let heap = heap.idle_trim(Duration::from_secs(3600)).build()?;
        heap.allocate(1 << 20, &device.stream()?)?.free()?;
        let taken = || device.emulator().map(|emulator| emulator.usage(0).plain);
        assert_ne!(taken(), Some(0));
        let (inner, (begun, wait)) = (Arc::downgrade(heap.inner()), channel());
        let shared = heap.inner().idle.get().map(|idle| idle.shared.clone()).unwrap_or_default();
        // Holds the lock `pass` and a reference to the heap for a moment, as the idle trim does.
        let busy = thread::spawn(move || {
            let _pass = shared.pass.lock();
            let _held = inner.upgrade();
            let _ = begun.send(());
            thread::sleep(Duration::from_millis(100));
        });
        let _ = wait.recv();
        heap.close();
        assert_eq!(taken(), Some(0));
        assert!(busy.join().is_ok());
        Ok(())
    }
}
