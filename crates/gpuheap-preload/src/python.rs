//! Reads the calling thread's frames of Python from the interpreter's memory.
//!
//! The thread is within a call from Python. Its frames and their code therefore do not change, even
//! if the thread has released the interpreter's lock. No Python code runs: the only call looks up
//! the thread's state, and no reference count changes. An object's type is checked before a read.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuheap_capture::{CPython, LineTable, SourceLine};
use gpuheap_catch::{loader, messages};

/// Maximum number of recorded frames of a stack.
const DEPTH: usize = 48;

/// Maximum length of a name or path, in bytes.
const LONGEST: usize = 1024;

#[derive(Clone, Copy)]
struct Interpreter {
    layout: CPython,
    /// Returns the calling thread's state; null if the thread has none. Takes no lock.
    state: unsafe extern "C" fn() -> *const c_void,
    is_initialised: unsafe extern "C" fn() -> i32,
    types: Types,
}

/// Addresses of the interpreter's types.
#[derive(Clone, Copy)]
struct Types {
    code: usize,
    text: usize,
    bytes: usize,
}

/// Python frame and the instruction that it is at. Two frames with equal fields have the same name,
/// file and line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PythonFrame {
    /// Address of the code object.
    code: usize,
    /// Address of the code object's name. A new code object at a freed address has another name
    /// object, so the two frames differ.
    name: usize,
    /// Offset of the current instruction from the first instruction, in bytes.
    at: i64,
}

/// Frames of Python, innermost first.
pub(crate) struct PythonStack {
    frames: [MaybeUninit<PythonFrame>; DEPTH],
    /// Number of innermost frames that are left out.
    skipped: usize,
    len: usize,
}

impl PythonStack {
    /// Returns a stack without frames.
    #[inline]
    pub(crate) fn empty() -> PythonStack {
        PythonStack { frames: [const { MaybeUninit::uninit() }; DEPTH], skipped: 0, len: 0 }
    }

    /// Captures the calling thread's frames of Python.
    pub(crate) fn capture(&mut self) {
        let Some(interpreter) = interpreter() else { return };
        // SAFETY: `is_initialised` and `state` may be called at any time. While this thread is in a
        // call from Python, its state and frames are valid, and only this thread changes them.
        unsafe {
            if (interpreter.is_initialised)() == 0 {
                return;
            }
            let frames = interpreter.layout.frames((interpreter.state)().addr());
            let is_code = |code| type_of(code) == interpreter.types.code;
            for (code, at) in frames.filter(|(code, _)| is_code(*code)).take(DEPTH) {
                let name = word(code, interpreter.layout.qualname);
                self.frames[self.len].write(PythonFrame { code, name, at });
                self.len += 1;
            }
        }
    }

    pub(crate) fn frames(&self) -> &[PythonFrame] {
        // SAFETY: the first `len` frames are written.
        let frames = unsafe { std::slice::from_raw_parts(self.frames.as_ptr().cast(), self.len) };
        &frames[self.skipped..]
    }

    /// Leaves out the innermost frames.
    pub(crate) fn skip(&mut self, frames: usize) {
        self.skipped = frames.min(self.len);
    }
}

impl PythonFrame {
    /// Returns words that differ between frames.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.code as u64, self.name as u64, self.at as u64]
    }

    /// Reads the name, file and line. Call it on the thread that captured the frame, before that
    /// thread returns to Python.
    pub(crate) fn line(self) -> Option<SourceLine> {
        let Interpreter { layout, types, .. } = interpreter()?;
        // SAFETY: the running frame keeps the code object alive, with its names and line table.
        unsafe {
            let function = text(self.name, types, &layout);
            let file = text(word(self.code, layout.filename), types, &layout);
            let first = word(self.code, layout.first_line) as u32;
            let table = bytes(word(self.code, layout.line_table), types);
            let line = match layout.lines {
                LineTable::Differences => line_by_differences(table, first, self.at),
                LineTable::Ranges => line_by_ranges(table, first, self.at),
                LineTable::Locations => line_of(table, first, self.at),
            };
            let line = line.unwrap_or(first);
            Some(SourceLine { function, file, line })
        }
    }
}

/// Finds the interpreter.
fn interpreter() -> Option<Interpreter> {
    static FOUND: OnceLock<Option<Interpreter>> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return *found;
    }
    // The search takes the loader's lock and some microseconds. A program may load the interpreter
    // late, so the search runs at the 1st, 2nd, 4th call and so on.
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    if !(CALLS.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
        return None;
    }
    let state = loader::global(c"PyGILState_GetThisThreadState")?;
    let is_initialised = loader::global(c"Py_IsInitialized")?;
    // SAFETY: the interpreter's functions have these types.
    let (state, is_initialised) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_void>(state),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(is_initialised),
        )
    };
    *FOUND.get_or_init(|| {
        let version = version();
        let of = |symbol| loader::global(symbol).map(|address| address.addr());
        let types = Some(Types {
            code: of(c"PyCode_Type")?,
            text: of(c"PyUnicode_Type")?,
            bytes: of(c"PyBytes_Type")?,
        });
        let runtime = loader::global(c"_PyRuntime").map_or(std::ptr::null_mut(), |at| at.cast());
        // SAFETY: the symbol is the interpreter's state.
        let known = unsafe { CPython::new(version, runtime) }.zip(types);
        if known.is_none() {
            let (major, minor) = version;
            messages::write(&format!(
                "frames of this Python {major}.{minor} cannot be recorded: they are for CPython 3.9 \
                 to 3.14 with its lock; stacks have native frames only"
            ));
        }
        known.map(|(layout, types)| Interpreter { layout, state, is_initialised, types })
    })
}

/// Returns the interpreter's major and minor version; zeros if it is not known.
fn version() -> (u8, u8) {
    let Some(get) = loader::global(c"Py_GetVersion") else { return (0, 0) };
    // SAFETY: the interpreter's function has this type. It returns a text that is never freed.
    let text = unsafe {
        let get = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(get);
        CStr::from_ptr(get()).to_string_lossy()
    };
    let mut parts = text.split(['.', ' ']).map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Reads a word.
unsafe fn word(base: usize, offset: usize) -> usize {
    if base == 0 {
        return 0;
    }
    // SAFETY: the caller passes a structure of the interpreter with a word at this offset.
    unsafe { std::ptr::with_exposed_provenance::<usize>(base + offset).read_unaligned() }
}

/// Returns the address of an object's type.
unsafe fn type_of(object: usize) -> usize {
    // SAFETY: the caller passes an object of the interpreter, or 0. `word` does not read at 0.
    unsafe { word(object, 8) }
}

/// Reads a string. Names in code objects are compact strings. A name that is not ASCII has a UTF-8
/// form only if the program has used that form.
unsafe fn text(object: usize, types: Types, layout: &CPython) -> String {
    // SAFETY: the caller passes an object of the interpreter. A string never changes.
    unsafe {
        if type_of(object) != types.text {
            return "?".to_owned();
        }
        let length = word(object, 16).min(LONGEST);
        let (start, length) = match is_ascii(word(object, 32) as u32) {
            true => (object + layout.ascii, length),
            false => (word(object, layout.ascii + 8), word(object, layout.ascii).min(LONGEST)),
        };
        if start == 0 {
            return "?".to_owned();
        }
        let start = std::ptr::with_exposed_provenance::<u8>(start);
        String::from_utf8_lossy(std::slice::from_raw_parts(start, length)).into_owned()
    }
}

/// Returns `true` if a string's state is compact and ASCII. Three bits of the state give the size
/// of a character: 1, 2 or 4. They begin at bit 2, or at bit 8 or 16 in newer versions. The next
/// two bits mean compact and ASCII.
fn is_ascii(state: u32) -> bool {
    let facts = [2, 8, 16].map(|first| state >> first);
    let known = facts.into_iter().find(|facts| matches!(facts & 7, 1 | 2 | 4));
    known.is_some_and(|facts| facts & 0b11000 == 0b11000)
}

unsafe fn bytes<'a>(object: usize, types: Types) -> &'a [u8] {
    // SAFETY: the caller passes an object of the interpreter. A bytes object lives as long as its
    // code and is not changed.
    unsafe {
        if type_of(object) != types.bytes {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance::<u8>(object + 32);
        std::slice::from_raw_parts(start, word(object, 16))
    }
}

/// Returns the line of an instruction from a line table of CPython 3.9. An entry has the number of
/// bytes to the next line, and how much the line number changes there.
fn line_by_differences(table: &[u8], first: u32, at: i64) -> Option<u32> {
    let (mut line, mut start) = (i64::from(first), 0_i64);
    for pair in table.chunks_exact(2) {
        start += i64::from(pair[0]);
        if start > at {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    u32::try_from(line).ok()
}

/// Returns the line of an instruction from a line table of CPython 3.10. An entry has the number of
/// bytes of a range, and how much the line number changes. A range without a line has -128.
fn line_by_ranges(table: &[u8], first: u32, at: i64) -> Option<u32> {
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (i64::from(first), 0_i64);
    for pair in table.chunks_exact(2) {
        let difference = pair[1] as i8;
        if difference != NO_LINE {
            line += i64::from(difference);
        }
        end += i64::from(pair[0]);
        if at < end {
            return u32::try_from(line).ok().filter(|_| difference != NO_LINE);
        }
    }
    None
}

/// Returns the line of an instruction from a location table of CPython 3.11 or later. An entry
/// starts with a byte that gives its kind and length. Changes of line and column follow.
fn line_of(table: &[u8], first: u32, at: i64) -> Option<u32> {
    let mut line = i64::from(first);
    let mut start = 0_i64;
    let mut rest = table;
    while let Some(head) = rest.split_off_first() {
        let (kind, units) = (head >> 3 & 15, i64::from(head & 7) + 1);
        line += match kind {
            // The long form of an entry has a line, and three numbers for columns.
            14 => {
                let difference = signed(&mut rest)?;
                (0..3).try_for_each(|_| unsigned(&mut rest).map(drop))?;
                difference
            }
            13 => signed(&mut rest)?,
            10..=12 => {
                rest = rest.get(2..)?;
                i64::from(kind) - 10
            }
            15 => 0,
            _ => {
                rest = rest.get(1..)?;
                0
            }
        };
        start += units * 2;
        if at < start {
            return u32::try_from(line).ok().filter(|_| kind != 15);
        }
    }
    None
}

/// Reads a number with 6 bits in each byte, the lowest bits first.
fn unsigned(rest: &mut &[u8]) -> Option<i64> {
    let (mut value, mut shift) = (0_i64, 0);
    loop {
        let byte = *rest.split_off_first()?;
        value |= i64::from(byte & 63).checked_shl(shift)?;
        shift += 6;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
}

/// Reads a signed number, whose lowest bit is the sign.
fn signed(rest: &mut &[u8]) -> Option<i64> {
    let value = unsigned(rest)?;
    Some(if value & 1 == 1 { -(value >> 1) } else { value >> 1 })
}
