//! Facts about a recorded process: its threads, its devices and its end.

use std::ops;
use std::sync::Arc;

use gpuheap_capture::{CopyDirection, CopyMemory, MemoryKind};

/// Thread of a recorded process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Id that the system gave the thread.
    pub id: u64,
    /// `true` if several threads had this id, one after another.
    pub is_id_reused: bool,
    /// Time of the thread's first recorded call, nanoseconds since the recording began.
    pub started_ns: u64,
    /// Name; empty if the thread has none.
    pub name: Arc<str>,
    /// `true` for the process's first thread.
    pub is_main: bool,
    /// Time of the thread's end, nanoseconds since the recording began. `None` if the thread lived
    /// until the recording ended.
    pub ended_ns: Option<u64>,
}

/// Range that the program named with NVTX.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Range {
    /// Name, with the domain's name before it.
    pub name: Arc<str>,
    /// Index in [`Trace::threads`](crate::Trace::threads) of the thread whose calls are in the
    /// range; `None` for the calls of all threads.
    pub thread: Option<u32>,
    /// Indices of the events that all threads made while the range was open.
    pub events: ops::Range<usize>,
}

/// Process that a capture recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording {
    /// Process id.
    pub pid: u32,
    /// Id of the parent process.
    pub parent: u32,
    /// Path of the program.
    pub program: Arc<str>,
    /// Arguments, the program's name first.
    pub arguments: Vec<Arc<str>>,
    /// Start of the recording, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Time of the last record, nanoseconds since the recording began.
    pub ended_ns: u64,
    /// End of the recording.
    pub end: RecordingEnd,
    /// Devices, in the order of their first use.
    pub devices: Vec<RecordedDevice>,
    /// Copies, if they were recorded.
    pub copies: Vec<Copies>,
}

impl Recording {
    /// Returns a device by its ordinal; `None` if the process did not use the device.
    pub fn device(&self, ordinal: u32) -> Option<&RecordedDevice> {
        self.devices.iter().find(|device| device.ordinal == ordinal)
    }
}

/// Copies of one kind and stack.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// Direction.
    pub direction: CopyDirection,
    /// Memory on the host's side.
    pub memory: CopyMemory,
    /// `true` if the calls return before the copies are done.
    pub is_async: bool,
    /// Number of the stack, for [`Trace::stack`](crate::Trace::stack).
    pub stack: u32,
    /// Number of copies.
    pub count: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Time in the calls, in nanoseconds.
    pub call_ns: u64,
    /// Number of uploads whose data the same stack had uploaded before.
    pub repeated: u64,
    /// Bytes of these uploads.
    pub repeated_bytes: u64,
}

/// Allocations from one stack and thread that were freed immediately. The recorder only counted
/// them. None of them was live at the device's peak, or at the peak of a range of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoldedPairs {
    /// Number of events before this record.
    pub before: usize,
    /// Index into [`Trace::threads`](crate::Trace::threads).
    pub thread: u32,
    /// Number of the stack, for [`Trace::stack`](crate::Trace::stack).
    pub stack: u32,
    /// Kind of memory.
    pub kind: MemoryKind,
    /// Number of allocations. Each was freed.
    pub count: u64,
    /// Bytes of these allocations.
    pub bytes: u64,
    /// Bytes of the largest of these allocations.
    pub largest_bytes: u64,
}

/// End of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RecordingEnd {
    /// The process ended, and ran its exit handlers.
    Exit,
    /// The recorder stopped before the end of the process, for this reason.
    Stopped(Arc<str>),
    /// The process ended without its exit handlers: by a signal, `_exit` or `exec`. All calls until
    /// then are recorded.
    #[default]
    Unknown,
}

/// Device of a recorded process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedDevice {
    /// Ordinal in the process.
    pub ordinal: u32,
    /// Name.
    pub name: Arc<str>,
    /// Memory, in bytes.
    pub bytes: u64,
    /// Limit that `gpuheap run --limit` set, in bytes; `None` if it set no limit.
    pub limit: Option<u64>,
    /// Used bytes that the driver reported for the device before the process's first allocation.
    /// They include contexts, modules and other processes.
    pub used_before: Option<u64>,
    /// Latest comparison with the driver's used bytes; `None` if the recorder never read them.
    pub coverage: Option<Coverage>,
}

/// Bytes that the driver and the recorder counted at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Used bytes of the device, as the driver reported them.
    pub used: u64,
    /// Live bytes that the recorder counted for the device.
    pub recorded: u64,
}
