//! Tests the functions that report a heap's memory.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap::emu::Schedule;
use gpuheap::{Heap, PoolKind, Tracking};
use gpuheap_capi::*;
use gpuheap_driver::CUstream;

use crate::client::{Client, Memory, Status, device};
use crate::support;

const TEXT: u32 = gpuheap_format::Text as u32;
const JSON: u32 = gpuheap_format::Json as u32;

/// Reads a text as a C program does. The first call returns the length, the second the text.
fn text(mut write: impl FnMut(*mut c_char, usize, *mut usize) -> Status) -> String {
    let mut length = 0;
    assert_eq!(write(ptr::null_mut(), 0, &mut length), Status::Ok);
    // The text contains ages of allocations, which may have one more digit in the second call.
    let mut buffer = vec![b'#'; length + 64];
    assert_eq!(write(buffer.as_mut_ptr().cast(), buffer.len(), &mut length), Status::Ok);
    let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned();
    assert_eq!(text.len(), length);
    text
}

#[test]
fn flush_reports_freed_and_left_bytes() {
    let device = support::emulated(256 << 20, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Split);
    let [stays, goes] =
        [3 << 20, 40 << 20].map(|bytes| client.allocate(bytes, CUstream::NULL).unwrap());
    assert_eq!(client.free(goes), Status::Ok);
    let size = size_of::<gpuheap_flushed>();
    let mut flushed = gpuheap_flushed { size, ..Default::default() };
    assert_eq!(call!(gpuheap_flush(client.0, &mut flushed)), Status::Ok);
    assert_eq!((flushed.live, flushed.live_allocations), (3 << 20, 1));
    assert_eq!((flushed.given_back, flushed.device_total), (40 << 20, 256 << 20));
    assert_eq!((flushed.held, flushed.held_free, flushed.held_pieces), (20 << 20, 17 << 20, 1));
    assert!(flushed.device_free >= 200 << 20 && flushed.context_and_others == 0, "{flushed:?}");
    assert_eq!(call!(gpuheap_flush(client.0, ptr::null_mut())), Status::Ok);
    assert_eq!(client.free(stays), Status::Ok);
    client.assert_all_returned("a flush");
}

#[test]
fn forecast_has_a_reason() {
    let device = support::emulated(64 << 20, Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    let forecast = |bytes| {
        let mut fit = gpuheap_fit::Perhaps;
        let said = text(|buffer, capacity, length| {
            call!(gpuheap_would_fit(client.0, bytes, &mut fit, buffer, capacity, length))
        });
        (fit, said)
    };
    assert_eq!(forecast(1 << 20).0, gpuheap_fit::Yes);
    let (fit, said) = forecast(65 << 20);
    assert!(fit == gpuheap_fit::No && said.contains("2 MiB short"), "{fit:?}: {said}");
    client.assert_all_returned("a forecast");
}

#[test]
fn leaks_and_growth_are_reported() {
    let device = device(Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let client = Client(gpuheap_heap::new(&device, &heap));
    drop(heap);
    let take = || {
        let mut snapshot = ptr::null_mut();
        assert_eq!(call!(gpuheap_take_snapshot(client.0, &mut snapshot)), Status::Ok);
        snapshot
    };
    let [old, new] = [1000, 30].map(|bytes| {
        let snapshot = take();
        (snapshot, client.allocate(bytes, CUstream::NULL).unwrap())
    });
    let mut count = 0;
    let leaks = |format, count: &mut u64| {
        text(|buffer, capacity, length| {
            call!(gpuheap_leaks(client.0, format, buffer, capacity, length, &mut *count))
        })
    };
    assert!(leaks(TEXT, &mut count).contains("1.01 KiB"), "{}", leaks(TEXT, &mut count));
    assert_eq!(count, 2);
    assert!(leaks(JSON, &mut count).contains("\"bytes\":1030"), "{}", leaks(JSON, &mut count));
    let last = take();
    let mut growth = 0;
    let since = |earlier, format, growth: &mut i64| {
        text(|buffer, capacity, length| {
            call!(gpuheap_snapshot_difference(
                earlier,
                last,
                format,
                buffer,
                capacity,
                length,
                &mut *growth,
            ))
        })
    };
    assert!(since(new.0, JSON, &mut growth).contains("\"bytes\":30"));
    assert_eq!(growth, 30);
    since(old.0, TEXT, &mut growth);
    assert_eq!(growth, 1030);
    for memory in [old.1, new.1] {
        assert_eq!(client.free(memory), Status::Ok);
    }
    client.assert_all_returned("snapshots");
    // The snapshots outlive the heap.
    since(old.0, TEXT, &mut growth);
    for snapshot in [old.0, new.0, last] {
        assert_eq!(call!(gpuheap_drop_snapshot(snapshot)), Status::Ok);
    }
}

#[test]
fn status_is_json_too() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let status = text(|buffer, capacity, length| {
        call!(gpuheap_memory_status(client.0, JSON, buffer, capacity, length))
    });
    assert!(status.starts_with('{') && status.contains("\"device\""), "{status}");
    client.assert_all_returned("status");
}

/// Memory that the program frees when the heap is short of memory.
struct Spare {
    client: Client,
    memory: Mutex<Option<Memory>>,
    asked_for: AtomicU64,
}

unsafe extern "C-unwind" fn give_spare_back(bytes: u64, data: *mut c_void) -> u64 {
    // SAFETY: the test passes its own `Spare`, which outlives the heap.
    let spare = unsafe { &*data.cast::<Spare>() };
    spare.asked_for.fetch_max(bytes, Ordering::Relaxed);
    let Some(memory) = spare.memory.lock().unwrap().take() else { return 0 };
    assert_eq!(spare.client.free(memory), Status::Ok);
    memory.bytes
}

#[test]
fn shortage_callback_saves_a_request() {
    let device = support::emulated(64 << 20, Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    let memory = client.allocate(40 << 20, CUstream::NULL).unwrap();
    let spare = Spare { client, memory: Mutex::new(Some(memory)), asked_for: AtomicU64::new(0) };
    let data = (&raw const spare).cast_mut().cast::<c_void>();
    let ask = |function| call!(gpuheap_on_shortage(client.0, function, data));
    assert_eq!(ask(Some(give_spare_back)), Status::Ok);
    let memory = client.allocate(50 << 20, CUstream::NULL).unwrap();
    assert!(spare.asked_for.load(Ordering::Relaxed) >= 26 << 20);
    assert_eq!(ask(None), Status::Ok);
    assert_eq!(client.free(memory), Status::Ok);
    client.assert_all_returned("a shortage");
}

unsafe extern "C-unwind" fn note_end(ended: *const gpuheap_thread_end, data: *mut c_void) {
    // SAFETY: `ended` is valid during the call, and `data` is the test's own list.
    let (ended, list) = unsafe { (&*ended, &*data.cast::<Mutex<Vec<(String, u64, u64)>>>()) };
    // SAFETY: the texts are C strings that live during the call.
    let [name, text] = [ended.name, ended.text].map(|text| unsafe { CStr::from_ptr(text) });
    assert!(text.to_str().unwrap().contains("ended and left behind"), "{text:?}");
    list.lock().unwrap().push((name.to_str().unwrap().into(), ended.allocations, ended.bytes));
}

#[test]
fn thread_end_callback_gets_leaks() {
    let device = device(Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let client = Client(gpuheap_heap::new(&device, &heap));
    drop(heap);
    let list: Mutex<Vec<(String, u64, u64)>> = Mutex::default();
    let data = (&raw const list).cast_mut().cast::<c_void>();
    assert_eq!(call!(gpuheap_on_thread_end(client.0, Some(note_end), data)), Status::Ok);
    let thread = std::thread::Builder::new().name("loader".into());
    let left = thread.spawn(move || client.allocate(1000, CUstream::NULL).unwrap());
    let left = left.unwrap().join().unwrap();
    assert_eq!(*list.lock().unwrap(), [("loader".to_owned(), 1, 1000)]);
    assert_eq!(client.free(left), Status::Ok);
    client.assert_all_returned("the end of a thread");
}
