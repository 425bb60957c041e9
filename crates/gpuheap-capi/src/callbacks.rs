//! Registers functions of the program, so that a heap can call these functions.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::{CString, c_char, c_void};
use std::io::Write as _;
use std::mem::size_of;

use crate::entry::{Failure, enter, gpuheap_status};
use crate::handle::gpuheap_heap;

/// Report about a thread that ended with live allocations. It is valid only during the callback.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpuheap_thread_end {
    /// Size of the structure in the library; later versions add fields at the end.
    pub size: usize,
    /// The thread's name in the operating system.
    pub name: *const c_char,
    /// The thread's id in the operating system; 0 if it is unknown.
    pub id: u64,
    /// Number of live allocations that the thread made.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub bytes: u64,
    /// The report for people, as several lines of UTF-8 text.
    pub text: *const c_char,
}

/// A function that frees memory when a heap is short of memory. Returns the bytes freed.
pub type gpuheap_shortage =
    Option<unsafe extern "C-unwind" fn(bytes: u64, data: *mut c_void) -> u64>;

/// A function that a heap calls at a thread's end.
pub type gpuheap_thread_ended =
    Option<unsafe extern "C-unwind" fn(ended: *const gpuheap_thread_end, data: *mut c_void)>;

/// Sets the function that the heap calls before a request fails for lack of memory. The function
/// receives the number of missing bytes, and the pointer data. It runs on the thread of the
/// request, with no lock held. It frees as much memory as it can, and returns the bytes freed. It
/// may use the heap, but its own requests do not call it again. If a C++ exception leaves the
/// function, the process ends. Any thread may call the function until gpuheap_close returns.
///
/// shortage: replaces the function set before. Null removes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_on_shortage(
    heap: *mut gpuheap_heap,
    shortage: gpuheap_shortage,
    data: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_on_shortage", || {
        // SAFETY: `heap` is null or from gpuheap_open.
        let heap = unsafe { gpuheap_heap::get(heap) }?;
        let data = Data(data);
        let registered = shortage.map(|shortage| {
            heap.heap().register_reclaimer(move |bytes| {
                // SAFETY: the program allows calls of the function with its data on any thread. An
                // exception ends the process in `without_exceptions`.
                without_exceptions("gpuheap_on_shortage", || unsafe { shortage(bytes, data.get()) })
            })
        });
        heap.set_reclaimer(registered);
        Ok(())
    })
}

/// Sets the function that is called if a thread ends with outstanding allocations. The function
/// runs on that thread, and replaces the function set before. If no function is set, the report
/// goes to stderr. Threads are known only if tracking is on. If a C++ exception leaves the
/// function, the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_on_thread_end(
    heap: *mut gpuheap_heap,
    ended: gpuheap_thread_ended,
    data: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_on_thread_end", || {
        // SAFETY: `heap` is null or from gpuheap_open.
        let heap = unsafe { gpuheap_heap::get(heap) }?;
        let Some(ended) = ended else {
            return Err(Failure::refused("the function for the end of a thread is a null pointer"));
        };
        let data = Data(data);
        heap.heap().on_thread_end(move |end| {
            let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
            let (name, report) = (text(end.name.clone()), text(end.to_string()));
            let told = gpuheap_thread_end {
                size: size_of::<gpuheap_thread_end>(),
                name: name.as_ptr(),
                id: end.id.unwrap_or(0),
                allocations: end.leaks.allocations,
                bytes: end.leaks.bytes,
                text: report.as_ptr(),
            };
            // SAFETY: the program allows calls of the function with its data on any thread. The
            // texts live during the call. An exception ends the process in `without_exceptions`.
            without_exceptions("gpuheap_on_thread_end", || unsafe { ended(&told, data.get()) });
        });
        Ok(())
    })
}

/// Calls the program's function that was passed to `setter`. If a C++ exception leaves the
/// function, ends the process: Rust cannot catch the exception, and the heap's code cannot
/// continue.
fn without_exceptions<T>(setter: &'static str, call: impl FnOnce() -> T) -> T {
    let end = EndOfProcess { setter };
    let value = call();
    std::mem::forget(end);
    value
}

/// Guard that ends the process when it is dropped.
struct EndOfProcess {
    setter: &'static str,
}

impl Drop for EndOfProcess {
    fn drop(&mut self) {
        let text = format!(
            "gpuheap: an exception left the function that was passed to {}, and cannot pass through the \
             heap; catch it in that function\n",
            self.setter
        );
        // If stderr is closed, the process still ends.
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    }
}

/// A pointer that is passed to the program's functions and never read here.
#[derive(Clone, Copy)]
struct Data(*mut c_void);

// SAFETY: the pointer goes only to the program's functions, and these may be called on any thread.
unsafe impl Send for Data {}
// SAFETY: nothing here reads memory through the pointer. The heap only passes it to the function
// that the program registered with it.
unsafe impl Sync for Data {}

impl Data {
    fn get(self) -> *mut c_void {
        self.0
    }
}
