//! Structures of CPython that hold a thread's frames.
//!
//! The offsets here are for CPython 3.9 to 3.12 on 64-bit systems. 3.13 and 3.14 export their
//! offsets.

use std::ptr::with_exposed_provenance;

/// Offsets in the interpreter's structures, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct CPython {
    /// Offset in the thread's state of the pointer to the current frame. In CPython 3.11 and 3.12,
    /// the pointer leads to a `_PyCFrame` structure.
    current: usize,
    /// Offset of the frame's pointer in a `_PyCFrame` structure; `None` in other versions.
    inner: Option<usize>,
    /// Offset of the code in a frame.
    code: usize,
    previous: usize,
    instruction: Instruction,
    /// Offset of the field `owner` in a frame, by which frames of calls from C are recognised.
    /// `None` if this CPython makes no such frames.
    owner: Option<usize>,
    /// Offset of the file's name in a code object.
    pub filename: usize,
    /// Offset of the function's name in a code object.
    pub qualname: usize,
    /// Offset of the first line's number in a code object.
    pub first_line: usize,
    /// Offset of the line table in a code object.
    pub line_table: usize,
    /// Format of the line table.
    pub lines: LineTable,
    /// Size of an ASCII string's header. In other strings, the UTF-8 length is at this offset.
    pub ascii: usize,
}

/// Position of a frame's current instruction.
#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// Pointer at `offset` in the frame. The code object's instructions begin at `first`.
    Pointer { offset: usize, first: usize },
    /// Number at `offset` in the frame. Multiplied by `bytes`, it is the byte offset of the current
    /// instruction in the code.
    Number { offset: usize, bytes: i64 },
}

/// Format of a code object's line table.
#[derive(Clone, Copy, Debug)]
pub enum LineTable {
    /// CPython 3.9: each entry has the changes of the address and of the line.
    Differences,
    /// CPython 3.10: each entry has the length of a code range and the change of the line.
    Ranges,
    /// CPython 3.11 and newer: each entry has the length, lines and columns of a code range.
    Locations,
}

/// Smallest `owner` value of frames that stand for calls from C. Such frames have no line.
const OWNED_BY_C: u8 = 3;

const PYTHON_3_9: CPython = CPython {
    current: 24,
    inner: None,
    code: 32,
    previous: 24,
    instruction: Instruction::Number { offset: 104, bytes: 1 },
    owner: None,
    filename: 104,
    qualname: 112,
    first_line: 40,
    line_table: 120,
    lines: LineTable::Differences,
    ascii: 48,
};

const PYTHON_3_10: CPython = CPython {
    instruction: Instruction::Number { offset: 96, bytes: 2 },
    lines: LineTable::Ranges,
    ..PYTHON_3_9
};

const PYTHON_3_11: CPython = CPython {
    current: 56,
    inner: Some(8),
    code: 32,
    previous: 48,
    instruction: Instruction::Pointer { offset: 56, first: 184 },
    owner: Some(69),
    filename: 112,
    qualname: 128,
    first_line: 72,
    line_table: 136,
    lines: LineTable::Locations,
    ascii: 48,
};

const PYTHON_3_12: CPython = CPython {
    inner: Some(0),
    code: 0,
    previous: 8,
    instruction: Instruction::Pointer { offset: 56, first: 192 },
    owner: Some(70),
    first_line: 68,
    ascii: 40,
    ..PYTHON_3_11
};

impl CPython {
    /// Returns the offsets of a version; `None` if they are unknown.
    ///
    /// # Safety
    ///
    /// `runtime` is null or the address of the interpreter's `_PyRuntime`.
    pub unsafe fn new(version: (u8, u8), runtime: *const u8) -> Option<CPython> {
        // SAFETY: the caller passes the runtime's state.
        let exported = |tables| unsafe { exported(runtime, tables) };
        match version {
            (3, 9) => Some(PYTHON_3_9),
            (3, 10) => Some(PYTHON_3_10),
            (3, 11) => Some(PYTHON_3_11),
            (3, 12) => Some(PYTHON_3_12),
            // Indices of the first words for threads, frames and code in the exported table.
            (3, 13) => exported([19, 28, 34]),
            (3, 14) => exported([22, 31, 39]),
            _ => None,
        }
    }

    /// Returns a thread's frames, innermost first, without calls from C. A frame is the address of
    /// its code object and the byte offset of its current instruction.
    ///
    /// # Safety
    ///
    /// `state` is 0 or the address of a thread's state in an interpreter of this version. The
    /// thread pushes and pops no frame while the result is in use.
    #[inline]
    pub unsafe fn frames(self, state: usize) -> impl Iterator<Item = (usize, i64)> {
        // SAFETY: the caller passes 0 or a thread's state, and the thread's frames do not change
        // meanwhile. So each `base` is 0 or a live structure that has a word at `offset`.
        let word = |base: usize, offset: usize| unsafe { word(base, offset) };
        let mut next = word(state, self.current);
        if let Some(inner) = self.inner {
            next = word(next, inner);
        }
        std::iter::from_fn(move || {
            while next != 0 {
                let frame = next;
                next = word(frame, self.previous);
                // SAFETY: `frame` is the address of a live frame, and CPython's frame structure has
                // the one-byte field `owner` at this offset.
                let owner = self.owner.map_or(0, |owner| unsafe {
                    with_exposed_provenance::<u8>(frame + owner).read()
                });
                if owner < OWNED_BY_C {
                    // From CPython 3.14 on, the code object's pointer has flags in its lowest bits.
                    let code = word(frame, self.code) & !7;
                    let at = match self.instruction {
                        Instruction::Pointer { offset, first } => {
                            word(frame, offset) as i64 - (code + first) as i64
                        }
                        Instruction::Number { offset, bytes } => {
                            i64::from(word(frame, offset) as i32) * bytes
                        }
                    };
                    return Some((code, at));
                }
            }
            None
        })
    }
}

/// Reads a word. Returns 0 if the base is 0.
#[inline]
unsafe fn word(base: usize, offset: usize) -> usize {
    if base == 0 {
        return 0;
    }
    // SAFETY: the caller passes a structure of the interpreter with a word at this offset.
    unsafe { with_exposed_provenance::<usize>(base + offset).read_unaligned() }
}

/// Reads the offsets in the table that the interpreter exports. Returns `None` for a free-threaded
/// build, because such a build keeps thread states elsewhere.
unsafe fn exported(runtime: *const u8, tables: [usize; 3]) -> Option<CPython> {
    if runtime.is_null() {
        return None;
    }
    // SAFETY: the runtime's state begins with a cookie and the table of offsets.
    let table = unsafe { std::slice::from_raw_parts(runtime, 8 * 64) };
    if !table.starts_with(b"xdebugpy") {
        return None;
    }
    let at = |index: usize| {
        let field = table.get(index * 8..index * 8 + 8)?;
        usize::try_from(u64::from_ne_bytes(field.try_into().ok()?)).ok()
    };
    if at(2)? != 0 {
        return None;
    }
    let [thread, frame, code] = tables;
    Some(CPython {
        current: at(thread + 4)?,
        inner: None,
        code: at(frame + 2)?,
        previous: at(frame + 1)?,
        instruction: Instruction::Pointer { offset: at(frame + 3)?, first: at(code + 9)? },
        owner: Some(at(frame + 5)?),
        filename: at(code + 1)?,
        qualname: at(code + 3)?,
        line_table: at(code + 4)?,
        first_line: at(code + 5)?,
        ..PYTHON_3_12
    })
}
