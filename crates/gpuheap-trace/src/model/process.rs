//! Facts of a recorded process: its memory's kinds, its threads and its end.

use std::sync::Arc;

/// Kind of recorded memory, by the function that allocated it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Plain device memory.
    #[default]
    Device,
    /// Device memory of rows with padding.
    Pitched,
    /// Managed memory. Its pages migrate between device and host.
    Managed,
    /// Stream-ordered memory of the device's current pool.
    StreamOrdered,
    /// Stream-ordered memory of a given pool.
    Pool,
    /// Physical memory of the virtual memory management. It is live until it is released and no
    /// address range maps it.
    Physical,
    /// Array for textures and surfaces.
    Array,
    /// Memory of a graph's node.
    Graph,
    /// Memory of another process, opened with a handle.
    Imported,
    /// Pinned host memory.
    Pinned,
    /// Host memory of the program that was pinned later.
    Registered,
}

impl MemoryKind {
    /// All kinds, in the order of their numbers in a capture.
    pub const ALL: [MemoryKind; 11] = [
        MemoryKind::Device,
        MemoryKind::Pitched,
        MemoryKind::Managed,
        MemoryKind::StreamOrdered,
        MemoryKind::Pool,
        MemoryKind::Physical,
        MemoryKind::Array,
        MemoryKind::Graph,
        MemoryKind::Imported,
        MemoryKind::Pinned,
        MemoryKind::Registered,
    ];

    /// Returns the name: `device`, `stream-ordered`, and so on.
    pub fn as_str(self) -> &'static str {
        match self {
            MemoryKind::Device => "device",
            MemoryKind::Pitched => "pitched",
            MemoryKind::Managed => "managed",
            MemoryKind::StreamOrdered => "stream-ordered",
            MemoryKind::Pool => "from a pool",
            MemoryKind::Physical => "physical",
            MemoryKind::Array => "array",
            MemoryKind::Graph => "graph",
            MemoryKind::Imported => "imported",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Registered => "registered",
        }
    }

    /// Returns `true` if the memory is host memory.
    pub fn is_host(self) -> bool {
        matches!(self, MemoryKind::Pinned | MemoryKind::Registered)
    }

    /// Returns `true` if the process takes device memory for this kind. Imported memory counts for
    /// the process that exported it.
    pub fn counts_on_device(self) -> bool {
        !self.is_host() && self != MemoryKind::Imported
    }

    /// Returns the space of the kind's addresses: 0 for pointers, 1 for handles of physical memory,
    /// 2 for handles of arrays, 3 for imported pointers. Within a space, addresses of live memory
    /// differ.
    pub fn space(self) -> u32 {
        match self {
            MemoryKind::Physical => 1,
            MemoryKind::Array => 2,
            MemoryKind::Imported => 3,
            _ => 0,
        }
    }
}

/// Thread of a recorded process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Id that the system gave the thread.
    pub id: u64,
    /// Name; empty if the thread has none.
    pub name: Arc<str>,
    /// `true` for the process's first thread.
    pub is_main: bool,
    /// Time of the thread's end, nanoseconds since the recording began. `None` if the thread lived
    /// until the recording ended.
    pub ended_ns: Option<u64>,
}

/// Process of a native capture.
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
    /// Memory, bytes.
    pub bytes: u64,
    /// Used bytes of the device before the process's first allocation, as the driver reported
    /// them: contexts, modules and other processes.
    pub used_before: Option<u64>,
    /// Bytes at the last time that the recorder read the driver's figure; `None` if it read none.
    pub coverage: Option<Coverage>,
}

/// Bytes that the driver and the recorder counted at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Used bytes of the device, as the driver reported them.
    pub used: u64,
    /// Live bytes of the recording on that device.
    pub recorded: u64,
}
