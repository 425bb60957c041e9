//! Compares the table of functions with the driver of the machine. The emulator inside a process
//! exports no symbols to compare.

use std::ffi::{CString, c_int, c_void};
use std::ptr;

use gpuheap_driver::*;
use libloading::Library;

/// Flags of `cuGetProcAddress`, for the legacy default stream and for per-thread default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

#[test]
fn table_matches_real_driver() {
    if std::env::var_os("GPUHEAP_TEST_DEVICE").is_none() {
        return;
    }
    let driver = LibCuda::open().unwrap();
    // SAFETY: the library is loaded already.
    let load = |path: &&str| unsafe { Library::new(*path) }.ok();
    let library = SEARCH_PATHS.iter().find_map(load).unwrap();
    let wrong: Vec<String> = FUNCTIONS
        .iter()
        .flat_map(|row| {
            let twin = row.per_thread.unwrap_or((row.symbol, row.since));
            [(row.base, (row.symbol, row.since), LEGACY), (row.base, twin, PER_THREAD)]
        })
        .filter(|(_, (_, since), _)| *since <= driver.version())
        .filter_map(|(base, (symbol, since), flags)| {
            let wrong = compare(&driver, &library, base, symbol, since, flags).err()?;
            Some(format!("{base} {flags} {since} {symbol}: {wrong}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}:\n{}", driver.describe(), wrong.join("\n"));
}

/// Asserts that the driver exports a symbol. Also asserts that the driver finds the symbol at its
/// first version, and does not find it at the version before.
fn compare(
    driver: &LibCuda,
    library: &Library,
    base: &str,
    symbol: &str,
    since: c_int,
    flags: u64,
) -> Result<(), String> {
    // SAFETY: an address that is never called may have any type.
    let exported = unsafe { library.get::<*mut c_void>(symbol) }.map(|found| *found);
    let exported = exported.map_err(|_| "is not exported".to_owned())?;
    let ask = |version| {
        let base = CString::new(base).unwrap();
        let (mut found, mut status) = (ptr::null_mut(), 0);
        // SAFETY: the name ends with a zero, and both pointers are valid for the call.
        let code = unsafe {
            driver.cuGetProcAddress_v2(base.as_ptr(), &mut found, version, flags, &mut status)
        };
        if code.is_success() { Ok((found, status)) } else { Err(format!("{version}: {code:?}")) }
    };
    let (found, status) = ask(since)?;
    if found != exported {
        return Err(format!("another answer, {found:?} (status {status}), not {exported:?}"));
    }
    if ask(since - 10).is_ok_and(|(found, _)| found == exported) {
        return Err("is the answer at the version before too".to_owned());
    }
    Ok(())
}
