//! Recording of a heap's allocations.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind};
use crate::heap::{Heap, HeapInner};
use crate::track::{DeviceFacts, Recorder, RecordingStatus};

/// A recording that [`Heap::record`] started. Dropping it ends the recording.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    heap: Weak<HeapInner>,
    path: PathBuf,
}

impl Heap {
    /// Records all allocations and frees of the heap into a file, until the result is dropped.
    /// `gpuheap report` and `gpuheap replay` read the file.
    ///
    /// The file has the size, kind, stream, thread, time and stack of each allocation, and failed
    /// requests. If the heap tracks [`Counts`](crate::Tracking::Counts), it has the line instead of
    /// the stack. Blocks that were allocated before this call are not in it. Memory that the heap
    /// caches is not in it either: `gpuheap run` records the heap's driver calls.
    ///
    /// An existing file is kept: the new one is `run.2.gph`, and [`path`](Recording::path) returns
    /// its name. `%p` in the path stands for the process id. Heaps that are given the same path
    /// share a file. The file is mapped: after a crash, it has all calls until then. If the disk is
    /// full, the recording stops, the program goes on, and the
    /// [status](crate::MemoryStatus::recording) has the reason.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use gpuheap::{Device, Heap};
    ///
    /// let device = Device::open("emulated:16GiB")?;
    /// let heap = Heap::new(&device)?;
    /// let file = std::env::temp_dir().join("gpuheap-example-%p.gph");
    /// let recording = heap.record(&file)?;
    /// let path = recording.path().to_owned();
    /// let array = heap.target()?.zeroed::<f32, _>(1 << 20)?;
    /// drop(array);
    /// drop(recording);
    ///
    /// let trace = &gpuheap_trace::read(&path, &Default::default())?[0];
    /// assert_eq!(trace.summary().peak_live_bytes, 4 << 20);
    /// # std::fs::remove_file(path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The file cannot be created; the heap is recorded already; the heap cannot be used.
    pub fn record(&self, path: impl AsRef<Path>) -> Result<Recording, Error> {
        let inner = self.inner();
        inner.context.check_alive()?;
        inner.start_recording(path.as_ref())?;
        let path = inner.tracker.recording().map(|status| status.path).unwrap_or_default();
        Ok(Recording { heap: Arc::downgrade(inner), path })
    }
}

impl HeapInner {
    pub(super) fn start_recording(&self, path: &Path) -> Result<(), Error> {
        let info = self.context.info();
        let facts = DeviceFacts {
            ordinal: info.ordinal,
            name: &info.product,
            bytes: info.total_memory,
            emulator: info.emulator,
        };
        let recorder = match self.tracker.recording() {
            None => Recorder::open(path, &facts)?,
            Some(status) => return Err(recorded_already(&status)),
        };
        let current = self.tracker.start(&recorder, info.ordinal);
        if !Arc::ptr_eq(&current, &recorder) {
            return Err(recorded_already(&current.status()));
        }
        self.reopen_caches();
        Ok(())
    }

    /// Closes all thread caches. Threads open new ones, which know whether allocations are
    /// recorded.
    fn reopen_caches(&self) {
        self.stores().for_each(|store| store.lock().close(|_| true));
    }
}

fn recorded_already(status: &RecordingStatus) -> Error {
    ErrorKind::BadSetting.error(format!(
        "the heap is recorded already, to {}; end that recording, or unset GPUHEAP_RECORD",
        status.path.display()
    ))
}

impl Recording {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held a lock.
        if let Some(heap) = self.heap.upgrade()
            && heap.context.check_alive().is_ok()
        {
            heap.tracker.stop();
            heap.reopen_caches();
        }
    }
}
