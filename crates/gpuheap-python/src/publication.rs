//! Lines and holders of a published heap, for other processes.
//!
//! A thread that only answers questions takes the interpreter's lock here. If the program keeps the
//! lock, the question is answered in time without the lines.

use std::io;
use std::sync::{Arc, Weak};

use gpuheap::Access;
use gpuheap_publish::{Held, Leaks, MOST_ENTRIES, Member, Membership, Site};
use pyo3::prelude::*;

use crate::lines::Lines;

/// The lines of a heap, as a member of the process's socket.
struct PublishedLines {
    lines: Weak<Lines>,
    /// Name of the heap's device.
    device: String,
}

/// Adds the lines of a heap to the process's socket.
pub(crate) fn join(lines: &Arc<Lines>, device: &str, access: Access) -> io::Result<Membership> {
    let (lines, device) = (Arc::downgrade(lines), device.to_owned());
    gpuheap_publish::join(Arc::new(PublishedLines { lines, device }), access)
}

impl PublishedLines {
    /// Calls `work` with the lines and the interpreter's lock. Returns `None` if the heap or the
    /// interpreter has ended.
    fn with_lines<R>(&self, work: impl FnOnce(Python<'_>, &Lines) -> PyResult<R>) -> Option<R> {
        Python::try_attach(|py| {
            // Dropped with the lock held, because it may be the last reference.
            let lines = self.lines.upgrade()?;
            work(py, &lines).ok()
        })?
    }
}

impl Member for PublishedLines {
    fn leaks(&self) -> Option<Leaks> {
        self.with_lines(|py, lines| {
            let (largest, left_out) = lines.largest(py, MOST_ENTRIES)?;
            let site = |(file, line, function, allocations, bytes)| Site {
                line: format!("{file}:{line}"),
                function,
                device: self.device.clone(),
                kind: "device".to_owned(),
                allocations,
                bytes,
            };
            let sites = largest.into_iter().map(site).collect();
            Ok(Leaks { is_tracked: true, sites, left_out: left_out as u64 })
        })
    }

    fn held(&self) -> Vec<Held> {
        let held = self.with_lines(|py, lines| {
            let records = lines.records(py)?;
            let found = py
                .import("gpuheap._holders")?
                .call_method1("held_of", (records, MOST_ENTRIES))?
                .extract::<Vec<(u64, String, u32, f64, Vec<String>)>>()?;
            let show = |(bytes, file, line, age_seconds, holders)| Held {
                line: format!("{file}:{line}"),
                device: self.device.clone(),
                bytes,
                age_seconds,
                holders,
            };
            Ok(found.into_iter().map(show).collect())
        });
        held.unwrap_or_default()
    }
}
