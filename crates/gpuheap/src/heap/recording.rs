//! Recording of a heap's allocations.

use std::path::Path;
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind};
use crate::heap::{Heap, HeapInner};
use crate::track::{DeviceFacts, Recorder};

/// A recording that [`Heap::record`] started. Dropping it ends the recording.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    heap: Weak<HeapInner>,
    recorder: Arc<Recorder>,
}

impl Heap {
    /// Records all allocations and frees of the heap into a file, until the result is dropped.
    /// `gpuheap report` and `gpuheap replay` read the file.
    ///
    /// The file has the size, kind, stream, thread, time and stack of each allocation, and failed
    /// requests. If the heap tracks [`Counts`](crate::Tracking::Counts), the file has lines instead
    /// of stacks. The file has neither blocks that were allocated before this call nor cached
    /// memory. `gpuheap run` records the heap's driver calls.
    ///
    /// An existing file `run.gph` is kept: the new file is `run.2.gph`. [`path`](Recording::path)
    /// returns the name. `%p` in the path stands for the process id. The file is memory-mapped:
    /// after a crash, it has all calls made before the crash. If the disk is full, the recording
    /// stops, the program goes on, a warning is logged, and [`stopped`](Recording::stopped) returns
    /// the reason.
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
        Recording::start(inner, path.as_ref())
    }
}

impl HeapInner {
    /// Starts to record. If `is_shared`, heaps that are given the same path share a file.
    pub(super) fn start_recording(
        &self,
        path: &Path,
        is_shared: bool,
    ) -> Result<Arc<Recorder>, Error> {
        let info = self.context.info();
        let facts = DeviceFacts {
            ordinal: info.ordinal,
            name: &info.product,
            bytes: info.total_memory,
            emulator: info.emulator,
        };
        let recorder = match self.tracker.current() {
            None => Recorder::open(path, &facts, is_shared)?,
            Some(current) => return Err(recorded_already(&current)),
        };
        let current = self.tracker.start(&recorder, info.ordinal);
        if !Arc::ptr_eq(&current, &recorder) {
            return Err(recorded_already(&current));
        }
        self.reopen_caches();
        Ok(recorder)
    }

    /// Closes all thread caches. Threads open new caches, which know whether allocations
    /// are recorded.
    fn reopen_caches(&self) {
        self.stores().for_each(|store| store.lock().close(|_| true));
    }
}

fn recorded_already(current: &Recorder) -> Error {
    let remedy = if current.is_shared() {
        "leave HeapBuilder::record out, or unset GPUHEAP_RECORD"
    } else {
        "end that recording first"
    };
    let path = current.path().display();
    ErrorKind::BadSetting.error(format!("the heap is recorded already, to {path}; {remedy}"))
}

impl Recording {
    pub(super) fn start(heap: &Arc<HeapInner>, path: &Path) -> Result<Recording, Error> {
        let recorder = heap.start_recording(path, false)?;
        Ok(Recording { heap: Arc::downgrade(heap), recorder })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.recorder.path()
    }

    /// Returns the reason for which the recording ended early, for example that the disk is full.
    /// The file has all calls until then.
    pub fn stopped(&self) -> Option<String> {
        self.recorder.status().stopped
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Skips this in a forked child: a thread of the parent may have held one of these locks.
        if let Some(heap) = self.heap.upgrade()
            && heap.context.check_alive().is_ok()
        {
            heap.tracker.stop();
            heap.reopen_caches();
        }
    }
}
