//! Counts the live bytes that each library has through a heap's hooks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names of the libraries that hooks serve.
pub(crate) const LIBRARIES: [&str; 5] = ["PyTorch", "CuPy", "RMM", "Numba", "cuda.core"];

/// Indices into [`LIBRARIES`].
pub(crate) const PYTORCH: usize = 0;
pub(crate) const CUPY: usize = 1;
pub(crate) const RMM: usize = 2;

/// Live bytes of each library in [`LIBRARIES`].
pub(crate) type LibraryBytes = [AtomicU64; LIBRARIES.len()];

pub(crate) fn live_of(bytes: &LibraryBytes) -> impl Iterator<Item = (&'static str, u64)> {
    let live = bytes.iter().map(|live| live.load(Ordering::Relaxed));
    LIBRARIES.into_iter().zip(live).filter(|(_, live)| *live > 0)
}
