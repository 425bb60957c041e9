//! Finds folders that a program or library names for the loader's search (RPATH, RUNPATH).

use std::ffi::{c_int, c_void};

/// State of a search for the loaded object that contains `address`.
struct Object {
    address: usize,
    /// Number of loaded objects visited: first the program, then its libraries.
    visited: usize,
    brings_folders: bool,
}

/// Returns `true` if the loader may search extra folders (RPATH, RUNPATH) for the code at an
/// address. The loader does so if the program or the object at the address names folders, or if any
/// library has an RPATH. A library's RPATH also applies to libraries that this library loads.
pub(crate) fn brings_folders(address: *const c_void) -> bool {
    let mut object = Object { address: address as usize, visited: 0, brings_folders: false };
    // SAFETY: the function has the required type, and `object` lives during the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut object).cast()) };
    object.brings_folders
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    object: *mut c_void,
) -> c_int {
    /// Tags of the dynamic section, from elf.h.
    const NULL: usize = 0;
    const RPATH: usize = 15;
    const RUNPATH: usize = 29;
    // SAFETY: the loader passes a description of a loaded object, valid during the call. It also
    // passes the pointer to an `Object` that it got from `brings_folders`. The dynamic section is
    // loaded, and ends with a null tag.
    unsafe {
        let (info, object) = (&*info, &mut *object.cast::<Object>());
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let start =
            |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let has_address = headers.iter().any(|header| {
            header.p_type == libc::PT_LOAD
                && object.address.wrapping_sub(start(header)) < header.p_memsz as usize
        });
        let is_program = object.visited == 0;
        object.visited += 1;
        let Some(section) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let mut entry = start(section) as *const [usize; 2];
        while (*entry)[0] != NULL {
            let is_searched = has_address || is_program;
            object.brings_folders |=
                (*entry)[0] == RPATH || ((*entry)[0] == RUNPATH && is_searched);
            entry = entry.add(1);
        }
    }
    0
}
