//! Shells: shared objects without code that bear the name of a vendor's library.
//!
//! PyTorch's libraries find their CUDA libraries by a path of their own (`DT_RPATH`), which comes
//! before `LD_LIBRARY_PATH`. The loader takes a library that is loaded already if its name
//! (`DT_SONAME`) is the one that is asked for. So a shell is preloaded for each library that is
//! stood in for, and the vendor's file is not opened. It defines the version of the vendor's
//! library, which the loader checks, and no function. The stand-ins have the functions. They are
//! preloaded too, and export them without a version: the loader accepts that for any version. A
//! shell needs its stand-in, so that `dlsym` finds the functions by the shell's handle: JAX looks
//! there.

mod elf;
mod names;

use std::path::Path;

pub(crate) use names::{CUDART, LIBRARIES};

/// Returns the file of the shell of a library whose functions `stand_in` has.
pub(crate) fn file(soname: &'static str, stand_in: &Path) -> Vec<u8> {
    elf::bytes(soname, names::version(soname), &stand_in.to_string_lossy())
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
