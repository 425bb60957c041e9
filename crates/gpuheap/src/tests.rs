//! Helpers that tests of several modules share, and tests that need the heap's inside.

#[cfg(feature = "emulator")]
mod emulated;

#[cfg(feature = "emulator")]
#[path = "../tests/heap/failing.rs"]
pub(crate) mod failing;
