//! Major version of the runtime for which the program was built. A few functions have the same name
//! in CUDA 12 and 13, but different arguments.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// Runtime versions for programs that use CUDA 12 and CUDA 13, 1000 × major + 10 × minor.
const VERSIONS: [c_int; 2] = [12_090, 13_000];

/// Returns the version of the runtime for which the program was built.
pub(crate) fn runtime() -> c_int {
    VERSIONS[usize::from(major() == 13)]
}

/// Tags in an object's dynamic section: the end, a needed library, and the string table.
const END: i64 = 0;
const NEEDED: i64 = 1;
const STRINGS: i64 = 5;

/// Returns the major version of the runtime that the loaded objects need. Returns 12 if an object
/// needs 12 and no object needs 13. Otherwise returns 13.
pub(crate) fn major() -> c_int {
    static MAJOR: OnceLock<c_int> = OnceLock::new();
    *MAJOR.get_or_init(|| {
        let mut found = Needed::default();
        // SAFETY: `find_needed` is called only during this call, with a pointer to `found`.
        unsafe { libc::dl_iterate_phdr(Some(find_needed), (&raw mut found).cast()) };
        if found.twelve && !found.thirteen { 12 } else { 13 }
    })
}

#[derive(Default)]
struct Needed {
    twelve: bool,
    thirteen: bool,
}

/// One entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: i64,
    value: u64,
}

/// Searches for the runtime among the libraries that one object needs.
///
/// # Safety
///
/// `info` describes a loaded object, and `data` is a [`Needed`].
unsafe extern "C" fn find_needed(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees both arguments. A loaded object's dynamic section ends with a
    // zero entry, and refers to a table of C strings.
    unsafe {
        let (info, found) = (&*info, &mut *data.cast::<Needed>());
        // Skips the vDSO. It needs no library, and the addresses in its dynamic section are not
        // relocated.
        let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        if name.to_bytes().starts_with(b"linux-vdso") {
            return 0;
        }
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let first: *const Entry =
            std::ptr::with_exposed_provenance((info.dlpi_addr + dynamic.p_vaddr) as usize);
        let entries = || (0..).map(|index| &*first.add(index)).take_while(|entry| entry.tag != END);
        let Some(strings) = entries().find(|entry| entry.tag == STRINGS) else { return 0 };
        // On some systems, the loader does not relocate the string table's address.
        let strings = match strings.value {
            relative if relative < info.dlpi_addr => info.dlpi_addr + relative,
            absolute => absolute,
        };
        for entry in entries().filter(|entry| entry.tag == NEEDED) {
            let name = std::ptr::with_exposed_provenance((strings + entry.value) as usize);
            match CStr::from_ptr(name).to_bytes() {
                b"libcudart.so.12" => found.twelve = true,
                b"libcudart.so.13" => found.thirteen = true,
                _ => {}
            }
        }
    }
    0
}
