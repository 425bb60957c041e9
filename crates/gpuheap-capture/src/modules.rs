//! Lists the loaded files that contain code, so that native frames get names and lines.

use std::ffi::{CStr, c_int, c_void};

/// Executable segment of a loaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedModule {
    /// Path of the file.
    pub path: String,
    /// Build id in hexadecimal digits; empty if the file has none.
    pub build_id: String,
    /// First address.
    pub start: u64,
    /// End of the addresses, exclusive.
    pub end: u64,
    /// Address at which the file's address 0 is loaded.
    pub base: u64,
}

/// Returns the executable segments of all loaded files. Takes the loader's lock for a moment.
pub fn loaded_modules() -> Vec<LoadedModule> {
    let mut found = Vec::new();
    // SAFETY: the callback gets a vector that lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn add(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description of a loaded file, and the vector of `loaded_modules`.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Vec<LoadedModule>>()) };
    let mut path = match info.dlpi_name.is_null() {
        true => String::new(),
        // SAFETY: the name is not null, and the loader's names are C strings.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned(),
    };
    if path.is_empty() {
        path = program();
    }
    let headers = match info.dlpi_phdr.is_null() {
        true => &[],
        // SAFETY: the loader keeps `dlpi_phnum` headers in memory.
        false => unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) },
    };
    let base = info.dlpi_addr;
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    let build_id = notes.map(|header| {
        let start = std::ptr::with_exposed_provenance::<u8>((base + header.p_vaddr) as usize);
        // SAFETY: the loader has mapped the segments of a loaded file.
        build_id(unsafe { std::slice::from_raw_parts(start, header.p_memsz as usize) })
    });
    let build_id = build_id.flatten().next().unwrap_or_default();
    let is_code = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
    };
    for header in headers.iter().filter(is_code) {
        let start = base + header.p_vaddr;
        let (path, build_id, end) = (path.clone(), build_id.clone(), start + header.p_memsz);
        found.push(LoadedModule { path, build_id, start, end, base });
    }
    0
}

/// Returns the build id from a segment that contains notes. A note is two lengths and a kind, then
/// a name and a description, each padded to 4 bytes.
fn build_id(mut notes: &[u8]) -> Option<String> {
    const GNU_BUILD_ID: u32 = 3;
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let (name_bytes, bytes, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let (name, rest) = rest.split_at_checked(name_bytes.next_multiple_of(4))?;
        let description = rest.get(..bytes)?;
        if kind == GNU_BUILD_ID && name.starts_with(b"GNU") {
            return Some(description.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = rest.get(bytes.next_multiple_of(4)..)?;
    }
}

/// Returns the path of the program; empty if it is not known.
pub fn program() -> String {
    std::fs::read_link("/proc/self/exe")
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default()
}
