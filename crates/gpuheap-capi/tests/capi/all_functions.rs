//! Calls every function that takes a heap. Reads the list of functions from the header.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_void};
use std::ptr;

use gpuheap_capi::*;

use crate::client::{Status, sized_room};

/// Makes the calls, and returns each function's name with its status.
macro_rules! named {
    ($($name:ident($($argument:expr),* $(,)?);)*) => {
        // SAFETY: the caller keeps the contract of `call_each`.
        vec![$((stringify!($name), unsafe { $name($($argument),*) })),*]
    };
}

/// Calls every function that takes a heap, with `heap` and otherwise valid arguments. Returns their
/// names and statuses. The last functions close the heap.
///
/// # Safety
///
/// `heap` is null, or a handle on which every call must fail: it is closed, or this is a forked
/// child.
pub(crate) unsafe fn call_each(
    heap: *mut gpuheap_heap,
    memory: *mut c_void,
) -> Vec<(&'static str, Status)> {
    let (stream, text, none) = (ptr::null_mut(), ptr::null_mut::<c_char>(), ptr::null_mut());
    let (mut address, mut addresses) = (memory, [memory; 2]);
    let (mut bytes, mut length, mut fit) = (0, 0, gpuheap_fit::No);
    let (mut snapshot, mut scope) = (ptr::null_mut(), ptr::null_mut());
    let mut own = [0_u8; 8];
    let size = size_of::<gpuheap_flushed>();
    let mut flushed = gpuheap_flushed { size, ..Default::default() };
    let size = size_of::<gpuheap_statistics>();
    let mut statistics = gpuheap_statistics { size, ..Default::default() };
    let mut device = sized_room::<gpuheap_device>();
    named! {
        gpuheap_flush(heap, &mut flushed);
        gpuheap_would_fit(heap, 1, &mut fit, text, 0, &mut length);
        gpuheap_memory_status(heap, 0, text, 0, &mut length);
        gpuheap_leaks(heap, 0, text, 0, &mut length, &mut bytes);
        gpuheap_list_leaks(heap, ptr::null_mut(), 0, &mut length);
        gpuheap_take_snapshot(heap, &mut snapshot);
        gpuheap_on_shortage(heap, None, none);
        gpuheap_on_thread_end(heap, Some(ended), none);
        gpuheap_allocate(heap, 1, stream, &mut address);
        gpuheap_allocate_batch(heap, 2, [1, 2].as_ptr(), stream, addresses.as_mut_ptr());
        gpuheap_free_batch(heap, 1, &memory);
        gpuheap_free(heap, memory);
        gpuheap_free_on(heap, memory, stream);
        gpuheap_used_on(heap, memory, stream);
        gpuheap_fill(heap, memory, 0, 1, 0, stream);
        gpuheap_wait(heap);
        gpuheap_stream_ended(heap, stream);
        gpuheap_allocation_size(heap, memory, &mut bytes);
        gpuheap_reclaim(heap, 1, &mut bytes);
        gpuheap_reclaim_all(heap, &mut bytes);
        gpuheap_set_limits(heap, 1, 2, &mut bytes);
        gpuheap_get_statistics(heap, &mut statistics);
        gpuheap_get_heap_device(heap, device.as_mut_ptr());
        gpuheap_allocate_kind(heap, gpuheap_kind::Pinned as u32, 1, stream, &mut address);
        gpuheap_get_kind_statistics(heap, 0, &mut statistics);
        gpuheap_register(heap, own.as_mut_ptr().cast(), 8, &mut address);
        gpuheap_unregister(heap, own.as_mut_ptr().cast());
        gpuheap_wait_for_stream(heap, stream);
        gpuheap_open_scope(heap, ptr::null(), &mut scope);
        gpuheap_keep(heap, memory);
        gpuheap_reset_device(heap);
        gpuheap_close(heap);
    }
}

unsafe extern "C-unwind" fn ended(_: *const gpuheap_thread_end, _: *mut c_void) {}

/// Returns two sets of names. The first has all functions that the header declares. The second has
/// the functions that take a heap.
fn declared() -> (BTreeSet<String>, BTreeSet<String>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/include/gpuheap.h");
    let header = std::fs::read_to_string(path).unwrap();
    let code: Vec<&str> =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let (mut all, mut of_heaps) = (BTreeSet::new(), BTreeSet::new());
    for declaration in code.join(" ").split(';') {
        let Some((before, arguments)) = declaration.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap();
        if name.starts_with("gpuheap_") && !before.contains("typedef") {
            all.insert(name.to_owned());
            if arguments.starts_with("struct gpuheap_heap *") {
                of_heaps.insert(name.to_owned());
            }
        }
    }
    (all, of_heaps)
}

#[test]
fn every_heap_function_is_called() {
    let called = call!(call_each(ptr::null_mut(), ptr::without_provenance_mut(512)));
    for (name, status) in &called {
        let expected = if *name == "gpuheap_close" { Status::Ok } else { Status::Refused };
        assert_eq!(*status, expected, "{name} of a null heap");
    }
    let called: BTreeSet<String> = called.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(called, declared().1);
}

/// The sweep calls every function of the header except `NOT_SWEPT`. In each run, a different driver
/// call fails.
#[test]
fn every_function_is_swept() {
    /// Functions that make no driver call, or call the machine's own driver. The sweep can make
    /// only the emulated driver fail.
    const NOT_SWEPT: [&str; 6] = [
        "gpuheap_count_devices",
        "gpuheap_get_device",
        "gpuheap_on_shortage",
        "gpuheap_on_thread_end",
        "gpuheap_open",
        "gpuheap_version",
    ];
    let sources = [
        include_str!("sweep.rs"),
        include_str!("faults.rs"),
        include_str!("client.rs"),
        include_str!("kinds.rs"),
    ];
    let (all, _) = declared();
    for name in all {
        let is_swept = sources.iter().any(|source| source.contains(&format!("{name}(")));
        assert_eq!(is_swept, !NOT_SWEPT.contains(&&*name), "{name}: call it in sweep.rs");
    }
}
