//! Frames of Python on the calling thread, read from the interpreter's memory.
//!
//! The thread itself is within a call from Python, so its frames and their code do not change, even
//! if it has released the interpreter's lock. Nothing is called but a look-up of the thread's
//! state, and no reference count changes. So no code of Python runs. Offsets are those of CPython
//! 3.11 and 3.12 on 64-bit Linux; from 3.13 on, the interpreter exports them.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuheap_capture::SourceLine;
use gpuheap_catch::loader;

/// Most frames that are recorded of a stack.
const DEPTH: usize = 48;

/// Most bytes of a name or path.
const LONGEST: usize = 1024;

/// Offsets in the interpreter's structures, bytes.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    /// Offset of the current frame in the thread's state, or of a structure that holds it.
    current: usize,
    /// Offset of the current frame in that structure; `None` if the state holds the frame.
    inner: Option<usize>,
    /// Offset of the code in a frame.
    code: usize,
    previous: usize,
    instruction: usize,
    owner: usize,
    filename: usize,
    qualname: usize,
    first_line: usize,
    line_table: usize,
    instructions: usize,
    /// Size of the head of a text in ASCII; of other texts, the offset of their UTF-8 size.
    ascii: usize,
}

/// Owner of a frame that stands for a call from C, and has no line.
const OWNED_BY_C: u8 = 3;

const PYTHON_3_11: Offsets = Offsets {
    current: 56,
    inner: Some(8),
    code: 32,
    previous: 48,
    instruction: 56,
    owner: 69,
    filename: 112,
    qualname: 128,
    first_line: 72,
    line_table: 136,
    instructions: 184,
    ascii: 48,
};

const PYTHON_3_12: Offsets = Offsets {
    current: 56,
    inner: Some(0),
    code: 0,
    previous: 8,
    instruction: 56,
    owner: 70,
    filename: 112,
    qualname: 128,
    first_line: 68,
    line_table: 136,
    instructions: 192,
    ascii: 40,
};

/// Interpreter of the process.
#[derive(Clone, Copy)]
struct Interpreter {
    offsets: Offsets,
    /// Returns the calling thread's state; null if the thread has none. Takes no lock.
    state: unsafe extern "C" fn() -> *const c_void,
    is_initialised: unsafe extern "C" fn() -> i32,
}

/// Running line of a function. Two frames with equal numbers have one name, file and line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PythonFrame {
    /// Address of the code object.
    code: usize,
    /// Address of its name. Another code object may get the address of one that was freed.
    name: usize,
    /// Bytes of the running instruction after the first one.
    at: i64,
}

/// Frames of Python, innermost first.
pub(crate) struct PythonStack {
    frames: [PythonFrame; DEPTH],
    len: usize,
}

impl PythonStack {
    /// Returns a stack without frames.
    pub(crate) const EMPTY: PythonStack =
        PythonStack { frames: [PythonFrame { code: 0, name: 0, at: 0 }; DEPTH], len: 0 };

    /// Captures the calling thread's frames of Python.
    pub(crate) fn capture() -> PythonStack {
        let mut stack = PythonStack::EMPTY;
        let Some(interpreter) = interpreter() else { return stack };
        let offsets = &interpreter.offsets;
        // SAFETY: both functions may be called at any time. A thread's state and its frames are
        // valid while the thread is within a call from Python. Another thread does not change them.
        unsafe {
            if (interpreter.is_initialised)() == 0 {
                return stack;
            }
            let state = (interpreter.state)();
            if state.is_null() {
                return stack;
            }
            let mut frame = word(state.addr(), offsets.current);
            if let Some(inner) = offsets.inner {
                frame = word(frame, inner);
            }
            while frame != 0 && stack.len < DEPTH {
                // From 3.14 on, the lowest bits of the word mark the kind of reference.
                let code = word(frame, offsets.code) & !7;
                if byte(frame, offsets.owner) < OWNED_BY_C && code != 0 {
                    let at = word(frame, offsets.instruction) as i64;
                    let at = at - (code + offsets.instructions) as i64;
                    let name = word(code, offsets.qualname);
                    stack.frames[stack.len] = PythonFrame { code, name, at };
                    stack.len += 1;
                }
                frame = word(frame, offsets.previous);
            }
        }
        stack
    }

    pub(crate) fn frames(&self) -> &[PythonFrame] {
        &self.frames[..self.len]
    }
}

impl PythonFrame {
    /// Returns words that differ between frames.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.code as u64, self.name as u64, self.at as u64]
    }

    /// Reads the name, file and line. The frame is of a stack that the calling thread captured in
    /// the same call from Python.
    pub(crate) fn line(self) -> Option<SourceLine> {
        let offsets = interpreter()?.offsets;
        // SAFETY: the running frame holds the code object, and that holds its texts and its table.
        unsafe {
            let function = text(self.name, &offsets);
            let file = text(word(self.code, offsets.filename), &offsets);
            let first = word(self.code, offsets.first_line) as u32;
            let table = bytes(word(self.code, offsets.line_table));
            let line = line_of(table, first, self.at).unwrap_or(first);
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
    // A search takes the loader's lock and microseconds. It is repeated at the 1st, 2nd, 4th call
    // and so on, because a program may load the interpreter later.
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
        let offsets = offsets()?;
        Some(Interpreter { offsets, state, is_initialised })
    })
}

fn offsets() -> Option<Offsets> {
    let version = loader::global(c"Py_Version")?;
    // SAFETY: since 3.11, the symbol is a constant of this type.
    let version = unsafe { version.cast::<u64>().cast_const().read() } >> 16;
    match version {
        0x030b => Some(PYTHON_3_11),
        0x030c => Some(PYTHON_3_12),
        0x030d.. => exported(loader::global(c"_PyRuntime")?.addr()),
        _ => None,
    }
}

/// Reads the offsets that the interpreter exports. A build without the lock keeps its threads'
/// states elsewhere, so it has none.
fn exported(runtime: usize) -> Option<Offsets> {
    const COOKIE: &CStr = c"xdebugpy";
    // SAFETY: the runtime's state begins with the cookie and the table, in words.
    let table = unsafe {
        let start = std::ptr::with_exposed_provenance::<u8>(runtime);
        let table = std::slice::from_raw_parts(start, 8 * 64);
        if !table.starts_with(COOKIE.to_bytes()) {
            return None;
        }
        table
    };
    let at = |index: usize| {
        let field = table.get(index * 8..index * 8 + 8)?;
        usize::try_from(u64::from_ne_bytes(field.try_into().ok()?)).ok()
    };
    // The tables of 3.13 and 3.14 differ in the length of their second and third parts.
    let is_3_13 = at(1)? >> 16 == 0x030d;
    if at(2)? != 0 || !is_3_13 {
        return None;
    }
    let (thread, frame, code) = (19, 28, 34);
    Some(Offsets {
        current: at(thread + 4)?,
        inner: None,
        code: at(frame + 2)?,
        previous: at(frame + 1)?,
        instruction: at(frame + 3)?,
        owner: at(frame + 5)?,
        filename: at(code + 1)?,
        qualname: at(code + 3)?,
        line_table: at(code + 4)?,
        first_line: at(code + 5)?,
        instructions: at(code + 9)?,
        ascii: PYTHON_3_12.ascii,
    })
}

/// Reads a word.
unsafe fn word(base: usize, offset: usize) -> usize {
    if base == 0 {
        return 0;
    }
    // SAFETY: the caller passes a structure of the interpreter with a word at this offset.
    unsafe { std::ptr::with_exposed_provenance::<usize>(base + offset).read_unaligned() }
}

unsafe fn byte(base: usize, offset: usize) -> u8 {
    // SAFETY: the caller passes a structure of the interpreter with a byte at this offset.
    unsafe { std::ptr::with_exposed_provenance::<u8>(base + offset).read() }
}

/// Reads a text. Names of code are compact; one outside of ASCII has its UTF-8 form only if the
/// program used it.
unsafe fn text(object: usize, offsets: &Offsets) -> String {
    /// Bits of the kind of a text: compact, and only ASCII.
    const COMPACT_ASCII: u8 = 0x60;
    if object == 0 {
        return String::new();
    }
    // SAFETY: the caller passes a text object. It is never changed.
    unsafe {
        let length = word(object, 16).min(LONGEST);
        let (start, length) = match byte(object, 32) & COMPACT_ASCII {
            COMPACT_ASCII => (object + offsets.ascii, length),
            _ => (word(object, offsets.ascii + 8), word(object, offsets.ascii).min(LONGEST)),
        };
        if start == 0 {
            return "?".to_owned();
        }
        let start = std::ptr::with_exposed_provenance::<u8>(start);
        String::from_utf8_lossy(std::slice::from_raw_parts(start, length)).into_owned()
    }
}

/// Returns the content of a bytes object.
unsafe fn bytes<'a>(object: usize) -> &'a [u8] {
    if object == 0 {
        return &[];
    }
    // SAFETY: the caller passes a bytes object. It lives as long as its code and is not changed.
    unsafe {
        let start = std::ptr::with_exposed_provenance::<u8>(object + 32);
        std::slice::from_raw_parts(start, word(object, 16))
    }
}

/// Returns the line of an instruction by a location table of CPython 3.11 or newer: entries of a
/// first byte with a kind and a number of instructions, then differences of lines and columns.
fn line_of(table: &[u8], first: u32, at: i64) -> Option<u32> {
    let mut line = i64::from(first);
    let mut start = 0_i64;
    let mut rest = table;
    while let Some(head) = rest.split_off_first() {
        let (kind, units) = (head >> 3 & 15, i64::from(head & 7) + 1);
        line += match kind {
            // Long form: a line, and three numbers for columns.
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

/// Reads a number of 6 bits a byte, the lowest first.
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
