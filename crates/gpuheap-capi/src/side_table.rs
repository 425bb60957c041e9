//! Scopes and further streams of allocations. Few allocations have any.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::{Block, Device, Error, Stream};
use rustc_hash::FxHashMap;

use crate::scope::Scope;

/// The scopes and streams of a heap's allocations, by address. While no allocation has any, an
/// allocation and a free pay the load of a number.
#[derive(Default)]
pub(crate) struct SideTable {
    count: AtomicUsize,
    by_address: Mutex<FxHashMap<u64, SideEntry>>,
}

/// The scope and the streams of one allocation.
#[derive(Default)]
pub(crate) struct SideEntry {
    /// The open scope in which it was allocated.
    pub(crate) scope: Option<Arc<Scope>>,
    /// Further streams that the free is ordered after.
    also_on: Vec<Stream>,
}

impl SideTable {
    /// Changes the entry of an allocation. No thread frees the allocation meanwhile.
    pub(crate) fn change(&self, address: u64, change: impl FnOnce(&mut SideEntry)) {
        let mut entries = self.lock();
        let before = entries.len();
        change(entries.entry(address).or_default());
        self.count.fetch_add(entries.len() - before, Ordering::Relaxed);
    }

    /// Returns `true` if no allocation that the calling thread may free has a scope or a stream.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // A thread that frees got the address after the change, so it sees a number that counts
        // this allocation.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes the entry of an allocation that the calling thread is about to free. The allocation
    /// leaves its scope.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<SideEntry> {
        if self.is_empty() { None } else { self.take_listed(address) }
    }

    #[cold]
    fn take_listed(&self, address: u64) -> Option<SideEntry> {
        let entry = self.lock().remove(&address)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(scope) = &entry.scope {
            scope.leave(address);
        }
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, SideEntry>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SideEntry {
    /// Orders the free after the work that `stream` has by then.
    pub(crate) fn use_on(&mut self, stream: &Stream) {
        let is_it = |known: &Stream| known.id() == stream.id() && !known.is_retired();
        if !self.also_on.iter().any(is_it) {
            self.also_on.push(stream.clone());
        }
    }

    /// Frees the block in the order of its own stream and of all streams that use it: each of them
    /// waits for the one before, and the block is freed in the order of the last. Streams that
    /// ended cannot be named any more, so the host waits for the device once.
    pub(crate) fn free(self, block: Block, device: &Device) -> Result<(), Error> {
        match self.last_stream(device) {
            Ok(Some(last)) => block.free_on(last),
            Ok(None) => block.free(),
            Err(error) => {
                // A stream may still use the memory, so nothing may reuse it.
                std::mem::forget(block);
                Err(error)
            }
        }
    }

    /// Returns a stream that waits for the work of all other live streams.
    fn last_stream(&self, device: &Device) -> Result<Option<&Stream>, Error> {
        if self.also_on.iter().any(Stream::is_retired) {
            device.synchronize()?;
        }
        let mut last: Option<&Stream> = None;
        for stream in self.also_on.iter().filter(|stream| !stream.is_retired()) {
            if let Some(before) = last {
                stream.wait(&before.record()?)?;
            }
            last = Some(stream);
        }
        Ok(last)
    }
}
