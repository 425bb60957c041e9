//! Tests that every function of the table is exported, and that `cuGetProcAddress` finds it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::process::Command;
use std::ptr;

use gpuheap_driver::{
    CUcontext, CUresult, CUstream, Driver, EMULATED_BLOCK, EMULATED_DEVICES, FUNCTIONS,
};
use libloading::Library;

use crate::{library, open_driver};

#[path = "../../src/refused_names.rs"]
#[macro_use]
mod refused_names;

macro_rules! names {
    ($($name:ident),*) => { &[$(stringify!($name)),*] };
}

const REFUSED: &[&str] = refused_functions!(names);

type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult;
type FindV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CUresult;

const SUCCESS: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;

const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;
const BOTH: u64 = 3;

/// Initial value of the result pointer, to detect whether a call wrote it.
const UNTOUCHED: *mut c_void = ptr::dangling_mut();

struct Loaded {
    library: Library,
    _folder: tempfile::TempDir,
}

impl Loaded {
    fn new() -> Loaded {
        let folder = library::folder(&[&library::LIBCUDA]);
        // SAFETY: the library runs no code when it is loaded.
        let library = unsafe { Library::new(folder.path().join("libcuda.so.1")) }.unwrap();
        Loaded { library, _folder: folder }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        // SAFETY: the address is never called, so its type does not matter.
        *unsafe { self.library.get::<*mut c_void>(name) }.unwrap_or_else(|_| panic!("no {name}"))
    }

    fn find(&self, base: &str, version: c_int, flags: u64) -> (CUresult, *mut c_void, c_int) {
        let base = CString::new(base).unwrap();
        let (mut address, mut status) = (UNTOUCHED, -1);
        // SAFETY: the function type equals `cuda.h`'s.
        let code = unsafe {
            let find = self.library.get::<FindV2>("cuGetProcAddress_v2").unwrap();
            find(base.as_ptr(), &mut address, version, flags, &mut status)
        };
        (code, address, status)
    }
}

#[test]
fn symbols_are_found_at_their_version() {
    let loaded = Loaded::new();
    for row in FUNCTIONS {
        let plain = loaded.symbol(row.symbol);
        let found = (CUresult::SUCCESS, plain, SUCCESS);
        assert_eq!(loaded.find(row.base, row.since, 0), found, "{row:?}");
        assert_eq!(loaded.find(row.base, row.since, LEGACY_STREAM), found, "{row:?}");

        let (twin, since) = row.per_thread.unwrap_or((row.symbol, row.since));
        let twin = loaded.symbol(twin);
        assert_eq!(row.per_thread.is_none(), plain == twin, "{row:?}");
        let found = (CUresult::SUCCESS, twin, SUCCESS);
        assert_eq!(loaded.find(row.base, since, PER_THREAD_STREAM), found, "{row:?}");
        assert_eq!(loaded.find(row.base, since, BOTH), found, "{row:?}");
    }
}

const ANSWERS: &str = include_str!("entry_points.txt");

/// Compares lookups with a real driver's results. Tests each version that changes a result, and the
/// version before it. The emulated driver lacks the oldest functions, with 32-bit sizes. A lookup
/// of these functions returns the status `VERSION_NOT_SUFFICIENT`.
#[test]
fn lookup_results_match_real_driver() {
    let loaded = Loaded::new();
    let mut last = ("", 0);
    let rows = ANSWERS.lines().filter(|row| !row.starts_with('#'));
    for row in rows {
        let mut columns = row.split(' ');
        let mut column = || columns.next().unwrap();
        let (base, flags) = (column(), column().parse().unwrap());
        let (since, symbol) = (column().parse().unwrap(), column());
        let missing = (CUresult::SUCCESS, ptr::null_mut(), VERSION_NOT_SUFFICIENT);
        if last != (base, flags) {
            assert_eq!(loaded.find(base, since - 10, flags), missing, "before {row}");
            last = (base, flags);
        }
        let expected = match gpuheap_driver::function(symbol) {
            Some(_) => (CUresult::SUCCESS, loaded.symbol(symbol), SUCCESS),
            None => missing,
        };
        assert_eq!(loaded.find(base, since, flags), expected, "{row}");
    }
    for row in FUNCTIONS {
        let end = format!(" {}\n", row.symbol);
        assert!(ANSWERS.contains(&end), "{} is not a real driver's", row.symbol);
    }
}

#[test]
fn a_search_that_fails_says_why() {
    let loaded = Loaded::new();
    let missing = |status| (CUresult::SUCCESS, ptr::null_mut(), status);
    assert_eq!(loaded.find("cuTeleport", 12_000, 0), missing(SYMBOL_NOT_FOUND));
    assert_eq!(loaded.find("cuMemAlloc_v2", 12_000, 0), missing(SYMBOL_NOT_FOUND));
    assert_eq!(loaded.find("cuMemAllocAsync", 11_010, 0), missing(VERSION_NOT_SUFFICIENT));

    // The driver refuses a CUDA version above its own, and unknown flags. It writes no result then.
    let refused = (CUresult::ERROR_INVALID_VALUE, UNTOUCHED, -1);
    assert_eq!(loaded.find("cuInit", 99_000, 0), refused);
    assert_eq!(loaded.find("cuInit", 12_000, 4), refused);

    // SAFETY: the types match `cuda.h`. The pointers are valid or null, and null is allowed.
    unsafe {
        let find = loaded.library.get::<FindV2>("cuGetProcAddress_v2").unwrap();
        let mut address = ptr::null_mut();
        let nothing = ptr::null_mut();
        let code = find(ptr::null(), &mut address, 12_000, 0, nothing);
        assert_eq!(code, CUresult::ERROR_INVALID_VALUE);
        let code = find(c"cuInit".as_ptr(), ptr::null_mut(), 12_000, 0, nothing);
        assert_eq!(code, CUresult::ERROR_INVALID_VALUE);
        // The status is optional.
        let code = find(c"cuInit".as_ptr(), &mut address, 12_000, 0, nothing);
        assert_eq!((code, address), (CUresult::SUCCESS, loaded.symbol("cuInit")));
        // `cuGetProcAddress` takes no status.
        let first = loaded.library.get::<Find>("cuGetProcAddress").unwrap();
        let code = first(c"cuMemAlloc".as_ptr(), &mut address, 12_000, 0);
        assert_eq!((code, address), (CUresult::SUCCESS, loaded.symbol("cuMemAlloc_v2")));
        for (name, version) in [(c"cuTeleport", 12_000), (c"cuMemAllocAsync", 11_010)] {
            let mut address = UNTOUCHED;
            let code = first(name.as_ptr(), &mut address, version, 0);
            assert_eq!((code, address), (CUresult::ERROR_NOT_FOUND, UNTOUCHED));
        }
    }
}

/// Runs in a separate process, because environment variables select the library to load and the
/// emulated device's schedule (the order in which it runs work).
#[test]
fn twins_use_threads_default_stream() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let seeded = [("GPUHEAP_EMULATED_SCHEDULE", "seeded:1")];
    library::run_ignored_test("exports::asks_for_default_streams", &folder, &seeded);
}

#[test]
#[ignore = "runs in a process of its own"]
fn asks_for_default_streams() {
    type Id = unsafe extern "C" fn(CUstream, *mut u64) -> CUresult;
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { Library::new("libcuda.so.1") }.unwrap();
    let driver = open_driver("libcuda.so.1".as_ref()).unwrap();
    let mut context = CUcontext::NULL;
    // SAFETY: the pointer is valid for a write.
    let code = unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, 0) };
    assert!(code.is_success());
    let ask = |symbol: &str| {
        let mut id = 0;
        // SAFETY: the function type matches `cuda.h`. `id` is valid for the write.
        unsafe {
            assert!(driver.cuCtxSetCurrent(context).is_success());
            let function = library.get::<Id>(symbol).unwrap();
            assert!(function(CUstream::NULL, &mut id).is_success());
        }
        id
    };
    let legacy = ask("cuStreamGetId");
    let own = ask("cuStreamGetId_ptsz");
    let another = std::thread::scope(|scope| {
        let other = scope.spawn(|| (ask("cuStreamGetId"), ask("cuStreamGetId_ptsz")));
        let (same, another) = other.join().unwrap();
        assert_eq!(same, legacy);
        another
    });
    assert!(own != legacy && another != legacy && own != another);

    // The device's thread continues after the library handles are dropped.
    drop((driver, library));
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn exports_are_known_names() {
    let text = output_of("nm", &["--dynamic", "--defined-only", "--format=posix"]);
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() >= FUNCTIONS.len());
    let own = [EMULATED_BLOCK, EMULATED_DEVICES].map(|name| name.trim_end_matches('\0'));
    for name in names {
        let is_ours = own.contains(&name)
            || name == "gpuheap_emulated_on_copy_to_host"
            || name == "gpuheap_emulated_handed_out"
            || name == "gpuheap_emulated_changed"
            || name == "gpuheap_emulated_filled"
            || name == "gpuheap_emulated_request"
            || name == "gpuheap_emulated_step_done"
            || REFUSED.contains(&name);
        let is_known = is_ours || gpuheap_driver::function(name).is_some();
        assert!(is_known, "{name} is exported");
    }
}

/// PyCUDA links the refused functions, and does not start without them.
#[test]
fn unmodelled_functions_refuse() {
    type Refused = unsafe extern "C" fn() -> CUresult;
    let loaded = Loaded::new();
    assert_eq!(REFUSED.len(), 58);
    for name in REFUSED {
        // SAFETY: the refused functions read no arguments.
        let code = unsafe { loaded.library.get::<Refused>(*name).unwrap()() };
        assert_eq!(code, CUresult::ERROR_NOT_SUPPORTED, "{name}");
        assert!(gpuheap_driver::function(name).is_none(), "{name} is in the table");
        let base = name.split("_v").next().unwrap();
        assert!(loaded.find(base, 13_000, 0).1.is_null(), "{name} is found");
    }
}

#[test]
fn library_has_drivers_soname() {
    let text = output_of("readelf", &["--dynamic", "--wide"]);
    assert!(text.contains("Library soname: [libcuda.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

/// Runs a program of binutils, such as `nm`, on the library, and returns the program's output.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let folder = library::folder(&[&library::LIBCUDA]);
    let file = folder.path().join("libcuda.so.1");
    let output = Command::new(program).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn gpuheap_loads_library_as_driver() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let driver = open_driver(&folder.path().join("libcuda.so.1")).unwrap();
    assert!(driver.version() >= 12_000);
}

/// A program with the emulator in its process must still be able to load the real driver.
#[test]
fn emulator_in_process_exports_nothing() {
    let emulator = gpuheap_emu::Emulator::new(gpuheap_emu::Options::default());
    let mut version = 0;
    // SAFETY: the pointer is valid for a write.
    let code = unsafe { emulator.cuDriverGetVersion(&mut version) };
    assert!(code.is_success() && version >= 12_000);

    let this = libloading::os::unix::Library::this();
    for row in FUNCTIONS {
        // SAFETY: the address is never called, so its type does not matter.
        let found = unsafe { this.get::<*mut c_void>(row.symbol) };
        assert!(found.is_err(), "{} is exported", row.symbol);
    }
}
