//! Finds sites. A site is the line of the program to which a stack belongs.

use std::iter::once;

use super::{Frame, Op, Trace};

/// Number of characters that a site shows of a path or a function. A site shows the last
/// characters, because names in one file or module begin alike.
const SHOWN: usize = 48;

impl Trace {
    /// Returns the innermost line of a stack in the program's own code, as `train.py:115 in step`.
    /// If all frames are of libraries, returns the first frame of [`own_frames`](Self::own_frames),
    /// or else the innermost frame.
    pub fn site(&self, stack: u32) -> String {
        let own = self.own_frames(stack);
        let innermost = own.first().copied().or_else(|| self.stack(stack).next());
        innermost
            .map_or_else(|| "before the recording, or without a stack".to_owned(), Frame::to_string)
    }

    /// Returns the frames of a stack in the program's own code, innermost first. If all frames are
    /// of libraries, tries three kinds in order: frames with known lines, nodes of PyTorch's
    /// backward pass, frames outside of CUDA and gpuheap.
    pub fn own_frames(&self, stack: u32) -> Vec<&Frame> {
        let kinds: [fn(&Frame) -> bool; 4] = [
            |frame| !frame.is_library(),
            |frame| frame.line > 0 && !is_of_system(&frame.file),
            // A node of PyTorch's backward pass. The pass runs in a thread without Python frames.
            |frame| frame.function.starts_with("torch::autograd::generated::"),
            |_| true,
        ];
        let of = |is_own: fn(&Frame) -> bool| -> Vec<&Frame> {
            let is_between = |frame: &Frame| is_of_cuda(frame) || is_of_gpuheap(frame);
            self.stack(stack).filter(|frame| !is_between(frame) && is_own(frame)).collect()
        };
        kinds.into_iter().map(of).find(|frames| !frames.is_empty()).unwrap_or_default()
    }
}

/// Frameworks with pools. Each entry has the framework's name, a part of the path of the library
/// that takes the pool's memory, and a part of that library's function names.
const POOLS: [(&str, &str, &str); 4] = [
    ("PyTorch", "libc10_cuda.so", "c10::cuda::CUDACachingAllocator"),
    ("CuPy", "cupy/cuda/memory.", "cupy_4cuda_6memory"),
    ("RMM", "librmm.so", "rmm::mr::"),
    ("JAX", "xla_cuda_plugin", "xla::"),
];

/// Prefixes of the file names of NVIDIA's libraries that keep device memory for their handles.
const LIBRARIES: [&str; 11] = [
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcutensor",
    "libnccl",
    "libnvinfer",
    "libnvjpeg",
    "libnvshmem",
];

impl Trace {
    /// Returns the file name of NVIDIA's library that allocated with this stack, such as
    /// `libcublas.so.12`. The memory belongs to a handle or a plan of that library. `None` if other
    /// code allocated, or if the format does not record files.
    pub fn library(&self, stack: u32) -> Option<&str> {
        let is_library = |name: &&str| LIBRARIES.iter().any(|start| name.starts_with(start));
        self.module(stack).filter(is_library)
    }

    /// Returns the framework whose pool took memory with this stack; `None` if no framework's pool
    /// did.
    pub fn pool_of(&self, stack: u32) -> Option<&'static str> {
        let is_of = |frame: &Frame, library: &str, function: &str| {
            frame.file.contains(library) || frame.function.contains(function)
        };
        let pool = |frame| POOLS.iter().find(|(_, library, name)| is_of(frame, library, name));
        self.stack(stack).find_map(pool).map(|(framework, ..)| *framework)
    }

    /// Returns the frameworks whose pools took memory, although the recording has no blocks of
    /// these pools.
    pub fn unrecorded_pools(&self) -> Vec<&'static str> {
        let mut stacks: Vec<_> = (self.events().iter())
            .filter(|event| match event.op {
                Op::Allocate { allocation, .. } => !self.kind(allocation).is_pooled(),
                _ => false,
            })
            .map(|event| event.stack)
            .collect();
        stacks.sort_unstable();
        stacks.dedup();
        let mut found: Vec<_> = stacks.iter().filter_map(|stack| self.pool_of(*stack)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Returns how to record the blocks of a framework's pool.
pub fn hint(framework: &str) -> Option<&'static str> {
    match framework {
        "PyTorch" | "CuPy" | "RMM" => Some("record with gpuheap run --frameworks"),
        "JAX" => Some("let JAX use no pool: XLA_PYTHON_CLIENT_ALLOCATOR=platform"),
        _ => None,
    }
}

impl Frame {
    /// Returns `true` if the frame is native code, or code of an installed package. In a stack with
    /// Python frames, native code is not the program's own.
    pub fn is_library(&self) -> bool {
        let file = &*self.file;
        let is_native = [".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".so"]
            .iter()
            .any(|ending| file.ends_with(ending));
        let is_package = [
            "gpuheap_frameworks_hook.py",
            "site-packages/",
            "dist-packages/",
            "/torch/",
            "<frozen",
            "<string",
        ]
        .iter()
        .any(|part| file.contains(part));
        let is_binary = self.line == 0;
        is_native
            || is_package
            || is_binary
            || is_of_system(file)
            || file.starts_with("torch/")
            || file.is_empty()
            || file == "??"
    }
}

/// Writes the frame as `train.py:115 in step`, without control characters and without the argument
/// types of C++ functions. Each part is cut to its last 48 characters. A frame without a line
/// appears as `step in libtrain.so`.
impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Frame { function, file, line } = self;
        let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let function = without_arguments(function);
        match line {
            0 if file.is_empty() || function.starts_with(file) => {
                write!(f, "{}", clean(function))
            }
            0 => write!(f, "{} in {}", clean(function), clean(file)),
            _ => write!(f, "{} in {}", clean(&format!("{file}:{line}")), clean(function)),
        }
    }
}

/// Returns the name of a C++ function without the types of its arguments: `f` for `f(int) const`.
fn without_arguments(function: &str) -> &str {
    let name = function.strip_suffix(" const").unwrap_or(function);
    if !name.ends_with(')') {
        return function;
    }
    let mut depth = 0;
    let opening = name.rfind(|letter| {
        depth += i32::from(letter == ')') - i32::from(letter == '(');
        depth == 0
    });
    let name = opening.map_or("", |at| &name[..at]);
    if name.is_empty() || name.ends_with("operator") { function } else { name }
}

fn is_of_system(file: &str) -> bool {
    let parts = ["/rustc/", "/.cargo/registry/", "/.cargo/git/", "/usr/include/", "/usr/lib/"];
    parts.iter().any(|part| file.contains(part))
}

/// Returns `true` if the frame is of CUDA's runtime or driver, real or emulated. A statically
/// linked runtime has no file, so its functions are recognised by their names.
fn is_of_cuda(frame: &Frame) -> bool {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    let function = frame.function.strip_prefix("cuda").or(frame.function.strip_prefix("cu"));
    let is_call = function.is_some_and(|rest| rest.starts_with(|first: char| first.is_uppercase()))
        && !file.ends_with(".py");
    is_call || is_runtime(file)
}

/// Returns `true` if the frame is of gpuheap. Stacks from a recorded heap begin with such frames.
/// Compares files too: if the debug information has only line tables, names of inlined functions
/// lack their crates.
fn is_of_gpuheap(frame: &Frame) -> bool {
    let name = frame.function.trim_start_matches(['<', '&', '(']);
    let file = frame.file.split_once("crates/gpuheap").map(|(_, rest)| rest);
    let is_source = file.is_some_and(|rest| {
        rest.trim_start_matches(|letter: char| letter.is_ascii_lowercase() || letter == '-')
            .starts_with("/src/")
    });
    let crates = ["gpuheap", "gpuheap_capi", "gpuheap_malloc", "gpuheap_python", "backtrace"];
    let is_path = |one: &str| name.strip_prefix(one).is_some_and(|rest| rest.starts_with("::"));
    is_source || name.starts_with("gpuheap_emu") || crates.into_iter().any(is_path)
}

/// Returns `true` for a library of CUDA, real or emulated, and for the C and C++ runtime. Frames of
/// these libraries are between the program's call and the driver.
pub(crate) fn is_runtime(file_name: &str) -> bool {
    let libraries = ["libcuda", "libgpuheap", "libc.", "libstdc++", "ld-linux"];
    libraries.iter().any(|library| file_name.starts_with(library))
}

fn clean(text: &str) -> String {
    let letters: Vec<char> = text.chars().filter(|letter| !letter.is_control()).collect();
    match letters.len() {
        ..=SHOWN => letters.into_iter().collect(),
        more => once('…').chain(letters[more + 1 - SHOWN..].iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{At, Format, MemoryKind, StackInterner, TraceBuilder};

    fn frame(function: &str, file: &str, line: u32) -> Frame {
        Frame { function: function.into(), file: file.into(), line }
    }

    #[test]
    fn frames_name_line_and_function() {
        for (frame, text) in [
            (frame("step", "/home/a/train.py", 115), "train.py:115 in step"),
            (frame("a\nb", "a.py", 1), "a.py:1 in ab"),
            (frame("fill", "/opt/app/libapp.so", 0), "fill in libapp.so"),
            (frame("libapp.so+0x12", "/opt/app/libapp.so", 0), "libapp.so+0x12"),
            (frame("step", "", 0), "step"),
            (frame("a::Buffer::take(int (*)(int)) const", "a.cu", 2), "a.cu:2 in a::Buffer::take"),
            (frame("f::operator()", "a.cu", 2), "a.cu:2 in f::operator()"),
            (frame("(anonymous namespace)::f()", "a.cu", 2), "a.cu:2 in (anonymous namespace)::f"),
            (
                frame(&format!("{}::last", "a".repeat(60)), "", 0),
                &format!("…{}::last", "a".repeat(41)),
            ),
        ] {
            assert_eq!(frame.to_string(), text);
        }
    }

    #[test]
    fn native_programs_have_own_frames() {
        let trace = |frames: &[(&str, &str, u32)]| {
            let mut stacks = StackInterner::default();
            let mut numbers = Vec::new();
            for &(function, file, line) in frames {
                let (function, file) = (stacks.text(function).unwrap(), stacks.text(file).unwrap());
                numbers.push(stacks.frame(function, file, line).unwrap());
            }
            assert_eq!(stacks.stack(numbers).unwrap(), 1);
            let mut builder = TraceBuilder::new("made up", Format::PytorchSnapshot);
            builder.set_stacks(Arc::new(stacks.finish()));
            builder.finish()
        };
        let shown = |trace: &Trace| -> Vec<String> {
            trace.own_frames(1).into_iter().map(ToString::to_string).collect()
        };
        let native = [
            ("cudaMalloc", "/opt/cuda/libcudart.so.12", 0),
            ("take", "/home/a/leak.cpp", 10),
            ("_M_run", "/usr/include/c++/12/bits/std_thread.h", 210),
            ("decode", "/home/a/leak.cpp", 16),
        ];
        assert_eq!(shown(&trace(&native)), ["leak.cpp:10 in take", "leak.cpp:16 in decode"]);
        let python = trace(&[native[1], ("step", "/home/a/train.py", 3)]);
        assert_eq!(shown(&python), ["train.py:3 in step"]);
        assert_eq!(python.site(1), "train.py:3 in step");
        let stripped = trace(&[native[0], ("libapp.so+0x12", "/opt/libapp.so", 0)]);
        assert_eq!(shown(&stripped), ["libapp.so+0x12"]);
        let linked = ("cudaMalloc", "/home/a/leak", 0);
        let emulated = ("gpuheap_emu_cudart::memory::cudaMalloc", "/src/memory.rs", 83);
        assert_eq!(shown(&trace(&[emulated, linked, native[1]])), ["leak.cpp:10 in take"]);
        let recorded = [
            ("backtrace::backtrace::trace", "/x/backtrace.rs", 66),
            ("<gpuheap::heap::Heap>::allocate", "/x/heap/block.rs", 66),
            ("allocate", "/x/crates/gpuheap-capi/src/memory.rs", 9),
            ("gpuheap_tools::fill", "/home/a/fill.rs", 3),
        ];
        assert_eq!(shown(&trace(&recorded)), ["fill.rs:3 in gpuheap_tools::fill"]);
        assert_eq!(trace(&[native[0]]).site(1), "cudaMalloc in libcudart.so.12");
    }

    #[test]
    fn pool_is_named_until_its_blocks_are() {
        for (function, file, pool) in [
            ("malloc", "/x/site-packages/torch/lib/libc10_cuda.so", Some("PyTorch")),
            ("c10::cuda::CUDACachingAllocator::Native::malloc(int)", "", Some("PyTorch")),
            ("f", "/x/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so", Some("CuPy")),
            ("main", "/home/a/leak.cpp", None),
        ] {
            for kind in [MemoryKind::Device, MemoryKind::PyTorch] {
                let mut stacks = StackInterner::default();
                let function = stacks.text(function).unwrap();
                let file = stacks.text(file).unwrap();
                let frame = stacks.frame(function, file, 0).unwrap();
                let stack = stacks.stack(vec![frame]).unwrap();
                let mut builder = TraceBuilder::new("made up", Format::Capture);
                builder.set_kind(kind);
                builder.allocate(At { time_ns: 0, stream: 0, thread: 1, stack }, 4096, 1).unwrap();
                builder.set_stacks(Arc::new(stacks.finish()));
                let trace = builder.finish();
                assert_eq!(trace.pool_of(stack), pool);
                let unrecorded: Vec<_> = pool.filter(|_| !kind.is_pooled()).into_iter().collect();
                assert_eq!(trace.unrecorded_pools(), unrecorded);
            }
        }
    }

    #[test]
    fn library_frames_are_known() {
        for (file, line, is_library) in [
            ("/home/a/train.py", 3, false),
            ("/x/lib/python3.11/site-packages/numpy/a.py", 3, true),
            ("torch/optim/adam.py", 3, true),
            ("/home/a/src/main.rs", 3, false),
            ("/rustc/abc/library/core/src/ops.rs", 3, true),
            ("kernel.cu", 3, true),
            ("/usr/bin/python3.11", 0, true),
        ] {
            assert_eq!(frame("f", file, line).is_library(), is_library, "{file}");
        }
    }
}
