//! Defines the kinds of pools and their names, and the rules for the blocks that threads cache.

use serde::Serialize;

use crate::source::round_up;

/// Unit of sizes, in bytes. It is the alignment of the driver's allocations (H200, driver 580).
pub(super) const ROUNDING: u64 = 512;

/// Declares an enum with a text for each variant. Adds `ALL` (all variants) and `name` (the text).
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All variants, in the order in which documentation and messages list them.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Returns the name that settings, the command line and JSON use.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }
    };
}

/// Implements `parse` and `Display` for an enum of [`named`], and declares the error for an unknown
/// name. The error's text is the name, `$refusal` and all names.
#[doc(hidden)]
#[macro_export]
macro_rules! parsed_by_name {
    ($name:ident, $(#[$doc:meta])* $error:ident, $refusal:literal) => {
        impl $name {
            /// Returns the variant of that name.
            ///
            /// # Errors
            ///
            /// No variant has that name; the error's text lists the names.
            pub fn parse(name: &str) -> Result<$name, $error> {
                let found = $name::ALL.into_iter().find(|known| known.name() == name);
                found.ok_or_else(|| $error(name.to_owned()))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $error(String);

        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names = $name::ALL.map(|known| known.name()).join(", ");
                write!(f, "'{}' {} {names}", self.0, $refusal)
            }
        }

        impl std::error::Error for $error {}
    };
}

named! {
    /// Policy of a pool, by its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum PoolKind {
        /// No pool: `cuMemAlloc` for each request and `cuMemFree` for each free. A free blocks the
        /// host until all work of the device is completed, and nothing is cached. One exception:
        /// memory freed on a capturing stream stays pending until the capture ends.
        None = "none",
        /// One list of whole blocks. The code is short, to serve as an example of a pool.
        Simple = "simple",
        /// Powers of two from one byte to 128 MiB, cached by bin. Larger blocks are not cached.
        Binned = "binned",
        /// Best fit over segments that are split and coalesced.
        Split = "split",
        /// Best fit over physical pages. If no free range is large enough, free pages are mapped
        /// into one range. On a device without virtual memory management, `stitched` works like
        /// `split`.
        Stitched = "stitched",
        /// A stream-ordered pool of the driver. It keeps freed memory up to the release threshold
        /// (`HeapBuilder::release_threshold`), by default all of it.
        Driver = "driver",
    }
}

parsed_by_name! {
    PoolKind,
    /// Error for an unknown pool name. The text of the error lists the names of all pools.
    UnknownPool,
    "is not a pool; the pools are"
}

impl PoolKind {
    /// Returns the name that a `MemoryStatus` prints.
    pub fn title(self) -> &'static str {
        match self {
            PoolKind::None => "NonePool",
            PoolKind::Simple => "SimplePool",
            PoolKind::Binned => "BinnedPool",
            PoolKind::Split => "SplitPool",
            PoolKind::Stitched => "StitchedPool",
            PoolKind::Driver => "DriverPool",
        }
    }
}

/// Rules that decide which freed blocks of a pool each thread keeps in its thread cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRules {
    /// Rounding of sizes.
    pub rounding: Rounding,
    /// Largest size, in bytes, of small blocks. A thread caches a few blocks of each small size,
    /// but none above 128 MiB (`thread_cache::LARGEST` of gpuheap).
    pub small: u64,
    /// Value that replaces `small`, in bytes, if several threads use the pool and would wait for
    /// its lock.
    pub small_shared: u64,
    /// `true` if a thread also caches the last block above `small` that it freed.
    pub large: bool,
}

impl CacheRules {
    /// Returns the rules for blocks of `pool` that threads cache. Returns `None` if threads cache
    /// no block of `pool`: `simple` is kept simple as an example, `none` caches nothing, and with
    /// `driver` the driver decides.
    pub fn for_pool(pool: PoolKind) -> Option<CacheRules> {
        match pool {
            // Blocks of one bin have the same size, so a block in a thread's cache fits as well as
            // any other block. Caching it wastes no memory.
            PoolKind::Binned => Some(CacheRules {
                rounding: Rounding::PowersOfTwo,
                small: u64::MAX,
                small_shared: u64::MAX,
                large: false,
            }),
            // The limits of small blocks are low, because a thread reuses its blocks without best
            // fit. Caching larger blocks costs the trace `gpt_train_short` 0.06 to 0.15 of
            // utilisation, and `serve_threads` 0.03 to 0.1.
            PoolKind::Split => Some(CacheRules {
                rounding: Rounding::Units,
                small: 256 << 10,
                small_shared: 1 << 20,
                large: true,
            }),
            PoolKind::Stitched => Some(CacheRules {
                rounding: Rounding::Units,
                small: 64 << 10,
                small_shared: 1 << 20,
                large: true,
            }),
            PoolKind::None | PoolKind::Simple | PoolKind::Driver => None,
        }
    }
}

/// Rounding of sizes by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rounds up to multiples of 512 bytes.
    Units,
    /// Rounds up to powers of two.
    PowersOfTwo,
}

impl Rounding {
    /// Returns the block size for a request of `bytes`. Only for requests that a thread cache may
    /// serve, not for zero bytes.
    #[inline]
    pub fn round(self, bytes: u64) -> u64 {
        match self {
            Rounding::Units => round_up(bytes, ROUNDING),
            Rounding::PowersOfTwo => bytes.next_power_of_two(),
        }
    }

    /// Returns the rounding as a number.
    #[inline]
    pub fn number(self) -> u64 {
        u64::from(self == Rounding::PowersOfTwo)
    }

    /// Returns the rounding with that [number](Rounding::number).
    #[inline]
    pub fn from_number(number: u64) -> Rounding {
        if number == 0 { Rounding::Units } else { Rounding::PowersOfTwo }
    }
}
