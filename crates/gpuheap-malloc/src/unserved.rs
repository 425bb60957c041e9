//! Counts of memory that the program takes from the driver and not from a heap.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap::Bytes;
use gpuheap_driver::CUresult;

use crate::settings;

/// Way in which a program takes memory that no heap serves.
#[derive(Clone, Copy)]
pub(crate) enum Foreign {
    /// By a call that heaps serve in general: in a context that the program made, on a stream that
    /// is capturing a graph, or after a refusal of the heap.
    Unserved,
    Managed,
    Pitched,
    Array,
    Pool,
    Virtual,
    /// Memory of another process, by its handle.
    Imported,
}

/// Handle of another process's memory, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([u8; 64]);

/// Number of allocations, and their bytes as far as the calls have them.
#[derive(Default)]
struct Counts {
    times: AtomicU64,
    bytes: AtomicU64,
}

const NAMES: [&str; 7] =
    ["unserved", "managed", "pitched", "arrays", "from pools", "virtual", "from other processes"];

static COUNTS: [Counts; NAMES.len()] =
    [const { Counts { times: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; NAMES.len()];

/// Counts an allocation if it succeeded, and returns its code. `bytes` is 0 if the call has no
/// size.
pub(crate) fn counted(kind: Foreign, bytes: usize, code: CUresult) -> CUresult {
    if code.is_success() {
        // Read before the exit, when the program may have changed its environment.
        let _ = settings::get();
        let counts = &COUNTS[kind as usize];
        counts.times.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    code
}

/// Account of the memory that was taken from the driver; empty if none was.
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
