//! Counts memory that the program takes from the driver without a heap.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap::Bytes;
use gpuheap_driver::CUresult;

use crate::settings;

/// Kind of memory that no heap serves.
#[derive(Clone, Copy)]
pub(crate) enum Foreign {
    /// Memory from a call that heaps usually serve. No heap served it, because the program made the
    /// context, the stream was capturing a graph, or the heap refused the request.
    Unserved,
    Managed,
    Pitched,
    Array,
    Pool,
    Virtual,
    /// Memory that another process exported as a handle.
    Imported,
}

/// Handle for memory of another process. C passes it by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([u8; 64]);

/// Number of allocations and number of bytes. Calls that have no size add no bytes.
#[derive(Default)]
struct Counts {
    times: AtomicU64,
    bytes: AtomicU64,
}

const NAMES: [&str; 7] =
    ["unserved", "managed", "pitched", "arrays", "from pools", "virtual", "from other processes"];

static COUNTS: [Counts; NAMES.len()] =
    [const { Counts { times: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; NAMES.len()];

/// If the call succeeded, counts an allocation. Returns the call's `code`. Calls that have no size
/// pass 0 bytes.
pub(crate) fn counted(kind: Foreign, bytes: usize, code: CUresult) -> CUresult {
    if code.is_success() {
        // Reads the settings now, because the program may change its environment before the exit.
        let _ = settings::get();
        let counts = &COUNTS[kind as usize];
        counts.times.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    code
}

/// Text that accounts for memory that no heap serves; empty if all memory is from heaps.
pub(crate) struct Account;

impl Account {
    pub(crate) fn is_empty() -> bool {
        COUNTS.iter().all(|counts| counts.times.load(Ordering::Relaxed) == 0)
    }
}

impl Display for Account {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, counts) in NAMES.iter().zip(&COUNTS) {
            let times = counts.times.load(Ordering::Relaxed);
            if times == 0 {
                continue;
            }
            write!(f, "{separator}{name} {times}")?;
            match counts.bytes.load(Ordering::Relaxed) {
                0 => {}
                bytes => write!(f, " ({})", Bytes(bytes))?,
            }
            separator = ", ";
        }
        Ok(())
    }
}
