//! Publishes a heap's figures by line, holder, scope and library, for other processes.
//!
//! A separate thread answers other processes, and takes the interpreter's lock for these figures.
//! If the program keeps the lock, the answer comes in time, but without the figures.

use std::io;
use std::sync::{Arc, Weak};

use gpuheap::Access;
use gpuheap_publish::{
    Held, Leaks, LibraryMemory, MOST_ENTRIES, Member, Membership, OpenScope, Site,
};
use pyo3::prelude::*;

use crate::libraries::{LibraryBytes, live_of};
use crate::lines::Lines;
use crate::scope::OpenScopes;

/// Source of the figures of a heap that only the Python package has, such as the lines of
/// allocations. Other processes read these figures through the process's socket.
pub(crate) struct PythonPart {
    /// `None` if the heap records no lines.
    pub(crate) lines: Option<Weak<Lines>>,
    /// `None` if the heap shares the scopes of another heap. That heap publishes them.
    pub(crate) scopes: Option<Arc<OpenScopes>>,
    pub(crate) libraries: Arc<LibraryBytes>,
    /// Name of the heap's device.
    pub(crate) device: String,
}

impl PythonPart {
    /// Adds the part to the process's socket.
    pub(crate) fn join(self, access: Access) -> io::Result<Membership> {
        gpuheap_publish::join(Arc::new(self), access)
    }

    /// Takes the interpreter's lock and calls `work` with the heap's allocations by line. Returns
    /// `None` if the heap records no lines, or if the heap or the interpreter has ended.
    fn with_lines<R>(&self, work: impl FnOnce(Python<'_>, &Lines) -> PyResult<R>) -> Option<R> {
        Python::try_attach(|py| {
            // Keep `lines` in this closure: if it is the last reference, dropping it releases
            // Python objects, and that needs the interpreter's lock.
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

    fn libraries(&self) -> Vec<LibraryMemory> {
        let live: Vec<_> = live_of(&self.libraries).collect();
        let json = Python::try_attach(|py| {
            let found = py.import("gpuheap._watch")?.getattr("libraries")?;
            found.call1((live, &self.device))?.extract::<String>()
        });
        json.and_then(|json| serde_json::from_str(&json.ok()?).ok()).unwrap_or_default()
    }

    fn held(&self) -> Vec<Held> {
        let json = self.with_lines(|py, lines| {
            let found = py.import("gpuheap._holders")?.getattr("held_of")?;
            found
                .call1((lines.records(py, None, |_, _| true)?, &self.device, MOST_ENTRIES))?
                .extract::<String>()
        });
        json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }
}
