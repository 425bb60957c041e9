//! Tests of invalid calls, and of the array lengths that NVML's list functions require.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

use libloading::{Library, Symbol};

use crate::{description, library};

const INVALID_ARGUMENT: u32 = 2;
const INSUFFICIENT_SIZE: u32 = 7;
const VERSION_MISMATCH: u32 = 25;

#[test]
fn wrong_arguments_are_refused() {
    let folder = library::folder(&[&library::NVML]);
    let variables = [("GPUHEAP_EMULATED_NVML", description::DESCRIPTION)];
    for name in ["protocol::asks_for_sizes", "protocol::passes_wrong_arguments"] {
        library::run_ignored_test(name, &folder, &variables);
    }
}

type Handle = *mut c_void;
type GetHandle = unsafe extern "C" fn(c_uint, *mut Handle) -> u32;
type List = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_void) -> u32;

fn load() -> Library {
    // SAFETY: the library runs no code when it is loaded.
    unsafe { Library::new("libnvidia-ml.so.1") }.unwrap()
}

/// Returns the library's function `name`.
///
/// # Safety
///
/// `T` is the function's type in NVML's header.
unsafe fn function<'l, T>(library: &'l Library, name: &str) -> Symbol<'l, T> {
    // SAFETY: the caller guarantees the type.
    unsafe { library.get(name) }.unwrap()
}

#[test]
#[ignore = "runs in a process of its own"]
fn asks_for_sizes() {
    let library = load();
    // SAFETY: the function types match NVML's header. All arrays are as long as their counts.
    unsafe {
        assert_eq!(function::<unsafe extern "C" fn() -> u32>(&library, "nvmlInit_v2")(), 0);
        let mut device = ptr::null_mut();
        let get = function::<GetHandle>(&library, "nvmlDeviceGetHandleByIndex_v2");
        assert_eq!(get(0, &mut device), 0);
        for list in ["Compute", "Graphics", "MPSCompute"] {
            // An entry consists of `words` 64-bit words. They hold the pid, the memory and, since
            // `_v2`, the instance.
            for (version, words) in [("", 2), ("_v2", 3), ("_v3", 3)] {
                let name = format!("nvmlDeviceGet{list}RunningProcesses{version}");
                let ask = function::<List>(&library, &name);
                let mut count = 0;
                assert_eq!(ask(device, &mut count, ptr::null_mut()), INSUFFICIENT_SIZE, "{name}");
                assert_eq!(count, 1, "{name}");
                let mut infos = [u64::MAX - 1; 8];
                count = 2;
                assert_eq!(ask(device, &mut count, infos.as_mut_ptr().cast()), 0, "{name}");
                assert_eq!(count, 1, "{name}");
                assert_eq!(infos[0] as u32 % 1111, 0, "{name}");
                assert!(infos[..words].iter().all(|word| *word != u64::MAX - 1), "{name}");
                assert!(infos[words..].iter().all(|word| *word == u64::MAX - 1), "{name}");
            }
        }
        // The second device has no processes, so an array of length 0 suffices.
        assert_eq!(get(1, &mut device), 0);
        let ask = function::<List>(&library, "nvmlDeviceGetComputeRunningProcesses_v3");
        let mut count = 0;
        assert_eq!((ask(device, &mut count, ptr::null_mut()), count), (0, 0));
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn passes_wrong_arguments() {
    type Start = unsafe extern "C" fn() -> u32;
    type Text = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> u32;
    type Memory = unsafe extern "C" fn(Handle, *mut u64) -> u32;

    let library = load();
    // SAFETY: the function types match NVML's header. The library must reject the null pointers and
    // wrong handles that this test passes.
    unsafe {
        let (init, shutdown) = (
            function::<Start>(&library, "nvmlInit_v2"),
            function::<Start>(&library, "nvmlShutdown"),
        );
        let get = function::<GetHandle>(&library, "nvmlDeviceGetHandleByIndex_v2");
        let mut device = ptr::null_mut();
        // One shutdown undoes one initialisation.
        assert_eq!((shutdown(), get(0, &mut device)), (1, 1));
        assert_eq!((init(), init(), shutdown()), (0, 0, 0));
        assert_eq!(get(0, &mut device), 0);
        assert_eq!((shutdown(), shutdown(), get(0, &mut device), init()), (0, 1, 1, 0));

        let name = function::<Text>(&library, "nvmlDeviceGetName");
        let mut text = [1 as c_char; 8];
        assert_eq!(name(device, text.as_mut_ptr(), 6), INSUFFICIENT_SIZE);
        assert_eq!(name(device, text.as_mut_ptr(), 0), INSUFFICIENT_SIZE);
        assert_eq!(text, [1; 8]);
        assert_eq!(name(device, text.as_mut_ptr(), 7), 0);
        assert_eq!((CStr::from_ptr(text.as_ptr()), text[7]), (c"Test A", 1));
        assert_eq!(name(device, ptr::null_mut(), 7), INVALID_ARGUMENT);
        let addresses = [0, 1, 0xffff, 5 << 16, (1 << 16) | 9, usize::MAX];
        for wrong in addresses.map(ptr::without_provenance_mut) {
            assert_eq!(name(wrong, text.as_mut_ptr(), 7), INVALID_ARGUMENT, "{wrong:?}");
        }
        assert_eq!(get(0, ptr::null_mut()), INVALID_ARGUMENT);

        let memory = function::<Memory>(&library, "nvmlDeviceGetMemoryInfo_v2");
        let mut info = [0x0100_0028, 0, 0, 0, 0];
        assert_eq!(memory(device, info.as_mut_ptr()), VERSION_MISMATCH);
        info[0] = 0x0200_0028;
        assert_eq!((memory(device, info.as_mut_ptr()), info[1]), (0, 80 << 30));
        let first = function::<Memory>(&library, "nvmlDeviceGetMemoryInfo");
        // The function without `_v2` counts reserved memory as used.
        assert_eq!(
            (first(device, info.as_mut_ptr()), info[..3].to_vec()),
            (0, vec![80 << 30, 73 << 30, 7 << 30])
        );

        type ErrorString = unsafe extern "C" fn(u32) -> *const c_char;
        let words = function::<ErrorString>(&library, "nvmlErrorString");
        for code in [0, 3, 15, 999, 12_345] {
            assert!(!CStr::from_ptr(words(code)).is_empty(), "{code}");
        }
    }
}
