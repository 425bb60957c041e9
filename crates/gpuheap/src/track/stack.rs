//! Captures stacks as addresses, and resolves these to names and lines for display.

use crate::Caller;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

/// Maximum number of frames that a stack keeps, including gpuheap's own frames.
pub(super) const DEPTH: usize = 64;

/// Writes the return addresses of this thread's stack, innermost first. Returns their number, and
/// `true` if frames were left out because they do not fit.
#[inline(never)]
pub(super) fn capture(addresses: &mut [usize]) -> (usize, bool) {
    let (mut len, mut is_cut) = (0, false);
    backtrace::trace(|frame| {
        let address = frame.ip().addr();
        // A null return address is the end of the stack, so no frame was cut off.
        is_cut = address != 0 && len == addresses.len();
        if address == 0 || is_cut {
            return false;
        }
        addresses[len] = address;
        len += 1;
        true
    });
    (len, is_cut)
}

/// The stack of an allocation, from the caller of gpuheap outward.
///
/// Names and lines are resolved when they are first requested. That reads the program's debug
/// information, and takes milliseconds to seconds once; clones share the result. With
/// [`Tracking::Counts`](crate::Tracking::Counts) the stack is one frame, of which only the line is
/// known.
#[derive(Clone)]
pub struct CallStack(Arc<StackInner>);

struct StackInner {
    at: Caller,
    addresses: Box<[usize]>,
    is_cut: bool,
    resolved: OnceLock<Resolved>,
}

/// One function on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Frame {
    /// The function's name, without the compiler's hash. `None` if the program has no symbol for
    /// it.
    pub name: Option<String>,
    /// Path of the source file. Paths of the program's own files are relative to the workspace.
    pub file: Option<String>,
    /// Line of the call, from 1.
    pub line: Option<u32>,
    /// `true` if the function was inlined into the frame that follows.
    pub inlined: bool,
    /// Return address; `None` for a frame of which only the line is known.
    pub address: Option<u64>,
}

struct Resolved {
    frames: Vec<Frame>,
    /// For each frame, the standard library's crate to which the frame belongs, if any.
    library: Vec<Option<&'static str>>,
    missing: MissingInfo,
}

/// Debug information that the program lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingInfo {
    Nothing,
    Lines,
    Symbols,
    /// Lines of a program in C or C++. For such a program, reports advise to build with `-g`.
    LinesOfC,
}

impl CallStack {
    pub(super) fn new(at: Caller, addresses: &[usize], is_cut: bool) -> CallStack {
        CallStack(Arc::new(StackInner {
            at,
            addresses: addresses.into(),
            is_cut,
            resolved: OnceLock::new(),
        }))
    }

    /// Returns the frames, innermost first. There is at least one. May take seconds the first time.
    pub fn frames(&self) -> &[Frame] {
        &self.resolved().frames
    }

    /// Returns `true` if the program was built without line tables: all lines but the first are
    /// then unknown. May take seconds the first time.
    pub fn lacks_line_tables(&self) -> bool {
        self.resolved().missing != MissingInfo::Nothing
    }

    /// Returns the number of captured frames. gpuheap's own frames are included, and inlined frames
    /// are not. Resolves nothing.
    pub fn depth(&self) -> usize {
        self.0.addresses.len()
    }

    /// Returns `true` if the stack was too deep to be kept whole.
    pub fn is_cut(&self) -> bool {
        self.0.is_cut
    }

    fn resolved(&self) -> &Resolved {
        self.0.resolved.get_or_init(|| trim_to_caller(resolve(&self.0.addresses), self.0.at))
    }
}

/// Displays each frame as ` [1] name at file:line` on its own line; the last line has no line end.
/// Consecutive frames of the standard library are replaced by their number.
impl fmt::Display for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resolved = self.resolved();
        let mut at = 0;
        while let Some(frame) = resolved.frames.get(at) {
            let end = if at == 0 { "" } else { "\n" };
            match resolved.run_of_library(at) {
                run if at > 0 && run.len() > 1 => {
                    let names: Vec<_> =
                        LIBRARY.into_iter().filter(|name| run.contains(name)).collect();
                    write!(f, "{end}     ... {} frames of {}", run.len(), names.join(" and "))?;
                    at += run.len();
                }
                _ => {
                    write!(f, "{end} [{}] {frame}", at + 1)?;
                    at += 1;
                }
            }
        }
        match resolved.missing {
            MissingInfo::Nothing => {}
            MissingInfo::Lines => f.write_str(
                "\n No line tables: build with debug = \"line-tables-only\" for files and lines",
            )?,
            MissingInfo::LinesOfC => {
                f.write_str("\n No line tables: build with -g for files and lines")?
            }
            MissingInfo::Symbols => f.write_str(
                "\n No symbols and no line tables: build with debug = \"line-tables-only\" and\n \
                 without strip for the rest of the stack",
            )?,
        }
        if self.is_cut() && resolved.missing != MissingInfo::Symbols {
            write!(f, "\n The stack is deeper: {DEPTH} frames are kept")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CallStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallStack of {} frames at {}", self.depth(), self.0.at)
    }
}

impl Serialize for CallStack {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("CallStack", 3)?;
        fields.serialize_field("frames", self.frames())?;
        fields.serialize_field("lacks_line_tables", &self.lacks_line_tables())?;
        fields.serialize_field("is_cut", &self.is_cut())?;
        fields.end()
    }
}

/// Displays `name at file:line [inlined]`. A frame without a name shows its address. A frame of
/// which only the line is known shows neither name nor address.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.address) {
            (Some(name), _) => f.write_str(name)?,
            (None, Some(address)) => write!(f, "{address:#x}")?,
            (None, None) => {}
        }
        if let Some(file) = &self.file {
            let space = if self.name.is_none() && self.address.is_none() { "" } else { " " };
            write!(f, "{space}at {file}")?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
        }
        if self.inlined { f.write_str(" [inlined]") } else { Ok(()) }
    }
}

/// Resolves addresses with the program's debug information.
fn resolve(addresses: &[usize]) -> Vec<Frame> {
    let mut frames = Vec::with_capacity(addresses.len());
    for &address in addresses {
        let unknown = Frame {
            name: None,
            file: None,
            line: None,
            inlined: false,
            address: Some(address as u64),
        };
        let first = frames.len();
        backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
            frames.push(Frame {
                name: symbol.name().map(|name| format!("{name:#}")),
                file: symbol.filename().map(|file| file.to_string_lossy().into_owned()),
                line: symbol.lineno(),
                // Reset below for the last frame, because the other frames are inlined into it.
                inlined: true,
                ..unknown.clone()
            });
        });
        if frames.len() == first {
            frames.push(unknown);
        } else if let Some(function) = frames.last_mut() {
            function.inlined = false;
        }
    }
    frames
}

/// Keeps only the caller's frames, from the frame of the line `at` to the start of the thread.
fn trim_to_caller(mut frames: Vec<Frame>, at: &Location<'_>) -> Resolved {
    if let Some(first) = caller_in_c(&frames) {
        frames.drain(..first);
        // Removes the C library's frames that precede the program's first function.
        let started = |frame: &Frame| {
            frame.name.as_deref().is_some_and(|name| name.starts_with("__libc_start"))
        };
        if let Some(start) = frames.iter().position(started) {
            frames.truncate(start.max(1));
        }
        let missing = if frames.iter().all(|frame| frame.line.is_none()) {
            MissingInfo::LinesOfC
        } else {
            MissingInfo::Nothing
        };
        return Resolved { library: vec![None; frames.len()], frames, missing };
    }
    let first = caller(&frames, at);
    let missing = match first {
        _ if frames.is_empty() => MissingInfo::Nothing,
        None => MissingInfo::Symbols,
        Some(first) if frames[first].file.is_none() => MissingInfo::Lines,
        Some(_) => MissingInfo::Nothing,
    };
    match first {
        Some(first) => drop(frames.drain(..first)),
        None => frames.clear(),
    }
    if let Some(start) = frames.iter().position(is_start) {
        frames.truncate(start.max(1));
        while frames.len() > 1 && frames.last().is_some_and(is_glue) {
            frames.pop();
        }
    }
    let library = frames.iter().map(library).collect();
    shorten(&mut frames, at);
    match frames.first_mut() {
        Some(first) => {
            first.file = Some(at.file().to_owned());
            first.line = Some(at.line());
        }
        None => frames.push(Frame {
            name: None,
            file: Some(at.file().to_owned()),
            line: Some(at.line()),
            inlined: false,
            address: None,
        }),
    }
    Resolved { frames, library, missing }
}

impl Resolved {
    /// Returns the crates of the frames from index `at` on, up to the first frame that is not of
    /// the standard library.
    fn run_of_library(&self, at: usize) -> Vec<&'static str> {
        self.library.iter().skip(at).map_while(|name| *name).collect()
    }
}

const LIBRARY: [&str; 3] = ["core", "alloc", "std"];

/// Returns the index of the frame that called gpuheap's C interface, or a CUDA function that
/// gpuheap replaces. Returns `None` for a caller in Rust. Functions of gpuheap's C++ header count
/// as the C interface.
fn caller_in_c(frames: &[Frame]) -> Option<usize> {
    const OF_CUDA: [&str; 5] =
        ["cudaMalloc", "cudaMallocAsync", "cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocAsync"];
    /// Number of frames in which an outer entry (an exported function) is searched after an inner
    /// one. An exported symbol may call a function of the same name.
    const BETWEEN: usize = 12;
    let is_entry = |frame: &Frame| {
        let name = frame.name.as_deref().unwrap_or("");
        OF_CUDA.contains(&name) || name.starts_with("gpuheap_") && !name.contains("::")
    };
    let mut first = frames.iter().position(is_entry)? + 1;
    while let Some(next) = frames[first..].iter().take(BETWEEN).position(is_entry) {
        first += next + 1;
    }
    let beyond = |frame: &Frame| !has_prefix(frame, &["gpuheap"]);
    Some(first + frames[first..].iter().position(beyond)?)
}

/// Returns the index of the frame that contains the line `at`. Searches by file and line, and then
/// by file alone, because line tables may give another line of the same call. Without line tables,
/// takes the first frame outside of gpuheap.
fn caller(frames: &[Frame], at: &Location<'_>) -> Option<usize> {
    let in_file = |frame: &Frame| frame.file.as_deref().is_some_and(|file| is_file(file, at));
    frames
        .iter()
        .position(|frame| in_file(frame) && frame.line == Some(at.line()))
        .or_else(|| frames.iter().position(|frame| in_file(frame) && !is_ours(frame)))
        .or_else(|| {
            let first = frames.iter().position(|frame| !is_ours(frame) && !is_glue(frame))?;
            // A frame without a name may be gpuheap's own, and so may the frames after it. The
            // caller is then unknown.
            (frames[first].name.is_some() && !is_start(&frames[first])).then_some(first)
        })
}

/// Returns `true` if `file` is the file of `at`. `file` is an absolute path from the line tables.
/// The path of `at` is usually relative.
fn is_file(file: &str, at: &Location<'_>) -> bool {
    let rest = file.strip_suffix(at.file());
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

fn is_ours(frame: &Frame) -> bool {
    has_prefix(frame, &["gpuheap", "backtrace"])
}

/// Returns `true` for a frame that the compiler or the standard library puts between a caller and
/// its callee. Files are compared too: with line tables only, names of functions lack the crate.
fn is_glue(frame: &Frame) -> bool {
    has_prefix(frame, &LIBRARY)
        || frame.file.as_deref().is_some_and(|file| file.starts_with("/rustc/"))
}

/// Returns the standard library's crate that a frame belongs to. Decides by the frame's file, or
/// else by the function's name.
fn library(frame: &Frame) -> Option<&'static str> {
    let file = frame
        .file
        .as_deref()
        .filter(|file| file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/"));
    let within = file.and_then(|file| Some(file.split_once("/library/")?.1.split_once('/')?.0));
    let by_file = LIBRARY.into_iter().find(|name| within == Some(*name));
    by_file.or_else(|| LIBRARY.into_iter().find(|name| has_prefix(frame, &[*name])))
}

/// Returns `true` for the frame in which the standard library starts a thread, including the main
/// thread.
fn is_start(frame: &Frame) -> bool {
    frame.name.as_deref().is_some_and(|name| name.contains("__rust_begin_short_backtrace"))
}

fn has_prefix(frame: &Frame, crates: &[&str]) -> bool {
    let Some(name) = frame.name.as_deref() else { return false };
    let name = name.trim_start_matches(['<', '&', '[', '(']);
    crates.iter().any(|one| name.strip_prefix(one).is_some_and(|rest| rest.starts_with("::")))
}

/// Removes two prefixes from paths: the standard library's folder and the caller's workspace. Paths
/// in the line tables include the workspace; the path of `at` does not.
fn shorten(frames: &mut [Frame], at: &Location<'_>) {
    let workspace = frames.first().and_then(|first| first.file.as_deref());
    let workspace =
        workspace.and_then(|file| file.strip_suffix(at.file())).unwrap_or("").to_owned();
    for file in frames.iter_mut().filter_map(|frame| frame.file.as_mut()) {
        if !workspace.is_empty()
            && let Some(rest) = file.strip_prefix(&workspace)
        {
            *file = rest.to_owned();
        } else if let Some((_, rest)) =
            file.strip_prefix("/rustc/").and_then(|rest| rest.split_once('/'))
        {
            *file = rest.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, file: &str, line: u32) -> Frame {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Frame {
            name: known(name),
            file: known(file),
            line: Some(line).filter(|line| *line > 0),
            inlined: false,
            address: Some(0x1000),
        }
    }

    /// Returns the lines of a trimmed stack's text: its frames, and a note if debug information is
    /// missing.
    fn display_lines(frames: Vec<Frame>, at: Caller) -> Vec<String> {
        let addresses = vec![0x1000; frames.len()];
        let stack = CallStack::new(at, &addresses, false);
        assert!(stack.0.resolved.set(trim_to_caller(frames, at)).is_ok());
        stack.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn whole_stack_is_not_cut() {
        let mut addresses = [0; 1024];
        let (len, is_cut) = capture(&mut addresses);
        assert!(len > 1 && !is_cut, "{len}");
        assert_eq!(capture(&mut addresses[..len]), (len, false));
        assert_eq!(capture(&mut addresses[..len - 1]), (len - 1, true));
    }

    #[test]
    fn caller_stack_has_short_paths() {
        let at = Location::caller();
        let file = format!("/source/tree/{}", at.file());
        let frames = vec![
            frame("backtrace::backtrace::trace", "/registry/backtrace.rs", 66),
            frame("gpuheap::heap::Heap::allocate", "/elsewhere/heap.rs", 9),
            frame("program::load", &file, at.line()),
            frame("program::main", "/source/tree/src/main.rs", 3),
            frame("core::ops::function::FnOnce::call_once", "/rustc/abc/library/core/f.rs", 250),
            frame("<fn() as core::ops::function::FnOnce<()>>::call_once", "/rustc/abc/f.rs", 250),
            frame("call_once<fn(), ()>", "/rustc/abc/f.rs", 250),
            frame("std::sys::backtrace::__rust_begin_short_backtrace", "/rustc/abc/b.rs", 166),
            frame("main", "", 0),
        ];
        let expected = [
            format!(" [1] program::load at {}:{}", at.file(), at.line()),
            " [2] program::main at src/main.rs:3".to_owned(),
        ];
        assert_eq!(display_lines(frames, at), expected);
    }

    #[test]
    fn library_frames_are_counted() {
        let at = Location::caller();
        let file = format!("/source/tree/{}", at.file());
        let library = "/rustc/abc/library";
        let frames = vec![
            frame("program::load", &file, at.line()),
            frame("{closure#0}", &format!("{library}/core/src/iter/map.rs"), 88),
            frame("<alloc::vec::Vec<T> as core::iter::FromIterator<T>>::from_iter", "", 0),
            frame("fold", "/toolchain/lib/rustlib/src/rust/library/core/src/iter.rs", 9),
            frame("program::middle", "/source/tree/library/core/middle.rs", 7),
            frame("std::thread::local::LocalKey<T>::with", &format!("{library}/std/l.rs"), 1),
            frame("program::library", "/source/tree/library/core/main.rs", 3),
            frame("std::sys::a", "", 0),
            frame("std::sys::b", "", 0),
        ];
        let expected = [
            format!(" [1] program::load at {}:{}", at.file(), at.line()),
            "     ... 3 frames of core and alloc".to_owned(),
            " [5] program::middle at library/core/middle.rs:7".to_owned(),
            " [6] std::thread::local::LocalKey<T>::with at library/std/l.rs:1".to_owned(),
            " [7] program::library at library/core/main.rs:3".to_owned(),
            "     ... 2 frames of std".to_owned(),
        ];
        assert_eq!(display_lines(frames, at), expected);
    }

    #[test]
    fn caller_is_found_by_file() {
        let at = Location::caller();
        let file = format!("/build/{}", at.file());
        let frames = vec![
            frame("gpuheap::heap::Heap::allocate", "/elsewhere/heap.rs", at.line()),
            frame("program::load", &file, at.line() + 2),
        ];
        assert_eq!(
            display_lines(frames, at),
            [format!(" [1] program::load at {}:{}", at.file(), at.line())]
        );
    }

    #[test]
    fn stack_starts_at_cpp_caller() {
        let at = Location::caller();
        let own = [
            frame("gpuheap::heap::Heap::allocate", "", 0),
            frame("gpuheap_capi::handle::allocate", at.file(), at.line()),
            frame("gpuheap_capi::entry::enter", "", 0),
            frame("gpuheap_allocate", "", 0),
            frame("gpuheap::heap::try_allocate<float>(unsigned long, void*)", "gpuheap.hpp", 340),
        ];
        let program = [
            frame("load(int)", "/src/load.cpp", 7),
            frame("main", "/src/main.cpp", 3),
            frame("__libc_start_call_main", "/libc/start.h", 58),
            frame("_start", "", 0),
        ];
        let expected = [" [1] load(int) at /src/load.cpp:7", " [2] main at /src/main.cpp:3"];
        assert_eq!(display_lines(own.iter().chain(&program).cloned().collect(), at), expected);
        let program = [frame("load(int)", "", 0), frame("main", "", 0)];
        let lines = display_lines(own.iter().chain(&program).cloned().collect(), at);
        assert_eq!(lines[2], " No line tables: build with -g for files and lines");
        // The preloaded library takes CUDA's place.
        let own = [
            frame("gpuheap_malloc::serve::allocate", "", 0),
            frame("cudaMalloc", "runtime_api.rs", 41),
            frame("catch_unwind", "", 0),
            frame("cudaMalloc", "exports.rs", 17),
        ];
        let program = [frame("main", "/src/main.c", 3)];
        let lines = display_lines(own.iter().chain(&program).cloned().collect(), at);
        assert_eq!(lines, [" [1] main at /src/main.c:3"]);
    }

    #[test]
    fn missing_line_tables_are_reported() {
        let at = Location::caller();
        let frames = vec![
            frame("backtrace::backtrace::trace", "", 0),
            frame("<gpuheap::heap::Heap as core::ops::Drop>::drop", "", 0),
            frame("core::ops::function::FnOnce::call_once", "", 0),
            frame("program::load", "", 0),
            frame("program::main", "", 0),
        ];
        let expected = [
            format!(" [1] program::load at {}:{}", at.file(), at.line()),
            " [2] program::main".to_owned(),
            " No line tables: build with debug = \"line-tables-only\" for files and lines"
                .to_owned(),
        ];
        assert_eq!(display_lines(frames, at), expected);
    }

    #[test]
    fn stack_without_symbols_has_line() {
        let at = Location::caller();
        // The C library may have symbols although the program has none.
        let frames = vec![frame("", "", 0), frame("", "", 0), frame("start_thread", "", 0)];
        let lines = display_lines(frames, at);
        assert_eq!(lines[0], format!(" [1] at {}:{}", at.file(), at.line()));
        assert!(lines[1].contains("No symbols"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:?}");
    }
}
