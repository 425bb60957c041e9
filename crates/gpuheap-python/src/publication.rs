//! Publishes the lines, holders and scopes of a heap for other processes.
//!
//! A thread that only answers questions takes the interpreter's lock here. If the program keeps the
//! lock, the question is answered in time, without these figures.

use std::io;
use std::sync::{Arc, Weak};

use gpuheap::Access;
use gpuheap_publish::{Held, Leaks, MOST_ENTRIES, Member, Membership, OpenScope, Site};
use pyo3::prelude::*;

use crate::lines::Lines;
use crate::scope::OpenScopes;

/// Python's figures of a heap: the part that this module adds to the process's socket.
pub(crate) struct PythonPart {
    /// `None` if the heap records no lines.
    pub(crate) lines: Option<Weak<Lines>>,
    /// `None` if the heap shares the scopes of another heap. That heap publishes them.
    pub(crate) scopes: Option<Arc<OpenScopes>>,
    /// Name of the heap's device.
    pub(crate) device: String,
}

impl PythonPart {
    /// Adds the part to the process's socket.
    pub(crate) fn join(self, access: Access) -> io::Result<Membership> {
        gpuheap_publish::join(Arc::new(self), access)
    }

    /// Calls `work` with the lines and the interpreter's lock. Returns `None` if the heap records
    /// no lines, or if the heap or the interpreter has ended.
    fn with_lines<R>(&self, work: impl FnOnce(Python<'_>, &Lines) -> PyResult<R>) -> Option<R> {
        Python::try_attach(|py| {
            // Dropped with the lock held, because it may be the last reference.
            let lines = self.lines.as_ref()?.upgrade()?;
            work(py, &lines).ok()
        })?
    }
}

impl Member for PythonPart {
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

    fn scopes(&self) -> Vec<OpenScope> {
        let figures = |scopes: &Arc<OpenScopes>| {
            Python::try_attach(|_| scopes.figures(&self.device)).unwrap_or_default()
        };
        self.scopes.as_ref().map(figures).unwrap_or_default()
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
