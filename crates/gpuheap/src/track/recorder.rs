//! Records heaps' allocations into a capture for `gpuheap report` and `gpuheap replay`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;
use std::{fmt, io};

use gpuheap_capture as capture;
use gpuheap_capture::{Address, ProcessCapture, Record, SourceLine, Time, loaded_modules};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Serialize, Serializer};

use super::MemoryKind;
use super::thread::Identity;
use crate::error::{Error, ErrorKind};
use crate::{Caller, fork, logging};

pub(crate) struct DeviceFacts<'a> {
    pub(crate) ordinal: i32,
    /// Product name.
    pub(crate) name: &'a str,
    pub(crate) bytes: u64,
    /// Identifier of the device's emulator; `None` for a real device.
    pub(crate) emulator: Option<u64>,
}

/// Recorder into one capture.
pub(crate) struct Recorder {
    /// Identifier of the recorder in the process, from 1.
    pub(super) number: u64,
    /// Path that the program requested, if heaps share the capture. Such a capture records the
    /// heaps for their whole life. `None` if the capture records one heap for a part of its life.
    shared: Option<PathBuf>,
    /// Emulator of the heaps' devices; `None` for real devices. Devices of two emulators may use
    /// the same addresses, so each emulator has a separate capture.
    emulator: Option<u64>,
    path: PathBuf,
    began: Instant,
    forks: u32,
    state: Mutex<State>,
}

struct State {
    capture: ProcessCapture,
    /// Indices of threads in the capture, keyed by the system's ids.
    threads: FxHashMap<u64, u32>,
    devices: FxHashSet<i32>,
    /// `true` once a warning said that the recording stopped early.
    is_reported: bool,
}

/// Allocation or failed request.
pub(super) struct Recorded<'a> {
    pub(super) kind: MemoryKind,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) at: Caller,
    /// Return addresses; empty to record the line `at` alone.
    pub(super) addresses: &'a [usize],
    pub(super) thread: Option<&'a Identity>,
}

/// Recording of a heap, in a [status](crate::MemoryStatus).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecordingStatus {
    /// Path of the capture. In JSON, bytes that are not UTF-8 are replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Reason why the recording ended early, such as a full disk. The capture has all earlier
    /// calls.
    pub stopped: Option<String>,
}

fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

impl fmt::Display for RecordingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.stopped {
            Some(reason) => write!(f, ", stopped: {reason}"),
            None => Ok(()),
        }
    }
}

/// Function that walks an interpreter's frames on the calling thread, innermost first. For each
/// frame, the function calls its argument with three numbers that identify the frame's line, and
/// with a function that returns the line's names.
#[doc(hidden)]
pub type WalkFrames = fn(&mut dyn FnMut([u64; 3], &dyn Fn() -> SourceLine));

static WALK_FRAMES: OnceLock<WalkFrames> = OnceLock::new();

/// Sets the function that walks the frames of an interpreter, once in a process. Recorded stacks
/// then have these frames.
#[doc(hidden)]
pub fn walk_frames_by(walk: WalkFrames) {
    let _ = WALK_FRAMES.set(walk);
}

/// Returns the line of an allocation: the line of the interpreter's innermost frame, or else `at`.
pub(super) fn line(at: Caller) -> String {
    let mut line = None;
    if let Some(walk) = WALK_FRAMES.get() {
        walk(&mut |_, frame| {
            line.get_or_insert_with(|| {
                let SourceLine { function, file, line } = frame();
                format!("{file}:{line} in {function}")
            });
        });
    }
    line.unwrap_or_else(|| format!("{}:{}", at.file(), at.line()))
}

/// Recorders of this process. When a recorder is opened, ended recorders are removed.
static RECORDERS: Mutex<Vec<Weak<Recorder>>> = Mutex::new(Vec::new());

impl Recorder {
    /// Creates a file and its recorder. If the recorder is shared, a later call with the same path
    /// returns the same recorder.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub(crate) fn open(
        path: &Path,
        device: &DeviceFacts<'_>,
        is_shared: bool,
    ) -> Result<Arc<Recorder>, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shared = is_shared.then(|| path.to_owned());
        let mut known = RECORDERS.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.strong_count() > 0);
        let is_same = |one: &Arc<Recorder>| one.shared == shared && one.emulator == device.emulator;
        let found = known.iter().filter_map(Weak::upgrade).find(is_same);
        if let Some(found) = found.filter(|_| is_shared) {
            found.add_device(device);
            return Ok(found);
        }
        let cannot = |error: io::Error| {
            let remedy = match error.kind() {
                io::ErrorKind::AlreadyExists => "delete old captures, or put %p into the name",
                io::ErrorKind::StorageFull => "free space on the disk, or name a file elsewhere",
                _ => "name a file in a folder that you can write to",
            };
            let path = path.display();
            ErrorKind::BadSetting.error(format!("cannot record to {path}: {error}; {remedy}"))
        };
        let capture = ProcessCapture::create(path, u64::MAX, |_| {}).map_err(cannot)?;
        static AT_EXIT: OnceLock<()> = OnceLock::new();
        AT_EXIT.get_or_init(|| capture::at_exit(end_all));
        let recorder = Arc::new(Recorder {
            number: COUNT.fetch_add(1, Ordering::Relaxed) + 1,
            shared,
            emulator: device.emulator,
            path: capture.path().unwrap_or(path).to_owned(),
            began: Instant::now(),
            forks: fork::watch(),
            state: Mutex::new(State {
                capture,
                threads: FxHashMap::default(),
                devices: FxHashSet::default(),
                is_reported: false,
            }),
        });
        recorder.add_device(device);
        known.push(Arc::downgrade(&recorder));
        drop(known);
        if std::env::var_os("GPUHEAP_RUN_OUTPUT").is_some_and(|value| !value.is_empty()) {
            logging::warn(
                logging::HEAP,
                format_args!(
                    "gpuheap run records this process too: its capture has the heap's driver \
                     calls, and {} has the heap's allocations; report them separately",
                    recorder.path.display()
                ),
            );
        }
        Ok(recorder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if heaps share the capture, and each heap is recorded for its whole life.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(crate) fn status(&self) -> RecordingStatus {
        let stopped = self.state().and_then(|state| state.capture.stopped().map(str::to_owned));
        RecordingStatus { path: self.path.clone(), stopped }
    }

    fn add_device(&self, facts: &DeviceFacts<'_>) {
        let Some(mut state) = self.state() else { return };
        let &DeviceFacts { ordinal, name, bytes, .. } = facts;
        if state.devices.insert(ordinal) {
            state.capture.write(&Record::Device { ordinal: number(ordinal), name, bytes });
        }
    }

    pub(super) fn allocated(&self, device: i32, recorded: &Recorded<'_>) {
        let Some((mut state, stack)) = self.with_stack(recorded) else { return };
        let time = self.time();
        let thread = state.thread(time, recorded.thread);
        let Recorded { kind, address, bytes, stream, .. } = *recorded;
        state.capture.write(&Record::Allocate {
            time,
            thread,
            kind: kind_of(kind),
            device: number(device),
            stream,
            address: Address(address),
            bytes,
            stack,
        });
        self.report_stop(state);
    }

    /// Records a free. Call it before the memory is given back: afterwards another thread may get
    /// the address.
    pub(super) fn freed(
        &self,
        kind: MemoryKind,
        address: u64,
        stream: u64,
        thread: Option<&Identity>,
    ) {
        let Some(mut state) = self.state() else { return };
        let time = self.time();
        let thread = state.thread(time, thread);
        let (space, address) = (kind_of(kind).space(), Address(address));
        state.capture.write(&Record::Free { time, thread, space, stream, address });
        self.report_stop(state);
    }

    /// Records a request that failed because memory is short.
    pub(super) fn failed(&self, device: i32, recorded: &Recorded<'_>, is_limit: bool) {
        /// `CUDA_ERROR_OUT_OF_MEMORY`.
        const CODE: u32 = 2;
        let Some((mut state, stack)) = self.with_stack(recorded) else { return };
        let time = self.time();
        let thread = state.thread(time, recorded.thread);
        state.capture.write(&Record::Fail {
            time,
            thread,
            kind: kind_of(recorded.kind),
            device: number(device),
            stream: recorded.stream,
            bytes: recorded.bytes,
            stack,
            code: CODE,
            is_limit: is_limit.into(),
        });
        self.report_stop(state);
    }

    pub(super) fn thread_ended(&self, thread: &Identity) {
        let Some(mut state) = self.state() else { return };
        if let Some(number) = state.threads.remove(&thread.id.unwrap_or(0)) {
            let time = self.time();
            let name = &*thread.name;
            state.capture.write(&Record::ThreadEnd { time, thread: number, name });
        }
    }

    /// Unlocks the state. If the recording stopped early, logs a warning, once.
    fn report_stop(&self, mut state: MutexGuard<'_, State>) {
        if state.is_reported || state.capture.stopped().is_none() {
            return;
        }
        state.is_reported = true;
        drop(state);
        let status = self.status();
        logging::warn(logging::HEAP, format_args!("the recording to {status}"));
    }

    /// Locks the state, and returns the index of a stack. If the stack is new, reads the loaded
    /// files and the interpreter's frames first, without the lock: a thread that loads a library
    /// holds the loader's lock, and may allocate.
    fn with_stack(&self, recorded: &Recorded<'_>) -> Option<(MutexGuard<'_, State>, u32)> {
        let Recorded { at, addresses, .. } = recorded;
        let walk = WALK_FRAMES.get().filter(|_| !addresses.is_empty());
        let mut key: Vec<_> = addresses.iter().map(|address| *address as u64).collect();
        key.push(0);
        match walk {
            _ if addresses.is_empty() => key.push(std::ptr::from_ref(*at).addr() as u64),
            Some(walk) => walk(&mut |frame, _| key.extend(frame)),
            None => {}
        }
        let state = self.state()?;
        if let Some(known) = state.capture.known_stack(&key) {
            return Some((state, known));
        }
        drop(state);
        let mut lines = Vec::new();
        match walk {
            _ if addresses.is_empty() => {
                let (function, file) = (String::new(), at.file().to_owned());
                lines.push(SourceLine { function, file, line: at.line() });
            }
            Some(walk) => walk(&mut |_, line| lines.push(line())),
            None => {}
        }
        let loaded = if addresses.is_empty() { Vec::new() } else { loaded_modules() };
        let mut state = self.state()?;
        let native = &key[..addresses.len()];
        let number = state.capture.stack(&key, native, lines.into_iter(), &loaded);
        Some((state, number))
    }

    fn time(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Locks the state. Returns `None` in a forked child: the file belongs to the parent, and a
    /// thread of the parent may have held the lock.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let is_own = self.forks == fork::count();
        is_own.then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the capture if it records a section of one heap, and ignores later records. Does
    /// nothing if heaps share the capture.
    pub(super) fn end_section(&self) {
        if !self.is_shared() {
            self.end();
        }
    }

    fn end(&self) {
        if let Some(state) = self.state() {
            self.end_locked(state);
        }
    }

    fn end_locked(&self, mut state: MutexGuard<'_, State>) {
        let time = self.time();
        state.capture.end(time, "");
    }

    /// Ends the capture at the exit of the process. If a signal handler called `exit` while its
    /// thread wrote a record, the state stays locked. The capture is then left as it is, and can be
    /// read.
    fn exit(&self) {
        if self.forks == fork::count()
            && let Some(state) = capture::lock_at_exit(&self.state)
        {
            self.end_locked(state);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    /// Returns the index of a thread. Records the thread at its first call. Returns 0 for a thread
    /// whose thread-local variables were destroyed.
    fn thread(&mut self, time: Time, thread: Option<&Identity>) -> u32 {
        let Some(Identity { name, id: Some(id), .. }) = thread else { return 0 };
        if let Some(known) = self.threads.get(id) {
            return *known;
        }
        let number = self.capture.thread(time, *id, name);
        self.threads.insert(*id, number);
        number
    }
}

/// Ends all recordings at the exit of the process.
extern "C" fn end_all() {
    // In a forked child, a thread of the parent may have held the lock.
    if let Ok(known) = RECORDERS.try_lock() {
        known.iter().filter_map(Weak::upgrade).for_each(|recorder| recorder.exit());
    }
}

fn number(ordinal: i32) -> u32 {
    u32::try_from(ordinal).unwrap_or(0)
}

fn kind_of(kind: MemoryKind) -> capture::MemoryKind {
    match kind {
        MemoryKind::Device => capture::MemoryKind::Device,
        MemoryKind::Unified => capture::MemoryKind::Managed,
        MemoryKind::Pinned => capture::MemoryKind::Pinned,
        MemoryKind::Registered => capture::MemoryKind::Registered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "a mapped file")]
    fn exit_within_record_returns() {
        let folder = tempfile::tempdir().unwrap();
        let device = DeviceFacts { ordinal: 0, name: "", bytes: 0, emulator: None };
        let recorder = Recorder::open(&folder.path().join("run.gph"), &device, false).unwrap();
        let state = recorder.state();
        recorder.exit();
        drop(state);
    }

    #[test]
    fn status_of_any_path_has_json() {
        use std::os::unix::ffi::OsStringExt as _;
        let path = std::ffi::OsString::from_vec(b"/tmp/\xff.gph".to_vec()).into();
        let json = serde_json::to_string(&RecordingStatus { path, stopped: None }).unwrap();
        assert_eq!(json, "{\"path\":\"/tmp/\u{fffd}.gph\",\"stopped\":null}");
    }
}
