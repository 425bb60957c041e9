//! Defines the extent of a scope. The extent is the code that the scope governs.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::intern;
use pyo3::prelude::*;

/// The last serial that was given to a thread.
static LAST_SERIAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Serial of this thread. Unlike the interpreter's thread numbers, a serial is never reused in
    /// the process.
    static SERIAL: u64 = LAST_SERIAL.fetch_add(1, Ordering::Relaxed) + 1;
}

/// The code that a scope governs. It is all code that runs on one thread while the generator or
/// coroutine that opened the scope runs. When the generator ends, its caller inherits the scope.
pub(super) struct Extent {
    /// Serial of the thread.
    thread: u64,
    /// Weak references to the generators and coroutines on the stack, the innermost first. A strong
    /// reference would keep an abandoned generator alive, and thereby its scope open.
    resumable: Vec<Py<PyAny>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    Suspended,
    Ended,
}

impl Extent {
    pub(super) fn new(resumable: Vec<Py<PyAny>>) -> Extent {
        Extent { thread: thread_serial(), resumable }
    }

    /// Returns whether the scope governs the calling code.
    pub(super) fn is_running(&self, py: Python<'_>) -> PyResult<bool> {
        if self.thread != thread_serial() {
            return Ok(false);
        }
        Ok(match self.opener(py)? {
            Some((_, state)) => state == Progress::Running,
            None => true,
        })
    }

    /// Returns whether the scope of `other` may be inside this scope, although `other` was opened
    /// earlier. Both scopes govern the caller. Returns `true` if the generator that opened `other`
    /// was not on the stack when this scope was opened. It was then resumed inside this scope.
    pub(super) fn may_hold(&self, py: Python<'_>, other: &Extent) -> PyResult<bool> {
        let Some((opener, _)) = other.opener(py)? else { return Ok(false) };
        for known in &self.resumable {
            if known.bind(py).call0()?.is(&opener) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the innermost generator or coroutine that has not ended, and its state.
    fn opener<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>, Progress)>> {
        for reference in &self.resumable {
            let opener = reference.bind(py).call0()?;
            if opener.is_none() {
                continue;
            }
            match read_progress(&opener)? {
                Progress::Ended => {}
                state => return Ok(Some((opener, state))),
            }
        }
        Ok(None)
    }
}

/// Returns the state of a generator, a coroutine or an asynchronous generator.
fn read_progress(opener: &Bound<'_, PyAny>) -> PyResult<Progress> {
    let py = opener.py();
    let kind = opener.get_type();
    let name = kind.name()?;
    let (running, frame) = match name.to_str()? {
        "coroutine" => (Some(intern!(py, "cr_running")), intern!(py, "cr_frame")),
        // `ag_running` cannot be used, because it is also true while the generator awaits.
        "async_generator" => (None, intern!(py, "ag_frame")),
        _ => (Some(intern!(py, "gi_running")), intern!(py, "gi_frame")),
    };
    if let Some(running) = running
        && opener.getattr(running)?.is_truthy()?
    {
        return Ok(Progress::Running);
    }
    let frame = opener.getattr(frame)?;
    if frame.is_none() {
        return Ok(Progress::Ended);
    }
    let is_running = running.is_none() && !frame.getattr(intern!(py, "f_back"))?.is_none();
    Ok(if is_running { Progress::Running } else { Progress::Suspended })
}

/// Returns the serial of this thread. A serial is never reused in the process.
pub(crate) fn thread_serial() -> u64 {
    SERIAL.with(|serial| *serial)
}
