//! Writes the capture of this process. Assigns the numbers by which records refer to earlier texts,
//! frames, stacks, threads and ranges.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustc_hash::FxHashMap;

use crate::folding::{Folder, Folding};
use crate::mapped_file::MappedFile;
use crate::modules::{LoadedModule, program};
use crate::{Deltas, Record, Time, header};

/// Maximum number of range names that are remembered. Some profilers put a number into each range's
/// name, so the number of names has no bound. A forgotten name is written again.
const NAMES: usize = 1024;

/// Function, file and line of an interpreter's frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLine {
    /// Name of the function.
    pub function: String,
    /// Source file.
    pub file: String,
    /// Line in the file.
    pub line: u32,
}

/// Capture of this process, in a file that survives a crash. If the file cannot grow, the recording
/// ends, and later calls do nothing.
#[derive(Debug)]
pub struct ProcessCapture {
    /// File; `None` once the recording ended.
    file: Option<MappedFile>,
    /// Reason for an early end.
    stopped: Option<String>,
    on_stop: fn(&io::Error),
    deltas: Deltas,
    bytes: Vec<u8>,
    /// Numbers of stacks, by the caller's keys.
    stacks: FxHashMap<Box<[u64]>, u32>,
    stack_count: u32,
    texts: FxHashMap<String, u32>,
    text_count: u32,
    /// Numbers of the remembered range names, at most [`NAMES`].
    names: FxHashMap<String, u32>,
    frames: FxHashMap<[u32; 3], u32>,
    /// Recorded files by start address. They were still loaded when the last stack was recorded.
    modules: FxHashMap<u64, LoadedModule>,
    threads: u32,
    ranges: u32,
    /// `true` once the file has a memory event.
    has_memory: bool,
    has_pools: bool,
    /// Folds short-lived allocations into counts; `None` until the file is half full.
    folder: Option<Folder>,
}

impl ProcessCapture {
    /// Creates the file and records the process. The last `%p` in the path stands for the process
    /// id. If the file exists, adds `.2`, `.3` and so on before the ending `.gph`. The file grows
    /// up to `most` bytes. `on_stop` is called with the error that ends the recording early.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be created or the disk is full.
    pub fn create(
        path: impl AsRef<Path>,
        most: u64,
        on_stop: fn(&io::Error),
    ) -> io::Result<ProcessCapture> {
        let pid = std::process::id();
        let file = MappedFile::create(&with_process_id(path.as_ref()), most)?;
        let mut capture = ProcessCapture {
            file: Some(file),
            stopped: None,
            on_stop,
            deltas: Deltas::default(),
            bytes: header().to_vec(),
            stacks: FxHashMap::default(),
            texts: FxHashMap::default(),
            text_count: 0,
            names: FxHashMap::default(),
            frames: FxHashMap::default(),
            stack_count: 0,
            modules: FxHashMap::default(),
            threads: 0,
            ranges: 0,
            has_memory: false,
            has_pools: false,
            folder: None,
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let process = Record::Process {
            pid,
            parent: std::os::unix::process::parent_id(),
            started_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(0),
            program: &program(),
            arguments: &String::from_utf8_lossy(&arguments),
        };
        process.encode(&mut capture.deltas, &mut capture.bytes);
        if let Some(file) = &mut capture.file {
            file.append(&capture.bytes)?;
        }
        Ok(capture)
    }

    /// Returns the file's path; `None` once the recording has ended.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(MappedFile::path)
    }

    /// Returns the reason why the recording ended early.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Announces that pools' blocks will be recorded too. Call it before the first such record.
    pub fn expect_pools(&mut self) {
        self.has_pools = true;
    }

    /// Appends a record. Once half of the file's maximum size is used, counts replace the
    /// allocations that are freed immediately.
    pub fn write(&mut self, record: &Record<'_>) {
        let Some(file) = &mut self.file else { return };
        if self.folder.is_none() && file.is_half_full() {
            self.folder = Some(Folder::new(self.has_pools));
        }
        let folder = self.folder.as_mut();
        let replaced;
        let record = match folder.map(|folder| folder.fold(record, file, &mut self.deltas)) {
            None | Some(Folding::Write) => record,
            Some(Folding::Replace(other)) => {
                replaced = other;
                &replaced
            }
            Some(Folding::Done) => return,
        };
        let (before, offset) = (self.deltas, file.end());
        self.bytes.clear();
        record.encode(&mut self.deltas, &mut self.bytes);
        self.has_memory |= matches!(record, Record::Allocate { .. } | Record::Fail { .. });
        if let Err(error) = file.append(&self.bytes) {
            self.end(Time(0), &error.to_string());
            self.stopped = Some(error.to_string());
            (self.on_stop)(&error);
        } else if let Some(folder) = &mut self.folder {
            folder.written(record, offset, before);
        }
    }

    /// Records a thread, and returns its number.
    pub fn thread(&mut self, time: Time, id: u64, name: &str) -> u32 {
        self.write(&Record::ThreadStart { time, id, name });
        self.threads += 1;
        self.threads
    }

    /// Records the start of a range, and returns its number.
    pub fn range(&mut self, time: Time, thread: u32, name: &str) -> u32 {
        let name = self.name(name);
        self.write(&Record::RangeStart { time, thread, name });
        self.ranges += 1;
        self.ranges
    }

    /// Returns the number of a recorded stack; `None` if the stack is not recorded.
    pub fn known_stack(&self, key: &[u64]) -> Option<u32> {
        self.stacks.get(key).copied()
    }

    /// Returns the number of a stack. Records the stack and the loaded files if they are new.
    /// `lines` are the interpreter's frames, innermost first. Forgets stacks with addresses in
    /// unloaded files, because another file may be loaded there.
    pub fn stack(
        &mut self,
        key: &[u64],
        addresses: &[u64],
        lines: impl Iterator<Item = SourceLine>,
        loaded: &[LoadedModule],
    ) -> u32 {
        self.forget_unloaded(loaded);
        if let Some(known) = self.known_stack(key) {
            return known;
        }
        for module in loaded {
            if self.modules.contains_key(&module.start) {
                continue;
            }
            let LoadedModule { path, build_id, start, end, base } = module;
            let (start, end, base) = (*start, *end, *base);
            self.write(&Record::Module { path, build_id, start, end, base });
            self.modules.insert(start, module.clone());
        }
        let frames: Vec<_> = lines.map(|line| self.frame(&line)).collect();
        let addresses = Cow::Borrowed(addresses);
        self.write(&Record::Stack { addresses, frames: Cow::Owned(frames) });
        self.stack_count += 1;
        self.stacks.insert(key.into(), self.stack_count);
        self.stack_count
    }

    fn forget_unloaded(&mut self, loaded: &[LoadedModule]) {
        let by_start: FxHashMap<_, _> = loaded.iter().map(|file| (file.start, file)).collect();
        let mut gone = Vec::new();
        self.modules.retain(|start, known| {
            let is_loaded = by_start.get(start) == Some(&&*known);
            gone.extend((!is_loaded).then_some(known.start..known.end));
            is_loaded
        });
        if !gone.is_empty() {
            let is_gone = |address: &u64| gone.iter().any(|range| range.contains(address));
            self.stacks.retain(|key, _| !key.iter().any(is_gone));
        }
    }

    /// Records the exit of the process and truncates the file to its used part. The recording
    /// continues, because destructors that run later may free memory. If the file has no memory
    /// events, removes the file instead.
    pub fn exit(&mut self, time: Time) {
        if let Some(file) = self.file.take_if(|_| !self.has_memory) {
            return file.remove();
        }
        self.write(&Record::End { time, reason: "" });
        self.file.iter_mut().for_each(MappedFile::cut);
    }

    /// Ends the recording. `reason` is empty at the end of the process.
    pub fn end(&mut self, time: Time, reason: &str) {
        if let Some(file) = self.file.take() {
            self.bytes.clear();
            Record::End { time, reason }.encode(&mut self.deltas, &mut self.bytes);
            file.append_last(&self.bytes);
        }
    }

    /// Returns the number by which records refer to an interpreter's frame. Records a new frame.
    fn frame(&mut self, line: &SourceLine) -> u32 {
        let (function, file) = (self.text(&line.function), self.text(&line.file));
        let line = line.line;
        if let Some(known) = self.frames.get(&[function, file, line]) {
            return *known;
        }
        self.write(&Record::Frame { function, file, line });
        let number = self.frames.len() as u32 + 1;
        self.frames.insert([function, file, line], number);
        number
    }

    /// Returns the number by which records refer to a text. Records a new text.
    fn text(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let number = self.new_text(text);
        self.texts.insert(text.to_owned(), number);
        number
    }

    /// Returns the number by which records refer to a range's name. Records an unknown name.
    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        if self.names.len() == NAMES {
            self.names.clear();
        }
        let number = self.new_text(name);
        self.names.insert(name.to_owned(), number);
        number
    }

    fn new_text(&mut self, text: &str) -> u32 {
        self.write(&Record::Text { text });
        self.text_count += 1;
        self.text_count
    }
}

/// Returns the path with the process id in place of the last `%p`. An earlier `%p` may be part of a
/// folder's or a program's name.
pub fn with_process_id(path: &Path) -> PathBuf {
    const PLACE: &[u8] = b"%p";
    let bytes = path.as_os_str().as_bytes();
    let Some(at) = bytes.windows(PLACE.len()).rposition(|part| part == PLACE) else {
        return path.to_owned();
    };
    let id = std::process::id().to_string();
    let (before, after) = (&bytes[..at], &bytes[at + PLACE.len()..]);
    OsString::from_vec([before, id.as_bytes(), after].concat()).into()
}

/// Locks a recorder's state at the exit of the process. Returns `None` if the state stays locked
/// for a second. A debugger may have stopped the thread that holds the lock. Or a signal handler
/// interrupted this thread while it wrote a record, and called `exit`.
pub fn lock_at_exit<T>(state: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const PATIENCE_MS: u32 = 1000;
    for _ in 0..PATIENCE_MS {
        match state.try_lock() {
            Ok(state) => return Some(state),
            Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Calls `end` at the exit of the process.
pub fn at_exit(end: extern "C" fn()) {
    // SAFETY: the function is part of this library. If the library is unloaded, the C runtime calls
    // the function first.
    let _ = unsafe { libc::atexit(end) };
}
