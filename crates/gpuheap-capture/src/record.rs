//! Records of a capture.

use std::borrow::Cow;

use crate::field::{Address, Count, DecodeError, Deltas, Field, Time};
use crate::{CopyDirection, CopyMemory, MemoryKind};

/// First bytes of a capture. As in PNG, they contain line ends: a transfer in text mode changes
/// them, and a reader then refuses the damaged capture.
pub const MAGIC: [u8; 8] = *b"\x89GPH\r\n\x1a\n";

/// Version of the format. It follows the magic, as two bytes, low byte first.
///
/// No release of gpuheap has written captures yet, so version 1 still gets new records and kinds.
/// An older reader refuses a capture that has them, because an unknown tag or kind is an error.
/// After a release, a new record or kind needs a new version.
pub const VERSION: u16 = 1;

/// Maximum number of open ranges. It bounds the cost of a report on a program that never ends its
/// ranges.
pub const OPEN_RANGES: usize = 4096;

macro_rules! records {
    ($($(#[$doc:meta])* $tag:literal $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {
        /// Record of a capture.
        ///
        /// Texts, threads, modules, frames, stacks and ranges are numbered in the order of their
        /// records, each from 1. Number 0 means the empty text, no frame or the empty stack. A
        /// field `thread`, `stack` or `range` is such a number. `device` is an ordinal. `space` is
        /// the [space](MemoryKind::space) of an address. `stream` is a handle or an id, or 0 for
        /// the default stream.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the documentation of the enum has the repeated fields")]
        pub enum Record<'a> {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type),* },)*
        }

        impl<'a> Record<'a> {
            /// Appends the record's bytes: the tag, then the fields.
            pub fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
                match self {
                    $(Record::$name { $($field),* } => {
                        out.push($tag);
                        $($field.encode(deltas, out);)*
                    })*
                }
            }

            /// Decodes a record at the start of `input`. Returns `None` if no bytes are left, or if
            /// the tag is 0, as in the unused rest of a mapped file.
            ///
            /// # Errors
            /// Returns an error if the record is cut or invalid.
            pub fn decode(
                deltas: &mut Deltas,
                input: &mut &'a [u8],
            ) -> Result<Option<Record<'a>>, DecodeError> {
                let Some(tag) = input.split_off_first() else { return Ok(None) };
                match *tag {
                    0 => Ok(None),
                    $($tag => Ok(Some(Record::$name { $($field: Field::decode(deltas, input)?),* })),)*
                    _ => Err(DecodeError::Invalid),
                }
            }
        }
    };
}

records! {
    /// Text to which later records refer by number.
    1 Text {
        text: &'a str,
    }
    /// Recorded process. The first record after the header.
    2 Process {
        pid: u32,
        /// Id of the parent process.
        parent: u32,
        /// Start of the recording, nanoseconds since 1970.
        started_unix_ns: u64,
        /// Path of the program.
        program: &'a str,
        /// Arguments. The program's name comes first. A NUL byte ends each argument.
        arguments: &'a str,
    }
    /// Executable segment of a loaded file.
    3 Module {
        /// Path of the file.
        path: &'a str,
        /// Build id in hexadecimal digits; empty if the file has none.
        build_id: &'a str,
        start: u64,
        /// End of the addresses, exclusive.
        end: u64,
        /// Address at which the file's address 0 is loaded.
        base: u64,
    }
    /// Frame of an interpreter. The fields `function` and `file` are numbers of `Text` records.
    4 Frame {
        /// Number of the function's name.
        function: u32,
        file: u32,
        line: u32,
    }
    /// Call stack, innermost frame first.
    5 Stack {
        /// Return addresses of native frames.
        addresses: Cow<'a, [u64]>,
        /// Numbers of the interpreter's frames.
        frames: Cow<'a, [u32]>,
    }
    /// Device of the process.
    6 Device {
        /// Ordinal in the process.
        ordinal: u32,
        name: &'a str,
        /// Memory, in bytes.
        bytes: u64,
    }
    /// Thread that makes its first recorded call.
    7 ThreadStart {
        time: Time,
        /// The system's id of the thread. The main thread's id is the process id.
        id: u64,
        name: &'a str,
    }
    /// End of a thread.
    8 ThreadEnd {
        time: Time,
        thread: u32,
        /// Name at the end.
        name: &'a str,
    }
    /// Allocation.
    9 Allocate {
        time: Time,
        thread: u32,
        kind: MemoryKind,
        device: u32,
        stream: u64,
        /// Address of the memory, or the handle if this is physical memory or an array.
        address: Address,
        /// Size in bytes.
        bytes: u64,
        stack: u32,
    }
    /// Free of memory. The record is written before the driver frees the memory, because another
    /// thread may then get the address.
    10 Free {
        time: Time,
        thread: u32,
        space: u32,
        stream: u64,
        address: Address,
    }
    /// Failure of the free that was recorded last for this address. The memory stays allocated.
    11 FreeFailed {
        time: Time,
        space: u32,
        address: Address,
    }
    /// Request that failed.
    12 Fail {
        time: Time,
        thread: u32,
        kind: MemoryKind,
        device: u32,
        stream: u64,
        /// Requested bytes.
        bytes: u64,
        stack: u32,
        /// Code that the program got.
        code: u32,
        /// 1 if a limit or a deliberate failure refused the request, 0 if the driver refused it.
        is_limit: u32,
    }
    /// Memory of a device as the driver reports it.
    13 DriverMemory {
        time: Time,
        device: u32,
        free: u64,
        total: u64,
    }
    /// Start of a range that the program named. Ranges are numbered from 1.
    15 RangeStart {
        time: Time,
        /// Number of the thread whose calls are in the range; 0 for the calls of all threads.
        thread: u32,
        /// Number of the name's text.
        name: u32,
    }
    /// End of a range.
    16 RangeEnd {
        time: Time,
        range: u32,
    }
    /// Ranges that are not recorded, because [`OPEN_RANGES`] ranges were open. Readers add the
    /// counts of all such records.
    18 LostRanges {
        /// Number of ranges.
        count: u64,
    }
    /// Count of all copies so far of this kind from this call stack. A later record of the same
    /// kind and stack replaces an earlier one.
    17 Copies {
        time: Time,
        direction: CopyDirection,
        /// Memory on the host's side.
        memory: CopyMemory,
        /// 1 if the calls return before the copies are done, else 0.
        is_async: u32,
        stack: u32,
        /// Number of copies.
        count: u64,
        /// Bytes of these copies.
        bytes: u64,
        /// Time in the calls, in nanoseconds.
        call_ns: u64,
        /// Number of repeated uploads in `count`. Such a copy uploads data that a copy from the
        /// same stack uploaded before.
        repeated: u64,
        /// Bytes of these repeated uploads.
        repeated_bytes: u64,
    }
    /// Limit of a device's memory, for the process or for all processes of the run.
    19 Limit {
        device: u32,
        /// Limit, in bytes.
        bytes: u64,
    }
    /// End of the recording.
    14 End {
        time: Time,
        /// Reason why the recording ended early; empty if it ended with the process.
        reason: &'a str,
    }
    /// Mapping of physical memory to addresses. Recorded only if blocks of pools are recorded too.
    20 Map {
        time: Time,
        address: Address,
        /// Size in bytes.
        bytes: u64,
        /// Handle of the physical memory.
        handle: u64,
    }
    /// End of the mappings in a range of addresses.
    21 Unmap {
        time: Time,
        address: Address,
        /// Size in bytes.
        bytes: u64,
    }
    /// Count that replaces the records of allocations that were freed immediately. No range started
    /// or ended between these allocations and this record.
    22 Folded {
        /// Time of the first free.
        time: Time,
        /// Number of the thread that allocated.
        thread: u32,
        kind: MemoryKind,
        device: u32,
        stack: u32,
        /// Number of allocations.
        count: Count,
        /// Bytes of these allocations.
        bytes: Count,
        /// Bytes of the largest of these allocations.
        largest: Count,
    }
}

/// Returns the first bytes of a capture.
pub fn header() -> [u8; 10] {
    let mut header = [0; 10];
    header[..8].copy_from_slice(&MAGIC);
    header[8..].copy_from_slice(&VERSION.to_le_bytes());
    header
}

macro_rules! numbered_fields {
    ($($name:ident)*) => {$(
        impl Field<'_> for $name {
            fn encode(&self, deltas: &mut Deltas, out: &mut Vec<u8>) {
                (*self as u32).encode(deltas, out);
            }

            fn decode(deltas: &mut Deltas, input: &mut &[u8]) -> Result<$name, DecodeError> {
                let number = u32::decode(deltas, input)? as usize;
                $name::ALL.get(number).copied().ok_or(DecodeError::Invalid)
            }
        }
    )*};
}

numbered_fields!(MemoryKind CopyDirection CopyMemory);
