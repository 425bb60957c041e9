//! Helpers that tests of several modules share, and tests that need the heap's inside.

use proptest::prelude::ProptestConfig;

/// So many, or an eighth of them where an interpreter runs the tests, a thousand times slower.
pub(crate) const fn fewer(many: usize) -> usize {
    if cfg!(miri) { many / 8 } else { many }
}

/// How a property is tested: on so many cases, or on two where an interpreter runs the tests, which
/// has no folder to keep failures in.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    if cfg!(miri) {
        return ProptestConfig {
            cases: 2,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..ProptestConfig::default()
        };
    }
    ProptestConfig { cases, ..ProptestConfig::default() }
}

#[cfg(feature = "emulator")]
mod emulated;

#[cfg(feature = "emulator")]
#[path = "../tests/heap/failing.rs"]
pub(crate) mod failing;
