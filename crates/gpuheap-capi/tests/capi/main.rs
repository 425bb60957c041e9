//! Calls the C functions as C code does, on the emulator with its checks on. With
//! `GPUHEAP_TEST_DEVICE=cuda:0`, the tests that do not need the emulator run on a real GPU.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

/// Calls functions of the interface.
macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: tests pass null, or pointers to their own variables with the right sizes. Streams
        // live during the call. Heaps and scopes are from this library. If the call ends a heap or
        // a scope, no other thread uses it.
        unsafe { $($call)* }
    };
}

mod account;
mod all_functions;
mod calls;
mod client;
mod closing;
#[path = "../../../gpuheap/tests/heap/failing.rs"]
mod failing;
mod faults;
mod fork;
mod kinds;
mod memory_use;
mod planted_bugs;
mod refusals;
mod scopes;
mod streams;
#[path = "../../../gpuheap/tests/heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;
mod sweep;
mod threads;
