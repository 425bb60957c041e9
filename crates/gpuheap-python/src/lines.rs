//! Outstanding allocations, keyed by the Python line that made them.
//!
//! A line is a code object and a line number, found in the frames of the calling thread. Frames of
//! libraries that pass memory to the program are skipped. The line is therefore the program's
//! innermost line. An allocation walks the frames and increments a count. Texts of lines are made
//! only when a report needs them. The line number of an instruction is computed only once.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use gpuheap::Error;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::failure::call;
use crate::frames::{code_of, frames, line_of, places};
use crate::locked::locked;
use crate::scope::{Counts, thread_serial};

/// Outstanding allocations of one heap, keyed by line.
pub(crate) struct Lines {
    heap: gpuheap::Heap,
    state: Mutex<Table>,
}

/// Index of an allocation's record, for `Lines::freed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId(u32);

#[derive(Default)]
struct Table {
    /// Code objects, keyed by address. The table holds each object, so that no other object gets
    /// its address.
    codes: FxHashMap<usize, Code>,
    /// Number of code objects at which the table drops the unused ones.
    prune_at: usize,
    /// Indices into `lines`, keyed by a code object's address and a line number.
    by_place: FxHashMap<(usize, i32), u32>,
    /// Indices into `lines`, keyed by a code object's address and the offset of an instruction.
    by_instruction: FxHashMap<(usize, i64), u32>,
    lines: Vec<Option<Line>>,
    vacant_lines: Vec<u32>,
    /// Indices into `threads`, keyed by the interpreter's number of a thread.
    by_ident: FxHashMap<u64, u32>,
    threads: Vec<Thread>,
    records: Vec<Option<Record>>,
    vacant: Vec<u32>,
}

struct Code {
    object: Py<PyAny>,
    /// `false` for code of a library that passes memory to the program.
    is_program: bool,
}

/// A thread that allocated. After a thread has ended, the interpreter gives its number to a later
/// thread.
struct Thread {
    /// Unique number of the thread. It is never reused in the process.
    serial: u64,
    name: String,
    /// Number of outstanding allocations.
    allocations: u64,
}

struct Line {
    /// Address of the code object.
    code: usize,
    number: i32,
    allocations: u64,
    bytes: u64,
}

#[derive(Clone)]
struct Record {
    address: u64,
    bytes: u64,
    line: u32,
    thread: u32,
    /// The innermost scope of the allocation.
    scope: Option<Arc<Counts>>,
    since: Instant,
}

/// The line or the thread of an allocation is not in the table yet.
struct NotKnown;

/// A line's memory as a tuple `(file, line, function, allocations, bytes, thread_names)`.
pub(crate) type LineMemory<'py> = (String, i32, String, u64, u64, Bound<'py, PyTuple>);

/// A line's memory as a tuple `(file, line, function, allocations, bytes)`.
pub(crate) type Largest = (String, i32, String, u64, u64);

impl Lines {
    pub(crate) fn new(heap: gpuheap::Heap) -> Lines {
        Lines { heap, state: Mutex::default() }
    }

    /// Records an allocation of the calling line. Returns `None` if the thread has no Python frame.
    pub(crate) fn allocated(&self, py: Python<'_>, address: u64, bytes: u64) -> Option<RecordId> {
        self.allocated_again(address, bytes).unwrap_or_else(|NotKnown| {
            let record = self.record(py, address, bytes, |ident| thread_name(py, ident));
            self.prune();
            record
        })
    }

    /// Records an allocation as [`allocated`](Lines::allocated) does, without running Python. Takes
    /// the interpreter's lock for the first allocation of a line or a thread, and may wait for it.
    /// A thread that was not seen before is named by its number.
    pub(crate) fn allocated_below(&self, address: u64, bytes: u64) -> Option<RecordId> {
        self.allocated_again(address, bytes).unwrap_or_else(|NotKnown| {
            let name = |ident| format!("thread {ident}");
            Python::try_attach(|py| self.record(py, address, bytes, name)).flatten()
        })
    }

    /// Records an allocation of a known line and thread, without the interpreter's lock.
    fn allocated_again(&self, address: u64, bytes: u64) -> Result<Option<RecordId>, NotKnown> {
        let mut state = self.lock().map_err(|_| NotKnown)?;
        let known = state.known_line(places().ok_or(NotKnown)?)?;
        let Some(line) = known else { return Ok(None) };
        let thread = state.thread(thread_ident(), thread_serial()).ok_or(NotKnown)?;
        Ok(state.add(line, thread, address, bytes))
    }

    /// Records an allocation of the calling line, even if the line or the thread was not seen
    /// before. Returns `None` if the thread has no Python frame.
    fn record(
        &self,
        py: Python<'_>,
        address: u64,
        bytes: u64,
        name_of: impl FnOnce(u64) -> String,
    ) -> Option<RecordId> {
        let (code, number) = self.calling_line(py)?;
        let (ident, serial) = (thread_ident(), thread_serial());
        let mut state = self.lock().ok()?;
        let thread = match state.thread(ident, serial) {
            Some(known) => known,
            None => {
                drop(state);
                let name = name_of(ident);
                state = self.lock().ok()?;
                state.new_thread(ident, Thread { serial, name, allocations: 0 })
            }
        };
        let line = state.line(&code, number)?;
        let at = code.as_ptr() as usize;
        let found = places().and_then(|mut places| places.find(|place| place.0 == at));
        if let Some(place) = found {
            state.by_instruction.insert(place, line);
        }
        state.add(line, thread, address, bytes)
    }

    pub(crate) fn assign(&self, id: RecordId, scope: &Arc<Counts>) {
        let Ok(mut state) = self.lock() else { return };
        if let Some(Some(record)) = state.records.get_mut(id.0 as usize) {
            record.scope = Some(scope.clone());
        }
    }

    /// Removes the record of a freed allocation. In a forked child the record may stay, because a
    /// child frees nothing.
    pub(crate) fn freed(&self, id: RecordId) {
        let Ok(mut state) = self.lock() else { return };
        let Some(record) = state.records.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        state.vacant.push(id.0);
        if let Some(line) = &mut state.lines[record.line as usize] {
            line.allocations -= 1;
            line.bytes -= record.bytes;
        }
        state.threads[record.thread as usize].allocations -= 1;
        // Drops the record after the lock is released, because the drop may end a scope.
        drop(state);
        drop(record);
    }

    /// Returns the lines that hold memory, most bytes first.
    pub(crate) fn outstanding<'py>(&self, py: Python<'py>) -> PyResult<Vec<LineMemory<'py>>> {
        let mut lines: Vec<_> = {
            let state = call(py, || self.lock())?;
            let mut threads: FxHashMap<u32, FxHashSet<u32>> = FxHashMap::default();
            for record in state.records.iter().flatten() {
                threads.entry(record.line).or_default().insert(record.thread);
            }
            let held = (0_u32..).zip(&state.lines);
            let named = held.filter_map(|(at, line)| {
                let line = line.as_ref().filter(|line| line.allocations > 0)?;
                let code = state.codes.get(&line.code)?.object.clone_ref(py);
                let of = threads.get(&at).into_iter().flatten();
                let names = of.map(|thread| state.threads[*thread as usize].name.clone());
                let mut names: Vec<String> = names.collect();
                names.sort_unstable();
                names.dedup();
                Some((code, line.number, line.allocations, line.bytes, names))
            });
            named.collect()
        };
        lines.sort_by_key(|(_, _, _, bytes, _)| std::cmp::Reverse(*bytes));
        lines
            .into_iter()
            .map(|(code, line, allocations, bytes, threads)| {
                let (file, function) = names(code.bind(py))?;
                Ok((file, line, function, allocations, bytes, PyTuple::new(py, threads)?))
            })
            .collect()
    }

    /// Returns the `most` lines with the most bytes, and the number of further lines. Takes one
    /// step for each line, however many allocations the line has.
    pub(crate) fn largest(&self, py: Python<'_>, most: usize) -> PyResult<(Vec<Largest>, usize)> {
        let mut lines: Vec<_> = {
            let state = call(py, || self.lock())?;
            let held = state.lines.iter().flatten().filter(|line| line.allocations > 0);
            let coded = held.filter_map(|line| {
                let code = state.codes.get(&line.code)?.object.clone_ref(py);
                Some((code, line.number, line.allocations, line.bytes))
            });
            coded.collect()
        };
        lines.sort_by_key(|(_, _, _, bytes)| std::cmp::Reverse(*bytes));
        let left_out = lines.len().saturating_sub(most);
        let named = lines.iter().take(most).map(|(code, line, allocations, bytes)| {
            let (file, function) = names(code.bind(py))?;
            Ok((file, *line, function, *allocations, *bytes))
        });
        Ok((named.collect::<PyResult<_>>()?, left_out))
    }

    /// Returns outstanding allocations as dictionaries, the oldest first. Includes allocations for
    /// which `is_wanted` returns `true`; its arguments are address and bytes. If `scope` is given,
    /// includes only allocations of that scope and of scopes inside it.
    pub(crate) fn records<'py>(
        &self,
        py: Python<'py>,
        scope: Option<u32>,
        mut is_wanted: impl FnMut(u64, u64) -> bool,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let mut is_selected = |record: &Record| {
            let is_inside = |number| record.scope.as_ref().is_some_and(|of| of.is_inside(number));
            scope.is_none_or(is_inside) && is_wanted(record.address, record.bytes)
        };
        let mut records: Vec<_> = {
            let state = call(py, || self.lock())?;
            let live = state.records.iter().flatten().filter(|record| is_selected(record));
            let named = live.filter_map(|record| {
                let line = state.lines[record.line as usize].as_ref()?;
                let code = state.codes.get(&line.code)?.object.clone_ref(py);
                let thread = state.threads[record.thread as usize].name.clone();
                Some((record.clone(), code, line.number, thread))
            });
            named.collect()
        };
        records.sort_by_key(|(record, ..)| record.since);
        let show = |(record, code, number, thread): (Record, Py<PyAny>, i32, String)| {
            let (file, function) = names(code.bind(py))?;
            let shown = PyDict::new(py);
            set_fields!(shown, record: address, bytes);
            shown.set_item(intern!(py, "file"), file)?;
            shown.set_item(intern!(py, "line"), number)?;
            shown.set_item(intern!(py, "function"), function)?;
            shown.set_item(intern!(py, "thread"), thread)?;
            let scope = record.scope.as_ref().map_or(0, |scope| scope.number);
            shown.set_item(intern!(py, "scope"), scope)?;
            shown.set_item(intern!(py, "age"), record.since.elapsed().as_secs_f64())?;
            Ok(shown)
        };
        records.into_iter().map(show).collect()
    }

    /// Returns the code object and line of the program's innermost frame.
    fn calling_line<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyAny>, i32)> {
        let mut outermost = None;
        for frame in frames(py) {
            let code = code_of(&frame);
            if self.is_program(&code) {
                return Some((code, line_of(&frame)));
            }
            outermost = Some((code, frame));
        }
        outermost.map(|(code, frame)| (code, line_of(&frame)))
    }

    /// Returns whether a code object belongs to the program. Libraries that pass memory to the
    /// program do not count.
    fn is_program(&self, code: &Bound<'_, PyAny>) -> bool {
        let address = code.as_ptr() as usize;
        let known = self.lock().ok().and_then(|state| Some(state.codes.get(&address)?.is_program));
        if let Some(known) = known {
            return known;
        }
        let is_program = is_program(code);
        if let Ok(mut state) = self.lock() {
            let object = code.clone().unbind();
            state.codes.insert(address, Code { object, is_program });
        }
        is_program
    }

    /// Releases the code objects that only this table holds. Without pruning, a notebook would fill
    /// the table, because it compiles each cell that it runs.
    fn prune(&self) {
        // Drops the objects after the lock is released, because dropping one may run Python code.
        drop(self.lock().map(|mut state| state.prune()));
    }

    fn lock(&self) -> Result<MutexGuard<'_, Table>, Error> {
        locked(&self.heap, &self.state)
    }
}

impl Table {
    /// Number of code objects at which the table first drops the unused ones.
    const PRUNE: usize = 256;

    /// Returns the index of a line. Adds the line if it is new.
    fn line(&mut self, code: &Bound<'_, PyAny>, number: i32) -> Option<u32> {
        let address = code.as_ptr() as usize;
        if let Some(known) = self.by_place.get(&(address, number)) {
            return Some(*known);
        }
        // Inserts the code object again if another thread removed it after `is_program` read it.
        self.codes.entry(address).or_insert_with(|| Code {
            object: code.clone().unbind(),
            is_program: is_program(code),
        });
        let line = Some(Line { code: address, number, allocations: 0, bytes: 0 });
        let at = match self.vacant_lines.pop() {
            Some(vacant) => {
                self.lines[vacant as usize] = line;
                vacant
            }
            None => {
                self.lines.push(line);
                u32::try_from(self.lines.len() - 1).ok()?
            }
        };
        self.by_place.insert((address, number), at);
        Some(at)
    }

    /// Returns the index of the running line, or [`NotKnown`]. Returns `None` if the thread has no
    /// frames.
    fn known_line(
        &self,
        places: impl Iterator<Item = (usize, i64)>,
    ) -> Result<Option<u32>, NotKnown> {
        let mut places = places.peekable();
        if places.peek().is_none() {
            return Ok(None);
        }
        for place in places {
            if self.codes.get(&place.0).ok_or(NotKnown)?.is_program {
                let line = self.by_instruction.get(&place).ok_or(NotKnown)?;
                return Ok(Some(*line));
            }
        }
        Err(NotKnown)
    }

    /// Adds an allocation.
    fn add(&mut self, line: u32, thread: u32, address: u64, bytes: u64) -> Option<RecordId> {
        let at = self.lines[line as usize].as_mut()?;
        at.allocations += 1;
        at.bytes += bytes;
        self.threads[thread as usize].allocations += 1;
        let record =
            Some(Record { address, bytes, line, thread, scope: None, since: Instant::now() });
        if let Some(vacant) = self.vacant.pop() {
            self.records[vacant as usize] = record;
            return Some(RecordId(vacant));
        }
        self.records.push(record);
        u32::try_from(self.records.len() - 1).ok().map(RecordId)
    }

    /// Returns whether the table has enough code objects to be worth pruning.
    fn is_full(&self) -> bool {
        self.codes.len() >= self.prune_at.max(Table::PRUNE)
    }

    /// Removes the code objects that only this table holds, and the lines of these objects. Keeps a
    /// code object if one of its lines holds memory.
    fn prune(&mut self) -> Vec<Code> {
        if !self.is_full() {
            return Vec::new();
        }
        let live = self.lines.iter().flatten().filter(|line| line.allocations > 0);
        let holding: FxHashSet<usize> = live.map(|line| line.code).collect();
        // SAFETY: the objects are alive, and the interpreter's lock is held.
        let is_only_ours = |code: &Code| unsafe { ffi::Py_REFCNT(code.object.as_ptr()) } == 1;
        let ended: FxHashMap<usize, Code> = self
            .codes
            .extract_if(|address, code| !holding.contains(address) && is_only_ours(code))
            .collect();
        let Table { by_place, by_instruction, lines, vacant_lines, .. } = self;
        by_place.retain(|(code, _), at| {
            let stays = !ended.contains_key(code);
            if !stays {
                lines[*at as usize] = None;
                vacant_lines.push(*at);
            }
            stays
        });
        by_instruction.retain(|_, at| lines[*at as usize].is_some());
        self.prune_at = 2 * self.codes.len();
        ended.into_values().collect()
    }

    /// Returns the index of a thread. Returns `None` if the number `ident` belongs to an earlier
    /// thread or is new.
    fn thread(&self, ident: u64, serial: u64) -> Option<u32> {
        let known = *self.by_ident.get(&ident)?;
        (self.threads[known as usize].serial == serial).then_some(known)
    }

    /// Adds a thread. If an earlier thread had the same number and no record names that thread, the
    /// new thread reuses the earlier thread's index.
    fn new_thread(&mut self, ident: u64, thread: Thread) -> u32 {
        let before = self.by_ident.get(&ident).copied();
        if let Some(index) = before.filter(|at| self.threads[*at as usize].allocations == 0) {
            self.threads[index as usize] = thread;
            return index;
        }
        self.threads.push(thread);
        let index = self.threads.len() as u32 - 1;
        self.by_ident.insert(ident, index);
        index
    }
}

/// Folder of the Python package, with a trailing slash. A program may be in another folder named
/// `gpuheap`, such as a clone of the repository.
static PACKAGE: OnceLock<String> = OnceLock::new();

/// Folders of the libraries whose frames are skipped.
const LIBRARIES: [&str; 8] = [
    "/site-packages/cupy/",
    "/site-packages/cuda/",
    "/site-packages/numba/",
    "/site-packages/numba_cuda/",
    "/site-packages/torch/",
    "/site-packages/rmm/",
    "/site-packages/pycuda/",
    "/contextlib.py",
];

/// Stores the folder of the Python package. Frames in it are skipped.
pub(crate) fn keep_package(py: Python<'_>) -> PyResult<()> {
    let folder: String = py.import("gpuheap")?.getattr("__path__")?.get_item(0)?.extract()?;
    PACKAGE.get_or_init(|| format!("{folder}/"));
    Ok(())
}

/// Returns whether a code object's file is outside the libraries that pass memory to the program.
fn is_program(code: &Bound<'_, PyAny>) -> bool {
    let file = names(code).map(|(file, _)| file).unwrap_or_default();
    let is_package = PACKAGE.get().is_some_and(|package| file.starts_with(package));
    !is_package && !LIBRARIES.iter().any(|library| file.contains(library))
}

/// Returns the program's innermost line on the calling thread. The verdict of a dry run shows it.
pub(crate) fn requester() -> Option<gpuheap::Requester> {
    let line = Python::try_attach(|py| {
        let frame = frames(py).find(|frame| is_program(&code_of(frame)))?;
        let (file, function) = names(&code_of(&frame)).ok()?;
        Some(format!("{file}:{} in {function}", line_of(&frame)))
    });
    Some(gpuheap::Requester { place: 0, line: line.flatten() })
}

/// Callback that gets a frame's key, and a function that finds the frame's line.
type AddFrame<'a> = dyn FnMut([u64; 3], &dyn Fn() -> gpuheap::SourceLine) + 'a;

/// Calls `each` for each Python frame of the calling thread, the innermost first.
pub(crate) fn walk_frames(each: &mut AddFrame<'_>) {
    /// Maximum number of recorded frames of a stack.
    const DEPTH: usize = 48;
    let walk = |py: Python<'_>| {
        for frame in frames(py).take(DEPTH) {
            let (code, number) = (code_of(&frame), line_of(&frame));
            // A new code object may reuse the address of a freed code object, so the key contains
            // the name too.
            let name = code.getattr(intern!(py, "co_qualname"));
            let name = name.map_or(0, |name| name.as_ptr() as u64);
            each([code.as_ptr() as u64, name, number as u64], &|| {
                let (file, function) = names(&code).unwrap_or_default();
                gpuheap::SourceLine { function, file, line: number.max(0) as u32 }
            });
        }
    };
    // Without an interpreter, or while it shuts down, the stack has no Python frames.
    let _ = Python::try_attach(walk);
}

fn names(code: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let py = code.py();
    let file = code.getattr(intern!(py, "co_filename"))?.extract()?;
    let function = code.getattr(intern!(py, "co_qualname"))?.extract()?;
    Ok((file, function))
}

/// Returns the number of the calling thread. `threading.get_ident` returns the same number.
fn thread_ident() -> u64 {
    // SAFETY: the call has no precondition.
    unsafe { ffi::PyThread_get_thread_ident() as u64 }
}

fn thread_name(py: Python<'_>, ident: u64) -> String {
    let name = || -> PyResult<String> {
        let thread = py.import("threading")?.call_method0("current_thread")?;
        thread.getattr("name")?.extract()
    };
    name().unwrap_or_else(|_| format!("thread {ident}"))
}
